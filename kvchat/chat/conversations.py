"""Everything a face may do: chats, questions, documents, memory, settings. The one object behind
them all.

Thread-safe; calls return at once unless said. Answers are made on threads of their own, by the
worker. Knows no HTTP and no widget.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvchat.chat.admit import Told
from kvchat.chat.answer import ENDED, LiveAnswer
from kvchat.chat.branch import Branch
from kvchat.chat.bring import bring, decided_modes
from kvchat.chat.citing import citer
from kvchat.chat.frames import Frames
from kvchat.chat.keep import KeepInChat, KeepNothing, write_ledger
from kvchat.chat.rows import ChatRow, DocumentRow, Exchange
from kvchat.chat.saved import SavedSettings
from kvchat.chat.shelf import Shelf
from kvchat.chat.told import told_of_branch, told_of_messages
from kvchat.chat.turn import Asking, fail, make_answer
from kvchat.engine.events import Priority
from kvchat.engine.limits import limits_for
from kvchat.engine.worker import Worker, load_row
from kvchat.errors import KVChatError, RequestError
from kvchat.settings import SCHEMA, Settings, changed
from kvchat.store.records import Message
from kvchat.store.store import Store

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

logger = logging.getLogger(__name__)

TITLE_CHARACTERS = 60


class Conversations:
    """Opens the data folder and begins to load the model. Raises StoreError."""

    def __init__(self, settings: Settings, data_dir: Path) -> None:
        self.settings = settings
        self._store = Store(data_dir)
        self._shelf = Shelf(self._store, data_dir / "documents")
        self._saved = SavedSettings(data_dir / "settings.toml")
        self._live: dict[str, LiveAnswer] = {}
        self._one_shot: list[LiveAnswer] = []
        self._lock = threading.Lock()
        self._started_s = time.monotonic()
        self._worker = Worker(lambda progress, cancel: self._load(data_dir, progress, cancel))
        self._frames = Frames(self._store, self._worker)

    def _load(self, data_dir: Path, progress: Any, cancel: threading.Event) -> Engine:
        from kvchat.engine.open import open_engine  # seconds of imports: the page must not wait

        engine = open_engine(self.settings, data_dir, progress, cancel)
        self._shelf.use_tokenizer(engine.loaded.tokenizer)
        return engine

    def close(self) -> None:
        """Stops every answer, keeps what was written, lets go of the model and the data folder."""
        for live in [*self._live.values(), *self._one_shot]:
            live.stop()
        self._worker.close()
        for live in [*self._live.values(), *self._one_shot]:
            live.wait_ended(10)
        self._shelf.close()
        self._store.close()

    # --- the model and the memory -----------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        worker = self._worker
        error = worker.error
        loaded = worker.engine.loaded if worker.engine is not None else None
        return {
            "stage": worker.stage,
            "model": loaded.name if loaded is not None else self.settings.model,
            "load": load_row(worker, self._started_s),
            "notices": list(loaded.notices) if loaded is not None else [],
            "error": error
            and {"code": error.code, "message": error.message(), "remedy": error.remedy()},
        }

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Blocks until the model is loaded. Raises ModelError if that failed or takes longer."""
        self._worker.wait_ready(timeout_s)

    def frame(self, chat: str | None = None) -> dict[str, Any]:
        """What is in memory now, as DESIGN §9 has it; with the chat's documents and turns."""
        if chat is not None:
            self._store.chat(chat)
        runtime = {"stage": self._worker.stage, "load": load_row(self._worker, self._started_s)}
        documents = self.documents(chat) if chat else []
        return self._frames.frame(chat, runtime, documents)

    def ledger_since(self, chat: str | None, number: int) -> list[dict[str, Any]]:
        """Ledger entries after that number, oldest first; of all chats for None."""
        if chat is not None:
            self._store.chat(chat)
        return self._frames.ledger_since(chat, number)

    # --- chats ------------------------------------------------------------------------------------

    def chats(self, query: str = "") -> list[ChatRow]:
        held = self._frames.chat_bytes()
        return [
            ChatRow(one.id, one.title, one.num_turns, one.updated_at_s, held.get(one.id, 0))
            for one in self._store.chats(query)
        ]

    def new_chat(self, *, listed: bool = True) -> str:
        return self._store.new_chat("", self.settings.system_text, listed).id

    def rename(self, chat: str, title: str) -> None:
        self._store.rename(chat, title.strip())

    def delete(self, chat: str) -> None:
        """The chat, its answers and the files of documents that no other chat has."""
        live = self._live.pop(chat, None)
        if live is not None:
            live.stop()
            live.wait_ended(10)
        documents = [one.document for one in self._store.chat_documents(chat)]
        self._store.delete(chat)
        self._shelf.drop_unused(documents)

    def history(self, chat: str) -> list[Exchange]:
        """The turns of the branch that is shown, oldest first; the question in flight is among
        them.
        """
        return Branch(self._store, chat).exchanges(self.live(chat))

    # --- asking -----------------------------------------------------------------------------------

    def ask(self, chat: str, text: str) -> LiveAnswer:
        """Answers a question with all that the chat holds. Raises RequestError for an empty one."""
        if not text.strip():
            raise RequestError("empty_question")
        row = self._store.chat(chat)
        live = self._begin(chat, row.num_turns + 1, text)
        if not row.title:
            self._store.rename(chat, " ".join(text.split())[:TITLE_CHARACTERS])
        if not self._store.chat_documents(chat):
            message = self._store.append(chat, "user", text)
            return self._start(live, lambda engine: self._told(engine, live, message))
        return self._start(live, lambda engine: self._told_with_documents(engine, live))

    def regenerate(self, chat: str, turn: int) -> LiveAnswer:
        """Answers the same question again, as another version of that turn."""
        question = self._question(chat, turn)
        live = self._begin(chat, turn, question.content)
        self._store.fork(chat, question.hash)
        return self._start(live, lambda engine: self._told(engine, live, question))

    def edit(self, chat: str, turn: int, text: str) -> LiveAnswer:
        """Asks something else in that turn's place; what was there stays, as another version."""
        if not text.strip():
            raise RequestError("empty_question")
        question = self._question(chat, turn)
        self._refuse_if_busy(chat)
        self._store.fork(chat, question.parent)
        return self.ask(chat, text)

    def delete_turn(self, chat: str, turn: int) -> None:
        question = self._question(chat, turn)
        self._refuse_if_busy(chat)
        self._store.delete_turn(chat, question.hash)
        self._frames.forget(chat)

    def switch(self, chat: str, turn: int, sibling: int) -> None:
        """Shows the k-th version of a turn, counted from 1."""
        self._refuse_if_busy(chat)
        versions = Branch(self._store, chat).versions(self._question(chat, turn))
        if not 1 <= sibling <= len(versions):
            raise RequestError("turn_gone", turn=turn)
        self._store.switch(chat, versions[sibling - 1])
        self._frames.forget(chat)

    def stop(self, chat: str) -> None:
        live = self.live(chat)
        if live is not None:
            live.stop()

    def live(self, chat: str) -> LiveAnswer | None:
        """The answer being made, or None."""
        live = self._live.get(chat)
        return live if live is not None and live.status not in ENDED else None

    def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        overrides: Mapping[str, object],
        stop: tuple[str, ...] = (),
    ) -> LiveAnswer:
        """One answer for /v1, which no chat remembers. `overrides`: settings for this answer
        only.
        """
        asking = Asking(changed(self.settings, overrides), stop, Priority.API)
        live = LiveAnswer("", 1, messages[-1]["content"])
        with self._lock:
            self._one_shot = [one for one in self._one_shot if one.status not in ENDED]
            self._one_shot.append(live)
        self._run(
            live,
            lambda: make_answer(
                live, self._worker, asking, lambda _: told_of_messages(messages), KeepNothing()
            ),
        )
        return live

    # --- documents --------------------------------------------------------------------------------

    def add_document(self, chat: str, path: Path, name: str) -> str:
        """Adds a file to a chat and begins to read it; returns its sha256. Raises DocumentError."""
        self._store.chat(chat)
        return self._shelf.add(chat, path, name)

    def remove_document(self, chat: str, document: str) -> None:
        self._store.detach(chat, document)
        self._shelf.drop_unused([document])

    def documents(self, chat: str) -> list[DocumentRow]:
        attached = self._store.chat_documents(chat)
        modes = decided_modes(self._store.ledger(chat)) if attached else {}
        return [
            DocumentRow(
                one.document,
                one.name,
                mode=modes.get(one.document),
                **self._shelf.row(one.document, one.name),
            )
            for one in attached
        ]

    def wait_documents(self, chat: str) -> list[DocumentRow]:
        """The rows once all documents of the chat are read, or found unreadable. Blocks."""
        for one in self._store.chat_documents(chat):
            self._shelf.wait(one.document, one.name)
        return self.documents(chat)

    def page_image(self, document: str, page: int) -> bytes:
        """A page as PNG. Raises DocumentError. Blocks."""
        return self._shelf.picture(document, page)

    # --- settings ---------------------------------------------------------------------------------

    def apply(self, changes: Mapping[str, object]) -> list[str]:
        """Changes settings and keeps them for the next start; returns those that need a reload.

        Raises SettingsError and changes nothing if one of them is wrong.
        """
        settings = changed(self.settings, changes)
        before, self.settings = self.settings, settings
        self._saved.keep(settings, changes)
        engine = self._worker.engine
        if engine is not None:
            engine.limits = limits_for(settings, engine.loaded.device)
        return [
            name
            for name in changes
            if SCHEMA[name].applies == "reload" and getattr(settings, name) != getattr(before, name)
        ]

    # --- how an answer comes about ----------------------------------------------------------------

    def _question(self, chat: str, turn: int) -> Message:
        questions = Branch(self._store, chat).questions()
        if not 1 <= turn <= len(questions):
            raise RequestError("turn_gone", turn=turn)
        return questions[turn - 1]

    def _refuse_if_busy(self, chat: str) -> None:
        if self.live(chat) is not None:
            raise RequestError("answer_under_way")

    def _begin(self, chat: str, turn: int, text: str) -> LiveAnswer:
        with self._lock:
            self._refuse_if_busy(chat)
            live = self._live[chat] = LiveAnswer(chat, turn, text)
            return live

    def _start(
        self, live: LiveAnswer, told: Callable[[Engine], tuple[Told, KeepInChat]]
    ) -> LiveAnswer:
        def make() -> None:
            engine = self._worker.wait_ready()
            words, keeper = told(engine)
            asking = Asking(self.settings)
            make_answer(live, self._worker, asking, lambda _: words, keeper)
            self._frames.forget(live.chat)

        self._run(live, make)
        return live

    def _run(self, live: LiveAnswer, make: Callable[[], None]) -> None:
        def outermost() -> None:
            try:
                make()
            except KVChatError as error:
                self._give_up(live, error)
            except Exception as error:
                logger.exception("an answer failed")
                why = f"{type(error).__name__}: {error}"
                self._give_up(live, RequestError("step_failed", why=" ".join(why.split())[:200]))

        threading.Thread(target=outermost, name="kvchat-answer", daemon=True).start()

    def _give_up(self, live: LiveAnswer, error: KVChatError) -> None:
        """Before anything was written: the branch that was to be stays as it was."""
        if live.chat:
            with suppress(KVChatError):
                self._store.drop_empty_fork(live.chat)
        fail(live, error)

    def _told_with_documents(self, engine: Engine, live: LiveAnswer) -> tuple[Told, KeepInChat]:
        """Waits for the documents, then writes the question down with what it brings along."""
        live.status = "reading"
        store, chat = self._store, live.chat
        snapshot = engine.last_snapshot
        capacity = engine.costs.largest_tokens(snapshot.allowed_bytes, self.settings.prefill_chunk)
        brought = bring(
            store.chat_documents(chat),
            decided_modes(store.ledger(chat)),
            live.question,
            [one.content for one in Branch(store, chat).questions()],
            self._shelf,
            self.settings,
            capacity,
        )
        for entry in brought.entries:
            live.add({"type": "took", **write_ledger(store, chat, entry)})
        message = store.append(chat, "user", live.question, brought.attachments)
        return self._told(engine, live, message)

    def _told(self, engine: Engine, live: LiveAnswer, question: Message) -> tuple[Told, KeepInChat]:
        """All that the chat could tell the model, and who keeps the answer to it."""
        store, chat = self._store, live.chat
        modes = decided_modes(store.ledger(chat))
        whole = [one for one in store.chat_documents(chat) if modes.get(one.document) == "whole"]
        told = told_of_branch(store, chat, self._shelf, [one for one in whole if one.leading])
        names = [(one.document, one.name) for one in whole]
        cite = citer(question.attachments, names, question.content, self._shelf)
        return told, KeepInChat(store, live, question.hash, engine.loaded.name, cite)
