"""axe-core finds no serious fault on the screen: empty, with answers, with settings and each tab
open, light and dark, in both languages. Screenshots of what was looked at lie in build/screens/.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page, expect

from kvchat.planner.ledger import entry, stored
from tests.ui.conftest import ask, drop
from tests.ui.replies import MARKUP
from tests.ui.served import Tiny

pytestmark = pytest.mark.browser

SCREENS = Path(__file__).resolve().parents[2] / "build" / "screens"
SERIOUS = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 160)).slice(0, 4)])"""


def faults(page: Page, name: str) -> list[Any]:
    page.wait_for_timeout(250)  # what fades in has its colours
    SCREENS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENS / f"{name}.png")
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(AXE_SCRIPT)
    found: list[Any] = page.evaluate(SERIOUS)
    return found


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    found = Tiny(tmp_path_factory.mktemp("axe"))
    yield found
    found.end()


def with_everything(tiny: Tiny) -> str:
    """A chat with reasoning, tables, code, formulas, a cut reply, turns left out, and a ledger."""
    texts = ("first", "<think>hm</think>\n" + MARKUP, "<b>둘째</b> 질문", "## 답\n\n> 인용", "last")
    chat = tiny.said(*texts, title="Everything 모두")
    store: Any = tiny.talks._store
    first, second = [one.hash for one in store.messages(chat) if one.role == "user"][:2]
    left_out = {"num_turns": 1, "tokens": 90}
    store.add_ledger(
        chat, **entry("truncate_turns", left_out, "prompt_too_long", 0, None, (first,))
    )
    before, after = stored(["fp/fp"], "device"), stored(["int8/int8"], "device")
    about = {"tokens": 64, "formats": "int8/int8"}
    row = entry("requantize", about, "no_room", 2**20, 2**20, (second,), before=before, after=after)
    store.add_ledger(chat, **row)
    return chat


@pytest.mark.parametrize(
    ("lang", "theme"),
    [
        pytest.param("en", "light", marks=pytest.mark.slow),
        ("ko", "dark"),
        pytest.param("en", "dark", marks=pytest.mark.slow),
        pytest.param("ko", "light", marks=pytest.mark.slow),
    ],
)
def test_no_serious_fault(chromium: Browser, tiny: Tiny, lang: str, theme: str) -> None:
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
    page = context.new_page()
    page.goto(f"{tiny.url}/{lang}/")
    page.wait_for_function("window.kvchat?.frame && document.getElementById('kv-input')")
    page.evaluate(f"kvchat.setTheme('{theme}')")
    page.evaluate("document.body.append(document.createElement('button'))")
    assert [one[0] for one in faults(page, "fault")] == ["button-name"]  # it would be seen
    page.evaluate("document.body.lastElementChild.remove()")
    found = {"empty": faults(page, f"empty-{lang}-{theme}")}
    page.evaluate("(chat) => kvchat.open(chat)", with_everything(tiny))
    page.wait_for_function("kvchat.notes.turns.length === 3")
    drop(page, "manual.md", "# 필터\n\nClean it every two weeks.".encode())
    expect(page.locator(".kv-pending")).to_be_visible(timeout=30_000)
    ask(page, "How often?")
    page.evaluate("kvchat.panel.close()")
    found["chat"] = faults(page, f"chat-{lang}-{theme}")
    page.locator(".kv-think summary").click()
    page.fill(".kv-search", "질문")
    expect(page.locator(".kv-hit").first).to_be_visible()
    page.locator(".kv-chat-row").first.hover()
    found["search"] = faults(page, f"search-{lang}-{theme}")
    page.evaluate("kvchat.panel.open()")
    tabs = page.locator("[role=tab]").evaluate_all("(all) => all.map((one) => one.id)")
    assert len(tabs) >= 5
    for tab in tabs:
        page.locator(f"#{tab}").click()
        page.wait_for_timeout(300)
        found[tab] = faults(page, f"{tab.removeprefix('kv-tab-')}-{lang}-{theme}")
    page.keyboard.press("Control+/")
    found["shortcuts"] = faults(page, f"shortcuts-{lang}-{theme}")
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("kvchat.panel.close()")
    found["narrow"] = faults(page, f"narrow-{lang}-{theme}")
    page.locator(".kv-only-narrow").click()
    found["side"] = faults(page, f"side-{lang}-{theme}")
    context.close()
    seen = {name: what for name, what in found.items() if what}
    assert seen == {}, json.dumps(seen, ensure_ascii=False, indent=1)
