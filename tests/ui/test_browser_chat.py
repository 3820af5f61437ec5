"""The chat in a real browser: ask, stream, stop, versions, reload, several tabs."""

import re
import time

import pytest
from playwright.sync_api import Page, expect

from kvchat.errors import RequestError
from tests.ui.conftest import Looking, answered, ask, replies, watch_lengths
from tests.ui.replies import ENGLISH

pytestmark = pytest.mark.browser


def text_of(markdown: str) -> str:
    return markdown.replace("*", "")


def test_a_question_is_answered_as_it_is_written(looking: Looking) -> None:
    page = looking.page
    looking.talks.token_s = 0.03
    watch_lengths(page)
    ask(page, "What is it?")
    assert page.evaluate("window.lengths.size") > 4
    assert replies(page) == [text_of(ENGLISH)]
    assert page.locator(".kv-ask").inner_text() == "What is it?"
    assert re.search(r"\?c=\w+$", page.url)


def test_what_was_drawn_late_is_not_taken_for_the_chat_that_begins(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    late = """() => {
        const late = structuredClone(kvchat.notes);
        kvchat.open(null);
        kvchat.ask("count to 4");
        kvchat.hear(late);
        return kvchat.chat;
    }"""
    assert page.evaluate(late) is None
    expect(page.locator(".kv-text")).to_have_text("1 2 3 4")
    expect(page.locator(".kv-chat-row")).to_have_count(2)


def test_the_figures_stand_under_the_reply(looking: Looking) -> None:
    page = looking.page
    ask(page, "What is it?")
    line = page.locator(".kv-figures")
    expect(line).to_have_count(1)
    for part in ("Turn 1", "tokens", "MiB", "FP", "reused", "first token after", "tokens/s"):
        expect(line).to_contain_text(part)
    ask(page, "And again?")
    expect(line).to_have_count(2)
    expect(line.last).to_contain_text("Turn 2")


def test_one_answer_has_one_line_of_figures_while_it_streams(looking: Looking) -> None:
    page = looking.page
    looking.talks.token_s = 0.03
    ask(page, "What is it?", wait=False)
    expect(page.locator(".kv-figures")).to_contain_text("answering")
    expect(page.locator(".kv-figures")).to_contain_text(re.compile(r"\d tokens/s"))
    assert page.locator(".kv-figures").count() == 1
    answered(page)


def test_stopping_keeps_what_was_written_and_shows_no_error(looking: Looking) -> None:
    page = looking.page
    looking.talks.token_s = 0.01
    for number in range(1, 11):
        ask(page, "count to 1000", wait=False)
        expect(page.locator(".kv-text").last).to_contain_text("3")
        begun = time.monotonic()
        page.keyboard.press("Escape") if number % 2 else page.click(".kv-stop", force=True)
        page.wait_for_function("!kvchat.notes.live")
        assert time.monotonic() - begun < 10  # 0.2 s at rest; other tests may run beside this one
        assert page.locator(".error").count() == 0
    expect(page.locator(".kv-end-cancelled")).to_have_count(10)
    kept = looking.talks.history(page.evaluate("kvchat.chat"))
    assert all(one.reply and one.reply.startswith("1 2 3 ") for one in kept)


def test_an_answer_that_was_cut_says_so_and_goes_on(looking: Looking) -> None:
    page = looking.page
    looking.talks.apply({"max_new_tokens": 5})
    ask(page, "count to 100")
    expect(page.locator(".kv-end-length")).to_contain_text("“Longest reply” in the settings")
    looking.talks.apply({"max_new_tokens": 8})
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".kv-text")).to_have_text("1 2 3 4 5 6 7 8 9 10 11 12 13")
    answered(page)
    expect(page.locator(".kv-ask")).to_have_count(1)
    expect(page.locator(".kv-end-length")).to_be_visible()


