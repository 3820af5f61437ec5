"""A chat as a file: JSON that comes back as the same chat with its branches, Markdown to be read.

What comes in may be anything: it is checked piece by piece before any of it is kept, and what is
wrong is said in one sentence. Knows no store and no screen.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from datetime import datetime
from typing import Any, NoReturn, cast, get_args

from kvchat.chat.figures import RATES
from kvchat.chat.reasoning import reasoned
from kvchat.chat.rows import Exchange
from kvchat.engine.events import Figures
from kvchat.errors import RequestError
from kvchat.memory.formats import FORMATS
from kvchat.store.base import clean
from kvchat.store.records import Attachment, Generation, Message, Mode, Role
from kvchat.store.whole import WholeChat
from kvchat.wording import Language, say

FORMAT = 1
LARGEST_BYTES = 32 * 1024**2
_MOST_MESSAGES = 100_000
_CITED = ("type", "document", "name", "page", "label", "text", "support", "quote", "at")
_CUT = ("length", "cancelled", "failed", "interrupted", "circles")
_SHA = re.compile(r"[0-9a-f]{64}")
_YEAR_9999_S = 253_370_764_800
_FIGURES = (*(one.name for one in fields(Figures)), *RATES)
_NEEDED = {one.name for one in fields(Figures) if one.default is MISSING}


# --- out ------------------------------------------------------------------------------------------


def to_json(chat: WholeChat, texts: Mapping[str, str]) -> str:
    """Messages are numbered from 1 in the order given; parents come before children. `texts`: by
    document, of those that stand before the first turn.
    """
    numbers = {one.hash: number for number, one in enumerate(chat.messages, 1)}
    messages = [
        {
            "number": numbers[one.hash],
            "parent": numbers[one.parent] if one.parent else None,
            "role": one.role,
            "text": one.content,
            "created_at_s": one.created_at_s,
            "documents": [asdict(brought) for brought in one.attachments],
            "pinned": one.hash in chat.pinned,
            "made": _made(chat.generations.get(one.hash)),
        }
        for one in chat.messages
    ]
    found = {
        "kvchat_chat": FORMAT,
        "title": chat.title,
        "system_text": chat.system_text,
        "created_at_s": chat.created_at_s,
        "documents": [
            {"document": sha, "name": name, "leading": leading, "text": texts.get(sha, "")}
            for sha, name, leading in chat.documents
        ],
        "messages": messages,
        "branches": [numbers[tip] for tip in chat.tips],
    }
    return json.dumps(found, ensure_ascii=False, indent=1)


def _made(made: Generation | None) -> dict[str, Any] | None:
    if made is None:
        return None
    found = asdict(made) | {"sampled_ids": list(made.sampled_ids)}
    del found["message"]
    return found


def to_markdown(title: str, exchanges: Sequence[Exchange], lang: Language) -> str:
    """The branch that is shown. Texts stand as they were written; reasoning is quoted."""
    parts = [f"# {' '.join(title.split())}" if title.strip() else f"# {say('ui.title', lang)}"]
    for one in exchanges:
        parts.append(f"## {say('export.question', lang, turn=one.turn)}")
        if one.documents:
            parts.append(say("export.files", lang, files=", ".join(one.documents)))
        parts.append(one.text)
        found = reasoned(one.reply or "")
        if not one.reply:
            parts.append(f"*{say('ui.end.unanswered', lang)}*")
            continue
        parts.append(f"### {say('export.reply', lang)}")
        if found.reasoning:
            quoted = "\n".join(f"> {line}".rstrip() for line in found.reasoning.splitlines())
            parts.append(f"> **{say('ui.reasoning', lang)}**\n>\n{quoted}")
        parts.append(found.answer)
        parts.extend(_cited(one, lang))
        if one.finish_reason in _CUT:
            parts.append(f"*{say(f'ui.end.{one.finish_reason}', lang)}*")
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def _cited(one: Exchange, lang: Language) -> Iterator[str]:
    pages = dict.fromkeys(
        say("export.page", lang, name=cite["name"], page=cite["page"])
        for cite in one.citations
        if cite.get("support") == "matched"
    )
    if pages:
        yield say("export.pages", lang, pages=", ".join(pages))


def file_name(title: str, suffix: str) -> str:
    """A name that every file system takes."""
    bare = re.sub(r'[\x00-\x1f<>:"/\\|?*\x7f]+', " ", title)
    bare = " ".join(bare.split()).strip(". ")[:80]
    return f"{bare or f'kvchat {datetime.now():%Y-%m-%d}'}.{suffix}"


# --- in -------------------------------------------------------------------------------------------


def from_json(content: bytes) -> tuple[WholeChat, dict[str, str]]:
    """The chat, and texts by document. Raises RequestError for anything that `to_json` would not
    have written: no chat's file at all, a later version's, a damaged one.
    """
    try:
        found = json.loads(content.decode("utf-8-sig"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise RequestError("chat_file_other") from None
    if not isinstance(found, dict) or "kvchat_chat" not in found:
        raise RequestError("chat_file_other")
    if found["kvchat_chat"] != FORMAT:
        raise RequestError("chat_file_newer")
    try:
        texts = {_sha(one["document"]): _text(one["text"]) for one in _list(found["documents"])}
        return _whole(found), texts
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise RequestError("chat_file_damaged") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _whole(found: Mapping[str, Any]) -> WholeChat:
    rows = _list(found["messages"])
    if len(rows) > _MOST_MESSAGES:
        raise ValueError
    messages: dict[int, Message] = {}
    for number, row in enumerate(rows, 1):
        if row["number"] != number:
            raise ValueError
        messages[number] = _message(row, messages)
    if any(one.parent is None and one.role != "user" for one in messages.values()):
        raise RequestError("chat_file_reply_first")  # turns are questions: it would be in none
    made = {n: _generation(row["made"]) for n, row in enumerate(rows, 1) if row["made"] is not None}
    if any(messages[number].role != "assistant" for number in made):
        raise ValueError
    tips = [messages[number] for number in _list(found["branches"])]
    _refuse_unreached(messages.values(), tips)
    return WholeChat(
        _text(found["title"]),
        _text(found["system_text"]),
        _time(found["created_at_s"]),
        0.0,
        list(messages.values()),
        list(dict.fromkeys(one.hash for one in tips)),
        {messages[number].hash: one for number, one in made.items()},
        frozenset(
            messages[number].hash
            for number, row in enumerate(rows, 1)
            if row["pinned"] is True and messages[number].role == "user"
        ),
        [
            (_sha(one["document"]), _text(one["name"]), one["leading"] is True)
            for one in _list(found["documents"])
        ],
    )


def _message(row: Mapping[str, Any], before: Mapping[int, Message]) -> Message:
    """Named by its number: its real name follows once it is kept."""
    parent = None if row["parent"] is None else before[row["parent"]].hash
    if row["role"] not in get_args(Role):
        raise ValueError
    brought = tuple(_attachment(one) for one in _list(row["documents"]))
    return Message(
        str(len(before) + 1),
        parent,
        cast(Role, row["role"]),
        _text(row["text"]),
        brought if row["role"] == "user" else (),
        _time(row["created_at_s"]),
    )


def _attachment(row: Mapping[str, Any]) -> Attachment:
    if row["mode"] not in get_args(Mode):
        raise ValueError
    passages = tuple(_count(one) for one in _list(row["passages"]))
    return Attachment(
        _sha(row["document"]),
        _text(row["name"]),
        cast(Mode, row["mode"]),
        passages,
        _text(row["text"]),
    )


def _generation(row: Mapping[str, Any]) -> Generation:
    if row["stop_reason"] not in ("stop", *_CUT):
        raise ValueError
    ids = tuple(_count(one) for one in _list(row["sampled_ids"]))
    if any(one >= 2**32 for one in ids):
        raise ValueError
    return Generation(
        "",
        ids,
        str(row["stop_reason"]),
        _figures(row["figures"]),
        [_citation(one) for one in _list(row["citations"])],
        _text(row["model"]),
        _time(row["created_at_s"]),
    )


def _figures(found: Any) -> dict[str, Any]:
    """Those that replies have; none where some are missing, as of a reply that was interrupted."""
    kept = {name: value for name, value in _dict(found).items() if name in _FIGURES}
    if not kept.keys() >= _NEEDED:
        return {}
    for pair, size in _dict(kept["formats"]).items():
        _count(size)
        if any(one not in FORMATS for one in pair.split("/")):
            raise ValueError
    for name, value in kept.items():
        if name != "formats" and (value is not None or name in _NEEDED):
            _number(value)
    return kept


def _citation(row: Mapping[str, Any]) -> dict[str, Any]:
    _sha(row["document"])
    _text(row["name"])
    _text(row["text"])
    if row["label"] is not None:
        _text(row["label"])
    if _count(row["page"]) < 1 or row["support"] not in ("given", "matched"):
        raise ValueError
    _text(row.get("quote", ""))
    for place in _list(row.get("at", [])):
        _count(place)
    kept = {name: row[name] for name in _CITED if name in row} | {"type": "citation"}
    return {name: clean(one) if isinstance(one, str) else one for name, one in kept.items()}


def _refuse_unreached(messages: Any, tips: Sequence[Message]) -> None:
    """Each message is on a branch."""
    by_name = {one.hash: one for one in messages}
    reached: set[str] = set()
    for tip in tips:
        name: str | None = tip.hash
        while name is not None and name not in reached:
            reached.add(name)
            name = by_name[name].parent
    if reached != by_name.keys():
        raise ValueError


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return clean(value)  # JSON's \\ud800 alone is half a character, which nothing else can write


def _sha(value: Any) -> str:
    if not _SHA.fullmatch(_text(value)):
        raise ValueError
    return str(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError
    return float(value)


def _time(value: Any) -> float:
    found = _number(value)
    if not 0 <= found < _YEAR_9999_S:
        raise ValueError
    return min(found, time.time())
