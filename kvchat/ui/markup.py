"""What a model or a person wrote, made into HTML that can do nothing: no script, no picture.

Markdown is parsed here and not in the browser, so that HTML in a text is shown as text in prose and
in code alike, a code example never vanishes and nothing is fetched (cases C30). `$` is money;
LaTeX stands between `$$`, `\\(` `\\)` or `\\[` `\\]` and is drawn by the browser's KaTeX.
Knows no chat and no component.
"""

import html
import re
from collections.abc import Sequence
from functools import lru_cache

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from kvchat.wording import Language, say

LATEX = (("$$", "$$", True), ("\\[", "\\]", True), ("\\(", "\\)", False))  # left, right, display

_LINKS = ("http://", "https://", "mailto:")
_LANGUAGE = re.compile(r"[\w+#.-]{1,24}")
# A longer block is shown plain: colouring it again eight times a second would hold up the stream.
_MOST_COLOURED = 20_000


@lru_cache(maxsize=256)
def markdown(text: str, lang: Language) -> str:
    """Markdown as HTML on one line: gradio dedents messages, which would ruin code otherwise."""
    return one_line(_parser().render(text, {"lang": lang}))


def plain(text: str) -> str:
    """The text itself, every character of it, as HTML on one line."""
    return one_line(html.escape(text))


def one_line(markup: str) -> str:
    return markup.replace("\r", "").replace("\n", "&#10;").replace("\t", "&#9;")


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"])
    parser.disable(["html_inline", "html_block"])
    parser.inline.ruler.before("escape", "math", _math_inline)
    parser.block.ruler.before("fence", "math", _math_block, {"alt": ["paragraph", "list"]})
    parser.validateLink = _may_link  # type: ignore[method-assign]
    return parser


def _may_link(url: str) -> bool:
    return url.strip().lower().startswith(_LINKS)


def _math_inline(state: StateInline, silent: bool) -> bool:
    for left, right, _ in LATEX:
        if state.src.startswith(left, state.pos):
            end = state.src.find(right, state.pos + len(left))
            if end <= state.pos + len(left):
                return False
            if not silent:
                state.push("math", "", 0).content = state.src[state.pos : end + len(right)]
            state.pos = end + len(right)
            return True
    return False


def _math_block(state: StateBlock, start: int, stop: int, silent: bool) -> bool:
    """A formula over several lines, which a list or a heading inside it must not break up."""
    begin = state.bMarks[start] + state.tShift[start]
    pair = next((one for one in LATEX[:2] if state.src.startswith(one[0], begin)), None)
    if pair is None:
        return False
    end = state.src.find(pair[1], begin + 2, state.eMarks[stop - 1])
    last = next((n for n in range(start, stop) if state.eMarks[n] >= end + 2), stop - 1)
    if end < 0 or state.src[end + 2 : state.eMarks[last]].strip():
        return False
    if not silent:
        token = state.push("math", "", 0)
        token.content, token.block, token.map = state.src[begin : end + 2], True, [start, last + 1]
        state.line = last + 1
    return True


class _Renderer(RendererHTML):
    """One method a kind of token; what is not here is drawn as markdown-it does."""

    def math(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        shown = html.escape(tokens[idx].content, quote=False)
        return f'<div class="kv-math">{shown}</div>' if tokens[idx].block else shown

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        named = _LANGUAGE.match(tokens[idx].info.strip())
        language = named[0] if named else ""
        copy = html.escape(say("ui.copy", env["lang"]))
        return (
            f'<div class="kv-code"><div class="kv-code-bar"><span>{html.escape(language)}</span>'
            f'<button type="button" class="kv-copy">{copy}</button></div>'
            f"<pre><code>{_coloured(tokens[idx].content, language)}</code></pre></div>\n"
        )

    code_block = fence

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """A link to the picture: loading it would tell its host what was said here."""
        url = html.escape(str(tokens[idx].attrs["src"]))
        return f'<a href="{url}" title="{url}">{html.escape(tokens[idx].content) or url}</a>'

    def link_open(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        """The address shows on hover, whatever the link's words promise."""
        url = html.escape(str(tokens[idx].attrs["href"]))
        return f'<a href="{url}" title="{url}">'


def _coloured(code: str, language: str) -> str:
    if language and len(code) <= _MOST_COLOURED:
        try:
            lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
        except ClassNotFound:
            return html.escape(code)
        return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))
    return html.escape(code)
