"""Text of a model or a person as HTML that can do nothing, and loses nothing."""

import html
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.ui.markup import markdown, plain
from kvchat.wording import LANGUAGES
from tests.ui.replies import HOSTILE, MARKUP

TAGS = {
    "p", "br", "em", "strong", "s", "a", "code", "pre", "div", "span", "button", "ul", "ol", "li",
    "blockquote", "hr", "table", "thead", "tbody", "tr", "th", "td",
    "h1", "h2", "h3", "h4", "h5", "h6",
}  # fmt: skip
ATTRIBUTES = {"class", "href", "title", "type", "style", "start"}


class Seen(HTMLParser):
    """The tags, attributes and text of a piece of HTML."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def harmless(markup: str) -> Seen:
    seen = Seen(markup)
    assert seen.tags <= TAGS
    for name, value in seen.attributes:
        assert name in ATTRIBUTES
        if name == "href":
            assert value.lower().startswith(("http://", "https://", "mailto:"))
        if name == "style":
            assert re.fullmatch(r"text-align:(left|right|center)", value)
    return seen


@pytest.mark.parametrize("lang", LANGUAGES)
def test_hostile_text_is_shown_as_text(lang: str) -> None:
    seen = harmless(markdown(HOSTILE, lang))  # type: ignore[arg-type]
    for part in ('<img src=x onerror="window.hacked=1">', "<style>*{display:none}</style>",
                 '<iframe src="https://evil.example/">', "<b>kept</b>"):  # fmt: skip
        assert part in seen.text


@given(st.text(alphabet="<>&\"'`*_[]()!$\\\n\t #-|:ab/\u0000\u200bjavascript:한", max_size=120))
def test_no_text_makes_a_tag_that_is_not_ours(text: str) -> None:
    harmless(markdown(text, "en"))
    assert Seen(plain(text)).tags == set()


@given(st.text(max_size=200))
def test_plain_text_loses_nothing(text: str) -> None:
    assert html.unescape(plain(text)) == html.unescape(html.escape(text)).replace("\r", "")


def test_everything_stands_on_one_line_since_gradio_dedents() -> None:
    found = markdown("```\n\tone\n\t\ttwo\n```\n\n    three", "en")
    assert "\n" not in found
    assert "\t" not in found
    assert "&#9;one&#10;&#9;&#9;two" in found


def test_code_is_coloured_and_can_be_copied() -> None:
    found = markdown(MARKUP, "ko")
    assert '<span class="k">def</span>' in found
    assert ">복사</button>" in found
    assert "&lt;b&gt;not bold&lt;/b&gt;" in found


def test_an_unknown_language_and_a_very_long_block_are_plain() -> None:
    assert "<span class=" not in markdown("```nosuchthing\nx = 1\n```", "en")
    assert '<span class="n">' not in markdown("```python\n" + "x = 1\n" * 5000 + "```", "en")


def test_mermaid_is_not_drawn() -> None:
    assert 'class="mermaid"' not in markdown("```mermaid\ngraph TD\n```", "en")
    assert "graph TD" in markdown("```mermaid\ngraph TD\n```", "en")


@pytest.mark.parametrize(
    "formula", ["$$x_1 < y_2$$", "\\(a < b_1 * c_2\\)", "\\[a_1\n- b\n= c\\]", "$$\na\n\n- b\n$$"]
)
def test_a_formula_reaches_the_browser_as_it_is(formula: str) -> None:
    seen = harmless(markdown(f"so\n\n{formula}\n\nand", "en"))
    assert formula in seen.text
    assert not seen.tags & {"em", "ul", "li"}


def test_money_and_half_a_formula_are_text() -> None:
    assert Seen(markdown("$5 and $10, \\(x", "en")).text.strip() == "$5 and $10, (x"


def test_a_picture_is_a_link_and_loads_nothing() -> None:
    seen = harmless(markdown("![a cat](https://host/?q=secret)", "en"))
    assert ("href", "https://host/?q=secret") in seen.attributes
    assert seen.text.strip() == "a cat"
