"""Conversations without a model, as far as the HTTP side needs them: it repeats the question.

Keeps the contract of `kvchat.chat.conversations`: one answer is made at a time, a token is a word,
reused tokens are the longest common beginning with anything it has read, what does not fit is left
out as whole turns and stands in the ledger. Knows no tensor, no file and no network.
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kvchat.chat.answer import LiveAnswer
from kvchat.errors import DocumentError, KVChatError, OutOfMemory, StoreError
from kvchat.settings import Settings, changed

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)
NUM_PAGES = 3


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


@dataclass
class Chat:
    turns: list[tuple[str, LiveAnswer]] = field(default_factory=list)
    documents: dict[str, str] = field(default_factory=dict)
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
        self.asked: list[tuple[list[dict[str, str]], dict[str, object], tuple[str, ...]]] = []
        self.answers: list[LiveAnswer] = []  # to what was asked
        self.num_frames = 0
        self._chats: dict[str, Chat] = {}
        self._read: list[tuple[str, ...]] = []
        self._ids = count(1)
        self._device = threading.Lock()  # one answer computes at a time
        self._loaded = threading.Event()
        self._load_error = load_error
        self._load_s = load_s
        if load_s:
            threading.Thread(target=self._load, daemon=True).start()
        else:
            self._load()

    def _load(self) -> None:
        time.sleep(self._load_s)
        self.error = self._load_error
        self._loaded.set()

    # The contract

    def status(self) -> dict[str, Any]:
        error = self.error
        stage = "decode" if self._device.locked() else "ready"
        if not self._loaded.is_set():
            stage = "loading"
        return {
            "stage": "error" if error is not None else stage,
            "model": "stand-in",
            "load": {"stage": "weights", "bytes": 1, "of": 1, "s": self._load_s},
            "notices": [],
            "attention": [],
            "formats": {"offered": [], "stage": "done"},
            "error": error and {"message": error.message(), "remedy": error.remedy()},
        }

    def wait_ready(self, timeout_s: float | None = None) -> None:
        self._loaded.wait(timeout_s)
        if self.error is not None:
            raise self.error

    def frame(self, chat: str | None = None) -> dict[str, Any]:
        self.num_frames += 1
        here = self._chat(chat) if chat else Chat()
        turns = [
            {"turn": turn, "tokens": len(f"{text} {answer.text}".split())}
            for turn, (text, answer) in enumerate(here.turns, 1)
        ]
        return {
            "type": "frame",
            "at_s": time.time(),
            "runtime": {"stage": self.status()["stage"], "load": self.status()["load"]},
            "kv": {"device_bytes": 1000 * sum(one["tokens"] for one in turns)},
            "turns": turns,
            "documents": [
                {"document": sha, "name": name, "pages": NUM_PAGES, "done": NUM_PAGES}
                for sha, name in here.documents.items()
            ],
            "ledger": [],
        }

    def ledger_since(self, chat: str | None, number: int) -> list[dict[str, Any]]:
        entries = self._chat(chat).ledger if chat else []
        return [entry for entry in entries if entry["number"] > number]

    def ledger_report(self, chat: str | None) -> list[str]:
        return [json.dumps(entry["code"]) for entry in self.ledger_since(chat, 0)]

    def new_chat(self) -> str:
        chat = f"chat-{next(self._ids)}"
        self._chats[chat] = Chat()
        return chat

    def delete(self, chat: str) -> None:
        self.stop(chat)
        del self._chats[chat]

    def ask(self, chat: str, text: str) -> LiveAnswer:
        here = self._chat(chat)
        answer = LiveAnswer(chat, len(here.turns) + 1, text)
        here.turns.append((text, answer))
        self._begin(answer, [{"role": "user", "content": text}], self.settings, ())
        return answer

    def stop(self, chat: str) -> None:
        live = self.live(chat)
        if live is not None:
            live.stop()

    def live(self, chat: str) -> LiveAnswer | None:
        turns = self._chat(chat).turns
        ended = not turns or turns[-1][1].wait_ended(0)
        return None if ended else turns[-1][1]

    def add_document(self, chat: str, _path: Path, name: str) -> str:
        sha = f"{next(self._ids):064x}"
        self._chat(chat).documents[sha] = name
        return sha

    def page_image(self, document: str, page: int) -> bytes:
        known = any(document in chat.documents for chat in self._chats.values())
        if not known or not 1 <= page <= NUM_PAGES:
            raise NoSuchPage("no_such_page", page=page)
        return PNG

    def page_marks(self, document: str, page: int, texts: list[str]) -> list[list[list[float]]]:
        self.page_image(document, page)  # refuses what is not there
        return [[[0.1, 0.2, 0.9, 0.25]] if text else [] for text in texts]

    def complete(
        self,
        messages: list[dict[str, str]],
        overrides: Mapping[str, object],
        stop: tuple[str, ...],
    ) -> LiveAnswer:
        answer = LiveAnswer("", 1, messages[-1]["content"])
        self.asked.append((messages, dict(overrides), stop))
        self.answers.append(answer)
        self._begin(answer, messages, changed(self.settings, overrides), stop)
        return answer

    # For tests

    def note(self, chat: str, code: str, **arguments: object) -> None:
        """Puts an entry into a chat's ledger, as the planner would."""
        entries = self._chat(chat).ledger
        entries.append(
            {"number": len(entries) + 1, "code": code, "arguments": arguments, "turns": []}
        )

    # How an answer is made

    def _chat(self, chat: str) -> Chat:
        if chat not in self._chats:
            raise StoreError("chat_gone")
        return self._chats[chat]

    def _begin(
        self,
        answer: LiveAnswer,
        messages: Sequence[Mapping[str, str]],
        settings: Settings,
        stop: tuple[str, ...],
    ) -> None:
        def make() -> None:
            with self._device:
                last = self._make(answer, messages, settings.max_new_tokens, stop)
            answer.add(last, "failed" if last["type"] == "failed" else _ended_as(last))

        threading.Thread(target=make, daemon=True, name="stand-in").start()

    def _make(
        self,
        answer: LiveAnswer,
        messages: Sequence[Mapping[str, str]],
        most: int,
        stop: tuple[str, ...],
    ) -> dict[str, Any]:
        """Makes the answer but for its last event, which is returned."""
        prompt, taken = self._fitted(messages)
        if prompt is None:
            answer.error = TooLong("prompt_over_length", tokens=len(_words(messages[-1:])))
            return {"type": "failed", "code": answer.error.code, "message": "", "remedy": ""}
        reused = max((_common(one, prompt) for one in self._read), default=0)
        reused = min(reused, len(prompt) - 1)
        if taken:
            answer.add({"type": "took", **taken})
        read = {"tokens": len(prompt), "done_tokens": len(prompt), "reused_tokens": reused}
        answer.add({"type": "prefilled", **read, "s": 0.0}, "prefill")
        reason, made = self._speak(answer, _reply_to(messages), most, stop)
        self._read.append((*prompt, *made))
        figures = {
            "prompt_tokens": len(prompt),
            "reply_tokens": len(made),
            "reused_tokens": reused,
        }
        answer.figures, answer.finish_reason = figures, reason
        last = {"type": "done", "text": answer.text, "figures": figures}
        return last | {"finish_reason": reason}

    def _speak(
        self, answer: LiveAnswer, reply: Sequence[str], most: int, stop: tuple[str, ...]
    ) -> tuple[str, list[str]]:
        made: list[str] = []
        for word in reply:
            if answer.cancel.wait(self.token_s):
                return "cancelled", made
            if any(one in word for one in stop):
                return "stop", made
            if len(made) == most:
                return "length", made
            made.append(word)
            answer.add({"type": "token", "text": word}, "decode")
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
        words = _words([*system, *turns[2 * left_out :]])
        if not left_out:
            return words, None
        gone = list(range(1, left_out + 1))
        taken = {"code": "truncate_turns", "arguments": {"turns": gone}, "turns": gone}
        return words, taken | {"reason": "prompt_too_long", "at_s": time.time()}


def _ended_as(last: Mapping[str, Any]) -> Any:
    return "stopped" if last["finish_reason"] == "cancelled" else "done"


def _words(messages: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    return tuple(word for one in messages for word in (one["role"], *one["content"].split()))


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _reply_to(messages: Sequence[Mapping[str, str]]) -> list[str]:
    """`count to 100` counts; anything else is repeated, the blanks kept as written."""
    text = messages[-1]["content"]
    if text.startswith("count to "):
        return [f"{n} " for n in range(1, int(text.split()[2]) + 1)]
    words = text.split(" ")
    return ["You said: ", *(word + " " for word in words[:-1]), words[-1]]
