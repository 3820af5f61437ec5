import pytest

from kvchat.documents.follow import Query, meant_documents, resolved, without_documents

BEFORE = "Where must PID files be placed?"


@pytest.mark.parametrize(
    ("question", "leans"),
    [
        ("And how are they named?", True),
        ("Why?", True),
        ("Tell me more about it.", True),
        ("what about Korea?", True),
        ("And in the second one?", True),
        ("In Korea?", True),
        ("For Windows?", True),
        ("The second one?", True),
        ("그건 왜 그런가요?", True),
        ("더 자세히 설명해 주세요", True),
        ("한국은?", True),
        ("두 번째는요?", True),
        ("그럼 가격은 얼마인가요?", True),
        ("거기에는 누가 사나요?", True),
        (BEFORE, False),
        ("thanks!", False),
        ("고마워요", False),
        ("summarise the document", False),
        ("메모리는 얼마나 필요한가?", False),
        ("When are the roses in the garden watered by the gardener of this house?", False),
    ],
)
def test_a_question_that_cannot_stand_alone_leans_on_the_one_before(question, leans):
    found = resolved(question, ["An older question", BEFORE])
    assert found == Query(question, BEFORE if leans else "")
    assert resolved(question, []) == Query(question)


def test_a_chain_of_such_questions_reaches_back_to_one_that_says_it():
    earlier = ["Who lives in the tower?", BEFORE, "And who owns them?", "Why?"]
    context = resolved("And in Korea?", earlier).context
    assert BEFORE in context
    assert "tower" not in context


def test_names_of_the_last_reply_are_what_a_pronoun_may_mean():
    context = resolved("When was he born?", ["Who leads?"], "It is led by Stefano Zacchiroli.")
    assert "Stefano Zacchiroli" in context.context


NAMES = ["manual-v2.pdf", "report.pdf", "전기요금 약관.pdf"]


@pytest.mark.parametrize(
    ("question", "places"),
    [
        ("What does manual-v2.pdf say?", [0]),
        ("What does manual-v2 say?", [0]),
        ("And in the second one?", [1]),
        ("두 번째 문서에는 뭐라고 나와?", [1]),
        ("두 번째는?", [1]),
        ("the report document", [1]),
        ("Please report the first failure", [0, 1, 2]),
        ("전기요금 약관에서 위약금은?", [2]),
        ("What happened in the second world war?", [0, 1, 2]),
        ("마지막 문서의 결론은?", [2]),
        ("How much is it?", [0, 1, 2]),
    ],
)
def test_the_document_that_a_question_names(question, places):
    assert meant_documents(question, NAMES) == places


@pytest.mark.parametrize(
    ("query", "bare"),
    [
        (Query("In report.pdf, who lives there?"), "In  , who lives there?"),
        (Query("두 번째 문서에서 위약금은?"), "  위약금은?"),
        (Query("둘째 문서의 세금과 네트워크는?"), " 세금과 네트워크는?"),
        (Query("마지막 문서에서 마지막 날은?"), " 마지막 날은?"),
        (Query("In the second one?", "Who lives there?"), "In  ?"),
    ],
)
def test_words_that_only_say_which_document_are_not_searched(query, bare):
    found = without_documents(query, NAMES)
    assert found.text.split() == bare.split()
    assert found.context == query.context


def test_a_question_that_is_nothing_else_keeps_its_words():
    assert without_documents(Query("the second document"), NAMES).text == "the second document"