def test_versions_by_asking_again_and_by_editing(looking: Looking) -> None:
    page = looking.page
    ask(page, "a version please")
    first = replies(page)[0]
    page.get_by_role("button", name="Answer again").click()
    expect(page.locator(".kv-versions")).to_contain_text("2/2")
    answered(page)
    second = replies(page)[0]
    assert first != second
    page.locator(".user-row").hover()
    page.get_by_role("button", name="Edit the question").click()
    page.fill(".kv-edit", "another version")
    page.keyboard.press("Enter")
    expect(page.locator(".kv-versions")).to_contain_text("3/3")
    answered(page)
    assert page.locator(".kv-ask").inner_text() == "another version"
    for _ in range(2):
        page.get_by_role("button", name="Earlier version").click()
        page.wait_for_timeout(150)
    expect(page.locator(".kv-versions")).to_contain_text("1/3")
    expect(page.locator(".kv-text")).to_have_text(first)
    assert page.locator(".kv-ask").inner_text() == "a version please"


def test_deleting_a_turn_asks_first(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    ask(page, "count to 4")
    page.locator(".user-row").first.hover()
    page.get_by_role("button", name="Delete this turn").first.click()
    page.get_by_role("button", name="Keep").click()
    expect(page.locator(".kv-ask")).to_have_count(2)
    page.locator(".user-row").first.hover()
    page.get_by_role("button", name="Delete this turn").first.click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator(".kv-ask")).to_have_count(1)
    assert replies(page) == ["1 2 3 4"]


