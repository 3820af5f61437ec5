"""Chats as people expect them, over real conversations: found, saved, opened again, gone on with,
thought about, kept through a restart. In both languages.
"""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from kvchat.store.records import Generation
from kvchat.wording import say
from tests.ui.conftest import LANGS, LOCAL, Looking, answered, ask, replies
from tests.ui.served import Tiny

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    found = Tiny(tmp_path_factory.mktemp("tiny"))
    yield found
    found.end()


@pytest.fixture(scope="module")
def context(chromium: Browser) -> Iterator[BrowserContext]:
    found = chromium.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    yield found
    found.close()


class Opened:
    """Pages on the tiny server, and what must not happen on them."""

    def __init__(self, context: BrowserContext, tiny: Tiny) -> None:
        self.context, self.tiny, self.troubles = context, tiny, list[str]()

    def __call__(self, lang: str = "en", chat: str = "") -> Page:
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("request", lambda one: self._note(one.url))
        page.goto(f"{self.tiny.url}/{lang}/" + (f"?c={chat}" if chat else ""))
        page.wait_for_selector("#kv-input")
        page.wait_for_function("kvchat.frame && kvchat.notes.chat === kvchat.chat")
        return page

    def _note(self, url: str) -> None:
        host = re.match(r"(?:https?|wss?)://([^/:]+)", url)
        if host and host[1] not in LOCAL:
            self.troubles.append(url)


@pytest.fixture
def open_page(context: BrowserContext, tiny: Tiny) -> Iterator[Opened]:
    found = Opened(context, tiny)
    yield found
    for page in context.pages:
        page.close()
    for row in tiny.talks.chats():
        tiny.talks.delete(row.id)
    assert found.troubles == []


@LANGS
def test_search_finds_parts_of_words_and_leads_to_the_message(
    open_page: Opened, tiny: Tiny, lang: Any
) -> None:
    long = tiny.said(*(f"filler {n} " * 30 for n in range(40)), title="long one")
    store = tiny.talks._store
    early = store.messages(long)[2]
    store.fork(long, early.parent)
    tiny.said("에어컨필터청소는 <b>얼마나</b> 자주?", "두 주에 한 번", chat=long)
    store.switch(long, store.siblings(long, early.hash)[0])
    tiny.said("nothing of it", "no", title="another")
    page = open_page(lang)
    expect(page.locator(".kv-chat-row")).to_have_count(2)
    page.fill(".kv-search", "터청소")
    expect(page.locator(".kv-chat-row")).to_have_count(1)
    hit = page.locator(".kv-hit")
    expect(hit).to_have_count(1)
    expect(hit.locator("mark")).to_have_text("터청소")
    expect(hit).to_contain_text("<b>얼마나</b>")
    expect(hit).to_contain_text(say("ui.hit.question", lang, turn=2))
    hit.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#kv-ask-2 .kv-words")).to_have_text("에어컨필터청소는 <b>얼마나</b> 자주?")
    expect(page.locator("#kv-ask-2")).to_be_in_viewport()
    expect(page.locator(".kv-versions").first).to_contain_text("2/2")
    page.fill(".kv-search", "어디에도 없음")
    expect(page.locator(".kv-chat-list")).to_contain_text(say("ui.chats.not_found", lang))
    page.keyboard.press("Escape")
    expect(page.locator(".kv-chat-row")).to_have_count(2)


def test_a_hit_among_many_turns_is_scrolled_to(open_page: Opened, tiny: Tiny) -> None:
    texts = [f"text {n} " * 40 for n in range(80)]
    texts[11] = "here is the needle"
    chat = tiny.said(*texts, title="hay")
    page = open_page(chat=chat)
    expect(page.locator(".kv-ask")).to_have_count(24)
    page.fill(".kv-search", "needle")
    page.locator(".kv-hit").click()
    place = page.locator(".kv-text", has_text="here is the needle")
    expect(place).to_be_in_viewport()
    page.wait_for_timeout(800)
    expect(place).to_be_in_viewport()


