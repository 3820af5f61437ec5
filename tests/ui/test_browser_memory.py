"""The memory bar in numbers, and the cache tab, in a real browser, in both languages."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import Looking, ask

pytestmark = pytest.mark.browser
MIB = 2**20
GAME = {"pid": 41, "name": "game.exe", "bytes_used": 900 * MIB}
NAMELESS = {"pid": 42, "name": "", "bytes_used": None}


def open_cache(page: Page) -> None:
    page.evaluate("kvchat.panel.open('turns')")
    page.wait_for_function("kvchat.turnFigures().size === kvchat.notes.turns.length")


def parts(page: Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.evaluate(
        "[...document.querySelector('.kv-track').children].map((s) => s.kvPart)"
    )
    return found


def test_in_every_frame_the_bar_sums_to_the_device(looking: Looking) -> None:
    looking.talks.token_s = 0.02
    page = looking.page
    page.evaluate(
        """() => { kvchat.sums = []; kvchat.nodes = new Set(); kvchat.on('frame', (frame) => {
        const drawn = [...document.querySelector('.kv-track').children];
        const sum = drawn.reduce((sum, one) => sum + one.kvPart.bytes, 0);
        kvchat.sums.push(Math.abs(sum - frame.device.total)); }); }"""
    )
    for _ in range(2):
        ask(page, "count to 40")
    sums = page.evaluate("kvchat.sums")
    assert len(sums) > 8
    assert max(sums) <= MIB


def test_while_an_answer_grows_the_bar_moves_and_nothing_else_does(looking: Looking) -> None:
    looking.talks.token_s = 0.03
    page = looking.page
    ask(page, "count to 5")
    page.evaluate(
        """() => { kvchat.seen = { at: [], tall: new Set(), added: 0 };
        const bar = document.querySelector('.kv-bar');
        new MutationObserver((all) => { for (const one of all)
          kvchat.seen.added += one.target.closest?.('.kv-held, .kv-last') ? 0
            : [...one.addedNodes].filter((node) => node.nodeType === 1).length; })
          .observe(bar, { childList: true, subtree: true });
        kvchat.on('frame', () => { kvchat.seen.at.push(performance.now());
          kvchat.seen.tall.add(bar.offsetHeight); }); }"""
    )
    ask(page, "count to 100")
    seen = page.evaluate(
        "({ at: kvchat.seen.at, tall: [...kvchat.seen.tall], added: kvchat.seen.added })"
    )
    per_s = (len(seen["at"]) - 1) / ((seen["at"][-1] - seen["at"][0]) / 1000)
    assert per_s >= 4
    assert len(seen["tall"]) == 1
    assert seen["added"] <= 6  # the new turn, and the legend's entries


def test_the_bar_gives_its_numbers_to_the_keyboard(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    track = page.locator(".kv-track")
    tip = page.locator(".kv-bar .kv-tip")
    track.focus()
    page.keyboard.press("Home")
    expect(tip).to_contain_text("Other programs · 1.57 GiB · 19.6 %")
    expect(tip).to_contain_text("(measured)")
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("Weights · 4.36 GiB")
    page.keyboard.press("End")
    expect(tip).to_contain_text("Free")
    page.keyboard.press("ArrowLeft")
    label = track.get_attribute("aria-label") or ""
    assert re.search(r"Memory [\d.]+ GiB of 8\.00 GiB, .* free, KV .* %, about [\d,]+ more", label)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="What is in memory")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".kv-held")).to_be_hidden()
    page.locator("#kv-input").focus()
    expect(tip).to_be_hidden()


@pytest.mark.parametrize(
    ("lang", "name", "nameless", "age", "over"),
    [
        (
            "en",
            "What is in memory",
            "program 42",
            "has not answered for 7.0 s",
            "of 3.50 GiB, .* over the budget: makes room",
        ),
        (
            "ko",
            "메모리에 있는 것",
            "프로그램 42",
            "장치가 7.0초째 답하지 않아",
            "/ 3.50 GiB, 예산을 .* 넘음",
        ),
    ],
)
def test_what_is_in_memory_is_a_table_that_sums(
    looking: Looking, lang: str, name: str, nameless: str, age: str, over: str
) -> None:
    looking.talks.programs = [GAME, NAMELESS]
    page = looking.open(lang)
    ask(page, "count to 3")
    page.locator(".kv-held-button").click()
    table = page.get_by_role("dialog", name=name)
    expect(table.locator("table").nth(1)).to_contain_text("game.exe900 MiB")
    expect(table.locator("table").nth(1)).to_contain_text(nameless)
    shares = [
        float(text.removesuffix(" %").replace(",", ""))
        for text in table.locator("table").first.locator("tbody td:nth-child(3)").all_inner_texts()
    ]
    assert abs(sum(shares) - 100) < 1
    bar = sum(one["bytes"] for one in parts(page))
    assert bar == page.evaluate("kvchat.frame.device.total")
    page.evaluate(
        "kvchat.emit('frame', {...kvchat.frame, device: {...kvchat.frame.device, age_s: 7}})"
    )
    expect(table.locator(".kv-hint")).to_contain_text(age)
    looking.talks.budget = 3584 * MIB  # lowered while more than that is held
    track = page.locator(".kv-track")
    expect(track).to_have_attribute("aria-label", re.compile(over))
    shown = page.locator(".kv-track .kv-seg")
    widths = "(all) => all.reduce((sum, one) => sum + parseFloat(one.style.width), 0)"
    assert abs(shown.evaluate_all(widths) - 100) < 0.1
    page.mouse.click(5, 500)
    expect(table).to_be_hidden()


def test_what_lies_in_the_computers_memory_is_hatched(looking: Looking) -> None:
    looking.talks.host_bytes = 60 * MIB
    page = looking.page
    ask(page, "count to 3")
    ask(page, "count to 4")
    expect(page.locator(".kv-lane .kv-tier")).to_have_count(1)
    expect(page.locator(".kv-track .kv-tier")).to_have_count(1)
    expect(page.locator(".kv-legend").first).to_contain_text("In the computer's memory 60 MiB")
    expect(page.locator(".kv-figures").first).to_contain_text("both")
    total = page.evaluate("kvchat.frame.device.total")
    assert sum(one["bytes"] for one in parts(page)) == total


def test_room_is_said_in_hangul_as_the_tokenizer_has_it(looking: Looking) -> None:
    page = looking.open("ko")
    ask(page, "하나")
    room = page.locator(".kv-bar-room")
    expect(room).to_have_text(re.compile(r"약 [\d,]+토큰 더 \(한글 약 [\d,]+자\)"))
    left, chars = (int(n.replace(",", "")) for n in re.findall(r"[\d,]+", room.inner_text()))
    assert abs(chars - 0.62 * left) < 0.06 * left
    used = page.evaluate("kvchat.capacity(kvchat.frame).used")
    looking.talks.room = used - 5  # an estimate that was too low is not stretched
    expect(room).to_contain_text("예상보다 많이 들어 있음")
    expect(page.locator(".kv-meter-text")).to_have_text(
        f"{used}토큰 (약 {used - 5}토큰이 들어갈 것으로 예상함)"
    )


def test_the_line_under_a_reply_says_what_it_took(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 12")
    line = page.locator(".kv-figures")
    for words in ("tokens ·", "FP · device", "of 60 reused", "read at", "first token after",
                  "reply 12 tokens", "tokens/s", "233 GiB/s"):  # fmt: skip
        expect(line).to_contain_text(words)


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_the_cache_tab_shows_every_turn(looking: Looking, lang: str) -> None:
    looking.talks.squeeze = True
    page = looking.open(lang)
    for number in (3, 30, 9):
        ask(page, f"count to {number}")
    open_cache(page)
    rows = page.locator(".kv-turns tbody tr")
    expect(rows).to_have_count(4)  # with the system text
    expect(rows.nth(3).locator("td").nth(5)).to_contain_text("233 GiB")
    expect(rows.nth(1)).to_contain_text("INT8")
    body = page.locator("#kv-body-turns")
    assert body.evaluate("(e) => e.scrollWidth <= e.clientWidth")
    wrap = page.locator("#kv-body-turns .kv-table-wrap")
    assert wrap.evaluate("(e) => e.scrollWidth <= e.clientWidth"), "the table fits the panel"
    chart = page.locator(".kv-figure").first.get_by_role("img")
    label = chart.get_attribute("aria-label") or ""
    assert label.count(",") == 3
    tall = chart.locator("g rect").evaluate_all(
        "(all) => all.map((one) => Number(one.getAttribute('height')))"
    )
    assert len(tall) == 4
    assert max(tall) == pytest.approx(100, abs=1)
    page.get_by_role("radio").nth(1).click()
    expect(chart).to_have_attribute("aria-label", re.compile("tokens" if lang == "en" else "토큰"))


def test_speed_is_shown_against_what_the_device_can_do(looking: Looking) -> None:
    looking.talks.gauges.measured = None
    page = looking.page
    ask(page, "count to 12")
    open_cache(page)
    box = page.locator(".kv-figure", has_text="Speed against this device")
    expect(box).to_contain_text("measured once, by itself")
    expect(box.locator(".kv-gauge-last").first).to_be_hidden()
    box.get_by_role("button", name="Measure again").click()
    expect(box).to_contain_text("last 9,000 GFLOP/s · device 32,000 GFLOP/s · 28 % of it")
    expect(box).to_contain_text("last 233 GiB/s · device 335 GiB/s · 69 % of it")
    expect(box).to_contain_text("A card, bfloat16")
    assert looking.talks.gauges.num_measured == 1
    # measured beside other programs: an answer shows that the device can do more
    looking.talks.gauges.measured |= {"bytes_per_s": 100e9}
    page.evaluate("kvchat.panel.close(); kvchat.panel.open('turns')")
    expect(box).to_contain_text("last 233 GiB/s · device at least 233 GiB/s · 100 % of it")
    looking.talks.gauges.measured |= {"bytes_per_s": 360e9}
    ask(page, "count to 13")
    expect(box).to_contain_text("device 335 GiB/s · 69 % of it")


def test_the_timeline_outlives_a_reload_and_has_marks(looking: Looking) -> None:
    page = looking.open()
    ask(page, "count to 3")
    chat = page.evaluate("kvchat.chat")
    looking.talks.record(chat, "requantize", "no_room", 2**28, tokens=64, formats="int8/int8")
    open_cache(page)
    picture = page.locator(".kv-timeline")
    expect(picture).to_have_attribute("aria-label", re.compile(r"GiB of 8\.00 GiB now, .* 1 marks"))
    mark = page.locator(".kv-done-mark")
    expect(mark).to_have_count(1)
    expect(mark.locator("title")).to_have_text(re.compile("Stored 64 tokens of old turns"))
    page.reload()
    page.wait_for_selector("#kv-input")
    page.wait_for_function("kvchat.frame && kvchat.notes.chat === kvchat.chat")
    open_cache(page)
    expect(picture).to_have_attribute("aria-label", re.compile(r"GiB of 8\.00 GiB now"))
    path = page.locator(".kv-area-other").first.get_attribute("d") or ""
    assert path.count("L") > 200


def test_a_turn_is_pinned_from_the_cache_tab(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    open_cache(page)
    row = page.locator(".kv-turns tbody tr").nth(1)
    row.hover()
    row.get_by_role("button", name="Pin: never leave out").click()
    expect(row.locator("[aria-pressed=true]")).to_be_visible()
    assert [one.pinned for one in looking.talks.history(page.evaluate("kvchat.chat"))] == [True]
    row.get_by_role("button", name="unpin").click()
    expect(row.locator("[aria-pressed=false]")).to_have_count(1)


@pytest.mark.parametrize(
    ("kept_bytes", "on_turn", "on_context"),
    [
        (37 * MIB, "kept for reuse: 37", "read on from memory with the next question"),
        (0, "not in memory now", "read again with the next question"),
    ],
)
def test_a_chat_whose_text_is_not_open_says_where_it_is(
    looking: Looking, kept_bytes: int, on_turn: str, on_context: str
) -> None:
    page = looking.page
    for _ in range(2):
        ask(page, "count to 9")
    expect(page.locator(".kv-meter-text")).to_contain_text(re.compile(r"^\d.* of .* tokens$"))
    looking.talks.kept_bytes = kept_bytes
    for line in page.locator(".kv-figures .kv-chip").all():
        expect(line).to_contain_text(on_turn)
    expect(page.locator(".kv-meter-text")).to_have_text(on_context)
    expect(page.locator(".kv-bar-room")).to_have_text("")


def test_what_another_chat_holds_has_its_own_name(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 9")
    looking.talks.kept_bytes = 0
    page.wait_for_function("kvchat.frame.kv.other_chats_bytes > 0")
    found = {part["key"]: part for part in parts(page)}
    assert found["chats"]["label"] == "Other chats"
    assert found["chats"]["bytes"] == page.evaluate("kvchat.frame.kv.other_chats_bytes")
    assert "slack" not in found  # all of it is kept for reuse here
    expect(page.locator(".kv-legend").first).to_contain_text("Other chats")


def test_the_chip_has_no_figures_of_another_version(looking: Looking) -> None:
    page = looking.page
    for _ in range(2):
        ask(page, "count to 9")
    chips = page.locator(".kv-figures .kv-chip")
    expect(chips.last).to_contain_text("tokens")
    context, bands = page.locator(".kv-meter-text"), page.locator(".kv-meter-track > i")
    expect(bands).to_have_count(3)  # both turns, and the system text
    whole = context.inner_text()
    looking.talks.other_version = 2
    expect(chips.last).to_have_text("Turn 2 · another version is in memory")
    expect(chips.first).to_contain_text("tokens")
    expect(context).to_contain_text("in other versions")
    used = page.evaluate("kvchat.capacity(kvchat.frame).used")
    held = page.evaluate("kvchat.frame.spans.reduce((sum, one) => sum + one.tokens, 0)")
    assert context.inner_text().startswith(f"{used} of")
    assert 0 < used < held
    expect(bands).to_have_count(2)
    found = {part["key"]: part for part in parts(page)}
    assert found["versions"]["bytes"] == page.evaluate("kvchat.frame.kv.other_versions_bytes")
    assert "t2" not in found
    looking.talks.other_version = None
    expect(chips.last).to_contain_text("tokens")
    expect(context).to_have_text(whole)