def test_escape_keeps_a_turn_and_the_question_tells_of_its_versions(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    page.locator(".user-row").hover()
    page.get_by_role("button", name="Delete this turn").click()
    asking = page.locator(".kv-asking")
    expect(asking).to_contain_text("Delete question and reply?")
    page.keyboard.press("Escape")
    expect(asking).to_have_count(0)
    expect(page.get_by_role("button", name="Delete this turn")).to_be_focused()
    page.get_by_role("button", name="Answer again").click()
    expect(page.locator(".kv-versions")).to_contain_text("2/2")
    answered(page)
    page.locator(".user-row").hover()
    page.get_by_role("button", name="Delete this turn").click()
    expect(asking).to_contain_text("all replies to it")
    page.mouse.click(5, 5)  # the focus is elsewhere
    page.keyboard.press("Escape")
    expect(asking).to_have_count(0)
    assert replies(page) == ["1 2 3"]


def test_a_reload_finds_the_chat_and_the_draft(looking: Looking) -> None:
    page = looking.open()
    ask(page, "What is it?")
    page.fill("#kv-input", "half a thought")
    page.reload()
    expect(page.locator(".kv-text")).to_have_text(text_of(ENGLISH))
    expect(page.locator("#kv-input")).to_have_value("half a thought")


def test_a_reload_in_mid_answer_goes_on_showing_it(looking: Looking) -> None:
    page = looking.open()
    looking.talks.token_s = 0.02
    ask(page, "count to 150", wait=False)
    expect(page.locator(".kv-text")).to_contain_text("20")
    page.reload()
    expect(page.locator(".kv-stop")).to_be_visible()
    answered(page)
    assert replies(page)[0].split()[-1] == "150"


def test_the_list_says_what_is_being_done_also_to_another_tab(looking: Looking) -> None:
    watching, page = looking.open(), looking.open()
    looking.talks.token_s = 0.02
    ask(page, "count to 2000", wait=False)
    for one in (page, watching):
        expect(one.locator(".kv-chat-about")).to_have_text("1 turn · answering")
    page.keyboard.press("Escape")
    answered(page)
    for one in (page, watching):
        expect(one.locator(".kv-chat-about")).to_have_text(re.compile("1 turn · in memory, .+iB"))


def test_two_tabs_do_not_mix(looking: Looking) -> None:
    looking.talks.token_s = 0.01
    one, two = looking.open(), looking.open()
    one.bring_to_front()
    ask(one, "count to 80", wait=False)
    two.bring_to_front()
    ask(two, "What is it?", wait=False)
    answered(two)
    one.bring_to_front()
    answered(one)
    assert replies(one)[0].split()[-1] == "80"
    assert replies(two) == [text_of(ENGLISH)]
    assert one.url != two.url


def test_a_second_tab_follows_the_same_answer(looking: Looking) -> None:
    one = looking.open()
    looking.talks.token_s = 0.2
    ask(one, "count to 120", wait=False)
    two = looking.open(chat=one.evaluate("kvchat.chat"))
    expect(two.locator(".kv-stop")).to_be_visible()
    looking.talks.token_s = 0.0
    answered(two)
    assert replies(two)[0].split()[-1] == "120"


def test_another_chat_is_shown_while_one_is_answered(looking: Looking) -> None:
    page = looking.page
    ask(page, "What is it?")
    looking.talks.token_s = 0.02
    page.keyboard.press("Control+Shift+O")
    expect(page.locator(".kv-welcome")).to_be_visible()
    ask(page, "count to 100", wait=False)
    page.locator(".kv-chat-open", has_text="What is it?").click()
    expect(page.locator(".kv-text")).to_have_text(text_of(ENGLISH))
    page.wait_for_timeout(600)
    assert replies(page) == [text_of(ENGLISH)]
    page.locator(".kv-chat-open", has_text="count to").click()
    expect(page.locator(".kv-ask")).to_have_text("count to 100")
    answered(page)
    assert replies(page)[0].split()[-1] == "100"
    page.go_back()
    expect(page.locator(".kv-text")).to_have_text(text_of(ENGLISH))


def test_an_error_gives_the_question_back(looking: Looking) -> None:
    page = looking.page
    looking.talks.fail_next = RequestError("ui_request")
    page.fill("#kv-input", "a long question")
    page.press("#kv-input", "Enter")
    expect(page.locator(".kv-problem")).to_contain_text("not there any more")
    expect(page.locator("#kv-input")).to_have_value("a long question")
    assert page.locator(".error").count() == 0


def compose(page: Page, text: str) -> None:
    keys = page.context.new_cdp_session(page)
    keys.send("Input.imeSetComposition", {"text": text, "selectionStart": 1, "selectionEnd": 1})
    for kind in ("rawKeyDown", "keyUp"):
        keys.send("Input.dispatchKeyEvent", {"type": kind, "key": "Enter", "code": "Enter",
                                             "windowsVirtualKeyCode": 229})  # fmt: skip


def test_enter_in_mid_syllable_does_not_send(looking: Looking) -> None:
    page = looking.open("ko")
    page.focus("#kv-input")
    compose(page, "한")
    page.wait_for_timeout(300)
    assert looking.talks.chats() == []
    page.context.new_cdp_session(page).send("Input.insertText", {"text": "한"})
    page.keyboard.press("Enter")
    page.wait_for_selector(".kv-ask")
    assert page.locator(".kv-ask").inner_text() == "한"


def test_shift_enter_makes_a_line_and_up_edits_the_last(looking: Looking) -> None:
    page = looking.page
    page.fill("#kv-input", "one")
    page.press("#kv-input", "Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    page.wait_for_selector(".kv-figures")
    answered(page)
    assert page.locator(".kv-ask").inner_text() == "one\ntwo"
    page.focus("#kv-input")
    page.keyboard.press("ArrowUp")
    expect(page.locator(".kv-edit")).to_have_value("one\ntwo")
    page.keyboard.press("Escape")
    expect(page.locator(".kv-edit")).to_have_count(0)


def test_a_long_chat_draws_its_last_turns_and_the_rest_on_request(looking: Looking) -> None:
    talks = looking.talks
    talks.token_s = 0.0
    chat = talks.new_chat()
    for number in range(1, 31):
        live = talks.ask(chat, f"count to {number}")
        assert live.wait_ended(5)
        while talks.live(chat):
            time.sleep(0.005)
    page = looking.open(chat=chat)
    expect(page.locator(".kv-ask")).to_have_count(24)
    assert page.locator(".kv-ask").first.text_content() == "count to 7"
    page.route("**/queue/join**", lambda route: route.fulfill(json={"event_id": "lost"}), times=1)
    page.get_by_role("button", name="Show 6 earlier turns").click()
    expect(page.locator(".kv-ask")).to_have_count(30)  # asked for again, as nothing was drawn
    talks.token_s = 1 / 60
    begun = time.monotonic()
    ask(page, "count to 120")
    expect(page.locator(".kv-text").last).to_have_text(re.compile(r"119 120\s*$"))
    assert time.monotonic() - begun < 20  # 2 s of tokens; ten times the second allowed after them


def test_the_view_follows_the_answer_until_somebody_scrolls_up(looking: Looking) -> None:
    page = looking.page
    ask(page, "markup")
    ask(page, "markup")
    looking.talks.token_s = 0.01
    ask(page, "count to 400", wait=False)
    log = page.locator("#kv-chat [role=log]")
    gap = "(log) => log.scrollHeight - log.scrollTop - log.clientHeight"
    expect(page.locator(".kv-text").last).to_contain_text("120")
    assert log.evaluate(gap) < 60
    log.hover()
    page.mouse.wheel(0, -600)
    page.wait_for_timeout(800)
    away = log.evaluate(gap)
    assert away > 300
    page.wait_for_timeout(600)
    assert log.evaluate(gap) >= away
    page.get_by_role("button", name="To the newest").click()
    page.wait_for_timeout(600)
    assert log.evaluate(gap) < 60
    page.keyboard.press("Escape")
    answered(page)


def test_a_question_is_not_lost_with_the_connection(looking: Looking) -> None:
    page = looking.open()
    looking.context.route("**/api/live*", lambda route: route.abort())
    try:
        page.evaluate("kvchat.emit('chat', kvchat.chat)")
        expect(page.locator(".kv-pill-words")).to_have_text("kvchat does not answer")
        page.fill("#kv-input", "still here")
        page.press("#kv-input", "Enter")
        expect(page.locator(".kv-problem")).to_contain_text("Check that kvchat is still running")
        expect(page.locator("#kv-input")).to_have_value("still here")
    finally:
        looking.context.unroute("**/api/live*")


def test_what_arrives_after_a_newer_wish_was_drawn_is_drawn_over_again(looking: Looking) -> None:
    page = looking.open()
    ask(page, "count to 3")
    page.evaluate(
        """() => { const act = kvchat.act; window.acts = [];
        kvchat.act = (kind, about) => { window.acts.push(kind); return act(kind, about); } }"""
    )
    assert page.evaluate("kvchat.notes.wish") > 1
    page.evaluate("kvchat.hear({ ...kvchat.notes, wish: 1, turns: [] })")
    assert page.evaluate("kvchat.notes.turns.length") == 1
    page.wait_for_function("window.acts.includes('open')")


def test_a_text_far_too_long_is_told_of_before_it_is_sent(looking: Looking) -> None:
    looking.talks.room = 200
    page = looking.page
    page.wait_for_function("kvchat.frame.kv.capacity_tokens === 200")
    page.fill("#kv-input", "word " * 400)
    expect(page.get_by_text("About 490 tokens by its letters, and about 200 fit.")).to_be_visible()
    # a single question is not stored in less, as older turns are
    looking.talks.fits = {
        "tokens": 90, "in_steps_tokens": 100, "most_tokens": 400, "stored": None, "pair": None,
        "helps": [],
    }  # fmt: skip
    page.wait_for_function("kvchat.frame.fits?.in_steps_tokens === 100")
    page.fill("#kv-input", "word " * 300)
    expect(page.get_by_text("About 370 tokens by its letters, and about 100 fit.")).to_be_visible()
    looking.talks.fits = None
    page.wait_for_function("kvchat.frame.fits === null")
    page.fill("#kv-input", "word " * 200)  # that may be wrong by a factor of two
    expect(page.get_by_text("tokens by its letters")).to_be_hidden()