@LANGS
def test_a_chat_is_saved_and_opened_again_with_its_branches(
    open_page: Opened, tiny: Tiny, lang: Any, tmp_path: Path
) -> None:
    chat = tiny.said(
        "<img src=x onerror=alert(1)>", "one", "더 알려 줘", "two", title="저장할 채팅"
    )
    store = tiny.talks._store
    store.fork(chat, store.messages(chat)[2].hash)
    store.append(chat, "assistant", "another two")
    page = open_page(lang, chat)
    expect(page.locator(".kv-versions")).to_contain_text("2/2")
    saved: dict[str, Path] = {}
    for kind in ("json", "markdown"):
        page.locator(".kv-chat-row").hover()
        page.get_by_role("button", name=say("ui.save_chat", lang)).click()
        with page.expect_download() as download:
            page.get_by_role("link", name=say(f"ui.save.{kind}", lang)).click()
        saved[kind] = tmp_path / download.value.suggested_filename
        download.value.save_as(saved[kind])
    assert [path.name for path in saved.values()] == ["저장할 채팅.json", "저장할 채팅.md"]
    text = saved["markdown"].read_text("utf-8")
    assert "<img src=x onerror=alert(1)>" in text
    assert "another two" in text
    assert say("export.question", lang, turn=2) in text
    tiny.talks.delete(chat)
    page.locator("#kv-chat-file").set_input_files(saved["json"])
    page.wait_for_function(f"kvchat.notes.chat === kvchat.chat && kvchat.chat !== '{chat}'")
    expect(page.locator(".kv-chat-title")).to_have_text("저장할 채팅")
    expect(page.locator(".kv-versions")).to_contain_text("2/2")
    page.get_by_role("button", name=say("ui.version.before", lang)).click()
    expect(page.locator(".kv-text").last).to_have_text("two")
    again = page.evaluate("kvchat.chat")
    assert again != chat
    # a title that was made of the first question is that of the version which is shown
    store.rename(again, "두 번째 첫 질문")
    store.fork(again, None)
    tiny.said("두 번째 첫 질문", "one", "more", "two", chat=again)
    page.reload()
    title = page.locator(".kv-chat-title")
    expect(title).to_have_text("두 번째 첫 질문")
    asked = page.evaluate(
        """() => { let asked = 0; const before = kvchat.refreshChats;
        kvchat.refreshChats = () => (asked += 1);
        const turns = kvchat.notes.turns.map((one) => ({ ...one, name: "another" }));
        for (const shown of [turns, turns]) kvchat.emit("notes", { ...kvchat.notes, turns: shown });
        kvchat.refreshChats = before; return asked; }"""
    )
    assert asked == 1
    page.get_by_role("button", name=say("ui.version.before", lang)).click()
    expect(title).to_have_text("<img src=x onerror=alert(1)>")


@LANGS
def test_a_file_that_is_no_chat_says_so_and_changes_nothing(
    open_page: Opened, tiny: Tiny, lang: Any, tmp_path: Path
) -> None:
    tiny.said("kept", "as it is", title="mine")
    page = open_page(lang)
    for number, (content, code) in enumerate((
        (b"{}", "chat_file_other"), (b"\x00\xff", "chat_file_other"), (b"", "chat_file_other"),
        (json.dumps({"kvchat_chat": 9}).encode(), "chat_file_newer"),
        (json.dumps({"kvchat_chat": 1, "messages": [{}]}).encode(), "chat_file_damaged"),
    )):  # fmt: skip
        file = tmp_path / f"{number}.json"
        file.write_bytes(content)
        page.locator("#kv-chat-file").set_input_files(file)
        expect(page.locator(".kv-problem")).to_contain_text(say(f"error.{code}", lang))
        page.locator(".kv-problem").get_by_role("button", name=say("ui.close", lang)).click()
    assert [row.title for row in tiny.talks.chats()] == ["mine"]
    assert page.locator(".error").count() == 0


@LANGS
def test_reasoning_is_folded_and_stays_as_it_was_left(
    open_page: Opened, tiny: Tiny, lang: Any
) -> None:
    chat = tiny.said(
        "why?", "<think>\nFirst **this**, <script>window.hacked=1</script>\n</think>\n\nYes.",
        "tags missing", "So it is.\n</think>\nNo.", "unclosed", "<think>\nOn and on",
    )  # fmt: skip
    page = open_page(lang, chat)
    folds = page.locator(".kv-think")
    expect(folds).to_have_count(3)
    assert replies(page) == ["Yes.", "No.", ""]
    first = folds.first.locator(".kv-think-text")
    expect(first).to_be_hidden()
    expect(folds.last.locator(".kv-think-text")).to_have_text("On and on")  # all that there is
    page.get_by_text(say("ui.reasoning", lang), exact=True).first.click()
    expect(first).to_contain_text("First this, <script>window.hacked=1</script>")
    assert page.evaluate("window.hacked") is None
    page.evaluate("kvchat.act('open')")
    page.wait_for_timeout(300)
    expect(first).to_be_visible()
    page.get_by_role("button", name=say("ui.copy_reply", lang)).first.click()


