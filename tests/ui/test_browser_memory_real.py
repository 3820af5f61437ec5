"""Memory on the screen of the real program with its real model, in a budget that is soon full."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.program import Serving
from tests.ui.conftest import USUAL_MS, ask
from tests.ui.test_browser_axe import SCREENS

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PATIENCE_MS = 180_000
WORDS = "The cat sat on the mat and looked at the clock on the wall. " * 16


@pytest.fixture(scope="module")
def page(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Weights take 513 MiB of the budget."""
    sets = ("temperature=0", "max_new_tokens=24", "memory_budget=556MiB")
    words = [word for one in sets for word in ("--set", one)]
    serving = Serving(tmp_path_factory.mktemp("data"), *words, port="0")
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    found = context.new_page()
    found.goto(f"{serving.url}/en/")
    found.wait_for_selector("#kv-input")
    found.wait_for_function("kvchat.frame?.runtime.stage === 'ready'")
    found.evaluate("kvchat.panel.open('turns')")  # measured once, while there is room for it
    speed = found.locator(".kv-figure", has_text="Speed against this device")
    expect(speed).to_contain_text(re.compile(r"device [\d,.]+ GFLOP/s"))
    yield found
    expect.set_options(timeout=USUAL_MS)
    context.close()
    assert serving.end() == 143


def sums(page: Page) -> tuple[int, int]:
    drawn = page.evaluate(
        "[...document.querySelector('.kv-track').children].map((s) => s.kvPart.bytes)"
    )
    return sum(drawn), page.evaluate("kvchat.parts(kvchat.frame).of")


def ledger(page: Page) -> str:
    if not page.evaluate("Boolean(kvchat.chat)"):
        return ""
    text: str = page.evaluate("fetch(`/api/ledger?chat=${kvchat.chat}`).then((one) => one.text())")
    return text


def test_a_full_budget_is_seen_told_and_taken_back(page: Page) -> None:
    page.evaluate(
        """() => { kvchat.off = []; kvchat.on('frame', (frame) => {
        const { parts, of } = kvchat.parts(frame);
        kvchat.off.push(Math.abs(parts.reduce((sum, one) => sum + one.bytes, 0) - of)); }); }"""
    )
    number = 0
    while '"requantize' not in ledger(page):
        number += 1
        assert number < 10, ledger(page)
        ask(page, f"Question {number}. {WORDS}")
    assert max(page.evaluate("kvchat.off")) <= 2**20
    drawn, of = sums(page)
    assert abs(drawn - of) <= 2**20
    expect(page.locator(".kv-last-what")).not_to_be_empty()
    page.evaluate("kvchat.panel.open('turns')")
    page.wait_for_function("kvchat.turnFigures().size === kvchat.notes.turns.length")
    formats = page.locator(".kv-turns tbody td:nth-child(4)").all_inner_texts()
    assert any("INT" in one for one in formats)
    wrap = page.locator("#kv-body-turns .kv-table-wrap")
    assert wrap.evaluate("(e) => e.scrollWidth <= e.clientWidth")
    expect(page.locator(".kv-figures").last).to_contain_text(re.compile(r"[\d.]+\s[GM]iB/s"))
    page.evaluate("kvchat.panel.open('ledger')")
    expect(page.locator(".kv-ledger li").first).to_contain_text("freed")
    SCREENS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENS / "memory-full.png")


def test_the_device_is_measured_and_answers_stand_beside_it(page: Page) -> None:
    page.evaluate("kvchat.panel.open('turns')")
    box = page.locator(".kv-figure", has_text="Speed against this device")
    expect(box).to_contain_text(re.compile(r"device [\d,.]+ GFLOP/s"))
    expect(box).to_contain_text(re.compile(r"last [\d.]+\s[GM]iB/s.* device [\d.]+\sGiB/s"))
    shares = [int(n) for n in re.findall(r"(\d+) % of it", box.inner_text())]
    assert len(shares) == 2
    assert all(0 < one <= 130 for one in shares), "no answer is faster than the device"
    page.screenshot(path=SCREENS / "memory-speed.png")


def test_a_reload_keeps_the_timeline(page: Page) -> None:
    before = page.evaluate("kvchat.call('timeline').then((one) => one.points.length)")
    assert before > 5
    page.reload()
    page.wait_for_selector("#kv-input")
    page.wait_for_function("kvchat.frame && kvchat.notes.chat === kvchat.chat")
    page.evaluate("kvchat.panel.open('turns')")
    picture = page.locator(".kv-timeline")
    expect(picture).to_have_attribute("aria-label", re.compile(r"of 556 MiB now, .* marks"))
    assert page.locator(".kv-done-mark").count() > 0
    page.screenshot(path=SCREENS / "memory-timeline.png")
