"""How the screen looks and reads in a real browser: languages, light and dark, sizes, contrast."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import Looking, ask, drop
from tests.ui.replies import PDF

pytestmark = pytest.mark.browser


def english_in(text: str) -> list[str]:
    """Runs of Latin words that are no abbreviations: a Korean screen has none of ours, but for
    commands, between backticks.
    """
    text = re.sub(r"`[^`]*`", "", text)
    found = re.findall(r"[A-Za-z]{2,}(?: [A-Za-z]{2,})+", text)
    return [words for words in found if not words.isupper()]


def test_the_korean_screen_is_korean(looking: Looking) -> None:
    looking.talks.notices = ("notice.plain_template",)
    page = looking.open("ko")
    assert page.evaluate("document.documentElement.lang") == "ko"
    expect(page.locator(".kv-notices")).to_contain_text("채팅 양식")
    ask(page, "필터 청소는 얼마나 자주 해?")
    seen = [page.locator("#kv-app").inner_text()]
    for tab in ("documents", "turns", "ledger", "models", "whatif", "settings"):
        page.evaluate(f"kvchat.panel.open('{tab}')")
        page.wait_for_timeout(250)
        seen.append(page.locator(f"#kv-body-{tab}").inner_text())
    labels = page.evaluate(
        """['aria-label', 'title', 'alt', 'placeholder'].flatMap((name) =>
        [...document.querySelectorAll(`#kv-app [${name}]`)].filter((one) =>
        one.checkVisibility()).map((one) => one.getAttribute(name)))"""
    )
    text = "\n".join([*seen, *labels]).replace(looking.talks.settings.system_text, "")
    assert english_in(text) == []
    for broken in ("[object Object]", "__i18n__", "undefined", "NaN"):
        assert broken not in text
    page.keyboard.press("Control+/")
    assert english_in(page.locator(".kv-dialog").inner_text()) == []


def test_language_and_theme_are_kept(looking: Looking) -> None:
    page = looking.open()
    ask(page, "count to 3")
    for _ in range(3):
        ask(page, "markup")
    page.evaluate("kvchat.panel.open('ledger')")
    page.fill("#kv-input", "not sent yet")
    page.locator("#kv-ask-4").hover()
    page.mouse.wheel(0, -900)
    place = """(document.getElementById('kv-ask-3').getBoundingClientRect().top -
        document.querySelector('#kv-chat [role=log]').getBoundingClientRect().top)"""
    page.wait_for_function(
        """() => new Promise((still) => { const log = document.querySelector("#kv-chat [role=log]");
        const was = log.scrollTop, end = log.scrollHeight - log.clientHeight;
        setTimeout(() => still(was < end - 200 && log.scrollTop === was), 100); })"""
    )
    was = page.evaluate(place)
    page.locator(".kv-language").click()
    page.wait_for_url(re.compile(r"/ko/\?c="))
    expect(page.locator(".kv-text").first).to_have_text("1 2 3")
    expect(page.get_by_role("tab", name="한 일")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#kv-body-ledger")).to_be_visible()
    expect(page.locator("#kv-input")).to_have_value("not sent yet")
    page.wait_for_function(f"(was) => Math.abs({place} - was) < 3", arg=was)
    before = page.evaluate("document.documentElement.dataset.theme")
    page.get_by_role("button", name="밝게 또는 어둡게").click()
    page.reload()
    page.wait_for_selector("#kv-input")
    after = page.evaluate("document.documentElement.dataset.theme")
    assert {before, after} == {"light", "dark"}
    assert page.evaluate("document.body.classList.contains('dark')") == (after == "dark")


def see(page: Page, seen: bool) -> None:
    """Chromium without a window takes every tab for a visible one: it is told otherwise."""
    page.evaluate(
        """(seen) => {
        Object.defineProperty(document, "hidden", { get: () => !seen, configurable: true });
        document.dispatchEvent(new Event("visibilitychange")); }""",
        seen,
    )


@pytest.mark.parametrize(("width", "height"), [(360, 740), (800, 600), (3840, 2160)])
def test_nothing_hangs_over_the_edge(looking: Looking, width: int, height: int) -> None:
    page = looking.open("ko")
    page.set_viewport_size({"width": width, "height": height})
    drop(page, "manual.pdf", PDF)
    expect(page.locator(".kv-doc, .kv-reading").first).to_be_attached()
    ask(page, "markup 필터")
    chat = page.evaluate("kvchat.chat")
    looking.talks.record(chat, "drop_idle", "out_of_memory", 2**28, blocks=14)
    expect(page.locator(".kv-last-what")).to_contain_text("블록 14개")
    wide = page.evaluate(
        """[...document.querySelectorAll('#kv-app *')].filter((one) => one.checkVisibility() &&
        !one.closest('pre, table, .katex, .kv-tabs, .kv-legend, #kv-side') &&
        one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.className)"""
    )
    assert wide == []
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")


def test_the_screen_reader_finds_its_way(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    page.evaluate("kvchat.panel.open()")
    for part in (
        page.get_by_role("navigation", name="Chats"),
        page.get_by_role("log", name="Conversation"),
        page.get_by_role("textbox", name="Ask something"),
        page.get_by_role("region", name="Memory", exact=True),
        page.get_by_role("complementary", name="Side panel"),
        page.get_by_role("img", name="more tokens"),
    ):
        expect(part).to_be_visible()
    nameless = page.evaluate(
        """[...document.querySelectorAll('#kv-app button')].filter((one) => one.checkVisibility() &&
        !(one.innerText.trim() || one.ariaLabel || one.title)).length"""
    )
    assert nameless == 0
    for width in (1440, 1280, 1100, 1099, 360):  # its tabs are whole, however wide it is
        page.set_viewport_size({"width": width, "height": 800})
        cut = "(one) => one.scrollWidth - one.clientWidth"
        assert page.locator(".kv-tabs").evaluate(cut) == 0, width
    page.set_viewport_size({"width": 1440, "height": 900})


def test_the_keyboard_never_goes_where_it_is_not_seen(looking: Looking) -> None:
    page = looking.open()
    page.set_viewport_size({"width": 360, "height": 740})
    for question in ("markup", "count to 3", "markup"):
        ask(page, question)
    page.locator(".kv-track").focus()
    inside = "document.querySelector('#kv-chat [role=log]').contains(document.activeElement)"
    while not page.evaluate(inside):
        page.keyboard.press("Tab")
    page.wait_for_timeout(250)  # what came into sight has been drawn, and has its true height
    seen = """() => { const log = document.querySelector("#kv-chat [role=log]");
        const [a, b] = [document.activeElement, log].map((one) => one.getBoundingClientRect());
        return a.top >= b.top && a.bottom <= b.bottom; }"""
    assert page.evaluate(seen)
    page.locator("#kv-panel-button").focus()
    page.keyboard.press("Enter")
    for key in ("Shift+Tab", "Tab", "Tab", "Tab", "Tab"):
        page.keyboard.press(key)
        assert page.evaluate("Boolean(document.activeElement.closest('#kv-panel'))")
    page.keyboard.press("Escape")
    expect(page.locator("#kv-panel-button")).to_be_focused()


PALE = """() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 :
    ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const below = (one) => { for (let e = one; e; e = e.parentElement) {
    const found = rgb(getComputedStyle(e).backgroundColor);
    if (found.length === 3 || found[3] === 1) return found; } return [255, 255, 255]; };
  const walker = document.createTreeWalker(document.getElementById("kv-app"), NodeFilter.SHOW_TEXT);
  const pale = [];
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim()) continue;
    if (!one.checkVisibility({ opacityProperty: true })) continue;
    if (one.closest("style, script, :disabled, .kv-unseen, .katex")) continue;
    const style = getComputedStyle(one);
    const [a, b] = [light(rgb(style.color)), light(below(one))].sort((x, y) => y - x);
    const large = parseFloat(style.fontSize) >= 24;
    if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5))
      pale.push(one.className + ": " + one.textContent);
  }
  return pale;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(looking: Looking, theme: str) -> None:
    looking.talks.squeeze = True
    page = looking.page
    page.evaluate(f"kvchat.setTheme('{theme}')")
    drop(page, "manual.pdf", PDF)
    for question in ("markup", "What is it?", "count to 9"):
        ask(page, question)
    for tab in ("documents", "turns", "ledger", "models", "whatif", "settings"):
        page.evaluate(f"kvchat.panel.open('{tab}')")
        page.wait_for_timeout(300)
        assert page.evaluate(PALE) == []
