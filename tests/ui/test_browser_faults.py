"""What goes wrong around a chat, in a real browser: deleted, cut, refused, offline, too much."""

import re

import pytest
from playwright.sync_api import Page, expect

from kvchat.errors import OutOfMemory
from tests.ui.conftest import Looking, answered, ask, drop
from tests.ui.replies import PDF

pytestmark = pytest.mark.browser


def too_long() -> OutOfMemory:
    facts = {"tokens": 50_020, "needed": "590 MiB", "allowed": "64 MiB", "capacity": 1024}
    return OutOfMemory("prompt_over_memory", **facts)


def in_view(page: Page, selector: str) -> bool:
    return bool(
        page.evaluate(
            """(selector) => { const box = document.querySelector(selector).getBoundingClientRect();
            return box.top >= 0 && box.bottom <= innerHeight && box.height > 0; }""",
            selector,
        )
    )


def test_an_unknown_chat_is_said_to_be_gone_and_the_page_works(looking: Looking) -> None:
    page = looking.context.new_page()
    page.goto(f"{looking.url}/en/?c=doesnotexist")
    expect(page.locator(".kv-problem")).to_contain_text("This chat is no longer there")
    page.evaluate("kvchat.act('open')")  # as a second wish that was under way would
    page.wait_for_function("kvchat.notes.wish > 1 && kvchat.notes.gone === null")
    expect(page.locator(".kv-problem")).to_contain_text("This chat is no longer there")
    expect(page.locator(".kv-welcome")).to_be_visible()
    expect(page.locator(".kv-bar-total")).to_contain_text("GiB")
    assert page.locator(".error").count() == 0
    assert page.url.endswith("/en/")
    ask(page, "count to 3")
    expect(page.locator(".kv-pill-words")).to_have_text("Ready")
    expect(page.locator(".kv-text")).to_have_text("1 2 3")
    page.close()


@pytest.mark.parametrize(("lang", "words"), [("en", "was deleted"), ("ko", "삭제되었습니다")])
def test_a_chat_that_another_tab_deletes_is_said_to_be_deleted(
    looking: Looking, lang: str, words: str
) -> None:
    page = looking.open(lang)
    ask(page, "count to 3")
    page.fill("#kv-input", "half a thought")
    looking.talks.delete(page.evaluate("kvchat.chat"))
    expect(page.locator(".kv-problem")).to_contain_text(words)
    expect(page.locator(".kv-welcome")).to_be_visible()
    expect(page.locator(".kv-chat-row")).to_have_count(0)
    expect(page.locator("#kv-input")).to_have_value("half a thought")
    assert page.evaluate("kvchat.online")
    page.press("#kv-input", "Enter")
    expect(page.locator(".kv-ask")).to_have_text("half a thought")
    assert len(looking.talks.chats()) == 1


