"""`python app.py ask`: one question without a browser, as words or as one JSON event a line.

Without `--chat` nothing of the chat is kept; with it, the chat of that name goes on or is begun.
Where a kvchat already runs on the data folder, the question is handed to it.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvchat.cli_handed import handed, refuse_its_own
from kvchat.cli_locked import on_terminal, passwords
from kvchat.cli_running import Running, running_on
from kvchat.documents.reader import check_file
from kvchat.errors import DocumentError, RequestError
from kvchat.settings import Settings
from kvchat.wording import Language, say

if TYPE_CHECKING:
    from kvchat.chat.answer import LiveAnswer
    from kvchat.chat.conversations import Conversations
    from kvchat.chat.rows import DocumentRow


_LOOK_S = 0.05


def run(args: argparse.Namespace, settings: Settings, data_dir: Path, lang: Language) -> int:
    """Exit code 0 for an answer, 1 for a failure that was told. Raises KVChatError before
    asking.
    """
    _check(args)
    running = running_on(data_dir)
    if running is not None:
        return _hand_over(running, args, settings, lang)
    from kvchat.chat.conversations import Conversations  # seconds of imports

    conversations = Conversations(settings, data_dir)
    try:
        conversations.wait_ready()
        _tell_of_formats(conversations, lang)
        with _chat(conversations, args.chat) as chat:
            _add_documents(conversations, chat, args, lang)
            live = conversations.ask(chat, args.question)
            return _answered(live, as_json=args.json, lang=lang)
    finally:
        conversations.close()


def _tell_of_formats(conversations: "Conversations", lang: Language) -> None:
    """Where text is to be stored in what nobody measured on this model, or what it failed."""
    for code in conversations.status()["notices"]:
        if code.startswith("notice.format_"):
            print(say(code, lang), file=sys.stderr, flush=True)


def _check(args: argparse.Namespace) -> None:
    """What can be told of bad input at once, before a model is unpacked or loaded for it."""
    if not args.question.strip():
        raise RequestError("empty_question")
    for path in args.pdf or ():
        check_file(path, path.name)


def _hand_over(
    running: Running, args: argparse.Namespace, settings: Settings, lang: Language
) -> int:
    refuse_its_own(running, args)
    last: dict[str, Any] = {}
    for last in handed(running, args, settings, lang):
        _show(last, as_json=args.json, lang=lang)
    if not args.json:
        print()
        failed = last["type"] == "failed"
        closing = last["message"] if failed else _figures(last["figures"], lang)
        print(closing, file=sys.stderr, flush=True)
    return 0 if last["type"] == "done" else 1


@contextmanager
def _chat(conversations: "Conversations", title: str | None) -> Iterator[str]:
    """The chat of that title. One that is new stays only if a question was asked in it, one
    without a title not even then.
    """
    title = " ".join((title or "").split())
    known = [row.id for row in conversations.chats() if title and row.title == title]
    chat = known[0] if known else conversations.new_chat(listed=bool(title))
    if title and not known:
        conversations.rename(chat, title)
    try:
        yield chat
    finally:
        if not known and not (title and conversations.history(chat)):
            conversations.delete(chat)


def _add_documents(
    conversations: "Conversations", chat: str, args: argparse.Namespace, lang: Language
) -> None:
    """Adds the files and waits until they are read; what could not be read is said at once, and
    is not added.
    """
    before = {row.document for row in conversations.documents(chat)}
    paths: list[Path] = args.pdf or []
    added = {conversations.add_document(chat, path, path.name) for path in paths}
    _tell_of_recognition(conversations, chat, lang)
    rows = conversations.wait_documents(chat)
    locked = [row for row in rows if row.asks_password and row.document in added]
    for row in locked:
        _unlock(conversations, chat, row, args.pdf_password or (), lang)
    if locked:
        rows = conversations.documents(chat)
    problems = {row.document: row.problem for row in rows if row.problem is not None}
    for document in problems.keys() - before:
        conversations.remove_document(chat, document)
    for document in sorted(problems.keys() & added):
        raise DocumentError(problems[document]["code"], **problems[document]["facts"])
    for row in rows:
        for note in row.notes:
            print(say(note["code"], lang, **note["facts"]), file=sys.stderr)


def _tell_of_recognition(conversations: "Conversations", chat: str, lang: Language) -> None:
    """That takes seconds a page, and the question waits for the whole."""
    said: set[str] = set()
    while any(not row.is_complete and not row.problem for row in conversations.documents(chat)):
        for row in conversations.documents(chat):
            if row.num_to_recognise and row.document not in said:
                said.add(row.document)
                told = say("ask.recognising", lang, name=row.name, pages=row.num_to_recognise)
                print(told, file=sys.stderr, flush=True)
        time.sleep(_LOOK_S)


def _unlock(
    conversations: "Conversations",
    chat: str,
    row: "DocumentRow",
    given: Sequence[str],
    lang: Language,
) -> None:
    for password in passwords(given, row.name, lang, on_terminal()):
        conversations.library.unlock(chat, row.document, password)
        rows = {one.document: one for one in conversations.wait_documents(chat)}
        if not rows[row.document].asks_password:
            return


def _answered(live: "LiveAnswer", *, as_json: bool, lang: Language) -> int:
    said: dict[int, str] = {}
    try:
        for event in live.events():
            if as_json or event["type"] != "took" or event.get("number") not in said:
                _show(event, as_json=as_json, lang=lang)
            if event["type"] == "took" and "number" in event:
                said.setdefault(event["number"], _sentence(event, lang))
    except KeyboardInterrupt:
        live.stop()
        live.wait_ended(30)
        raise
    if not as_json:
        print()
        lines = [_sentence(one, lang) for one in live.ledger if one.get("number") in said]
        grew = [line for line in lines if line not in said.values()]
        print("\n".join([*grew, *_closing(live, lang)]), file=sys.stderr, flush=True)
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


def _closing(live: "LiveAnswer", lang: Language) -> Iterator[str]:
    """Where the answer comes from and what it cost, or why there is none."""
    if live.error is not None:
        yield live.error.line(lang)
    for citation in live.citations:
        label = citation["label"]
        printed = say("ask.printed", lang, label=label) if label else ""
        code = f"ask.{citation['support']}"
        yield say(code, lang, name=citation["name"], page=citation["page"], printed=printed)
    if live.figures is not None:
        yield _figures(live.figures, lang)


def _figures(figures: dict[str, Any], lang: Language) -> str:
    return say(
        "ask.figures",
        lang,
        prompt=figures["prompt_tokens"],
        reused=figures["reused_tokens"],
        reply=figures["reply_tokens"],
        per_s=f"{figures['decode_tokens_per_s'] or 0:.1f}",
    )
