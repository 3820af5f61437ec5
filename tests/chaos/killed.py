"""Programs that chat with KV on disk and are killed at a random moment, one after the other over
one data folder.

    python -m tests.chaos.killed MODEL_FOLDER DATA_FOLDER NUM_KILLS

One process loads the model and forks for each program, so that a start costs milliseconds. A
program opens the folder, tells what it finds there, and goes on with the newest chats; its first
answer is compared with that of an engine that never saw a disk. The last programs are not killed,
so many that one of them surely goes on with a chat of another's.
Prints one object of JSON: what was done, and every fault.
"""

import gc
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import torch

from kvchat.attention import cpu
from kvchat.chat.conversations import Conversations
from kvchat.device.fake import FakeProbe
from kvchat.device.memory import DeviceMemory
from kvchat.engine import open as opening
from kvchat.engine.engine import Engine
from kvchat.engine.events import Done, Request
from kvchat.engine.limits import Limits
from kvchat.kvcache.blocks import FP, geometries
from kvchat.models.load import LoadedModel, load_model
from kvchat.units import GIB
from tests.starts import resolve

LONGEST_S = 0.4  # that a program lives, but for the last: from its start, or from when it is open
OPENING_PARTS = 5  # one in so many is killed while it opens, or soon after
MOST_TURNS = 6  # of a chat
NUM_CLOSED = 3  # programs that end by themselves
QUESTION = "What does the memory of this chat hold, and what did I ask as number {}? "


class Program:
    """The one that is killed. `out`: where it writes its lines."""

    def __init__(self, loaded: LoadedModel, folder: Path, out: int, serial: int) -> None:
        self._loaded, self._out, self._serial = loaded, out, serial
        self._asked: list[Request] = []
        opening.load_model = self._load  # type: ignore[assignment]  # it is there already
        flags = {
            "model": loaded.name, "temperature": 0, "max_new_tokens": 8, "prefill_chunk": 64,
            "disk_format": "fp", "headroom": 0,
        }  # fmt: skip
        self._conversations = Conversations(resolve(flags=flags), folder)
        self._conversations.wait_ready(60)
        worker = self._conversations._worker
        right = worker.submit

        def submit(request: Request) -> Any:
            self._asked.append(request)
            return right(request)

        worker.submit = submit  # type: ignore[method-assign]

    def _load(self, *_: object, check: Any, **__: object) -> LoadedModel:
        check(Path(self._loaded.name), self._loaded.dtype)
        return self._loaded

    def tell(self, what: str, **row: Any) -> None:
        os.write(self._out, (json.dumps({"what": what, **row}) + "\n").encode())

    def open(self) -> None:
        store, conversations = self._conversations._store, self._conversations
        found = {
            row.id: [(one.text, one.reply) for one in conversations.history(row.id)]
            for row in conversations.chats()
        }
        self.tell("opened", problems=store.verify(), chats=found)

    def chat(self, number: int) -> None:
        """One answer in the newest chat that is not full."""
        conversations = self._conversations
        open_chats = [row for row in conversations.chats() if row.num_turns < MOST_TURNS]
        chat = open_chats[0].id if open_chats else conversations.new_chat()
        text = QUESTION.format(f"{self._serial}.{number}") * 3
        live = conversations.ask(chat, text)
        self.tell("asked", chat=chat, text=text)
        live.wait_ended(60)
        self.tell("answered", chat=chat, text=text, reply=live.text, status=live.status)
        if number == 0:
            restored = sum(entry["code"] == "restore" for entry in live.ledger)
            self._check(live.text, restored)

    def _check(self, text: str, restored: int) -> None:
        """The same prompt for an engine that has nothing to reuse."""
        roomy = DeviceMemory("cpu", 64 * GIB, 32 * GIB, 0, 0, 0, 0.0)
        fresh = Engine(self._loaded, FakeProbe([roomy]), Limits(None, GIB, ("drop_idle",)))
        asked = self._asked[-1]
        *_, last = fresh.run(Request(asked.prompt_ids, (), asked.max_new_tokens, 64))
        assert isinstance(last, Done)
        self.tell("checked", equal=last.text == text, restored=restored)

    def close(self) -> None:
        self._conversations.close()
        self.tell("closed")


