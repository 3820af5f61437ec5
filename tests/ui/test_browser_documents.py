"""The documents panel as a person uses it, by mouse and by keyboard, in both languages."""

import re
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from kvchat.errors import RequestError
from tests.ui.conftest import Looking, answered, ask, drop
from tests.ui.standin_documents import PASSWORD

pytestmark = pytest.mark.browser

NINE = b"%PDF-1.4\n" + b"/Type /Page\n" * 9


def dropped(page: Page, name: str = "manual.pdf", content: bytes = NINE) -> None:
    drop(page, name, content)
    expect(page.locator(".kv-doc", has_text=name)).to_contain_text("9")
    expect(page.locator(".kv-reading .kv-progress")).to_have_count(0)
    expect(page.locator(".kv-doc .kv-read").first).to_be_visible()


def chat_of(page: Page) -> str:
    return str(page.evaluate("kvchat.chat"))


@pytest.mark.parametrize(
    ("lang", "words"),
    [
        ("en", {"whole": "Read whole, not searched", "search": "Search", "off": "Off"}),
        ("ko", {"whole": "전체를 읽음 · 찾기 아님", "search": "찾기", "off": "끔"}),
    ],
)
def test_how_a_document_is_read_is_said_and_chosen(
    looking: Looking, lang: str, words: dict[str, str]
) -> None:
    page = looking.open(lang)
    dropped(page)
    card = page.locator(".kv-doc")
    expect(card.locator(".kv-doc-mode")).to_have_text(words["whole"])
    expect(card).to_contain_text("5,760")  # tokens, with their bytes, before anything is chosen
    expect(card).to_contain_text("810 MiB")
    expect(card).to_contain_text("1,340")
    card.get_by_role("radio", name=words["search"]).click()
    expect(card.get_by_role("radio", name=words["search"])).to_have_attribute(
        "aria-checked", "true"
    )
    (row,) = looking.talks.documents(chat_of(page))
    assert row.chosen == "passages"
    page.keyboard.press("ArrowRight")
    expect(card.get_by_role("radio", name=words["off"])).to_be_focused()
    expect(card).to_have_class(re.compile("kv-doc-off"))
    assert looking.talks.documents(chat_of(page))[0].chosen == "off"


def test_what_is_refused_is_said_at_its_card(looking: Looking) -> None:
    page = looking.page
    dropped(page)
    looking.talks.fail_next = RequestError("document_gone")
    page.get_by_role("radio", name="Off").click()
    expect(page.locator(".kv-doc .kv-doc-problem")).to_be_visible()
    expect(page.get_by_role("radio", name="Auto")).to_have_attribute("aria-checked", "true")


def test_pages_tell_what_was_found_on_them_and_can_be_left_out(looking: Looking) -> None:
    page = looking.page
    dropped(page)
    chips = page.locator(".kv-page-chip")
    expect(chips).to_have_count(9)
    expect(chips.nth(2)).to_have_attribute(
        "aria-label", "p. 3 (printed iii) · form with values · 640 tokens · 90 MiB"
    )
    expect(chips.nth(3)).to_have_attribute("aria-label", re.compile("picture only, no text"))
    chips.nth(1).click()
    expect(page.locator(".kv-page-bar")).to_contain_text("Page 2 of 9")
    page.get_by_role("button", name="Leave out").click()
    expect(chips.nth(1)).to_have_class(re.compile("kv-left"))
    expect(page.locator(".kv-page-view")).to_contain_text("the model is given nothing of this page")
    expect(page.locator(".kv-doc")).to_contain_text("5,120")
    assert looking.talks.documents(chat_of(page))[0].left_pages == (2,)
    expect(page.locator(".kv-page-bar button").last).to_be_disabled()  # no pin for it
    page.get_by_role("button", name="Use again").click()
    expect(page.locator(".kv-page-chip.kv-left")).to_have_count(0)


