"""The real program with its real model, looked at through a real browser: nothing stands in."""

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from kvchat.store.store import Store
from tests.program import Serving
from tests.ui.conftest import LOCAL, USUAL_MS, answered, ask, drop, replies

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PATIENCE_MS = 180_000  # the model and the browser share a busy machine
STORY = "Tell me a very long story about a clock and a cat, with all details."


class Real:
    """The program, and a browser on it that notes every request which leaves the machine."""

    def __init__(self, chromium: Browser, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.serving = self._started()
        self.context = chromium.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
        self.context.set_default_timeout(PATIENCE_MS)
        self.troubles: list[str] = []
        self.context.on("request", self._note)
        self.context.on("weberror", lambda error: self.troubles.append(str(error.error)))

    def _started(self, port: str = "0") -> Serving:
        sets = ("temperature=0", "max_new_tokens=400")
        words = [word for one in sets for word in ("--set", one)]
        return Serving(self.data_dir, *words, port=port)

    def _note(self, request: Any) -> None:
        if (urlsplit(request.url).hostname or "") not in LOCAL:
            self.troubles.append(f"left the machine: {request.url}")

    def open(self, lang: str = "en", chat: str = "") -> Page:
        page = self.context.new_page()
        page.goto(f"{self.serving.url}/{lang}/" + (f"?c={chat}" if chat else ""))
        page.wait_for_selector("#kv-input")
        page.wait_for_function("kvchat.frame && kvchat.notes.chat === kvchat.chat")
        return page

    def kill_and_restart(self) -> None:
        self.serving.end(signal.SIGKILL)
        with Store(self.data_dir) as store:
            assert store.verify() == []
        self.serving = self._started(self.serving.url.rpartition(":")[2])


@pytest.fixture(scope="module")
def real(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    expect.set_options(timeout=PATIENCE_MS)
    found = Real(chromium, tmp_path_factory.mktemp("data"))
    yield found
    expect.set_options(timeout=USUAL_MS)
    page = found.open()  # a page that is open does not hold the end up, nor fill the log
    set_longest(page, 400)
    ask(page, STORY, wait=False)
    wait_for_words(page, 3)
    assert found.serving.end() == 143
    assert "Traceback" not in (found.data_dir / "kvchat.log").read_text("utf-8")
    found.context.close()


@pytest.fixture
def page(real: Real) -> Iterator[Page]:
    found = real.open()
    yield found
    found.close()
    assert real.troubles == []


def set_longest(page: Page, tokens: int) -> None:
    page.evaluate(f"kvchat.call('apply', {{ changes: {{ max_new_tokens: {tokens} }} }})")


def stop(page: Page) -> None:
    page.keyboard.press("Escape")
    page.wait_for_function("!kvchat.notes.live")


def wait_for_words(page: Page, count: int) -> None:
    page.wait_for_function(
        """(count) => ([...document.querySelectorAll('.kv-text')].at(-1)?.innerText ?? '')
        .split(' ').length > count""",
        arg=count,
    )


def held_by_turns(page: Page) -> dict[str, int]:
    return dict(page.evaluate("kvchat.frame.turns.map((one) => [String(one.turn), one.bytes])"))


def test_a_chat_streams_and_its_cache_grows_turn_by_turn(page: Page) -> None:
    set_longest(page, 16)
    held: list[int] = []
    for number, question in enumerate(("Who are you?", "Where do you live?", "Thanks."), 1):
        ask(page, question, wait=False)
        lengths = set()
        while page.evaluate("Boolean(kvchat.notes.live)"):
            lengths.add(sum(map(len, replies(page)[number - 1 :])))
            time.sleep(0.05)
        answered(page)
        if number == 1:
            assert len(lengths) > 3
        page.wait_for_function(f"kvchat.frame.turns.length === {number}")
        turns = held_by_turns(page)
        assert list(turns) == [str(n) for n in range(1, number + 1)]
        held.append(sum(turns.values()))
        parts = page.evaluate(
            "[...document.querySelectorAll('.kv-seg')].map((s) => s.kvPart.bytes)"
        )
        assert sum(parts) == page.evaluate("kvchat.frame.device.total")
    assert 0 < held[0] < held[1] < held[2]
    assert all(replies(page))
    figures = page.locator(".kv-figures")
    expect(figures).to_have_count(3)
    reused = re.search(r"(\d[\d,]*) of (\d[\d,]*)", figures.last.inner_text())
    assert reused, figures.last.inner_text()
    assert int(reused[1]) > 0

    before = replies(page)
    page.reload()
    expect(page.locator(".kv-ask")).to_have_count(3)
    answered(page)
    assert replies(page) == before
    expect(page.locator(".kv-chat-title").first).to_have_text("Who are you?")


def test_stopping_keeps_what_was_written(page: Page) -> None:
    set_longest(page, 400)
    ask(page, STORY, wait=False)
    wait_for_words(page, 5)
    stop(page)
    expect(page.locator(".kv-end-cancelled")).to_have_count(1)
    kept = replies(page)[0]
    assert len(kept.split()) > 5
    assert page.locator(".error").count() == 0
    set_longest(page, 8)
    ask(page, "Thank you.")
    assert replies(page)[0] == kept
    assert replies(page)[1]


def test_a_dropped_pdf_is_cited(page: Page, shared_pdfs: Path) -> None:
    set_longest(page, 32)
    name = "long-fhs-3.0.pdf"
    drop(page, name, (shared_pdfs / name).read_bytes())
    expect(page.locator(".kv-doc")).to_contain_text(name)
    ask(page, "Where must process identifier (PID) files be placed?")
    chip = page.locator(".kv-cite", has_text="p. 21 (printed 14)")
    expect(chip).to_have_count(1)
    expect(chip).to_have_class(re.compile("kv-matched"))
    assert "/run" in replies(page)[0]
    assert page.locator(".kv-file").inner_text() == name
    chip.click()
    expect(page.locator(".kv-page-bar")).to_contain_text("Page 21 of 50")
    page.wait_for_function("document.querySelector('.kv-page').naturalWidth > 300")


def test_a_reload_in_mid_answer_goes_on(page: Page) -> None:
    set_longest(page, 60)
    ask(page, STORY, wait=False)
    wait_for_words(page, 5)
    page.reload()
    expect(page.locator(".kv-stop")).to_be_visible()
    seen = len(replies(page)[0]) if replies(page) else 0
    answered(page)
    assert len(replies(page)[0]) > seen
    assert len(replies(page)[0].split()) > 20


def test_the_korean_screen_talks_to_the_same_model(real: Real) -> None:
    page = real.open("ko")
    set_longest(page, 12)
    assert page.evaluate("document.documentElement.lang") == "ko"
    expect(page.locator(".kv-notices")).to_contain_text("영어")  # the built-in model's language
    ask(page, "안녕하세요? 👩‍👩‍👧 한국의 수도는 어디인가요?")
    assert page.locator(".kv-ask").inner_text() == "안녕하세요? 👩‍👩‍👧 한국의 수도는 어디인가요?"
    assert "\ufffd" not in page.locator("body").inner_text()
    expect(page.locator(".kv-figures")).to_contain_text("토큰")
    page.close()
    assert real.troubles == []


def test_the_program_killed_in_mid_answer_has_the_chat_again(real: Real) -> None:
    page = real.open()
    set_longest(page, 400)
    ask(page, STORY, wait=False)
    wait_for_words(page, 8)
    seen = replies(page)[-1]
    chat = page.evaluate("kvchat.chat")
    page.close()
    real.troubles.clear()
    real.kill_and_restart()
    page = real.open(chat=chat)
    expect(page.locator(".kv-ask")).to_have_text(STORY)
    kept = replies(page)[0]
    assert kept.startswith(seen[:-8].rstrip())
    page.wait_for_function("kvchat.frame.runtime.stage === 'ready'")
    set_longest(page, 8)
    ask(page, "And then?")
    assert replies(page)[0] == kept
    page.close()
    assert real.troubles == []
