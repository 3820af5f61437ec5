"""Everything around the chat in a real browser: bar, documents, settings, languages, sizes."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from kvchat.errors import ModelError, OutOfMemory
from tests.ui.conftest import Looking, answered, ask, drop
from tests.ui.replies import PDF

pytestmark = pytest.mark.browser


def widths(page: Page) -> dict[str, float]:
    found = page.evaluate(
        "[...document.querySelectorAll('.kv-seg')].map((s) => [s.kvPart.key, s.kvPart.bytes])"
    )
    return dict(found)


def test_the_bar_grows_turn_by_turn_and_sums_to_the_device(looking: Looking) -> None:
    page = looking.page
    held = []
    for number in (1, 2, 3):
        ask(page, f"count to {10 * number}")
        page.wait_for_function(f"kvchat.frame.turns.length === {number}")
        parts = widths(page)
        turns = [key for key in parts if re.fullmatch(r"t\d", key)]
        assert turns == [f"t{n}" for n in range(1, number + 1)]
        held.append(sum(parts[key] for key in turns))
        assert sum(parts.values()) == page.evaluate("kvchat.frame.device.total")
    assert held == sorted(held)
    assert held[0] < held[2]
    expect(page.locator(".kv-bar-room")).to_have_text(re.compile(r"about [\d,]+ more tokens"))
    drawn = page.evaluate("document.querySelector('.kv-track').getBoundingClientRect().width")
    assert abs(sum(page.evaluate("[...document.querySelectorAll('.kv-seg')].map((s) => "
                                 "s.getBoundingClientRect().width)")) - drawn) < 4  # fmt: skip


def test_hovering_a_segment_gives_its_numbers(looking: Looking) -> None:
    page = looking.page
    page.locator(".kv-s-weights").first.hover()
    expect(page.locator(".kv-tip")).to_have_text("Weights · 4.36 GiB · 54.5 %")


def test_what_was_done_is_said_with_its_reason(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    chat = page.evaluate("kvchat.chat")
    looking.talks.record(chat, "shrink_chunk", "out_of_memory", 3 * 2**20, tokens=256, was=512)
    last = page.locator(".kv-last-what")
    expect(last).to_have_text(
        "Reads 256 tokens at a time instead of 512 — "
        "memory was short for one step, which then ran again this way"
    )
    page.get_by_role("button", name="1 entry").click()
    row = page.locator(".kv-ledger li")
    for words in ("3.0 MiB freed", "FP → INT8", "Read again"):
        expect(row).to_contain_text(words)
    link = page.get_by_role("link", name="Save as a file for a fault report")
    expect(link).to_have_attribute("href", f"/api/ledger?chat={chat}")
    page.reload()
    expect(page.locator(".kv-last-what")).to_contain_text("Reads 256 tokens")
    page.wait_for_function("kvchat.notes.chat === kvchat.chat")  # what comes next is asked of it


def test_what_is_done_turn_after_turn_is_one_row(looking: Looking) -> None:
    """And what takes something from the chat, or was done after a pause, has a row of its own."""
    passing = {"code": "shrink_chunk", "reason": "no_room", "arguments": {}, "turns": []}
    entries = [passing | {"number": turn, "turn": turn} for turn in (4, 5, 5, 6, 9)]
    lossy = passing | {"code": "evict", "turns": ["t1"]}
    entries[2:2] = [lossy | {"number": 20, "turn": 5}, lossy | {"number": 21, "turn": 6}]
    rows = looking.page.evaluate(
        "(list) => kvchat.folded(list).map((row) => row.map((one) => [one.code, one.turn]))",
        entries,
    )
    assert rows == [
        [["evict", 5]],
        [["evict", 6]],
        [["shrink_chunk", turn] for turn in (4, 5, 5, 6)],
        [["shrink_chunk", 9]],
    ]


def test_turns_that_the_model_does_not_see_are_marked(looking: Looking) -> None:
    looking.talks.room = 200
    page = looking.page
    for _ in range(4):
        ask(page, "count to 15")
    chat = page.evaluate("kvchat.chat")
    gone = sum(one.left_out for one in looking.talks.history(chat))
    expect(page.locator(".kv-divider")).to_contain_text(f"does not see the {gone} turns above")
    expect(page.locator(".kv-ask.kv-unseen")).to_have_count(gone)
    expect(page.locator(".kv-marks")).to_have_text(["not seen by the model"] * gone)


def test_a_summary_that_the_model_sees_can_be_read(looking: Looking) -> None:
    looking.talks.room, looking.talks.summary = 200, "They counted <b>twice</b>."
    page = looking.page
    for _ in range(4):
        ask(page, "count to 15")
    expect(page.locator(".kv-divider")).to_contain_text("the model sees a summary of the")
    words = page.locator(".kv-summary .kv-words")
    expect(words).to_be_hidden()
    page.get_by_text("What the model sees instead").click()
    expect(words).to_have_text("They counted <b>twice</b>.")


def test_what_was_left_out_is_taken_back_after_its_cost_is_said(looking: Looking) -> None:
    looking.talks.room = 200
    page = looking.page
    for _ in range(4):
        ask(page, "count to 15")
    chat = page.evaluate("kvchat.chat")
    looking.talks.record(chat, "truncate_turns", "prompt_too_long", 0, num_turns=2, tokens=90)
    again = page.locator(".kv-divider .kv-undo")
    again.get_by_role("button", name="Read again").click()
    expect(again).to_contain_text("1,200 tokens are read again with the next question: about 4.2 s")
    again.get_by_role("button", name="Keep").click()
    expect(again.get_by_role("button")).to_have_count(1)
    again.get_by_role("button", name="Read again").click()
    again.get_by_role("button", name="Do it").click()
    expect(again).to_have_text("comes back with the next question")
    (number,) = looking.talks.frame(chat)["undo"]["asked"]
    assert number == looking.talks.ledger_since(chat, 0)[-1]["number"]
    page.reload()
    expect(again).to_have_text("comes back with the next question")  # drawn: it is connected


def test_what_cannot_be_taken_back_says_why(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    looking.talks.record(
        page.evaluate("kvchat.chat"), "requantize", "no_room", 2**20, tokens=64, formats="int8/int8"
    )
    page.get_by_role("button", name="1 entry").click()
    place = page.locator(".kv-ledger .kv-undo")
    expect(place.locator(".kv-undo-cost")).to_be_visible()  # asked for by itself, and once
    looking.talks.fail_next = OutOfMemory("undo_no_room", tokens=5000, capacity=4000)
    place.get_by_role("button").click()
    expect(place).to_contain_text("the chat would have 5,000 tokens, and 4,000 fit")
    place.get_by_role("button", name="Keep").click()
    expect(place.get_by_role("button", name="Read again")).to_be_visible()


def test_turns_are_pinned_and_unpinned(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    ask(page, "count to 4")
    first = page.locator("#kv-tools-1")
    page.locator("#kv-ask-1").hover()
    first.get_by_role("button", name="Pin: never leave out").click()
    expect(first.locator(".kv-icon-pinned")).to_be_visible()
    page.locator("#kv-ask-2").hover()
    opacity = "(e) => [getComputedStyle(e).opacity, getComputedStyle(e.firstChild).opacity].join()"
    assert first.evaluate(opacity) == "1,1"  # seen without a pointer over it
    chat = page.evaluate("kvchat.chat")
    assert [one.pinned for one in looking.talks.history(chat)] == [True, False]
    looking.talks.fail_next = OutOfMemory("pins_too_large", pinned=900, capacity=700)
    second = page.locator("#kv-tools-2")
    second.get_by_role("button", name="Pin: never leave out").click()
    expect(second).to_contain_text("would take 900 tokens, and 700 fit")
    second.get_by_role("button", name="Close").click()
    first.get_by_role("button", name="unpin").click()
    expect(page.locator(".kv-icon-pinned")).to_have_count(0)


def test_documents_and_pages_are_pinned(looking: Looking) -> None:
    page = looking.page
    drop(page, "manual.pdf", PDF)
    ask(page, "How often should it be cleaned?")
    page.locator(".kv-cite").first.click()
    page.get_by_role("button", name="Pin this page").click()
    chat = page.evaluate("kvchat.chat")
    expect(page.locator(".kv-page-chip.kv-pinned")).to_have_text("p. 3")
    assert looking.talks.documents(chat)[0].pinned_pages == (3,)
    page.get_by_role("button", name="unpin this page").click()
    expect(page.locator(".kv-page-chip.kv-pinned")).to_have_count(0)
    page.get_by_role("button", name="Pin the document").click()
    expect(page.locator(".kv-doc .kv-icon-pinned")).to_be_visible()
    expect(page.locator(".kv-page-bar button").last).to_be_disabled()  # it is pinned with the rest
    looking.talks.fail_next = OutOfMemory("pins_too_large", pinned=900, capacity=700)
    page.get_by_role("button", name="unpin the document").click()
    expect(page.locator(".kv-doc-problem")).to_contain_text("would take 900 tokens")


def test_a_dropped_pdf_is_read_page_by_page_and_cited(looking: Looking) -> None:
    looking.talks.page_s = 0.15
    page = looking.page
    page.fill("#kv-input", "half a question")
    drop(page, "manual <b>.pdf", PDF)
    expect(page.locator(".kv-reading")).to_contain_text(re.compile(r"reading page \d of 4"))
    expect(page.locator("#kv-input")).to_have_value("half a question")
    expect(page.locator(".kv-doc")).to_contain_text("manual <b>.pdf")
    chip = page.locator(".kv-pending .kv-reading")
    expect(chip).to_contain_text("4 pages")  # it goes with the next question
    ask(page, "How often should it be cleaned?")
    expect(chip).to_have_count(0)
    expect(page.locator(".kv-doc")).to_contain_text("Read whole, not searched")
    assert page.locator(".kv-file").inner_text() == "manual <b>.pdf"
    chips = page.locator(".kv-cite")
    expect(chips).to_have_count(2)
    expect(chips.first).to_have_class(re.compile("kv-matched"))
    expect(chips.first).to_contain_text("p. 3 (printed iii)")
    expect(chips.last).to_contain_text("p. 2")
    chips.first.click()
    expect(page.locator(".kv-page-bar")).to_contain_text("Page 3 of 4")
    page.wait_for_function("document.querySelector('.kv-page').naturalWidth === 620")
    page.get_by_role("button", name="Next page").click()
    expect(page.locator(".kv-page")).to_have_attribute("src", re.compile(r"/doc/\w+/4\.png"))


def test_a_question_that_is_sent_at_once_goes_with_the_file(looking: Looking) -> None:
    page = looking.page
    drop(page, "one.pdf", PDF)
    drop(page, "two.pdf", PDF)
    ask(page, "How often should it be cleaned?")
    expect(page.locator(".kv-file")).to_have_text(["one.pdf", "two.pdf"])
    assert len(looking.talks.chats()) == 1


def test_a_file_that_cannot_be_read_says_why(looking: Looking) -> None:
    page = looking.page
    drop(page, "notes.txt", b"no pdf")
    expect(page.locator(".kv-broken")).to_contain_text("notes.txt")
    expect(page.locator(".kv-broken")).to_contain_text("not a file that was uploaded here")
    drop(page, "scan.pdf", PDF)
    expect(page.locator(".kv-doc-problem")).to_contain_text("Drop the file into the window")


def test_hostile_text_does_nothing_and_is_all_there(looking: Looking) -> None:
    page = looking.page
    hostile = "hostile <img src=x onerror=window.hacked=1> <style>*{display:none}</style>"
    drop(page, "<img src=x onerror=window.hacked=1>.pdf", PDF)
    expect(page.locator(".kv-doc")).to_have_count(1)
    ask(page, hostile)
    page.wait_for_timeout(400)
    assert page.evaluate("window.hacked") is None
    assert page.locator(".kv-words").inner_text() == hostile
    reply = page.locator(".kv-text").inner_text()
    for part in ("<img src=x onerror", "<style>*{display:none}</style>", "<iframe src=",
                 "<script>window.hacked=1</script> <b>kept</b>", 'A["<img src=x'):  # fmt: skip
        assert part in reply
    assert (
        page.locator("#kv-chat .message-wrap").locator("img, iframe, style, script, video").count()
        == 0
    )
    links = page.locator(".kv-text a").evaluate_all("(all) => all.map((one) => one.href)")
    assert all(urlsplit(link).scheme == "https" for link in links)
    assert page.locator(".kv-chat-title").inner_text().startswith("hostile <img")


def test_markdown_code_tables_formulas_and_money(looking: Looking) -> None:
    page = looking.page
    ask(page, "markup")
    text = page.locator(".kv-text")
    expect(text.locator("td")).to_have_count(9)
    expect(text.locator("code").last).to_contain_text("# <b>not bold</b>")
    expect(text.locator(".katex")).to_have_count(2)
    assert "It costs $5 or $10." in text.inner_text()
    text.get_by_role("button", name="Copy").click()
    assert page.evaluate("navigator.clipboard.readText()").startswith("def share(bits")


def test_chats_are_renamed_searched_and_deleted(looking: Looking) -> None:
    page = looking.page
    ask(page, "count to 3")
    page.keyboard.press("Control+Shift+O")
    ask(page, "count to 4")
    rows = page.locator(".kv-chat-row")
    expect(rows).to_have_count(2)
    rows.last.hover()
    rows.last.get_by_role("button", name="Rename").click()
    page.fill(".kv-rename", "필터 청소")
    page.keyboard.press("Enter")
    expect(rows.last).to_contain_text("필터 청소")
    page.fill(".kv-search", "필터")
    expect(rows).to_have_count(1)
    page.fill(".kv-search", "")
    expect(rows).to_have_count(2)
    rows.first.hover()
    rows.first.get_by_role("button", name="Delete this chat").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(rows).to_have_count(1)
    expect(page.locator(".kv-welcome")).to_be_visible()
    assert len(looking.talks.chats()) == 1


def test_the_file_that_is_uploaded_can_be_any_name(looking: Looking, tmp_path: Path) -> None:
    page = looking.page
    path = tmp_path / ("긴 이름 " * 20 + ".pdf")
    path.write_bytes(PDF)
    page.locator("input[type=file][multiple]").set_input_files(path)
    expect(page.locator(".kv-doc")).to_contain_text("긴 이름")


def test_a_loading_model_says_how_far_it_is_and_takes_questions(looking: Looking) -> None:
    looking.talks.__init__(token_s=0.004, load_s=6.0)  # type: ignore[misc]
    page = looking.open()
    expect(page.locator(".kv-pill-words")).to_contain_text(re.compile(r"MiB of 4\.36 GiB|GiB of"))
    expect(page.locator(".kv-welcome-model")).to_be_visible()
    ask(page, "count to 3", wait=False)
    expect(page.locator(".kv-figures")).to_contain_text("waiting")
    page.wait_for_selector(".kv-send:visible", timeout=30_000)
    answered(page)
    expect(page.locator(".kv-text")).to_have_text("1 2 3")


def test_a_model_that_cannot_be_loaded_says_why_and_what_to_do(looking: Looking) -> None:
    looking.talks.broken = ModelError("model_load_failed", why="no room")
    page = looking.open("ko")
    expect(page.locator(".kv-pill-words")).to_have_text(re.compile("모델을 불러오지 못했습니다"))
    expect(page.locator(".kv-notices")).to_contain_text("다른 모델을 고르거나")
