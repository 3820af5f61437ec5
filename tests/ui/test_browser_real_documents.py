"""Real PDFs, the real model, a real browser: what was read, where it stands, and what is not there;
in both languages.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.ui.conftest import USUAL_MS, answered, ask, drop
from tests.ui.test_browser_real import PATIENCE_MS, Real, set_longest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def real(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    expect.set_options(timeout=PATIENCE_MS)
    found = Real(chromium, tmp_path_factory.mktemp("data"))
    yield found
    expect.set_options(timeout=USUAL_MS)
    found.context.close()
    found.serving.end()


def opened(real: Real, lang: str, file: Path) -> Page:
    page = real.open(lang)
    set_longest(page, 24)
    drop(page, file.name, file.read_bytes())
    expect(page.locator(".kv-doc .kv-read")).to_be_visible()
    return page


def test_a_mark_in_the_reply_leads_to_the_very_lines(real: Real, shared_pdfs: Path) -> None:
    page = opened(real, "en", shared_pdfs / "long-fhs-3.0.pdf")
    expect(page.locator(".kv-doc-mode")).to_have_text("Searched: passages that suit each question")
    ask(page, "Where must process identifier (PID) files be placed?")
    expect(page.locator(".kv-sources")).to_contain_text("searched, passages from pages")
    page.locator(".kv-text .kv-ref").first.click()
    expect(page.locator(".kv-page-bar")).to_contain_text("Page 21 of 50 (printed 14)")
    spot = page.locator(".kv-enlarge .kv-spot").first
    expect(spot).to_be_visible()
    page.wait_for_function("document.querySelector('.kv-page').naturalWidth > 300")
    box, sheet = spot.bounding_box(), page.locator(".kv-page").bounding_box()
    assert box
    assert sheet
    assert 0.5 < (box["y"] - sheet["y"]) / sheet["height"] < 0.85  # where section 3.15.2 begins
    ask(page, "What does the document say about Flatpak or Snap packages?")
    expect(page.locator(".kv-sources").last).to_contain_text(
        "no passage that suits this question was found"
    )
    expect(page.locator(".kv-cites")).to_have_count(1)  # of the first reply only
    page.close()
    assert real.troubles == []


def test_korean_questions_find_korean_pages(real: Real, shared_pdfs: Path) -> None:
    """The text layer of this file has no blanks between words."""
    page = opened(real, "ko", shared_pdfs / "ko-debian-history.pdf")
    ask(page, "스테파노 자히콜리는 언제부터 언제까지 데비안 리더였나?")
    expect(page.locator(".kv-cite", has_text="8쪽 (인쇄 2)")).to_have_count(1)
    expect(page.locator(".kv-sources")).to_contain_text("찾아서 읽음")
    ask(page, "김치찌개는 어떻게 끓이나요?")
    expect(page.locator(".kv-sources").last).to_contain_text("이 질문에 맞는 대목을 찾지 못함")
    page.close()
    assert real.troubles == []


def test_a_small_document_is_read_ahead_and_a_second_chat_has_it(
    real: Real, shared_pdfs: Path
) -> None:
    page = opened(real, "ko", shared_pdfs / "small-4pages.pdf")
    expect(page.locator(".kv-ahead")).to_contain_text("다음 질문이 바로 시작됨")
    for number in (1, 2):
        ask(page, "이 문서는 무슨 내용이야?")
        answered(page)
        reused = re.search(r"([\d,]+)/([\d,]+)", page.locator(".kv-speed").last.inner_text())
        assert reused
        few, many = (int(one.replace(",", "")) for one in reused.groups())
        assert many - few < 64  # the question's own words
        expect(page.locator(".kv-sources").last).to_contain_text("통째로 캐시에 있음")
        if number == 1:
            page.evaluate("kvchat.open(null)")
            drop(page, "small-4pages.pdf", (shared_pdfs / "small-4pages.pdf").read_bytes())
            expect(page.locator(".kv-doc")).to_have_count(1)
            expect(page.locator(".kv-doc .kv-read")).to_be_visible()
    page.close()
    assert real.troubles == []
