import pytest
from hypothesis import given as given_text
from hypothesis.strategies import text as texts

from kvchat.documents.cite import Citation, best_pages, given, matched
from kvchat.documents.passages import split
from tests.documents.made import count_words, document

PAGE_RUN = (
    "Process identifier (PID) files, which were originally placed in /etc, must be placed in /run. "
    "The naming convention for PID files is <program-name>.pid."
)
PAGE_TAX = "Nonresident alien individuals are subject to a 4% tax on gross transportation income."
PAGE_AMT = "The exemption is $33,750, or $22,500 if married filing separately, for the year 2007."
PAGE_KO = "스테파노자히콜리 (Stefano Zacchiroli) 가 2010 년 4 월부터 2013 년 4 월까지맡았다."
DOCUMENT = document(PAGE_RUN, PAGE_TAX, PAGE_AMT, PAGE_KO, labels=["i", None, "1", "2"])
NAMES = {DOCUMENT.sha256: "a.pdf"}


def citations():
    return given(split(DOCUMENT, count_words, 12), NAMES, {DOCUMENT.sha256: DOCUMENT})


def pages_matched(answer, cited=None):
    cited = cited or citations()
    return [one.page for one in matched(cited, answer) if one.support == "matched"]


def test_every_page_that_was_given_is_cited_once_with_its_label():
    cited = citations()
    assert [(one.page, one.label) for one in cited] == [(1, "i"), (2, None), (3, "1"), (4, "2")]
    assert {one.support for one in cited} == {"given"}
    assert {one.name for one in cited} == {"a.pdf"}
    assert "must be placed in /run" in cited[0].text.replace("\n", " ")


def test_a_passage_over_two_pages_cites_both_but_not_for_a_few_letters():
    long = document(PAGE_RUN, PAGE_TAX)
    passages = split(long, count_words, 500)
    assert len(passages) == 1
    assert [one.page for one in given(passages, NAMES, {long.sha256: long})] == [1, 2]
    short = document(PAGE_RUN, "so.")
    cited = given(split(short, count_words, 500), NAMES, {short.sha256: short})
    assert [one.page for one in cited] == [1]


@pytest.mark.parametrize(
    ("answer", "pages"),
    [
        ("PID files must be placed in /run.", [1]),
        ("They go into the directory /run, named <program-name>.pid", [1]),
        ("A 4% tax applies.", [2]),
        ("4%", [2]),
        ("It is $22,500 for a person married filing separately.", [3]),
        ("2010년 4월부터 2013년 4월까지 리더였습니다.", [4]),
        ("PID files are in /run. The tax is 4% of the income.", [1, 2]),
        ("Nonresident alien individuals are subject to something.", [2]),
    ],
)
def test_what_an_answer_shares_is_matched(answer, pages):
    assert pages_matched(answer) == pages


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I do not know.",
        "The document does not say.",
        "A 5% tax applies to the income.",
        "It is $45,000 for a person married filing separately.",
        "PID files are kept in 4242 places.",
        "They go to /etc.",
        "Bananas are yellow.",
        "2001년부터 2002년까지 리더였습니다.",
        "그 문서에는 그런 내용이 없습니다.",
    ],
)
def test_what_an_answer_made_up_is_not_matched(answer):
    assert pages_matched(answer) == []


def test_a_models_own_page_mark_counts_only_for_a_page_that_was_given():
    assert pages_matched("Files of processes are placed there [page 1].") == [1]
    assert pages_matched("Files of processes are placed there [page 9].") == []
    assert pages_matched("The tax is 4% (page 2).") == [2]
    assert pages_matched("세금은 4%입니다 (2쪽).") == [2]


def test_only_the_page_that_says_it_best_is_matched():
    cited = [
        Citation("s", "a.pdf", 1, None, "The tax was 4% in some cases.", "given"),
        Citation("s", "a.pdf", 2, None, PAGE_TAX, "given"),
    ]
    assert pages_matched("Alien individuals are subject to a 4% tax on transportation.", cited) == [
        2
    ]


def test_a_path_is_not_found_inside_a_longer_one():
    cited = [
        Citation("s", "a.pdf", 1, None, "Lock files are placed in /var/run or /srv/run.", "given"),
        Citation("s", "a.pdf", 2, None, "Lock files are placed in /run.", "given"),
    ]
    assert pages_matched("The files are placed in /run.", cited) == [2]


