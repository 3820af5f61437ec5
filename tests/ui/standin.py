"""Conversations without a model, rich enough to draw every part of the screen.

Keeps the contract of `kvchat.chat.conversations`: versions of turns, documents that are read page
by page, one answer at a time, frames that add up to the device's number. Texts are made by rule, a
token is a word. Knows no tensor.
"""

import io
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from PIL import Image, ImageDraw

from kvchat.chat.answer import ENDED, LiveAnswer, Way
from kvchat.chat.rows import ChatRow, DocumentRow, Exchange
from kvchat.chat.undo import Cost
from kvchat.errors import DocumentError, KVChatError, RequestError, SettingsError, StoreError
from kvchat.memory.verdicts import Verdict
from kvchat.settings import Settings
from tests.ui.gauges import StandInGauges
from tests.ui.replies import reply_to
from tests.ui.standin_documents import StandInDocuments, page_marks
from tests.ui.standin_models import StandInHeld, StandInLoading

MIB = 2**20
TOTAL, OTHER, WEIGHTS, RUNTIME, HEADROOM = 8192 * MIB, 1608 * MIB, 4465 * MIB, 268 * MIB, 600 * MIB
TOKEN_BYTES = 147_456  # 36 layers x 8 heads x 128 x (K + V) x 2 bytes
SHARE = {"fp/fp": 1.0, "int8/int8": 0.516, "int6/int4": 0.328}


@dataclass
class Node:
    """A version of a turn, and the versions of the turn that follows it."""

    text: str
    documents: tuple[str, ...] = ()
    reply: str | None = None
    finish_reason: str | None = None
    figures: dict[str, Any] | None = None
    citations: list[dict[str, Any]] = field(default_factory=list)
    problem: dict[str, Any] | None = None
    children: list["Node"] = field(default_factory=list)
    chosen: int = 0
    pinned: bool = False


@dataclass
class Chat:
    title: str = ""
    updated_at_s: float = field(default_factory=time.time)
    root: Node = field(default_factory=lambda: Node(""))
    documents: list[DocumentRow] = field(default_factory=list)
    asked_with: set[str] = field(default_factory=set)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    undo: dict[str, list[int]] = field(default_factory=lambda: {"offered": [], "asked": []})
    live: LiveAnswer | None = None

    def path(self) -> list[Node]:
        found, node = [], self.root
        while node.children:
            node = node.children[node.chosen]
            found.append(node)
        return found


