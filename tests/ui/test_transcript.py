"""A chat as messages and notes: what is drawn where."""

from dataclasses import replace
from typing import Any

from kvchat.chat.answer import LiveAnswer
from kvchat.chat.rows import Exchange
from kvchat.errors import RequestError
from kvchat.ui.transcript import merged, messages, notes


def exchange(turn: int, **about: Any) -> Exchange:
    plain = Exchange(
        turn, f"u{turn}", f"question {turn}", (), f"r{turn}", f"reply {turn}", "stop", {"bytes": 1},
        [], False, 1, 1,
    )  # fmt: skip
    return replace(plain, **about)


def live(turn: int, text: str = "half", status: str = "decode") -> LiveAnswer:
    found = LiveAnswer("c", turn, "q")
    found.text, found.status = text, status  # type: ignore[assignment]
    return found


def texts(found: list[dict[str, str]]) -> list[str]:
    return [one["content"] for one in found]


def test_question_and_reply_alternate_with_places_for_what_stands_below() -> None:
    found = messages([exchange(1), exchange(2)], None, "en", 24)
    assert [one["role"] for one in found] == ["user", "assistant"] * 2
    assert 'id="kv-ask-1"' in found[0]["content"]
    assert 'id="kv-tools-1"' in found[0]["content"]
    assert 'id="kv-foot-2"' in found[3]["content"]


def test_the_answer_being_made_takes_its_place_and_nothing_stands_after_it() -> None:
    found = merged([exchange(1), exchange(2), exchange(3)], live(2))
    assert [one.turn for one in found] == [1, 2]
    assert found[1].reply == "half"
    assert found[1].finish_reason is None
    assert "kv-live" in texts(messages(found, live(2), "en", 24))[3]


def test_an_answer_that_ended_is_what_the_store_says() -> None:
    ended = live(1, "all of it", "done")
    assert merged([exchange(1)], ended)[0].reply == "reply 1"
    assert "kv-live" not in "".join(texts(messages([exchange(1)], ended, "en", 24)))


def test_only_the_last_turns_are_drawn_and_a_place_for_the_rest() -> None:
    chat = [exchange(n) for n in range(1, 31)]
    found = messages(chat, None, "en", 24)
    assert 'id="kv-earlier"' in found[0]["content"]
    assert "question 7" in found[1]["content"]
    about = notes("c", chat, None, "en", 24)
    assert about["earlier"] == 6
    assert [one["turn"] for one in about["turns"]] == list(range(7, 31))


def test_one_divider_stands_after_the_last_turn_that_the_model_does_not_see() -> None:
    chat = [exchange(1, left_out=True), exchange(2, left_out=True), exchange(3)]
    found = texts(messages(chat, None, "ko", 24))
    dividers = [n for n, one in enumerate(found) if "kv-divider" in one]
    assert dividers == [4]
    assert "위의 턴 2개" in found[4]
    assert 'class="kv-undo"' in found[4]
    assert "kv-unseen" in found[0]
    assert "모델이 보지 못함" in found[0]
    assert "kv-unseen" not in found[5]
    assert "kv-marks" not in found[5]


def test_a_pinned_turn_among_those_that_are_left_out_has_a_divider_at_each_side() -> None:
    """Each counts the turns above it up to the next one that is seen, drawn or not."""
    unseen = {1, 2, 4, 5, 6}
    chat = [exchange(n, left_out=n in unseen, pinned=n == 3) for n in range(1, 9)]
    found = texts(messages(chat, None, "en", 24))
    said = [one for one in found if "kv-divider" in one]
    assert ["the 2 turns above" in said[0], "the 3 turns above" in said[1]] == [True, True]
    assert "the 3 turns above" in texts(messages(chat, None, "en", 4))[5]
    alone = texts(messages([exchange(1, left_out=True), exchange(2)], None, "en", 24))
    assert "does not see the turn above" in alone[2]
    assert [note["pinned"] for note in notes("c", chat, None, "en", 24)["turns"]][2]


def test_turns_of_which_a_summary_stands_in_the_prompt_say_so() -> None:
    chat = [exchange(1, left_out=True, summary="In <short>."), exchange(2)]
    found = texts(messages(chat, None, "en", 24))
    assert "summarized for the model" in found[0]
    assert "sees a summary of the turn above" in found[2]
    assert "In &lt;short&gt;." in found[2]  # to be read by the person, too


def test_a_turn_that_lost_its_inside_says_so() -> None:
    found = texts(messages([exchange(1, evicted=True), exchange(2)], None, "en", 24))
    assert "seen by the model only in part" in found[0]
    assert not any("kv-divider" in one or "kv-unseen" in one for one in found)


def test_names_of_files_are_text() -> None:
    chat = [exchange(1, documents=("<b>.pdf",))]
    assert "&lt;b&gt;.pdf" in texts(messages(chat, None, "en", 24))[0]


def test_what_went_wrong_is_said_in_the_language_of_the_page() -> None:
    failed = live(1, "half", "failed")
    failed.error = RequestError("ui_upload")
    kept = exchange(1, reply=None, problem={"code": "ui_upload", "facts": {}})
    for lang, words in (("en", "not a file"), ("ko", "올린 파일이 아닙니다")):
        for about in (
            notes("c", [exchange(1)], failed, lang, 24),  # type: ignore[arg-type]
            notes("c", [kept], None, lang, 24),  # type: ignore[arg-type]
        ):
            assert words in about["turns"][0]["problem"]["message"]
            assert about["problem"] is None  # it stands under its question


def test_a_question_that_was_not_written_down_comes_back() -> None:
    failed = live(2, "", "failed")
    failed.error = RequestError("ui_upload")
    problem = notes("c", [exchange(1)], failed, "en", 24)["problem"]
    assert (problem["unsent"], "not a file" in problem["message"]) == ("q", True)


def test_a_huge_question_is_folded_and_a_usual_one_is_not() -> None:
    for text, is_folded in (("short", False), ("x" * 1201, True), ("\n" * 16, True)):
        found = messages([exchange(1, text=text)], None, "en", 24)[0]["content"]
        assert ("kv-fold" in found) == is_folded
        assert found.count("x") >= text.count("x")  # all of it is there


def test_notes_carry_what_scripts_draw() -> None:
    chat = [exchange(1, sibling=2, num_siblings=3, finish_reason="length")]
    (note,) = notes("c", chat, live(1), "en", 24)["turns"]
    assert (note["sibling"], note["num_siblings"], note["finish_reason"]) == (2, 3, "length")
    assert notes("c", chat, live(1), "en", 24)["live"] == {"turn": 1, "status": "decode"}
    assert notes("c", chat, live(1, "", "done"), "en", 24)["live"] is None
