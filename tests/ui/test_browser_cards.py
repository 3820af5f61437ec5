"""Cards about memory, what taking back costs, and marks in the chat, in a real browser."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from kvchat.errors import OutOfMemory
from tests.ui.conftest import Looking, ask
from tests.ui.served import Tiny

pytestmark = pytest.mark.browser
MIB = 2**20


@pytest.mark.parametrize(
    ("lang", "title", "what", "close"),
    [
        ("en", "Another program took 900 MiB more of the device's memory", "What uses it", "Close"),
        (
            "ko",
            "다른 프로그램이 장치 메모리를 900 MiB 더 쓰기 시작했습니다",
            "무엇이 쓰는지 보기",
            "닫기",
        ),
    ],
)
def test_another_program_that_grew_is_named(
    looking: Looking, lang: str, title: str, what: str, close: str
) -> None:
    page = looking.open(lang)
    ask(page, "count to 3")
    chat = page.evaluate("kvchat.chat")
    looking.talks.programs = [{"pid": 41, "name": "game.exe", "bytes_used": 900 * MIB}]
    looking.talks.other_bytes += 900 * MIB
    looking.talks.record(chat, "requantize", "others_grew", 351 * MIB, tokens=64, formats="int8")
    box = page.locator(".kv-memory-card")
    expect(box).to_contain_text(title)
    expect(box).to_contain_text("351 MiB")
    box.get_by_role("button", name=what).click()
    expect(page.locator(".kv-held")).to_contain_text("game.exe")
    page.keyboard.press("Escape")
    expect(page.locator(".kv-held")).to_be_hidden()
    box.get_by_role("button", name=close).click()
    expect(box).to_be_hidden()
    page.wait_for_timeout(1200)  # and stays so, with the next frame
    expect(box).to_be_hidden()


def test_what_was_before_the_page_or_in_another_chat_is_no_news(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    chat = page.evaluate("kvchat.chat")
    looking.talks.record(chat, "requantize", "others_grew", 351 * MIB, tokens=64, formats="int8")
    box = page.locator(".kv-memory-card")
    expect(box).to_be_visible()
    page.reload()
    expect(page.locator(".kv-text")).to_have_count(1)
    page.wait_for_timeout(1200)
    expect(box).to_be_hidden()
    looking.talks.record(chat, "requantize", "others_grew", 186 * MIB, tokens=64, formats="int8")
    looking.talks.ledger_since(chat, 0)[-1]["chat"] = "another"
    page.wait_for_timeout(1200)
    expect(box).to_be_hidden()
    looking.talks.record(chat, "requantize", "others_grew", 42 * MIB, tokens=64, formats="int8")
    expect(box).to_contain_text("42 MiB")


@pytest.mark.parametrize(("more", "num"), [(2, 0), (640, 1)])
def test_fewer_bits_are_offered_only_for_a_gain_worth_them(
    looking: Looking, more: int, num: int
) -> None:
    page = looking.open()  # its own: what a call says is changed
    ask(page, "count to 3")
    page.evaluate(
        "(more) => { const call = kvchat.call; kvchat.call = (name, sent) => name === 'foretell'"
        " ? { now: { tokens: 100 }, then: { tokens: 100 + more } } : call(name, sent) }",
        more,
    )
    chat = page.evaluate("kvchat.chat")
    looking.talks.record(chat, "requantize", "others_grew", 351 * MIB, tokens=64, formats="int8")
    box = page.locator(".kv-memory-card")
    expect(box).to_contain_text("351 MiB")
    page.wait_for_timeout(200)
    expect(box.get_by_role("button", name="for old turns")).to_have_count(num)


def test_turns_left_out_are_read_again_from_the_card(looking: Looking) -> None:
    looking.talks.room = 200
    page = looking.page
    for _ in range(4):
        ask(page, "count to 15")
    chat = page.evaluate("kvchat.chat")
    looking.talks.fail_next = OutOfMemory("undo_no_room", tokens=1200, capacity=200)
    looking.talks.record(
        chat, "truncate_turns", "prompt_too_long", 0, turns=[1, 2], num_turns=2, tokens=90
    )
    box = page.locator(".kv-memory-card")
    expect(box.get_by_role("button", name="Read again (no room now)")).to_be_visible()
    looking.talks.budget = 6144 * MIB  # then something else fits: it is asked for again
    expect(box).to_contain_text("Turns 1–2 no longer fit: the model does not see them.")
    again = box.get_by_role("button", name="Read again (1,200 tokens, about 4.2 s)")
    again.click()
    box.get_by_role("button", name="Do it").click()
    expect(page.locator(".kv-divider .kv-undo")).to_have_text("comes back with the next question")


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_memory_that_ran_out_is_made_larger_and_the_answer_goes_on(
    looking: Looking, lang: str
) -> None:
    page = looking.open(lang)
    ask(page, "count to 3")
    looking.talks.fail_later = OutOfMemory("out_of_memory", needed=1, used=2, allowed=3)
    ask(page, "count to 4", wait=False)
    box = page.locator(".kv-memory-card")
    words = {"en": "Memory ran out", "ko": "메모리가 모자라 답을 멈췄습니다"}[lang]
    expect(box).to_contain_text(words)
    name = {"en": "Raise the headroom to 856 MiB and go on", "ko": "여유선을 856 MiB까지 올리고"}[
        lang
    ]
    box.get_by_role("button", name=name).click()
    page.wait_for_function("kvchat.notes.turns.at(-1).answered && !kvchat.notes.live")
    expect(box).to_be_hidden()
    assert looking.talks.applied == [{"headroom": 856 * MIB}]
    assert page.locator(".kv-text").last.inner_text() == "1 2 3 4"


def test_a_change_that_is_refused_says_why_on_the_card(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    looking.talks.fail_later = OutOfMemory("out_of_memory", needed=1, used=2, allowed=3)
    ask(page, "count to 4", wait=False)
    box = page.locator(".kv-memory-card")
    button = box.get_by_role("button", name="Raise the headroom")
    expect(button).to_be_visible()
    looking.talks.refuse_settings = True
    button.click()
    expect(box).to_contain_text("The screen asked for something that is not there any more.")
    assert not page.evaluate("Boolean(kvchat.notes.live)")


def test_a_spill_is_told_with_a_way_out(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    looking.talks.record(page.evaluate("kvchat.chat"), "spill", "driver_spills", 0, times="6")
    box = page.locator(".kv-memory-card")
    expect(box).to_contain_text("6 times slower than before")
    box.get_by_role("button", name="Keep 300 MiB more free").click()
    expect(box).to_contain_text("Done. It holds from the next question on.")
    assert looking.talks.applied == [{"headroom": 900 * MIB}]


@pytest.mark.parametrize(
    ("lang", "words", "again"),
    [
        ("en", "kept in fewer bits (INT6/INT4)", "Read again (1,200 tokens, about 4.2 s)"),
        ("ko", "더 적은 비트로 저장됨(INT6/INT4)", "다시 읽기 (1,200토큰, 약 4.2초)"),
    ],
)
def test_a_message_kept_in_fewer_bits_says_so_with_the_way_back(
    looking: Looking, lang: str, words: str, again: str
) -> None:
    page = looking.open(lang)
    for number in (3, 4):
        ask(page, f"count to {number}")
    chat = page.evaluate("kvchat.chat")
    looking.talks.record(chat, "requantize", "no_room", MIB, tokens=64, formats="int6/int4")
    looking.talks.ledger_since(chat, 0)[-1]["turns"].append("u1")
    looking.talks.marks = [
        {"turn": 1, "name": "u1", "left_out": False, "summarized": False, "evicted": False,
         "formats": "int6/int4"}
    ]  # fmt: skip
    mark = page.locator("#kv-ask-1 .kv-marks")
    expect(mark).to_contain_text(words)
    expect(page.locator("#kv-ask-2 .kv-marks")).to_have_count(0)
    mark.get_by_role("button", name=again).click()
    mark.get_by_role("button").first.click()
    looking.talks.marks = []
    expect(mark).to_have_count(0)


def test_an_outdated_row_offers_nothing(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    chat = page.evaluate("kvchat.chat")
    for _ in range(2):
        looking.talks.record(chat, "requantize", "no_room", MIB, tokens=64, formats="int8/int8")
    page.evaluate("kvchat.panel.open('ledger')")
    rows = page.locator(".kv-ledger li")
    expect(rows.get_by_role("button", name="Read again")).to_have_count(2)
    looking.talks.frame(chat)["undo"]["offered"].pop(0)
    expect(rows.get_by_role("button", name="Read again")).to_have_count(1)
    expect(rows.first.get_by_role("button")).to_have_text("Read again (1,200 tokens, about 4.2 s)")


@pytest.mark.parametrize(
    ("lang", "name"),
    [("en", "Send anyway, with the headroom of 600 MiB"), ("ko", "그래도 보내기")],
)
def test_where_only_the_headroom_is_short_it_is_sent_anyway(
    looking: Looking, lang: str, name: str
) -> None:
    page = looking.open(lang)
    ask(page, "count to 3")
    looking.talks.fail_later = OutOfMemory(
        "prompt_over_memory", tokens=9120, capacity=7300, needed="8 GiB", allowed="7 GiB"
    )
    ask(page, "count to 5", wait=False)
    page.locator(".kv-memory-card").get_by_role("button", name=name).click()
    page.wait_for_function("kvchat.notes.turns.at(-1).answered && !kvchat.notes.live")
    assert looking.talks.way == "at_own_risk"
    assert page.locator(".kv-text").last.inner_text() == "1 2 3 4 5"


@pytest.mark.parametrize("name", ["Store all text in INT8 and send", "Raise the budget to 66 MiB"])
def test_a_question_too_long_is_stored_in_fewer_bits_or_with_a_larger_budget_and_sent(
    chromium: Browser, tmp_path: Path, name: str
) -> None:
    """On the program itself: what the card foretells holds."""
    tiny = Tiny(tmp_path, memory_budget=1_990_000)
    page = chromium.new_page()
    page.goto(f"{tiny.url}/en/")
    page.wait_for_selector("#kv-input")
    page.wait_for_function("kvchat.frame && kvchat.notes.chat === kvchat.chat")
    ask(page, "The cat sat on the mat. " * 60, wait=False)
    card = page.locator(".kv-memory-card")
    expect(card).to_contain_text(re.compile(r"it takes [\d,]+ tokens, and [\d,]+ fit"))
    card.get_by_role("button", name=name).click()
    page.wait_for_function("kvchat.notes.turns.at(-1).answered && !kvchat.notes.live")
    found, larger = tiny.talks.settings, 1_990_000 + 64 * MIB
    assert (found.seal_format == "int8") != (found.memory_budget == larger)
    page.close()
    tiny.end()