class StandIn:
    """`token_s`: seconds a word takes; `page_s`: a page; `load_s`: the model. `room` tokens fit."""

    def __init__(
        self, *, token_s: float = 0.01, page_s: float = 0.05, load_s: float = 0.0, room: int = 9000,
        budget: int | None = None, squeeze: bool = False, notices: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.held = StandInHeld(self)
        self.loading = StandInLoading(self.held.saved._path.parent)
        self.token_s, self.page_s, self.room = token_s, page_s, room
        self.budget, self.squeeze, self.notices = budget, squeeze, notices
        self.attention: list[dict[str, Any]] = []
        self.summary: str | None = None  # of the turns that are left out
        self.fail_next: KVChatError | None = None  # refused at once
        self.fail_later: KVChatError | None = None  # found when the answer is to be made
        self.broken: KVChatError | None = None  # why the model could not be loaded
        self.applied: list[dict[str, object]] = []
        self.choosing = self.library = StandInDocuments(self)
        self.foreseeing = SimpleNamespace(left_out=lambda *_: None)
        self._chats: dict[str, Chat] = {}
        self._numbers = count(1)
        self.gauges = StandInGauges(self)
        self.programs: list[dict[str, Any]] = []
        self.other_bytes, self.refuse_settings = OTHER, False
        self.marks: list[dict[str, Any]] = []
        self.way: Way = "usual"
        self.kept_bytes: int | None = None  # of the chat, while another one's text is open
        self.fits: dict[str, Any] | None = None
        self.other_version: int | None = None  # the turn of which another one is in the text
        self.host_bytes = 0  # of the oldest turn, moved to the computer's memory
        self._device = threading.Lock()
        self._begun_s, self._load_s = time.monotonic(), load_s

    # The model, the memory

    def _stage(self) -> str:
        if self.broken:
            return "error"
        if time.monotonic() - self._begun_s < self._load_s:
            return "loading"
        live = [chat.live for chat in list(self._chats.values())]
        busy = [one.status for one in live if one and one.status in ("prefill", "decode")]
        return busy[0] if busy else "ready"

    def status(self) -> dict[str, Any]:
        return {
            "stage": self._stage(), "model": "Qwen3-8B", "load": self._load(),
            "notices": list(self.notices), "attention": list(self.attention),
            "formats": {"offered": ["int8/int8"], "stage": "done"}, "refused": None,
            "error": self.broken and {"code": self.broken.code, "facts": self.broken.facts},
        }  # fmt: skip

    def _load(self) -> dict[str, Any]:
        s = time.monotonic() - self._begun_s
        share = min(1.0, s / self._load_s) if self._load_s else 1.0
        step = "weights" if share < 1 else "prepare"
        return {"stage": step, "bytes": int(WEIGHTS * share), "of": WEIGHTS, "s": s}

    def _tokens(self, node: Node) -> int:
        return 12 * len(node.text.split()) + 3 * len((node.reply or "").split())

    def frame(self, chat: str | None = None) -> dict[str, Any]:
        if chat is not None:
            self._chat(chat)
        spans, documents = self._spans(chat)
        for span in spans:
            if span["kind"] == "turn":
                span["pinned"] = self._chat(chat or "").path()[span["turn"] - 1].pinned
        kv = sum(s["bytes"] for s in spans)
        others = sum(s["bytes"] for s in spans if not s["shown"])
        hot, slack, idle = (96 * MIB, 32 * MIB, 20 * MIB) if spans else (0, 16 * MIB, 0)
        computing = 420 * MIB if self._stage() in ("prefill", "decode") else 96 * MIB
        used = self.other_bytes + WEIGHTS + RUNTIME + computing + kv + hot + slack
        return {
            "type": "frame", "at_s": time.time(),
            "runtime": {"stage": self._stage(), "load": self._load()},
            "device": {"total": TOTAL, "free": TOTAL - used, "other_processes": self.other_bytes,
                       "budget": self.budget, "headroom": HEADROOM, "age_s": 0.0,
                       "programs": list(self.programs)},
            "weights_bytes": WEIGHTS, "activations_bytes": computing, "runtime_bytes": RUNTIME,
            "estimated": ["activations_bytes"], "library_bytes": 0,
            "hangul_per_token": 0.62, "letters_per_token": 4.1,
            "kv": {"device_bytes": kv + hot + slack, "disk_bytes": 0,
                   "host_bytes": sum(s["host_bytes"] for s in spans),
                   "hot_window_bytes": hot, "slack_bytes": slack, "idle_bytes": idle,
                   "chat_bytes": kv, "other_chats_bytes": 0, "capacity_tokens": self.room,
                   "other_versions_bytes": others},
            "fits": self.fits, "spans": spans, "turns": [s for s in spans if s["kind"] == "turn"],
            "documents": documents, "ledger": [], "marks": list(self.marks),
            "undo": self._chat(chat).undo if chat else {"offered": [], "asked": []},
        } | self._elsewhere(kv, hot, slack)  # fmt: skip

    def _elsewhere(self, kv: int, hot: int, slack: int) -> dict[str, Any]:
        """What is another for a chat whose text is not open."""
        if self.kept_bytes is None:
            return {}
        rest = {"device_bytes": kv + hot + slack, "slack_bytes": kv + hot + slack}
        rest |= {"hot_window_bytes": 0, "host_bytes": 0, "disk_bytes": 0, "idle_bytes": slack}
        rest |= {"chat_bytes": self.kept_bytes, "other_chats_bytes": kv + hot}
        return {"spans": [], "turns": [], "kv": rest | {"capacity_tokens": self.room}}

    def _spans(self, chat: str | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        here = self._chats.get(chat or "")
        if here is None or not here.path():
            return [], [] if here is None else self._progress(here)
        kinds = [("system", None, None, 24)]
        kinds += [("document", None, d.document, d.num_tokens) for d in here.documents if d.mode]
        out = self._left_out(here)
        kinds += [
            ("turn", n, None, self._tokens(node))
            for n, node in enumerate(here.path(), 1)
            if n not in out
        ]
        return [self._span(*kind, age=len(kinds) - n) for n, kind in enumerate(kinds)], (
            self._progress(here)
        )

    def _span(
        self, kind: str, turn: int | None, document: str | None, tokens: int, age: int
    ) -> dict[str, Any]:
        name = "fp/fp"
        if self.squeeze and age > 1:
            name = "int8/int8" if age < 4 else "int6/int4"
        size = int(tokens * TOKEN_BYTES * SHARE[name])
        on_host = self.host_bytes if turn == 1 else 0
        return {
            "kind": kind, "turn": turn, "document": document, "tokens": tokens, "bytes": size,
            "formats": {name: size}, "tier": "mixed" if on_host else "device",
            "host_bytes": on_host, "evicted_tokens": 0, "reused_tokens": tokens // 2,
            "prefill_s": 0.4, "decode_tokens_per_s": 33.2, "pinned": False, "shared": False,
            "name": f"u{turn}" if turn else "",
            "shown": turn is None or turn != self.other_version,
        }  # fmt: skip

    def _progress(self, here: Chat) -> list[dict[str, Any]]:
        return [
            {"name": d.name, "pages": d.num_pages, "done": d.pages_done, "tokens": d.num_tokens}
            for d in here.documents
        ]

    def _left_out(self, here: Chat) -> set[int]:
        """The oldest turns that do not fit any more."""
        path, out = here.path(), set()
        while sum(self._tokens(n) for k, n in enumerate(path, 1) if k not in out) > self.room:
            out.add(len(out) + 1)
            if len(out) >= len(path) - 1:
                break
        return out

    def ledger_since(self, chat: str | None, number: int) -> list[dict[str, Any]]:
        if chat is not None:
            self._chat(chat)
        here = self._chats.get(chat or "")
        return [e for e in (here.ledger if here else []) if e["number"] > number]

    def record(self, chat: str, code: str, reason: str, size: int, **arguments: object) -> None:
        entries, number = self._chat(chat).ledger, next(self._numbers)
        self._chat(chat).undo["offered"].append(number)
        entries.append({
            "number": number, "code": code, "arguments": arguments,
            "turns": [], "turn_numbers": arguments.get("turns", []), "documents": [],
            "before": {"formats": ["fp/fp"], "tier": "device"},
            "after": {"formats": ["int8/int8"], "tier": "device"},
            "bytes_predicted": size, "bytes_measured": size, "lost_tokens": 0,
            "reason": reason, "undo": "read_again", "at_s": time.time(),
        })  # fmt: skip

    # Chats

    def _chat(self, chat: str) -> Chat:
        if chat not in self._chats:
            raise StoreError("chat_gone")
        return self._chats[chat]

    def chats(self, query: str = "") -> list[ChatRow]:
        rows = [
            ChatRow(
                i,
                c.title,
                len(c.path()),
                c.updated_at_s,
                sum(s["bytes"] for s in self._spans(i)[0]),
                status=c.live.status if c.live and c.live.status not in ENDED else None,
            )
            for i, c in list(self._chats.items())
            if query.lower() in c.title.lower() and not self._is_nothing(c)
        ]
        return sorted(rows, key=lambda row: -row.updated_at_s)

    def _is_nothing(self, here: Chat) -> bool:
        said = here.title or here.root.children
        return not said and all(one.problem for one in here.documents)

    def drop_if_nothing(self, chat: str) -> bool:
        gone = self._is_nothing(self._chat(chat))
        if gone:
            self.delete(chat)
        return gone

    def show(self, chat: str, message: str) -> int:
        return next(one.turn for one in self.history(chat) if message in ("", one.user_hash))

    def new_chat(self) -> str:
        chat = f"c{next(self._numbers):06d}"
        self._chats[chat] = Chat()
        return chat

    def rename(self, chat: str, title: str) -> None:
        self._chat(chat).title = title

    def delete(self, chat: str) -> None:
        self.stop(chat)
        self._chats.pop(chat, None)

    def history(self, chat: str) -> list[Exchange]:
        here = self._chat(chat)
        out, parent, found = self._left_out(here), here.root, []
        for turn, node in enumerate(here.path(), 1):
            found.append(Exchange(
                turn, f"u{turn}", node.text, node.documents, f"r{turn}", node.reply,
                node.finish_reason, node.figures, node.citations, turn in out,
                parent.chosen + 1, len(parent.children), node.problem, node.pinned,
                self.summary if turn in out else None,
            ))  # fmt: skip
            parent = node
        return found

    def ask(self, chat: str, text: str) -> LiveAnswer:
        here = self._chat(chat)
        if self.fail_next:
            error, self.fail_next = self.fail_next, None
            raise error
        if not here.title:
            here.title = text[:40]
        path = here.path()
        new = [d for d in here.documents if d.document not in here.asked_with and not d.problem]
        here.asked_with |= {d.document for d in new}
        here.documents = [
            replace(d, mode=None if d.problem else "whole") for d in here.documents
        ]  # how a document is read is decided with a question
        node = Node(text, tuple(d.name for d in new))
        return self._begin(chat, path[-1] if path else here.root, node)

    def regenerate(
        self, chat: str, turn: int, name: str | None = None, way: Way = "usual"
    ) -> LiveAnswer:
        self.way = way
        here = self._chat(chat)
        self._refuse_another(turn, name)
        old = here.path()[turn - 1]
        return self._begin(chat, self._before(here, turn), Node(old.text, old.documents))

    def edit(self, chat: str, turn: int, text: str, name: str | None = None) -> LiveAnswer:
        here = self._chat(chat)
        self._refuse_another(turn, name)
        return self._begin(chat, self._before(here, turn), Node(text))

    def go_on(self, chat: str, turn: int, name: str | None = None) -> LiveAnswer:
        here = self._chat(chat)
        self._refuse_another(turn, name)
        node = here.path()[turn - 1]
        live = here.live = LiveAnswer(chat, turn, node.text)
        live.text = node.reply or ""
        threading.Thread(target=self._make, args=(here, node, live), daemon=True).start()
        return live

    def _refuse_another(self, turn: int, name: str | None) -> None:
        if name not in (None, f"u{turn}"):
            raise RequestError("turn_changed", turn=turn)

    def _before(self, here: Chat, turn: int) -> Node:
        path = here.path()
        if not 1 <= turn <= len(path):
            raise RequestError("ui_request")
        return path[turn - 2] if turn > 1 else here.root

    def delete_turn(self, chat: str, turn: int, name: str | None = None) -> None:
        here = self._chat(chat)
        self._refuse_another(turn, name)
        before = self._before(here, turn)
        gone = before.children[before.chosen]
        before.children, before.chosen = gone.children, gone.chosen

    def switch(self, chat: str, turn: int, sibling: int, name: str | None = None) -> None:
        self._refuse_another(turn, name)
        before = self._before(self._chat(chat), turn)
        if not 1 <= sibling <= len(before.children):
            raise RequestError("ui_request")
        before.chosen = sibling - 1

    def pin_turn(
        self, chat: str, turn: int, name: str | None = None, *, pinned: bool = True
    ) -> None:
        self._refuse_another(turn, name)
        if self.fail_next:
            error, self.fail_next = self.fail_next, None
            raise error
        node = self._chat(chat).path()[turn - 1]
        node.pinned = pinned

    def pin_document(self, chat: str, document: str, page: int | None, *, pinned: bool) -> None:
        if self.fail_next:
            error, self.fail_next = self.fail_next, None
            raise error
        here = self._chat(chat)
        at = next(n for n, one in enumerate(here.documents) if one.document == document)
        row = here.documents[at]
        if page is None:
            here.documents[at] = replace(row, pinned=pinned)
        else:
            pages = {*row.pinned_pages, page} if pinned else {*row.pinned_pages} - {page}
            here.documents[at] = replace(row, pinned_pages=tuple(sorted(pages)))

    def undo_cost(self, chat: str, entry: int) -> Cost:
        self._chat(chat)
        if self.fail_next:
            error, self.fail_next = self.fail_next, None
            raise error
        return Cost(1200, 4.2)

    def undo(self, chat: str, entry: int) -> Cost:
        self._chat(chat).undo["asked"].append(entry)
        self._chat(chat).undo["offered"].remove(entry)
        return Cost(1200, 4.2)

    def stop(self, chat: str) -> None:
        live = self.live(chat)
        if live:
            live.stop()

    def live(self, chat: str) -> LiveAnswer | None:
        here = self._chats.get(chat)
        live = here.live if here else None
        return None if live is None or live.status in ENDED else live

    # Documents

    def add_document(self, chat: str, path: Path, name: str) -> str:
        here = self._chat(chat)
        content = path.read_bytes()
        if not content.startswith(b"%PDF-"):
            raise _error(DocumentError, "ui_upload")
        document = f"{next(self._numbers):064x}"
        pages = max(1, content.count(b"/Type /Page\n") or content.count(b"/Type/Page>") or 5)
        problem = {"code": "ui_upload"} if "scan" in name else None
        here.documents.append(DocumentRow(document, name, pages, 0, 0, problem, [], None))
        threading.Thread(target=self._read, args=(here, document), daemon=True).start()
        return document

    def _read(self, here: Chat, document: str) -> None:
        at = next((n for n, d in enumerate(here.documents) if d.document == document), None)
        if at is None or here.documents[at].problem:
            return
        for done in range(1, here.documents[at].num_pages + 1):
            time.sleep(self.page_s)
            here.documents[at] = replace(here.documents[at], pages_done=done)
        tokens = 640 * here.documents[at].num_pages
        here.documents[at] = replace(here.documents[at], num_tokens=tokens)

    def remove_document(self, chat: str, document: str) -> None:
        here = self._chat(chat)
        here.documents = [one for one in here.documents if one.document != document]

    def documents(self, chat: str) -> list[DocumentRow]:
        return list(self._chat(chat).documents)

    def page_image(self, document: str, page: int) -> bytes:
        picture = Image.new("RGB", (620, 877), "white")
        pen = ImageDraw.Draw(picture)
        pen.text((70, 70), f"{page}. Filter and housing", fill="black", font_size=28)
        for line in range(18):
            width = 480 - (line * 37) % 160
            pen.rectangle((70, 140 + 32 * line, 70 + width, 148 + 32 * line), fill="#c9ced6")
        pen.text((300, 830), str(page), fill="#555", font_size=16)
        out = io.BytesIO()
        picture.save(out, "PNG")
        return out.getvalue()

    def page_marks(self, document: str, page: int, texts: Sequence[str]) -> list[Any]:
        return page_marks(document, page, texts)

    # Settings, the end

    def verdicts(self) -> dict[str, Verdict]:
        about = {"num_scored": 1024, "text": "wording.en", "measured_at_s": 0.0}
        rows = (("int8/int8", 0.00003, 99.6, 0.0), ("int2/int2", 0.155, 81.5, 15.6))
        return {row[0]: Verdict(*row, **about) for row in rows}

    @property
    def settings(self) -> Settings:
        return self.held.now

    def apply(
        self, changes: Mapping[str, object], resets: Sequence[str] = (), *, only_model: bool = False
    ) -> list[str]:
        if self.refuse_settings or changes.get("system_text") == "refuse me":
            raise _error(SettingsError, "ui_request")
        self.applied.append(dict(changes))
        return self.held.apply(changes, resets, only_model=only_model)

    def close(self) -> None:
        for chat in self._chats.values():
            if chat.live:
                chat.live.stop()

    # How an answer is made

    def _begin(self, chat: str, before: Node, node: Node) -> LiveAnswer:
        here = self._chat(chat)
        if self.live(chat):
            raise RequestError("answer_under_way")
        before.children.append(node)
        before.chosen = len(before.children) - 1
        here.updated_at_s = time.time()
        live = here.live = LiveAnswer(chat, len(here.path()), node.text)
        threading.Thread(target=self._make, args=(here, node, live), daemon=True).start()
        return live

    def _make(self, here: Chat, node: Node, live: LiveAnswer) -> None:
        while self._stage() == "loading" and not live.cancel.wait(0.05):
            pass
        with self._device:
            begun_s = time.monotonic()
            for done in (32, 64):
                step = {"tokens": 64, "done_tokens": done, "reused_tokens": 0, "s": 0.1}
                live.add({"type": "prefilled", **step}, "prefill")
                live.cancel.wait(min(0.2, 10 * self.token_s))
            if self.fail_later:
                self._fail(node, live)
                return
            words, cites = reply_to(node.text, here.documents, next(self._numbers))
            words = words[len((node.reply or "").split()) :]
            for cite in cites:
                live.add({"type": "citation", **cite})
            reason = self._speak(node, live, words, begun_s)
        node.finish_reason, node.figures = reason, live.figures
        node.citations, live.finish_reason = live.citations, reason
        done = {"type": "done", "text": live.text, "figures": live.figures, "finish_reason": reason}
        live.add(done, "stopped" if reason == "cancelled" else "done")

    def _fail(self, node: Node, live: LiveAnswer) -> None:
        live.error, self.fail_later = self.fail_later, None
        assert live.error
        row = live.error.row()
        node.problem = {"code": row["code"], "facts": row["facts"]}
        live.add({"type": "failed", **row}, "failed")

    def _speak(self, node: Node, live: LiveAnswer, words: list[str], begun_s: float) -> str:
        first_s, reason, spoken = time.monotonic(), "stop", 0
        for word in words:
            if live.cancel.wait(self.token_s):
                reason = "cancelled"
                break
            if spoken == self.settings.max_new_tokens:
                reason = "length"
                break
            live.add({"type": "token", "text": word}, "decode")
            node.reply, spoken = live.text, spoken + 1
        took_s = time.monotonic() - first_s
        size = self._tokens(node) * TOKEN_BYTES
        live.figures = {
            "prompt_tokens": 12 * len(node.text.split()) + 24, "reply_tokens": spoken,
            "reused_tokens": 24, "prefill_s": first_s - begun_s,
            "time_to_first_token_s": first_s - begun_s, "decode_s": took_s, "bytes": size,
            "formats": {"fp/fp": size},
            "decode_tokens_per_s": spoken / took_s if spoken > 1 and took_s else None,
            "prefill_tokens_per_s": 12 * len(node.text.split()) / max(1e-3, first_s - begun_s),
            "prefill_flops_per_s": 9e12, "decode_bytes_per_s": 250e9,
        }  # fmt: skip
        return reason


def _error(kind: type[KVChatError], code: str) -> KVChatError:
    return kind(code)
