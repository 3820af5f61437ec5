"""A chat as the screen shows it: messages for the chat component, and notes for what is around.

Each message is HTML of ours around text that cannot do anything (`markup.py`). The notes hold what
stands under a reply: figures, versions, citations, how it ended; scripts draw them, for they move
while the text stays. Takes values and returns values; asks nobody.
"""

import html
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from kvchat.chat.answer import ENDED, LiveAnswer
from kvchat.chat.reasoning import Reasoned, reasoned
from kvchat.chat.rows import Exchange
from kvchat.ui.cited import bare, drawn, placed
from kvchat.ui.markup import markdown, plain
from kvchat.ui.words import problem
from kvchat.wording import Language, say

# A question longer than this is folded: whoever wrote it knows it, whoever reads wants the reply.
_LONG_CHARS, _LONG_LINES = 1200, 16
# What one update of the chat costs the browser grows with the messages drawn.
TURNS_SHOWN = 24


def merged(exchanges: Sequence[Exchange], live: LiveAnswer | None) -> list[Exchange]:
    """The chat with the answer that is being made in its place, and nothing after it."""
    if live is None or live.status in ENDED:
        return list(exchanges)
    until = [one for one in exchanges if one.turn <= live.turn]
    return [_with_live(one, live) if one.turn == live.turn else one for one in until]


def _with_live(exchange: Exchange, live: LiveAnswer) -> Exchange:
    return replace(
        exchange,
        reply=live.text,
        finish_reason=None,
        figures=live.figures,
        citations=list(live.citations),
    )


def messages(
    exchanges: Sequence[Exchange], live: LiveAnswer | None, lang: Language, shown: int
) -> list[dict[str, str]]:
    """The last `shown` turns for the chat component: question, reply, and what is said between."""
    found: list[dict[str, str]] = []
    first = max(0, len(exchanges) - shown)
    if first:
        found.append(_said("assistant", '<div class="kv-earlier" id="kv-earlier"></div>'))
    for number, exchange in enumerate(exchanges[first:], first):
        seen = number + 1 == len(exchanges) or not exchanges[number + 1].left_out
        is_live = live is not None and live.turn == exchange.turn and live.status not in ENDED
        found.append(_said("user", _question(exchange, lang)))
        found.append(_said("assistant", _reply(exchange, is_live, lang)))
        if exchange.left_out and seen:
            num_turns = _num_left_out(exchanges, number)
            found.append(_said("assistant", _divider(num_turns, exchange.summary, lang)))
    return found


def _num_left_out(exchanges: Sequence[Exchange], last: int) -> int:
    """How many turns in a row are left out up to that place."""
    return sum(1 for _ in takewhile(lambda one: one.left_out, reversed(exchanges[: last + 1])))


def notes(
    chat: str | None,
    exchanges: Sequence[Exchange],
    live: LiveAnswer | None,
    lang: Language,
    shown: int,
) -> dict[str, Any]:
    """What the scripts draw around the messages. `earlier`: turns that are not drawn; `gone`: the
    chat that was asked for and is not there any more.
    """
    making = live if live is not None and live.status not in ENDED else None
    first = max(0, len(exchanges) - shown)
    return {
        "chat": chat,
        "earlier": first,
        "turns": [_note(one, live, lang) for one in exchanges[first:]],
        "live": {"turn": making.turn, "status": making.status} if making else None,
        "problem": _unplaced(exchanges, live, lang),
        "gone": None,
    }


def _unplaced(
    exchanges: Sequence[Exchange], live: LiveAnswer | None, lang: Language
) -> dict[str, Any] | None:
    """What went wrong with a question that was not written down, and its text."""
    if live is None or live.error is None or any(one.turn == live.turn for one in exchanges):
        return None
    return {**(problem(live.error, lang) or {}), "unsent": live.question}


def _said(role: str, markup: str) -> dict[str, str]:
    return {"role": role, "content": markup}