def test_the_keyboard_turns_pages_and_zooms(looking: Looking) -> None:
    page = looking.page
    dropped(page)
    page.locator(".kv-page-chip").first.press("Enter")
    view = page.locator(".kv-page-view")
    expect(view).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(view).to_contain_text("Page 2 of 9")
    page.keyboard.press("End")
    expect(view).to_contain_text("Page 9 of 9")
    page.keyboard.press("PageUp")
    expect(view).to_contain_text("Page 8 of 9")
    before = view.locator(".kv-enlarge").bounding_box()
    page.keyboard.press("+")
    page.wait_for_function(
        "(width) => document.querySelector('.kv-enlarge').offsetWidth > 1.3 * width",
        arg=before and before["width"],
    )
    page.keyboard.press("Escape")
    expect(view).to_be_hidden()


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_a_mark_in_the_reply_opens_its_page_with_the_passage_marked(
    looking: Looking, lang: str
) -> None:
    page = looking.open(lang)
    dropped(page)
    ask(page, "필터는?" if lang == "ko" else "How often?")
    mark = page.locator(".kv-text .kv-ref")
    expect(mark.locator("b")).to_have_text("1")
    label = "근거 1: manual.pdf, 3쪽 (인쇄 iii)" if lang == "ko" else "p. 3 (printed iii)"
    expect(page.get_by_role("button", name=label).first).to_have_class("kv-ref")
    page.evaluate("kvchat.panel.close()")
    mark.press("Enter")
    expect(page.locator(".kv-page-bar")).to_contain_text("iii")
    spots = page.locator(".kv-enlarge .kv-spot")
    expect(spots).to_have_count(2)
    expect(spots.first).to_have_class(re.compile("kv-matched"))
    box, sheet = spots.first.bounding_box(), page.locator(".kv-page").bounding_box()
    assert box
    assert sheet
    assert abs((box["x"] - sheet["x"]) / sheet["width"] - 0.11) < 0.01
    expect(page.locator(".kv-page-chip.kv-here")).to_have_attribute(
        "aria-label", re.compile("인용" if lang == "ko" else "cited by a reply")
    )
    page.locator(".kv-enlarge").click()
    expect(page.locator(".kv-full .kv-spot")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.locator(".kv-full")).to_have_count(0)


def test_a_reply_says_how_its_documents_were_read(looking: Looking) -> None:
    page = looking.page
    dropped(page)
    ask(page, "How often?")
    expect(page.locator(".kv-sources")).to_have_text("manual.pdf: whole in the cache, not searched")
    talks = looking.talks
    page.locator(".kv-doc").get_by_role("radio", name="Off").click()
    expect(page.locator(".kv-cite.kv-gone").first).to_contain_text("is switched off")
    history = talks.history

    def searched(chat: str) -> list[Any]:
        about = {"document": "d" * 64, "mode": "passages", "asked": True}
        rows = (
            {**about, "name": "a.pdf", "pages": [12, 13, 14]},
            {**about, "name": "b.pdf", "pages": []},
        )
        return [replace(one, sources=rows, citations=[]) for one in history(chat)]

    talks.history = searched  # type: ignore[method-assign]
    page.evaluate("kvchat.act('open')")
    lines = page.locator(".kv-sources span")
    expect(lines).to_have_text(
        [
            "a.pdf: searched, passages from pages 12–14",
            "b.pdf: searched, no passage that suits this question was found",
        ]
    )


def test_a_document_that_was_taken_out_is_still_named(looking: Looking) -> None:
    page = looking.page
    dropped(page)
    ask(page, "How often?")
    page.get_by_role("button", name="Take the document out of this chat").first.click()
    expect(page.locator(".kv-doc")).to_have_count(0)
    ask(page, "And then?")
    chip = page.locator(".kv-cite").first
    expect(chip).to_contain_text("manual.pdf")
    chip.click()
    expect(page.locator(".kv-page-view")).to_contain_text("taken out of the chat")


def test_both_of_two_documents_are_named_with_the_question(looking: Looking) -> None:
    page = looking.page
    dropped(page, "one.pdf")
    dropped(page, "둘.pdf")
    ask(page, "Which is it?")
    expect(page.locator(".kv-ask .kv-file")).to_have_text(["one.pdf", "둘.pdf"])