def test_of_a_whole_document_the_best_pages_are_cited():
    cited = best_pages(DOCUMENT, "Where must PID files be placed?")
    assert cited[0].page == 1
    assert cited[0].label == "i"
    assert cited[0].support == "given"
    assert len(best_pages(DOCUMENT, "tax exemption income placed married", k=2)) <= 2


def test_an_answer_finds_pages_that_the_question_does_not_name():
    cited = best_pages(DOCUMENT, "How much is it?", "It is $22,500 if married filing separately.")
    assert cited[0].page == 3


@pytest.mark.parametrize("question", ["hello", "Who won the world cup?", "안녕하세요"])
def test_below_the_threshold_nothing_is_cited(question):
    assert best_pages(DOCUMENT, question) == []


def test_pages_are_real_ones_of_the_right_document():
    other = document("Bananas are yellow and grow in warm places.", sha="b" * 64, name="b.pdf")
    passages = [*split(DOCUMENT, count_words, 12), *split(other, count_words, 12)]
    names = {**NAMES, other.sha256: "b.pdf"}
    cited = given(passages, names, {DOCUMENT.sha256: DOCUMENT, other.sha256: other})
    assert pages_matched("Bananas are yellow and grow in warm places.", cited) == [1]
    bananas = matched(cited, "Bananas are yellow and grow in warm places.")[-1]
    assert (bananas.document, bananas.name, bananas.support) == ("b" * 64, "b.pdf", "matched")


def test_a_match_says_which_sentence_and_which_lines():
    cited = citations()
    answer = "Well. They must be placed in /run. The tax is 4% on gross transportation income. Bye."
    first, tax = (one for one in matched(cited, answer) if one.support == "matched")
    assert [answer[:at].split(". ")[-1] for at in first.at] == ["They must be placed in /run."]
    assert [answer[:at].split(". ")[-1] for at in tax.at] == [
        "The tax is 4% on gross transportation income."
    ]
    assert "placed in /run" in first.quote.replace("\n", " ")
    assert all(one.quote in one.text for one in (first, tax))
    assert {(one.quote, one.at) for one in matched(cited, answer) if one.support == "given"} == {
        ("", ())
    }


def test_a_quote_is_a_few_lines_of_a_long_page():
    lines = [f"Line {n} says that the sea is deep and wide, as ever." for n in range(40)]
    lines[23] = "The lamp of the harbour is green,"
    lines[24] = "and it is lit at 19:40 each evening."
    page = document("\n".join(lines))
    cited = given(split(page, count_words, 2000), {page.sha256: "a.pdf"}, {page.sha256: page})
    (one,) = matched(cited, "The lamp of the harbour is lit at 19:40 each evening.")
    assert one.support == "matched"
    assert one.quote == "\n".join(lines[23:25])


@given_text(texts(max_size=200), texts(max_size=120))
def test_places_are_ends_of_sentences_of_the_answer(text, answer):
    page = document(text or "x")
    cited = given(split(page, count_words, 50), {page.sha256: "a.pdf"}, {page.sha256: page})
    for one in matched(cited, answer):
        assert all(0 < at <= len(answer) and not answer[at - 1].isspace() for at in one.at)
        assert one.quote in one.text


CONTENTS = "\n".join(f"3.{n}. /{one} : {title} … {n}" for n, (one, title) in enumerate((
    ("opt", "Add-on application software packages"), ("root", "Home directory for the root user"),
    ("run", "Run-time variable data"), ("sbin", "System binaries"),
)))  # fmt: skip
BODY = "3.2. /run : Run-time variable data\nIt is cleared when the system begins to run."


@pytest.mark.parametrize(
    "answer", ["3.2. /run : Run-time variable data", "/run is for run-time variable data."]
)
def test_a_table_of_contents_is_confirmed_only_where_no_page_says_it(answer):
    both = document(CONTENTS, BODY)
    cited = given(split(both, count_words, 20), NAMES, {both.sha256: both})
    assert {one.page for one in cited} == {1, 2}
    assert pages_matched(answer, cited) == [2]
    assert pages_matched(answer, [one for one in cited if one.page == 1]) == [1]
    best = best_pages(both, "What is /run for?", answer)
    assert [one.page for one in matched(best, answer) if one.support == "matched"] == [2]
