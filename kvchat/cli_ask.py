"""`python app.py ask`: one question without a browser, as words or as one JSON event a line.

Without `--chat` nothing of the chat is kept; with it, the chat of that name goes on or is begun.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvchat.chat.answer import LiveAnswer
from kvchat.chat.conversations import Conversations
from kvchat.errors import DocumentError
from kvchat.settings import Settings
from kvchat.wording import Language, say


def run(args: argparse.Namespace, settings: Settings, data_dir: Path, lang: Language) -> int:
    """Exit code 0 for an answer, 1 for a failure that was told. Raises KVChatError before
    asking.
    """
    conversations = Conversations(settings, data_dir)
    try:
        chat, is_kept = _chat(conversations, args.chat)
        try:
            conversations.wait_ready()
            _add_documents(conversations, chat, args.pdf or (), lang)
            return _answered(conversations.ask(chat, args.question), as_json=args.json, lang=lang)
        finally:
            if not is_kept:
                conversations.delete(chat)
    finally:
        conversations.close()


def _chat(conversations: Conversations, title: str | None) -> tuple[str, bool]:
    if title is None:
        return conversations.new_chat(listed=False), False
    for row in conversations.chats():
        if row.title == title:
            return row.id, True
    chat = conversations.new_chat()
    conversations.rename(chat, title)
    return chat, True


def _add_documents(
    conversations: Conversations, chat: str, paths: list[str] | tuple[str, ...], lang: Language
) -> None:
    """Adds the files and waits until they are read; what could not be read is said at once."""
    for path in paths:
        conversations.add_document(chat, Path(path), Path(path).name)
    for row in conversations.wait_documents(chat):
        if row.problem is not None:
            raise DocumentError(row.problem["code"], **row.problem["facts"])
        for note in row.notes:
            print(say(note["code"], lang, **note["facts"]), file=sys.stderr)


def _answered(live: LiveAnswer, *, as_json: bool, lang: Language) -> int:
    try:
        for event in live.events():
            _show(event, as_json=as_json, lang=lang)
    except KeyboardInterrupt:
        live.stop()
        live.wait_ended(30)
        raise
    if not as_json:
        print()
        print("\n".join(_closing(live, lang)), file=sys.stderr, flush=True)
    return 0 if live.error is None else 1


def _show(event: dict[str, Any], *, as_json: bool, lang: Language) -> None:
    if as_json:
        print(json.dumps(event, ensure_ascii=False), flush=True)
    elif event["type"] == "token":
        print(event["text"], end="", flush=True)
    elif event["type"] == "took":
        print(_sentence(event, lang), file=sys.stderr)


def _sentence(event: dict[str, Any], lang: Language) -> str:
    what = say(f"ledger.{event['code']}", lang, **event["arguments"])
    return f"[{what}: {say('reason.' + event['reason'], lang)}]"


def _closing(live: LiveAnswer, lang: Language) -> Iterator[str]:
    """Where the answer comes from and what it cost, or why there is none."""
    if live.error is not None:
        yield live.error.line(lang)
    for citation in live.citations:
        label = citation["label"]
        printed = say("ask.printed", lang, label=label) if label else ""
        code = f"ask.{citation['support']}"
        yield say(code, lang, name=citation["name"], page=citation["page"], printed=printed)
    figures = live.figures
    if figures is not None:
        yield say(
            "ask.figures",
            lang,
            prompt=figures["prompt_tokens"],
            reused=figures["reused_tokens"],
            reply=figures["reply_tokens"],
            per_s=f"{figures['decode_tokens_per_s'] or 0:.1f}",
        )
