"""A conversation without a model, for tests of the faces: it repeats the question, word by word.

It keeps the contract of `kvchat.chat.conversations`: one answer is made at a time, a token is a
word, reused tokens are the longest common beginning with anything it has read, what does not fit is
left out as whole turns and stands in the ledger. Knows no tensor, no file and no network.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kvchat.errors import DocumentError, KVChatError, OutOfMemory, StoreError
from kvchat.settings import Settings, changed

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


class _OwnWords(KVChatError):
    """An error whose sentence does not come from a wording file, since it is not the product's."""

    words: Mapping[str, tuple[str, str]]

    def message(self, lang: str = "en") -> str:
        return self.words[lang][0].format(**self.facts)

    def remedy(self, lang: str = "en") -> str:
        return self.words[lang][1]


class TooLong(_OwnWords, OutOfMemory):
    words = MappingProxyType({
        "en": ("The question has {tokens} tokens.", "Make it shorter."),
        "ko": ("질문이 {tokens}토큰입니다.", "질문을 줄여 주세요."),
    })  # fmt: skip


class NoSuchPage(_OwnWords, DocumentError):
    words = MappingProxyType({
        "en": ("There is no page {page}.", "Choose another."),
        "ko": ("{page}쪽이 없습니다.", "다른 쪽을 고르세요."),
    })  # fmt: skip


@dataclass(frozen=True)
class ChatRow:
    id: str
    title: str
    num_turns: int
    updated_at_s: float
    kv_bytes: int


@dataclass(frozen=True)
class Exchange:
    turn: int
    user_hash: str
    text: str
    documents: tuple[str, ...]
    reply_hash: str | None
    reply: str | None
    finish_reason: str | None
    figures: dict[str, Any] | None
    citations: list[dict[str, Any]]
    left_out: bool = False
    sibling: int = 1
    num_siblings: int = 1


@dataclass(frozen=True)
class DocumentRow:
    document: str
    name: str
    num_pages: int
    pages_done: int
    num_tokens: int
    problem: dict[str, str] | None = None
    notes: list[Any] = field(default_factory=list)
    mode: str | None = None


class StandInAnswer:
    """One answer: made by a thread of the stand-in, read by any number of listeners."""

    def __init__(self, chat: str, turn: int) -> None:
        self.chat = chat
        self.turn = turn
        self.text = ""
        self.status = "queued"
        self.figures: dict[str, Any] | None = None
        self.citations: list[dict[str, Any]] = []
        self.error: KVChatError | None = None
        self.finish_reason: str | None = None
        self.ledger: list[dict[str, Any]] = []
        self.stopping = threading.Event()
        self._events: list[dict[str, Any]] = []
        self._changed = threading.Condition()

    def add(self, event: dict[str, Any]) -> None:
        with self._changed:
            if event["type"] == "token":
                self.text += event["text"]
            if event["type"] == "took":
                self.ledger.append(event)
            self._events.append(event)
            self._changed.notify_all()

    def events(self) -> Iterator[dict[str, Any]]:
        for place in count():
            with self._changed:
                self._changed.wait_for(lambda: len(self._events) > place)  # noqa: B023
                event = self._events[place]
            yield event
            if event["type"] in ("done", "failed"):
                return

    def wait_change(self, seen: int, timeout_s: float) -> int:
        with self._changed:
            self._changed.wait_for(lambda: len(self._events) > seen, timeout_s)
            return len(self._events)

    def stop(self) -> None:
        self.stopping.set()


@dataclass
class Chat:
    title: str
    updated_at_s: float
    exchanges: list[Exchange] = field(default_factory=list)
    documents: list[DocumentRow] = field(default_factory=list)
    answer: StandInAnswer | None = None
    ledger: list[dict[str, Any]] = field(default_factory=list)