def run(program: Program, num_answers: int | None) -> None:
    program.open()
    for number in count() if num_answers is None else range(num_answers):
        program.chat(number)
    program.close()


def fork(
    loaded: LoadedModel, folder: Path, serial: int, life_s: float | None
) -> list[dict[str, Any]]:
    """Starts a program and kills it after so long; the lines that it wrote. For None it ends by
    itself. Most are let come as far as to be open.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reading)
            run(Program(loaded, folder, writing, serial), 3 if life_s is None else None)
        except BaseException:  # noqa: BLE001 - the fork ends here, whatever it was
            line = json.dumps({"what": "crashed", "why": traceback.format_exc()[-1500:]}) + "\n"
            os.write(writing, line.encode())
        finally:
            os._exit(0)
    os.close(writing)
    heard = b"" if serial % OPENING_PARTS == 0 else os.read(reading, 2**20)
    heard += _heard(reading, None if life_s is None else time.monotonic() + life_s)
    if life_s is not None:
        os.kill(pid, signal.SIGKILL)
        heard += _heard(reading, None)
    os.close(reading)
    os.waitpid(pid, 0)
    whole, _, _ = heard.rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]


def _heard(reading: int, until_s: float | None) -> bytes:
    """What is written until then, or until the writer is gone."""
    found = b""
    while True:
        left = None if until_s is None else max(0.0, until_s - time.monotonic())
        if not select.select([reading], [], [], left)[0]:
            return found
        piece = os.read(reading, 65536)
        if not piece:
            return found
        found += piece


class Judge:
    """What was told must be there when the next program opens."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self._asked: dict[str, list[str]] = {}
        self._replies: dict[tuple[str, str], str] = {}

    def hear(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self.counts[row["what"]] += 1
            match row["what"]:
                case "opened":
                    self._compare(row)
                case "asked":
                    self._asked.setdefault(row["chat"], []).append(row["text"])
                case "answered":
                    if row["status"] != "done":
                        self.faults.append(f"an answer ended as {row['status']}")
                    self._replies[row["chat"], row["text"]] = row["reply"]
                case "checked":
                    self.counts["restored"] += row["restored"]
                    if not row["equal"]:
                        self.faults.append("an answer is not that of a fresh engine")
                case "crashed":
                    self.faults.append(row["why"])

    def _compare(self, row: dict[str, Any]) -> None:
        self.faults += row["problems"]
        for chat, asked in self._asked.items():
            found = row["chats"].get(chat, [])
            texts = [text for text, _ in found]
            # Killed between writing the question and telling of it, there is one more.
            if [text for text in texts if text in asked] != asked:
                self.faults.append(f"asked {asked}, found {texts}")
            for text, reply in found:
                right = self._replies.get((chat, text))
                if right is not None and (reply or "") != right:
                    self.faults.append(f"a reply was {right!r}, is {reply!r}")


def main(model: str, folder: str, num_kills: str) -> None:
    torch.set_num_threads(1)
    loaded = load_model(model, data_dir=Path(folder), device=torch.device("cpu"))
    loaded.name = model
    shapes = geometries(loaded.spec, loaded.dtype)
    cpu.prepare(shapes, [FP], loaded.spec.num_query_heads)
    gc.freeze()
    chance, judge = random.Random(7), Judge()
    for serial in range(int(num_kills)):
        judge.hear(fork(loaded, Path(folder), serial, chance.uniform(0.0, LONGEST_S)))
    for serial in range(int(num_kills), int(num_kills) + NUM_CLOSED):
        judge.hear(fork(loaded, Path(folder), serial, None))
    parts = [str(one) for one in Path(folder).glob("kv/*/*.part")]
    print(json.dumps({"faults": judge.faults[:20], "counts": judge.counts, "parts": parts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