def test_a_locked_file_asks_for_its_password(looking: Looking) -> None:
    page = looking.page
    dropped(page)
    talks, chat = looking.talks, chat_of(page)
    here = talks._chat(chat)
    problem = {"code": "document_encrypted", "facts": {}}
    here.documents[0] = replace(here.documents[0], problem=problem, asks_password=True)
    page.evaluate("kvchat.refreshDocuments()")
    expect(page.locator(".kv-broken strong")).to_have_text(here.documents[0].name)
    drop(page, "newer.txt", b"no pdf")
    expect(page.locator(".kv-broken-more")).to_be_visible()
    expect(page.locator(".kv-broken strong")).to_have_text(here.documents[0].name)
    name = page.locator(".kv-locked .kv-doc-words strong")
    assert name.evaluate("(one) => getComputedStyle(one).textDecorationLine") == "none"
    field = page.get_by_label("Password of the file")
    field.fill("wrong")
    field.press("Enter")
    expect(page.locator(".kv-doc [role=alert]")).to_contain_text("password")
    assert field.input_value() == ""
    field.fill(PASSWORD)
    page.get_by_role("button", name="Open", exact=True).click()
    expect(page.locator(".kv-doc .kv-read")).to_be_visible()
    expect(field).to_have_count(0)


def test_a_document_is_renamed(looking: Looking) -> None:
    page = looking.page
    dropped(page)
    page.get_by_role("button", name="Rename the document").click()
    field = page.get_by_label("Name of the document")
    expect(field).to_be_focused()
    field.fill("<b>전기요금 약관</b>.pdf")
    field.press("Enter")
    expect(page.locator(".kv-doc strong")).to_have_text("<b>전기요금 약관</b>.pdf")
    page.get_by_role("button", name="Rename the document").click()
    field.press("Escape")
    expect(page.locator(".kv-doc strong")).to_have_text("<b>전기요금 약관</b>.pdf")


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_nothing_is_cut_off_on_a_narrow_screen(looking: Looking, lang: str) -> None:
    page = looking.open(lang)
    page.set_viewport_size({"width": 360, "height": 740})
    drop(page, "a-very-long-name-of-a-manual-that-has-no-end.pdf", NINE)
    page.wait_for_function("kvchat.frame.documents.some((one) => one.done === 9)")
    page.evaluate("kvchat.panel.open('documents')")
    page.locator(".kv-page-chip").nth(2).click()
    expect(page.locator(".kv-page-bar")).to_be_visible()
    wide = page.evaluate(
        """[...document.querySelectorAll('.kv-panel-documents *')].filter((one) =>
        one.offsetParent && !one.closest('.kv-sheet') &&
        one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.className)"""
    )
    assert wide == []


def test_progress_of_reading_ahead_is_shown(looking: Looking) -> None:
    page = looking.page
    dropped(page)
    here = looking.talks._chat(chat_of(page))
    for stage, words in (
        ("reading", "Reading ahead: 256 of 5,760 tokens"),
        ("done", "the next question starts at once"),
        ("no_room", "No free room to read it ahead"),
    ):
        ahead = {"stage": stage, "done": 256, "of": 5760}
        here.documents[0] = replace(here.documents[0], ahead=ahead)
        page.evaluate("kvchat.refreshDocuments()")
        expect(page.locator(".kv-doc")).to_contain_text(words)
    recognised = {"num_to_recognise": 1, "num_recognised": 1}
    for is_complete in (False, True):  # what is done is not said to be under way
        there = replace(here.documents[0], ahead=None, is_complete=is_complete, **recognised)
        here.documents[0] = there
        page.evaluate("kvchat.refreshDocuments()")
        for words in ("recognising text of pictures: 1 of 1", "waits up to 10 seconds"):
            seen = expect(page.locator(".kv-doc"))
            (seen.not_to_contain_text if is_complete else seen.to_contain_text)(words)
    answered(page)