class StandIn:
    """`token_s`: seconds a word takes. `load_s`: how long the model seems to load.

    `context_tokens`: how many words fit.
    """

    def __init__(
        self,
        *,
        token_s: float = 0.0,
        load_s: float = 0.0,
        load_error: KVChatError | None = None,
        context_tokens: int = 8192,
    ) -> None:
        self.settings = Settings()
        self.token_s = token_s
        self.context_tokens = context_tokens
        self.error: KVChatError | None = None
        self.answers: list[StandInAnswer] = []  # of /v1, for tests to look at
        self.num_frames = 0
        self._chats: dict[str, Chat] = {}
        self._read: list[tuple[str, ...]] = []
        self._ids = count(1)
        self._device = threading.Lock()  # one answer computes at a time
        self._loaded = threading.Event()
        self._load_error = load_error
        self._load_s = load_s
        self._begun_s = time.monotonic()
        if load_s:
            threading.Thread(target=self._load, daemon=True).start()
        else:
            self._load()

    def _load(self) -> None:
        time.sleep(self._load_s)
        self.error = self._load_error
        self._loaded.set()

    # The model, the memory

    def status(self) -> dict[str, Any]:
        error = self.error
        stage = "ready" if self._loaded.is_set() else "loading"
        if error is not None:
            stage = "error"
        elif any(chat.answer for chat in self._chats.values()) or self._device.locked():
            stage = "decode"
        loaded_s = time.monotonic() - self._begun_s
        return {
            "stage": stage,
            "model": "stand-in",
            "load": {"stage": "weights", "bytes": 1, "of": 1, "s": loaded_s},
            "notices": [],
            "error": error and {"message": error.message(), "remedy": error.remedy()},
        }

    def wait_ready(self, timeout_s: float | None = None) -> None:
        self._loaded.wait(timeout_s)
        if self.error is not None:
            raise self.error

    def frame(self, chat: str | None = None) -> dict[str, Any]:
        self.num_frames += 1
        exchanges = self._chat(chat).exchanges if chat else []
        turns = [
            {
                "turn": one.turn,
                "tokens": len(one.text.split()) + len((one.reply or "").split()),
                "bytes": 1000 * (len(one.text.split()) + len((one.reply or "").split())),
                "formats": {"fp/fp": 1000 * len(one.text.split())},
                "tier": "device",
                "reused_tokens": 0,
            }
            for one in exchanges
        ]
        documents = self._chat(chat).documents if chat else []
        return {
            "type": "frame",
            "at_s": time.monotonic(),
            "runtime": {"stage": self.status()["stage"], "load": self.status()["load"]},
            "device": {
                "total": 8 * 2**30, "free": 5 * 2**30, "other_processes": 2**30,
                "budget": None, "headroom": 2**29,
            },
            "weights_bytes": 513 * 2**20,
            "activations_bytes": 0,
            "runtime_bytes": 2**28,
            "estimated": ["activations_bytes"],
            "kv": {
                "device_bytes": sum(one["bytes"] for one in turns),
                "host_bytes": 0, "disk_bytes": 0, "hot_window_bytes": 0, "slack_bytes": 0,
                "idle_bytes": 0, "capacity_tokens": self.context_tokens,
            },
            "spans": [{**one, "kind": "turn", "document": None} for one in turns],
            "turns": turns,
            "documents": [
                {"name": d.name, "pages": d.num_pages, "done": d.pages_done, "tokens": d.num_tokens}
                for d in documents
            ],
            "ledger": [],
        }  # fmt: skip

    def ledger_since(self, chat: str | None, number: int) -> list[dict[str, Any]]:
        entries = self._chat(chat).ledger if chat else []
        return [entry for entry in entries if entry["number"] > number]

    def note(self, chat: str, code: str, **arguments: object) -> None:
        """Puts an entry into a chat's ledger, as the planner would."""
        entries = self._chat(chat).ledger
        entries.append(
            {"number": len(entries) + 1, "code": code, "arguments": arguments, "turns": []}
        )

    # Chats

    def _chat(self, chat: str) -> Chat:
        if chat not in self._chats:
            raise StoreError("chat_gone")
        return self._chats[chat]

    def chats(self, query: str = "") -> list[ChatRow]:
        rows = [
            ChatRow(id_, chat.title, len(chat.exchanges), chat.updated_at_s, 0)
            for id_, chat in self._chats.items()
            if query.lower() in chat.title.lower()
        ]
        return sorted(rows, key=lambda row: -row.updated_at_s)

    def new_chat(self) -> str:
        chat = f"chat-{next(self._ids)}"
        self._chats[chat] = Chat("", time.time())
        return chat

    def rename(self, chat: str, title: str) -> None:
        self._chat(chat).title = title

    def delete(self, chat: str) -> None:
        self.stop(chat)
        del self._chats[chat]

    def history(self, chat: str) -> list[Exchange]:
        return list(self._chat(chat).exchanges)

    def ask(self, chat: str, text: str) -> StandInAnswer:
        here = self._chat(chat)
        here.title = here.title or text[:40]
        turn = len(here.exchanges) + 1
        here.exchanges.append(Exchange(turn, f"u{turn}", text, (), None, None, None, None, []))
        return self._answer_turn(chat, turn)

    def regenerate(self, chat: str, turn: int) -> StandInAnswer:
        del self._chat(chat).exchanges[turn:]
        return self._answer_turn(chat, turn)

    def edit(self, chat: str, turn: int, text: str) -> StandInAnswer:
        del self._chat(chat).exchanges[turn - 1 :]
        return self.ask(chat, text)

    def delete_turn(self, chat: str, turn: int) -> None:
        here = self._chat(chat)
        left = [one for one in here.exchanges if one.turn != turn]
        here.exchanges = [Exchange(**{**vars(e), "turn": n}) for n, e in enumerate(left, 1)]

    def switch(self, chat: str, turn: int, sibling: int) -> None:
        self._chat(chat)

    def stop(self, chat: str) -> None:
        answer = self._chat(chat).answer
        if answer is not None:
            answer.stop()

    def live(self, chat: str) -> StandInAnswer | None:
        return self._chat(chat).answer

    # Documents

    def add_document(self, chat: str, path: Path, name: str) -> str:
        document = f"{next(self._ids):064x}"
        self._chat(chat).documents.append(DocumentRow(document, name, 3, 3, 100, mode="whole"))
        return document

    def remove_document(self, chat: str, document: str) -> None:
        here = self._chat(chat)
        here.documents = [one for one in here.documents if one.document != document]

    def documents(self, chat: str) -> list[DocumentRow]:
        return list(self._chat(chat).documents)

    def page_image(self, document: str, page: int) -> bytes:
        rows = [d for c in self._chats.values() for d in c.documents if d.document == document]
        if not rows or not 1 <= page <= rows[0].num_pages:
            raise NoSuchPage("no_such_page", page=page)
        return PNG

    # Settings, /v1, the end

    def apply(self, changes: Mapping[str, object]) -> list[str]:
        self.settings = changed(self.settings, changes)
        return []

    def complete(
        self,
        messages: list[dict[str, str]],
        overrides: Mapping[str, object],
        stop: tuple[str, ...],
    ) -> StandInAnswer:
        answer = StandInAnswer("", 1)
        answer.asked = (messages, dict(overrides), stop)  # type: ignore[attr-defined]
        self.answers.append(answer)
        settings = changed(self.settings, overrides)
        self._begin(answer, messages, settings.max_new_tokens, stop, lambda: None)
        return answer

    def close(self) -> None:
        for answer in [*self.answers, *(c.answer for c in self._chats.values() if c.answer)]:
            answer.stop()

    # How an answer is made

    def _answer_turn(self, chat: str, turn: int) -> StandInAnswer:
        here = self._chat(chat)
        answer = here.answer = StandInAnswer(chat, turn)
        messages = []
        for one in here.exchanges[:turn]:
            messages.append({"role": "user", "content": one.text})
            if one.turn != turn:
                messages.append({"role": "assistant", "content": one.reply or ""})

        def keep() -> None:
            kept = asdict(here.exchanges[turn - 1])
            kept |= {"reply": answer.text, "reply_hash": f"r{turn}", "figures": answer.figures}
            kept |= {"finish_reason": answer.finish_reason, "citations": answer.citations}
            here.exchanges[turn - 1] = Exchange(**kept)
            here.updated_at_s = time.time()
            here.answer = None

        self._begin(answer, messages, self.settings.max_new_tokens, (), keep)
        return answer

    def _begin(
        self,
        answer: StandInAnswer,
        messages: Sequence[Mapping[str, str]],
        most: int,
        stop: tuple[str, ...],
        keep: Callable[[], None],
    ) -> None:
        def make() -> None:
            with self._device:
                self._make(answer, messages, most, stop, keep)

        threading.Thread(target=make, daemon=True, name="stand-in").start()

    def _make(
        self,
        answer: StandInAnswer,
        messages: Sequence[Mapping[str, str]],
        most: int,
        stop: tuple[str, ...],
        keep: Callable[[], None],
    ) -> None:
        begun_s = time.monotonic()
        prompt, taken = self._fitted(messages)
        if prompt is None:
            answer.error = TooLong("prompt_over_length", tokens=len(_words(messages[-1:])))
            answer.status = "failed"
            keep()
            answer.add(
                {"type": "failed", "code": "prompt_over_length", "message": "", "remedy": ""}
            )
            return
        reused = max((_common(one, prompt) for one in self._read), default=0)
        reused = min(reused, len(prompt) - 1)
        if taken:
            answer.add({"type": "took", **taken})
        answer.status = "prefill"
        answer.add({"type": "prefilled", "tokens": len(prompt), "done_tokens": len(prompt),
                    "reused_tokens": reused, "s": 0.0})  # fmt: skip
        answer.status = "decode"
        reason, made = self._speak(answer, _reply_to(messages), most, stop)
        self._read.append((*prompt, *made))
        answer.figures = {
            "prompt_tokens": len(prompt), "reply_tokens": len(made), "reused_tokens": reused,
            "prefill_s": 0.0, "time_to_first_token_s": 0.0, "bytes": 1000 * len(prompt),
            "decode_s": time.monotonic() - begun_s, "formats": {"fp/fp": 1000 * len(prompt)},
            "decode_tokens_per_s": None,
        }  # fmt: skip
        answer.finish_reason = reason
        answer.status = "stopped" if reason == "cancelled" else "done"
        keep()
        answer.add({"type": "done", "text": answer.text, "figures": answer.figures,
                    "finish_reason": reason})  # fmt: skip

    def _speak(
        self, answer: StandInAnswer, reply: Sequence[str], most: int, stop: tuple[str, ...]
    ) -> tuple[str, list[str]]:
        made: list[str] = []
        for word in reply:
            if answer.stopping.wait(self.token_s):
                return "cancelled", made
            if any(one in word for one in stop):
                return "stop", made
            if len(made) == most:
                return "length", made
            made.append(word)
            answer.add({"type": "token", "text": word})
        return "stop", made

    def _fitted(
        self, messages: Sequence[Mapping[str, str]]
    ) -> tuple[tuple[str, ...] | None, dict[str, Any] | None]:
        """The prompt's words; the oldest whole turns are left out until they fit."""
        system = [one for one in messages if one["role"] == "system"]
        turns = [one for one in messages if one["role"] != "system"]
        left_out = 0
        num_words = len(_words([*system, *turns]))
        while num_words > self.context_tokens:
            if len(turns) < 2 * left_out + 3:
                return None, None
            num_words -= len(_words(turns[2 * left_out : 2 * left_out + 2]))
            left_out += 1
        turns = turns[2 * left_out :]
        if not left_out:
            return _words([*system, *turns]), None
        arguments = {"turns": list(range(1, left_out + 1))}
        taken = {
            "code": "truncate_turns", "arguments": arguments, "turns": arguments["turns"],
            "bytes_predicted": 0, "bytes_measured": 0, "reason": "context", "at_s": 0.0,
        }  # fmt: skip
        return _words([*system, *turns]), taken


def _words(messages: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    return tuple(w for one in messages for w in (one["role"], *one["content"].split()))


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)))  # fmt: skip


def _reply_to(messages: Sequence[Mapping[str, str]]) -> list[str]:
    """`count to 100` counts; anything else is repeated, the blanks kept as written."""
    text = messages[-1]["content"]
    if text.startswith("count to "):
        return [f"{n} " for n in range(1, int(text.split()[2]) + 1)]
    words = text.split(" ")
    return ["You said: ", *(word + " " for word in words[:-1]), words[-1]]