def test_a_reply_goes_on_in_the_same_message(open_page: Opened, tiny: Tiny) -> None:
    page = open_page()
    for number in range(12):
        page.keyboard.press("Control+Shift+O")
        ask(page, f"Tell me story {number}.")
        if page.locator(".kv-end-length").count():
            break
    before = replies(page)[0]
    page.get_by_role("button", name="Continue").click()
    page.wait_for_function(
        "(before) => document.querySelector('.kv-text').innerText.length > before", arg=len(before)
    )
    answered(page)
    assert page.locator(".kv-ask").count() == 1
    assert page.locator(".kv-versions").count() == 0
    chat = page.evaluate("kvchat.chat")
    (shown,) = tiny.talks.history(chat)
    assert len(shown.reply or "") > len(before)
    expect(page.locator(".kv-figures")).to_contain_text("reply")


@LANGS
def test_the_list_is_grouped_and_says_what_is_still_there(
    open_page: Opened, tiny: Tiny, lang: Any
) -> None:
    store: Any = tiny.talks._store
    page = open_page(lang)
    ask(page, f"{lang} word " * 60)
    chat = page.evaluate("kvchat.chat")
    old = tiny.said("an old question", "reply", title="old")
    week = tiny.said("last week", "reply", title="week")
    day_s = 86_400
    with store._database.write() as connection:
        for one, days in ((old, 30), (week, 3)):
            connection.execute(
                "UPDATE chats SET updated_at_s = updated_at_s - ? WHERE id = ?", (days * day_s, one)
            )
    figures = dict.fromkeys(("prompt_tokens", "reply_tokens"), 400) | {"reused_tokens": 0}
    made = Generation(store.messages(old)[-1].hash, (), "stop", figures, [], "m", 0.0)
    store.add_generation(old, made)
    page.evaluate("kvchat.refreshChats()")
    heads = [say(f"ui.chats.{name}", lang) for name in ("today", "week", "older")]
    expect(page.locator(".kv-chat-group")).to_have_text(heads)
    about = page.locator(".kv-chat-about")
    loaded = say("ui.chats.loaded", lang, bytes="").strip()
    expect(about.first).to_contain_text(loaded)
    text = say("ui.chats.text", lang, s="~").partition("~")[0].strip()
    expect(about.last).to_contain_text(text)
    tiny.talks._worker.engine.close_text()  # type: ignore[union-attr]
    assert tiny.talks.history(chat)


def test_names_and_deletes_by_keyboard_give_the_focus_back(open_page: Opened, tiny: Tiny) -> None:
    tiny.said("q", "r", title="first name")
    page = open_page()
    page.locator(".kv-chat-row").hover()
    page.get_by_role("button", name="Rename this chat").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".kv-rename")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".kv-chat-open")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.type("second name")
    page.keyboard.press("Enter")
    expect(page.locator(".kv-chat-title")).to_have_text("second name")
    expect(page.locator(".kv-chat-open")).to_be_focused()
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Keep", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Delete this chat")).to_be_focused()
    assert len(tiny.talks.chats()) == 1


def test_a_bad_file_on_the_empty_page_leaves_no_chat(
    open_page: Opened, tiny: Tiny, tmp_path: Path
) -> None:
    page = open_page()
    bad = tmp_path / "broken.pdf"
    bad.write_bytes(b"%PDF-1.4\nnot really")
    page.locator("input[type=file][multiple]").set_input_files(bad)
    expect(page.locator(".kv-broken")).to_contain_text("broken.pdf", timeout=30_000)
    page.wait_for_function("kvchat.chat === null")
    expect(page.locator(".kv-broken")).to_contain_text("broken.pdf")
    assert page.url.endswith("/en/")
    assert tiny.talks.chats() == []
    assert tiny.talks._store.chats() == []


def test_the_reader_is_told_of_begin_and_end_only(open_page: Opened) -> None:
    page = open_page()
    page.evaluate(
        """() => { window.heard = [];
        const box = document.querySelector("body > .kv-only-heard");
        new MutationObserver(() => box.textContent && heard.push(box.textContent))
          .observe(box, { childList: true, characterData: true, subtree: true }); }"""
    )
    ask(page, "Tell me something long.")
    page.wait_for_function("heard.length >= 2")
    heard = page.evaluate("heard")
    assert heard[0] == "The answer begins."
    assert heard[1] in ("The answer is complete.", "The answer ended early.")
    assert len(heard) == 2
    assert page.locator("#kv-chat [role=log]").get_attribute("aria-live") == "off"


def test_the_way_past_the_list(open_page: Opened) -> None:
    page = open_page()
    first = page.evaluate("document.querySelector('a, button, input, textarea').className")
    assert first == "kv-skip"
    link = page.get_by_role("link", name="To the question box")
    link.focus()
    expect(link).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#kv-input")).to_be_focused()


