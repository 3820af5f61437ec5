"""A server over the stand-in, and a Chromium that looks at it; without Chromium the tests skip."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.ui.serve_standin import app_over
from tests.ui.standin import StandIn

ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--no-first-run",
)  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
USUAL_MS = 30_000  # what a wait for a function has as well: a machine may be slow for a while
expect.set_options(timeout=USUAL_MS)
# Flows in both languages. Words are complete in each (test_wording.py): by default one is walked.
LANGS = pytest.mark.parametrize("lang", [pytest.param("en", marks=pytest.mark.slow), "ko"])
LOCAL = ("127.0.0.1", "localhost", "")


class Behind:
    """The conversations of the running server: the stand-in of the test that runs now."""

    now = StandIn()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)


class Looking:
    """A browser on the screen of one stand-in; it notes what must not happen.

    `page` is used by test after test, each with a stand-in of its own and a new chat: loading the
    screen is what takes longest. `open` makes a page for the test alone.
    """

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context, self.url, self.talks = context, url, Behind.now
        self.troubles: list[str] = []
        self.console: list[str] = []  # errors, and requests that were refused
        self.requests: list[str] = []
        self._page: Page | None = None
        self._others: list[Page] = []
        context.on("request", self._note_request)
        context.on("weberror", lambda error: self.troubles.append(error.error.stack))
        context.on("console", self._note_console)
        context.on("response", self._note_response)

    def _note_request(self, request: Any) -> None:
        self.requests.append(request.url)
        if (urlsplit(request.url).hostname or "") not in LOCAL:
            self.troubles.append(f"left the machine: {request.url}")

    def _note_console(self, message: Any) -> None:
        if message.text.startswith("no words for"):
            self.troubles.append(message.text)
        if message.type == "error":
            self.console.append(message.text)

    def _note_response(self, response: Any) -> None:
        if response.status >= 400:
            self.console.append(f"{response.status} {response.url}")

    def begin(self, talks: StandIn) -> None:
        self.talks = Behind.now = talks
        self.troubles.clear()
        self.console.clear()
        if self._page:
            self._page.evaluate("localStorage.clear(); kvchat.panel.close(); kvchat.open(null)")
            self._page.evaluate("kvchat.refreshChats()")
            self._page.wait_for_function("kvchat.notes.turns.length === 0")
            self._page.fill("#kv-input", "")

    def end(self) -> None:
        for page in self._others:
            page.close()
        self._others.clear()
        self.talks.close()

    @property
    def page(self) -> Page:
        if self._page is None:
            self._page = self._opened("en", "")
        self._page.bring_to_front()
        return self._page

    def open(self, lang: str = "en", chat: str = "") -> Page:
        page = self._opened(lang, chat)
        self._others.append(page)
        return page

    def _opened(self, lang: str, chat: str) -> Page:
        page = self.context.new_page()
        page.goto(f"{self.url}/{lang}/" + (f"?c={chat}" if chat else ""))
        page.wait_for_selector("#kv-input")
        page.wait_for_function("kvchat.frame && kvchat.notes.chat === kvchat.chat")
        return page


def ask(page: Page, text: str, *, wait: bool = True) -> None:
    before = page.evaluate("kvchat.notes.turns.length + kvchat.notes.earlier")
    page.fill("#kv-input", text)
    page.press("#kv-input", "Enter")
    page.wait_for_function(
        "(before) => kvchat.notes.turns.length + kvchat.notes.earlier > before", arg=before
    )
    if wait:
        answered(page)


def watch_lengths(page: Page) -> None:
    """Collects the lengths that the last reply has from now on, in `window.lengths`."""
    page.evaluate("""
        window.lengths = new Set();
        const look = () => {
            const last = [...document.querySelectorAll(".kv-text")].at(-1);
            window.lengths.add(last?.innerText.length);
        };
        const all = { subtree: true, childList: true, characterData: true };
        new MutationObserver(look).observe(document.body, all);
    """)


def answered(page: Page) -> None:
    """No answer is being made, and what is drawn is the whole of it."""
    page.wait_for_function(
        """!kvchat.notes.live && !document.querySelector('.kv-live') &&
        document.querySelectorAll('.kv-figures').length === kvchat.notes.turns.length"""
    )


def replies(page: Page) -> list[str]:
    return page.locator(".kv-text").all_inner_texts()


def drop(page: Page, name: str, content: bytes) -> None:
    """A file dragged from outside onto the middle of the window."""
    data = page.evaluate_handle(
        """([name, bytes]) => { const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], name)); return data; }""",
        [name, list(content)],
    )
    for kind in ("dragenter", "dragover", "drop"):
        page.dispatch_event("#kv-talk", kind, {"dataTransfer": data})


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    config = uvicorn.Config(app_over(Behind()), host="127.0.0.1", port=0, log_level="error")
    running = uvicorn.Server(config)
    threading.Thread(target=running.run, daemon=True).start()
    while not running.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    running.should_exit = True


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    path = os.environ.get("KVCHAT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        if path is None and not Path(playwright.chromium.executable_path).is_file():
            pytest.skip("no Chromium on this machine (KVCHAT_CHROMIUM may name one)")
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def browsing(chromium: Browser, server: str) -> Iterator[Looking]:
    context = chromium.new_context(
        viewport={"width": 1440, "height": 900},
        locale="en-US",
        permissions=["clipboard-read", "clipboard-write"],
    )
    yield Looking(context, server)
    context.close()


@pytest.fixture
def looking(browsing: Looking) -> Iterator[Looking]:
    browsing.begin(StandIn(token_s=0.004))
    yield browsing
    browsing.end()
    assert browsing.troubles == []