def _question(exchange: Exchange, lang: Language) -> str:
    files = "".join(f'<span class="kv-file">{plain(name)}</span>' for name in exchange.documents)
    marks = " kv-unseen" if exchange.left_out else ""
    fold = ""
    if len(exchange.text) > _LONG_CHARS or exchange.text.count("\n") >= _LONG_LINES:
        marks += " kv-long"
        fold = _fold(lang)
    return (
        f'<div class="kv-ask{marks}" id="kv-ask-{exchange.turn}">'
        f'{files}<div class="kv-words">{plain(exchange.text)}</div>{fold}{_marks(exchange, lang)}'
        "</div>"
        f'<div class="kv-tools" id="kv-tools-{exchange.turn}"></div>'
    )


def _marks(exchange: Exchange, lang: Language) -> str:
    """What the model sees of the turn, where that is not all of it."""
    if exchange.left_out:
        seen = exchange.summary is not None
        code = "ui.mark.summarized" if seen else "ui.mark.left_out"
    elif exchange.evicted:
        code = "ui.mark.evicted"
    else:
        return ""
    return f'<div class="kv-marks">{html.escape(say(code, lang))}</div>'


def _fold(lang: Language) -> str:
    more, less = (html.escape(say(code, lang)) for code in ("ui.show_more", "ui.show_less"))
    return (
        '<button type="button" class="kv-link kv-fold">'
        f'<span class="kv-more">{more}</span><span class="kv-less">{less}</span></button>'
    )


def _reply(exchange: Exchange, is_live: bool, lang: Language) -> str:
    found = reasoned(placed(exchange.reply or "", exchange.citations), growing=is_live)
    text = drawn(markdown(found.answer, lang), exchange.citations, lang)
    marks = " kv-live" if is_live else ""
    marks += " kv-unseen" if exchange.left_out else ""
    return (
        f'<div class="kv-reply{marks}">{_reasoning(exchange.turn, found, is_live, lang)}'
        f'<div class="kv-text">{text}</div></div>'
        f'<div class="kv-foot" id="kv-foot-{exchange.turn}"></div>'
    )


def _reasoning(turn: int, found: Reasoned, is_live: bool, lang: Language) -> str:
    """Folded, unless it is all that the reply came to."""
    if not found.reasoning:
        return ""
    thinks = found.is_open and is_live
    name = html.escape(say("ui.reasoning.live" if thinks else "ui.reasoning", lang))
    is_all = not found.answer and not is_live
    return (
        f'<details class="kv-think{" kv-thinks" if thinks else ""}" id="kv-think-{turn}"'
        f"{' open' if is_all else ''}><summary>{name}</summary>"
        f'<div class="kv-think-text">{markdown(bare(found.reasoning), lang)}</div></details>'
    )


def _divider(num_turns: int, summary: str | None, lang: Language) -> str:
    """With a place for what takes it back, and what the model sees instead."""
    code = "ui.left_out" if summary is None else "ui.left_out.summarized"
    code = f"{code}.one" if num_turns == 1 else code
    text = html.escape(say(code, lang, turns=num_turns))
    said = f'<div class="kv-divider"><span>{text} <span class="kv-undo"></span></span></div>'
    if not summary:
        return said
    name = html.escape(say("ui.summary", lang))
    return (
        f'{said}<details class="kv-summary"><summary>{name}</summary>'
        f'<div class="kv-words">{plain(summary)}</div></details>'
    )


def _note(exchange: Exchange, live: LiveAnswer | None, lang: Language) -> dict[str, Any]:
    """`problem`: why the turn has no reply, or a broken one; of the answer itself where it is there
    still, else as it was kept.
    """
    failed = live.error if live is not None and live.turn == exchange.turn else None
    return {
        "turn": exchange.turn,
        "name": exchange.user_hash,
        "sibling": exchange.sibling,
        "num_siblings": exchange.num_siblings,
        "left_out": exchange.left_out,
        "pinned": exchange.pinned,
        "answered": bool(exchange.reply),
        "finish_reason": exchange.finish_reason,
        "figures": exchange.figures,
        "citations": exchange.citations,
        "sources": list(exchange.sources),
        "problem": problem(failed or exchange.problem, lang),
    }