@LANGS
def test_a_restart_under_an_open_page_and_the_disk_wins(
    chromium: Browser, tmp_path: Path, lang: Any
) -> None:
    tiny = Tiny(tmp_path)
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    page = Opened(context, tiny)(lang)
    ask(page, "first question")
    chat = page.evaluate("kvchat.chat")
    page.fill("#kv-input", "half a thought")
    again = page.get_by_role("button", name=say("ui.reconnect", lang))
    expect(again).to_have_count(0)
    tiny.end()
    expect(page.locator(".kv-pill-words")).to_have_text(say("ui.offline", lang))
    again.click()
    expect(again).to_be_enabled()
    page.press("#kv-input", "Enter")
    expect(page.locator(".kv-problem")).to_contain_text(say("ui.offline.remedy", lang)[:20])
    expect(page.locator("#kv-input")).to_have_value("half a thought")
    tiny.begin()
    store = tiny.talks._store
    store.append(chat, "user", "said meanwhile")
    store.append(chat, "assistant", "answered meanwhile")
    expect(page.locator(".kv-pill-words")).to_have_text(say("ui.stage.ready", lang), timeout=20_000)
    expect(page.locator(".kv-words").last).to_have_text("said meanwhile")
    expect(page.locator("#kv-chat > .wrap:visible")).to_have_count(0)  # gradio's red word
    assert len(tiny.talks.history(chat)) == 2
    page.press("#kv-input", "Enter")
    expect(page.locator(".kv-words").last).to_have_text("half a thought")
    answered(page)
    assert [one.text for one in tiny.talks.history(chat)] == [
        "first question", "said meanwhile", "half a thought",
    ]  # fmt: skip
    context.close()
    tiny.end()


def test_two_tabs_with_two_chats_do_not_mix(open_page: Opened, tiny: Tiny) -> None:
    """C33: asked at the same moment; each page has its own question and what was made for it."""
    one, two = open_page(), open_page("ko")
    for page, text in ((one, "first tab asks"), (two, "둘째 탭이 묻습니다")):
        page.bring_to_front()
        page.fill("#kv-input", text)
    one.evaluate("kvchat.ask('first tab asks')")
    two.evaluate("kvchat.ask('둘째 탭이 묻습니다')")
    for page, text in ((one, "first tab asks"), (two, "둘째 탭이 묻습니다")):
        page.bring_to_front()
        expect(page.locator(".kv-words")).to_have_text([text])
        answered(page)
        chat = page.evaluate("kvchat.chat")
        (shown,) = tiny.talks.history(chat)
        assert shown.text == text
        assert " ".join(replies(page)[0].split()) == " ".join((shown.reply or "").split())
    assert one.evaluate("kvchat.chat") != two.evaluate("kvchat.chat")


def test_drafts_stay_with_their_chats(looking: Looking) -> None:
    page = looking.open()
    ask(page, "count to 3")
    page.fill("#kv-input", "of the first")
    page.keyboard.press("Control+Shift+O")
    expect(page.locator("#kv-input")).to_have_value("")
    page.fill("#kv-input", "of the new one")
    page.locator(".kv-chat-open").click()
    expect(page.locator("#kv-input")).to_have_value("of the first")
    page.reload()
    expect(page.locator("#kv-input")).to_have_value("of the first")
    page.keyboard.press("Control+Shift+O")
    expect(page.locator("#kv-input")).to_have_value("of the new one")


def test_the_list_over_a_narrow_window_takes_the_focus_and_gives_it_back(looking: Looking) -> None:
    page = looking.open()
    ask(page, "count to 3")
    page.set_viewport_size({"width": 390, "height": 844})
    menu = page.locator(".kv-only-narrow")
    menu.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".kv-new")).to_be_focused()
    expect(menu).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Shift+Tab")
    expect(page.locator(".kv-chat-tools button").last).to_be_focused()  # it goes around
    page.keyboard.press("Tab")
    expect(page.locator(".kv-new")).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu).to_be_focused()
    expect(menu).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("Control+K")
    expect(page.locator(".kv-search")).to_be_focused()


def test_only_what_is_there_is_saved(tiny: Tiny) -> None:
    chat = tiny.said("q", "r", title="t")
    for query in (
        f"chat={chat}&as=exe",
        "chat=nothing&as=json",
        "as=json",
        f"chat={chat}&as=md&lang=x",
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{tiny.url}/api/export?{query}", timeout=30)
        assert refused.value.code == 404
    with urllib.request.urlopen(f"{tiny.url}/api/export?chat={chat}&as=json", timeout=30) as found:
        assert found.headers["content-disposition"] == "attachment; filename*=UTF-8''t.json"
        assert found.headers["x-content-type-options"] == "nosniff"
    tiny.talks.delete(chat)