def test_one_form_edits_a_question_however_often_it_is_asked_for(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    ask(page, "count to 4")
    page.locator(".user-row").last.hover()
    page.get_by_role("button", name="Edit the question").last.dblclick()
    assert page.locator(".kv-edit").count() == 1  # at once, nothing is asked for
    assert page.evaluate("document.activeElement.className") == "kv-edit"
    page.evaluate("[1, 2, 3].forEach(() => kvchat.edit(2))")
    expect(page.locator(".kv-edit")).to_have_count(1)
    page.keyboard.type("0")
    expect(page.locator(".kv-edit")).to_have_value("count to 40")
    page.evaluate("kvchat.edit(1)")
    expect(page.locator(".kv-edit")).to_have_count(1)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Escape")
    expect(page.locator(".kv-edit")).to_have_count(0)


def test_many_unreadable_files_leave_the_box_where_it_is(looking: Looking) -> None:
    page = looking.open()
    page.set_viewport_size({"width": 1280, "height": 800})
    for number in range(7):
        drop(page, f"scan {number}.pdf", PDF)
        drop(page, f"{number}.txt", b"no pdf")
    more = page.locator(".kv-broken-more")
    expect(more).to_have_text("13 more files were not read", timeout=30_000)
    expect(page.locator(".kv-broken")).to_have_count(1)
    expect(page.locator(".kv-broken strong")).to_have_text("6.txt")
    assert looking.talks.chats() == []
    assert page.evaluate("kvchat.chat") is None
    more.click()
    expect(page.locator(".kv-broken")).to_have_count(14)
    assert in_view(page, ".kv-composer")
    ask(page, "count to 3")
    assert in_view(page, ".kv-composer")
    assert in_view(page, ".kv-top")
    assert page.evaluate("document.scrollingElement.scrollTop + document.body.scrollTop") == 0


def test_a_reply_that_was_cut_by_the_end_of_the_program_says_so(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 9")
    chat = page.evaluate("kvchat.chat")
    looking.talks._chats[chat].path()[-1].finish_reason = "interrupted"
    page.reload()
    end = page.locator(".kv-end-interrupted")
    expect(end).to_contain_text("Interrupted here")
    looking.talks._chats[chat].path()[-1].reply = "1 2 3 "
    end.get_by_role("button", name="Continue").click()
    answered(page)
    expect(page.locator(".kv-ask")).to_have_count(1)
    expect(page.locator(".kv-text")).to_have_text("1 2 3 4 5 6 7 8 9")
    expect(end).to_have_count(0)


def test_an_answer_in_circles_says_so_and_is_tried_with_a_penalty(looking: Looking) -> None:
    page = looking.page
    ask(page, "version")
    looking.talks._chats[page.evaluate("kvchat.chat")].path()[-1].finish_reason = "circles"
    page.evaluate("kvchat.act('open')")
    end = page.locator(".kv-end-circles")
    expect(end).to_contain_text("went round in circles")
    expect(end.get_by_role("button")).to_have_text(
        ["Continue", "Try again with a repetition penalty"]
    )
    end.get_by_role("button").last.click()
    expect(page.locator(".kv-versions")).to_have_text("2/2")
    answered(page)
    assert looking.talks.way == "less_repeating"


def test_a_question_that_failed_says_why_also_later(looking: Looking) -> None:
    page = looking.page
    looking.talks.fail_later = too_long()
    page.fill("#kv-input", "word " * 20_000)
    page.press("#kv-input", "Enter")
    end = page.locator(".kv-end-unanswered")
    expect(end).to_contain_text("The question takes 50,020 tokens and needs 590 MiB")
    page.reload()
    expect(end).to_contain_text("room for 1,024 tokens")
    words = page.locator(".kv-words")
    folded = words.bounding_box()
    page.get_by_role("button", name="Show all").click()
    unfolded = words.bounding_box()
    assert folded
    assert unfolded
    assert folded["height"] < 400 < unfolded["height"]
    page.get_by_role("button", name="Show less").click()
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)  # as it is, it never fits
    page.get_by_role("button", name="Edit", exact=True).click()
    expect(page.locator(".kv-edit")).to_have_value("word " * 19_999 + "word")
    page.fill(".kv-edit", "count to 3")
    page.keyboard.press("Enter")
    expect(page.locator(".kv-text")).to_have_text("1 2 3")
    expect(end).to_have_count(0)


def test_a_server_that_is_gone_is_said_once_and_nothing_seems_to_go_on(looking: Looking) -> None:
    looking.talks.token_s = 0.05
    page = looking.open()
    ask(page, "count to 2000", wait=False)
    expect(page.locator(".kv-text")).to_contain_text("3")
    looking.context.route("**/api/**", lambda route: route.abort())
    try:
        page.evaluate("kvchat.emit('chat', kvchat.chat)")
        expect(page.locator(".kv-pill-words")).to_have_text("kvchat does not answer")
        expect(page.locator(".kv-stop")).to_be_hidden()
        expect(page.locator(".kv-speed")).to_have_text("")
        expect(page.locator(".kv-problem")).to_be_hidden()
        assert page.evaluate(
            "getComputedStyle(document.querySelector('.kv-live .kv-text > :last-child'), "
            "'::after').content"
        ) in ("none", "normal")
        page.fill("#kv-input", "still here")
        page.press("#kv-input", "Enter")
        expect(page.locator(".kv-problem")).to_contain_text("Check that kvchat is still running")
        expect(page.locator("#kv-input")).to_have_value("still here")
    finally:
        looking.context.unroute("**/api/**")
    expect(page.locator(".kv-stop")).to_be_visible()
    expect(page.locator(".kv-problem")).to_be_hidden()
    page.keyboard.press("Escape")
    answered(page)


def test_enter_while_an_answer_is_written_says_that_the_text_stays(looking: Looking) -> None:
    looking.talks.token_s = 0.02
    page = looking.page
    ask(page, "count to 3000", wait=False)
    page.fill("#kv-input", "and then?")
    page.press("#kv-input", "Enter")
    hint = page.locator(".kv-wait")
    expect(hint).to_contain_text("Your text stays here")
    expect(page.locator("#kv-input")).to_have_value("and then?")
    page.keyboard.press("Escape")
    answered(page)
    expect(hint).to_be_hidden()


def test_a_new_page_shows_no_other_chats_figures(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    looking.talks.record(page.evaluate("kvchat.chat"), "drop_idle", "no_room", 2**20, blocks=2)
    expect(page.locator(".kv-last-what")).to_contain_text("2 idle blocks")
    page.keyboard.press("Control+Shift+O")
    expect(page.locator(".kv-meter-text")).to_have_text(re.compile("^0 of "))
    expect(page.locator(".kv-last-what")).to_have_text("Nothing was compressed, moved or left out.")


def test_a_file_stands_at_the_box_until_it_is_asked_about(looking: Looking) -> None:
    page = looking.page
    page.evaluate("kvchat.panel.open('documents')")
    drop(page, "manual.pdf", PDF)
    chip = page.locator("#kv-composer .kv-pending .kv-reading")
    expect(chip).to_contain_text("manual.pdf")
    expect(chip).to_contain_text("4 pages")
    assert in_view(page, ".kv-pending")
    chip.get_by_role("button").click()
    expect(chip).to_have_count(0)
    expect(page.locator(".kv-doc")).to_have_count(0)


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_the_legend_loses_no_entry(looking: Looking, lang: str) -> None:
    page = looking.open(lang)
    page.set_viewport_size({"width": 1100, "height": 800})
    looking.talks.squeeze = True
    for _ in range(5):
        ask(page, "count to 60")
    page.wait_for_function("kvchat.frame.turns.length === 5")
    last = page.locator(".kv-bar .kv-legend li").last
    expect(last).to_contain_text("600 MiB")
    inside = """(one) => {
        const box = one.getBoundingClientRect(), all = one.parentElement.getBoundingClientRect();
        return box.bottom <= all.bottom + 1 && box.left >= all.left - 1
            && box.right <= all.right + 1; }"""
    assert last.evaluate(inside)  # the headroom, without scrolling
    for entry in page.locator(".kv-bar .kv-legend li").all():
        entry.scroll_into_view_if_needed()
        assert entry.evaluate(inside)
    assert page.locator(".kv-bar .kv-legend li").count() >= 6


@pytest.mark.parametrize("width", [1280, 390])
def test_a_long_title_does_not_run_under_its_buttons(looking: Looking, width: int) -> None:
    page = looking.open()
    ask(page, "a title that is far too long to stand in the list of chats, count to 3")
    page.set_viewport_size({"width": width, "height": 800})
    if width < 800:
        page.get_by_role("button", name="Chats").click()
    page.locator(".kv-chat-row").hover()
    page.wait_for_timeout(250)
    text, tools = page.evaluate(
        """(() => { const title = document.querySelector('.kv-chat-title');
        const box = title.getBoundingClientRect();
        return [box.right - parseFloat(getComputedStyle(title).paddingRight),
        document.querySelector('.kv-chat-tools button').getBoundingClientRect().left]; })()"""
    )
    assert text <= tools


def test_the_matched_page_stands_first_with_its_passage_and_can_be_enlarged(
    looking: Looking,
) -> None:
    page = looking.page
    drop(page, "manual.pdf", PDF)
    expect(page.locator(".kv-pending")).to_contain_text("4 pages")
    ask(page, "How often should it be cleaned?")
    page.locator(".kv-cite").first.click()
    expect(page.locator(".kv-page-chip.kv-here")).to_have_text("p. 3")
    expect(page.locator(".kv-passage")).to_contain_text("every two weeks")
    page.get_by_role("button", name="Show the page in full size").click()
    full = page.locator(".kv-full img")
    expect(full).to_be_visible()
    page.wait_for_function("document.querySelector('.kv-full img').width === 620")
    page.keyboard.press("Escape")
    expect(full).to_have_count(0)
