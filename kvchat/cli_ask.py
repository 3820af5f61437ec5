"""`python app.py ask`: one question without a browser, as words or as one JSON event a line.

Where a kvchat already runs on the data folder, the question is handed to it, files and all; else
this start asks by itself. Either way the events are those of `chat/once.py`.
"""

import argparse
import json
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from kvchat.chat.answer import LiveAnswer
from kvchat.cli_handed import handed, refuse_its_own
from kvchat.cli_locked import on_terminal, passwords
from kvchat.cli_running import Running, running_on
from kvchat.documents.reader import check_file
from kvchat.errors import KVChatError, RequestError
from kvchat.settings import Settings
from kvchat.wording import Language, say

Event = dict[str, Any]
_LOCKED = ("document_encrypted", "document_password")


def run(args: argparse.Namespace, settings: Settings, data_dir: Path, lang: Language) -> int:
    """Exit code 0 for an answer, 1 for a failure that was told. Raises KVChatError for what could
    not be asked.
    """
    _check(args)
    running = running_on(data_dir)
    if running is None:
        events = _by_itself(args, settings, data_dir, lang)
    else:
        refuse_its_own(running, args)
        events = _handed(running, args, settings, lang)
    with closing(events):
        return _shown(events, args, lang)


def _by_itself(
    args: argparse.Namespace, settings: Settings, data_dir: Path, lang: Language
) -> Generator[Event, None, None]:
    from kvchat.chat.conversations import Conversations  # seconds of imports
    from kvchat.chat.once import AskedOnce, Once

    conversations = Conversations(settings, data_dir)
    once = Once(args.question, [(path, path.name) for path in args.pdf], args.chat or "")
    try:
        conversations.wait_ready()
        yield from AskedOnce(
            conversations,
            once,
            lambda name: passwords(args.pdf_password, name, lang, on_terminal()),
        ).events()
    finally:
        conversations.close()


def _handed(
    running: Running, args: argparse.Namespace, settings: Settings, lang: Language
) -> Generator[Event, None, None]:
    """Asked again with each password that is typed, as the running one cannot ask for it."""
    typed: dict[str, Iterator[str]] = {}
    known = list(args.pdf_password)
    while True:
        locked: Event | None = None
        for event in handed(running, args, settings, lang, known):
            if event["type"] == "refused" and event["code"] in _LOCKED:
                locked = event
            else:
                yield event
        if locked is None:
            return
        name = locked["facts"]["name"]
        words = typed.setdefault(name, iter(passwords((), name, lang, on_terminal())))
        word = next(words, None)
        if word is None:
            yield locked
            return
        known.append(word)


def _check(args: argparse.Namespace) -> None:
    """What can be told of bad input at once, before a model is unpacked or loaded for it."""
    if not args.question.strip():
        raise RequestError("empty_question")
    for path in args.pdf:
        check_file(path, path.name)


def _shown(events: Iterator[Event], args: argparse.Namespace, lang: Language) -> int:
    """Raises KVChatError for what could not be asked."""
    answer = LiveAnswer("", 1, args.question)
    said: dict[int, str] = {}
    for event in events:
        if event["type"] == "refused":
            raise KVChatError(event["code"], **event["facts"])
        if event["type"] == "note":
            print(say(event["code"], lang, **event["facts"]), file=sys.stderr, flush=True)
            continue
        answer.add(event)
        if args.json or event["type"] != "took" or event.get("number") not in said:
            _show(event, as_json=args.json, lang=lang)
        if event["type"] == "took" and "number" in event:
            said.setdefault(event["number"], _sentence(event, lang))
    if not args.json:
        print()
        lines = [_sentence(one, lang) for one in answer.ledger if one.get("number") in said]
        grew = [line for line in lines if line not in said.values()]
        print("\n".join([*grew, *_closing(answer, event, lang)]), file=sys.stderr, flush=True)
    return 0 if event["type"] == "done" else 1


def _show(event: Event, *, as_json: bool, lang: Language) -> None:
    if as_json:
        print(json.dumps(event, ensure_ascii=False), flush=True)
    elif event["type"] == "token":
        print(event["text"], end="", flush=True)
    elif event["type"] == "took":
        print(_sentence(event, lang), file=sys.stderr)


def _sentence(event: Event, lang: Language) -> str:
    what = say(f"ledger.{event['code']}", lang, **event["arguments"])
    return f"[{what}: {say('reason.' + event['reason'], lang)}]"


def _closing(answer: LiveAnswer, last: Event, lang: Language) -> Iterator[str]:
    """Where the answer comes from and what it cost, or why there is none."""
    if last["type"] == "failed":
        yield _failure(last, lang)
    for citation in answer.citations:
        label = citation["label"]
        printed = say("ask.printed", lang, label=label) if label else ""
        code = f"ask.{citation['support']}"
        yield say(code, lang, name=citation["name"], page=citation["page"], printed=printed)
    if last["type"] == "done":
        yield _figures(last["figures"], lang)


def _failure(failed: Event, lang: Language) -> str:
    if "facts" in failed:
        return KVChatError(failed["code"], **failed["facts"]).line(lang)
    return f"{failed['message']} {failed['remedy']}".strip()


def _figures(figures: dict[str, Any], lang: Language) -> str:
    return say(
        "ask.figures",
        lang,
        prompt=figures["prompt_tokens"],
        reused=figures["reused_tokens"],
        reply=figures["reply_tokens"],
        per_s=f"{figures['decode_tokens_per_s'] or 0:.1f}",
    )
