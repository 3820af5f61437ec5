"""A chat in a process of its own whose address space is limited after it has started: torch then
really fails, as a plain RuntimeError.

    python -m tests.chaos.limited MODEL_FOLDER DATA_FOLDER

Prints a line of JSON for each question, and one at the end. Every step down leaves less beside what
the process has taken so far.
"""

import json
import resource
import sys
from pathlib import Path
from typing import Any

from kvchat.chat.conversations import Conversations
from kvchat.units import MIB
from tests.starts import resolve

SLACK_MIB = (48, 24, 12, 6)
TURNS = 4
STORY = "The memory of this chat holds what was said, and so it goes on and on. " * 5


def taken_bytes() -> int:
    """Of address space, as Linux tells it in pages."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    return int(pages) * resource.getpagesize()


def limit(num_bytes: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, most))


def tell(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)


def ask(conversations: Conversations, chat: str, text: str) -> dict[str, Any]:
    live = conversations.ask(chat, text)
    ended = live.wait_ended(60)
    return {
        "status": live.status if ended else "never ended",
        "error": live.error and live.error.row(),
        "ledger": [entry["code"] for entry in live.ledger],
        "text": live.text,
    }


def main(model: str, folder: str) -> None:
    flags = {"model": model, "temperature": 0, "max_new_tokens": 12, "prefill_chunk": 256}
    conversations = Conversations(resolve(flags=flags), Path(folder))
    conversations.wait_ready(120)
    chat = conversations.new_chat()
    tell({"slack": None, **ask(conversations, chat, STORY)})
    for slack in SLACK_MIB:
        limit(taken_bytes() + slack * MIB)
        for number in range(TURNS):
            tell({"slack": slack, **ask(conversations, chat, f"{number} {STORY}")})
        tell({"slack": slack, "is": "small", **ask(conversations, conversations.new_chat(), "Hi")})
    limit(resource.RLIM_INFINITY)
    tell({"slack": None, **ask(conversations, chat, "And now?")})
    engine = conversations._worker.engine
    assert engine is not None
    engine.close_text()
    engine.check()
    told = [len(conversations.history(chat)), conversations._store.verify()]
    conversations.close()
    tell({"turns": told[0], "problems": told[1]})


if __name__ == "__main__":
    main(*sys.argv[1:])
