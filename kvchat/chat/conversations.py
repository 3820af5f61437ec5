"""Everything a face may do: chats, questions, documents, memory, settings. The one object behind
them all.

Thread-safe; calls return at once unless said. Answers are made on threads of their own, by the
worker. Knows no HTTP and no widget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kvchat.chat.ahead import AheadOfQuestions
from kvchat.chat.answer import LiveAnswer, Way
from kvchat.chat.answers import Answers
from kvchat.chat.branch import Branch, with_pending
from kvchat.chat.carrying import Carrying
from kvchat.chat.choosing import Choosing
from kvchat.chat.document_rows import DocumentRows
from kvchat.chat.export import report_lines
from kvchat.chat.foreseen import Foreseeing
from kvchat.chat.frames import Frames
from kvchat.chat.gauges import Gauges
from kvchat.chat.held_settings import HeldSettings
from kvchat.chat.known import KnownChats
from kvchat.chat.library import Library
from kvchat.chat.listing import Listing, drop_unlisted
from kvchat.chat.loading import Loading
from kvchat.chat.meanings import Meanings
from kvchat.chat.pinning import Pinning
from kvchat.chat.reading_again import Cost
from kvchat.chat.rows import ChatRow, DocumentRow, Exchange
from kvchat.chat.shelf import Shelf
from kvchat.chat.titles import title_follows
from kvchat.chat.undo import TakingBack
from kvchat.documents.pages import Mark
from kvchat.errors import RequestError
from kvchat.kvcache.disk import KV_FOLDER, KVFolder
from kvchat.models.verdicts import Verdict, notices_about
from kvchat.settings import Settings
from kvchat.settings_sources import Sources
from kvchat.store.records import Message
from kvchat.store.store import Store

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

NO_FORMATS = {"offered": [], "stage": "waiting"}  # before a model is loaded
NO_OVERRIDES: Mapping[str, object] = MappingProxyType({})


class Conversations:
    """Opens the data folder and begins to load the model. Raises StoreError.

    `held`: its settings, and where they come from (`sources`); `loading`: which model runs.
    """

    def __init__(self, settings: Settings, data_dir: Path, sources: Sources | None = None) -> None:
        self._store = Store(data_dir)
        self._shelf = Shelf(self._store, data_dir / "documents")
        self._shelf.meanings = Meanings(data_dir / "vectors", lambda: self.settings.embedding_model)
        self._kv_folder = KVFolder(data_dir / KV_FOLDER)
        self._shelf.readings.may_recognise = lambda: self.settings.ocr != "off"
        self.held = HeldSettings(settings, sources, data_dir, lambda: self.loading.engine)
        self._saved = self.held.saved
        drop_unlisted(self._store, self._shelf)
        self._known = KnownChats(self._store)
        self.gauges = Gauges(self._known, lambda: self._worker)
        self.ahead = AheadOfQuestions(
            self._store,
            self._shelf,
            lambda: self._engine,
            lambda: self.settings,
            lambda chat: self.live(chat) is not None,
        )
        self._document_rows = DocumentRows(self._store, self._shelf, self._known, self.ahead)
        # from here on a model may stand at any moment, and is given to what is above
        self.loading = Loading(self.held, data_dir, self._use, lambda: self._answers.stop_all())
        self._worker = self.loading.worker
        self._frames = Frames(
            self._store,
            self._worker,
            self._known,
            self.gauges,
            self.documents,
            lambda: self.settings.memory_budget,
        )
        self._answers = Answers(
            self._store, self._shelf, self._worker, self._frames, lambda: self.settings
        )
        self._pinning = Pinning(
            self._store, self._shelf, lambda: self._engine, lambda: self.settings
        )
        self._taking_back = TakingBack(self._store, self._shelf)
        self.foreseeing = Foreseeing(self._store, self._shelf, self.held, lambda: self._engine)
        self.carrying = Carrying(self._store, self._shelf)
        self.listing = Listing(
            self._store,
            self._shelf,
            self._frames,
            self._kv_folder,
            lambda: self._engine,
            self._answers.live,
            self._answers.refuse_if_busy,
        )
        self.choosing = Choosing(
            self._store, self._shelf, lambda: self._engine, lambda: self.settings, self.ahead
        )
        self.library = Library(
            self._store, self._shelf, self._answers.refuse_if_busy, self._forget_kv_of_text
        )

    @property
    def settings(self) -> Settings:
        return self.held.now

    @property
    def _engine(self) -> Engine | None:
        return self.loading.engine

    def _use(self, engine: Engine) -> None:
        # Seconds of imports: the page must not wait.
        from kvchat.engine.ahead import ReadingAhead
        from kvchat.engine.proving import Proving

        self._shelf.use_tokenizer(engine.loaded.tokenizer)
        self.gauges.use_tokenizer(engine.loaded.tokenizer)
        engine.proving = Proving(engine, self.held.verdicts, self.held.proven)
        engine.ahead = ReadingAhead(engine)
        self.ahead.look_again(engine)

    def close(self) -> None:
        """Stops every answer, keeps what was written, lets go of the model and the data folder."""
        stopped = self._answers.stop_all()
        self.ahead.close()
        self.loading.close()
        for live in stopped:
            live.wait_ended(10)
        self._answers.close()
        self._shelf.close()
        self._store.close()

    # --- the model and the memory -----------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        worker = self._worker
        error, refused = worker.error, worker.refused
        engine = worker.engine
        loaded = engine.loaded if engine is not None else None
        return {
            "stage": worker.stage,
            "model": loaded.name if loaded is not None else self.settings.model,
            "load": self._frames.load(),
            "notices": self._notices(),
            "attention": engine.attention if engine is not None else [],
            "formats": engine.formats() if engine is not None else NO_FORMATS,
            "error": error and error.row(),
            "refused": refused and refused.row(),
        }

    def _notices(self) -> list[str]:
        """Codes of what there is to say about the model, once it is loaded."""
        engine = self._worker.engine
        if engine is None:
            return []
        return [*engine.loaded.notices, *notices_about(self.settings, self.verdicts())]

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Blocks until the model is loaded. Raises ModelError if that failed or takes longer."""
        self._worker.wait_ready(timeout_s)

    def frame(self, chat: str | None = None) -> dict[str, Any]:
        """What is in memory now, as DESIGN §9 has it; with the chat's documents and turns."""
        if chat is not None:
            self._store.chat(chat)
        return self._frames.frame(chat)

    def ledger_since(self, chat: str | None, number: int) -> list[dict[str, Any]]:
        """Ledger entries after that number, oldest first; of all chats for None."""
        if chat is not None:
            self._store.chat(chat)
        return self._frames.ledger_since(chat, number)

    def ledger_report(self, chat: str | None) -> list[str]:
        """The same entries as JSON lines, without anybody's texts, for a report of a fault."""
        if chat is not None:
            self._store.chat(chat)
        return list(report_lines(self._store.ledger(chat)))

    # --- chats ------------------------------------------------------------------------------------

    def chats(self, query: str = "") -> list[ChatRow]:
        return self.listing.rows(query)

    def drop_if_nothing(self, chat: str) -> bool:
        """Deletes a chat that nobody would miss: see `Listing.is_nothing`."""
        gone = self.listing.is_nothing(chat)
        if gone:
            self.delete(chat)
        return gone

    def show(self, chat: str, message: str) -> int:
        """Shows a branch that has the message; returns its turn. Raises RequestError."""
        with title_follows(self._store, chat):
            return self.listing.show(chat, message)

    def new_chat(self, *, listed: bool = True) -> str:
        return self._store.new_chat("", self.settings.system_text, listed).id

    def rename(self, chat: str, title: str) -> None:
        self._store.rename(chat, title.strip())

    def delete(self, chat: str) -> None:
        """The chat, its answers, and the files of documents and of KV that no other chat has. Of a
        chat that is not listed, a question asked once, the KV stays for the next one.
        """
        if self._store.chat(chat).listed:
            self._forget_kv(chat)
        self.ahead.drop(chat)
        self._answers.end(chat)
        documents = [one.document for one in self._store.chat_documents(chat)]
        self._store.delete(chat)
        self._shelf.drop_unused(documents)

    def _forget_kv(self, chat: str, *, goes_on: bool = False) -> None:
        engine = self._engine
        if engine is not None and engine.disk is not None:
            engine.disk.forget(chat, goes_on=goes_on)
        else:
            self._kv_folder.forget(chat, goes_on=goes_on)

    def _forget_kv_of_text(self, chat: str) -> None:
        self._forget_kv(chat, goes_on=True)

    def history(self, chat: str) -> list[Exchange]:
        """The turns of the branch that is shown, oldest first; the question in flight is among
        them.
        """
        live = self.live(chat)  # before what is written: an answer that ended meanwhile is there
        return with_pending(self._known.of(chat).exchanges, live)

    # --- asking -----------------------------------------------------------------------------------

    def ask(
        self, chat: str, text: str, overrides: Mapping[str, object] = NO_OVERRIDES
    ) -> LiveAnswer:
        """Answers a question with all that the chat holds. Raises RequestError for an empty one.

        `overrides`: settings for this answer only.
        """
        self.ahead.drop(chat)
        return self._answers.ask(chat, text, overrides)

    # A turn is meant by its number; `name`, its user message's hash, says which one the caller saw
    # there, so that a page that was not told of a change cannot act on another turn.

    def regenerate(
        self, chat: str, turn: int, name: str | None = None, way: Way = "usual"
    ) -> LiveAnswer:
        """Answers the same question again, as another version of that turn."""
        return self._answers.regenerate(chat, self._question(chat, turn, name), turn, way)

    def edit(self, chat: str, turn: int, text: str, name: str | None = None) -> LiveAnswer:
        """Asks something else in that turn's place; what was there stays, as another version."""
        return self._answers.edit(chat, self._question(chat, turn, name), turn, text)

    def go_on(self, chat: str, turn: int, name: str | None = None) -> LiveAnswer:
        """Goes on with the reply that the chat ends with, in the same message."""
        return self._answers.go_on(chat, self._question(chat, turn, name), turn)

    def delete_turn(self, chat: str, turn: int, name: str | None = None) -> None:
        """The turn, its documents, and the chat's files of KV: which of them hold it, nobody can
        tell. The next answer writes what is left anew.
        """
        question = self._question(chat, turn, name)
        self._answers.refuse_if_busy(chat)
        with title_follows(self._store, chat):
            self._store.delete_turn(chat, question.hash)
        self._forget_kv(chat, goes_on=True)
        self._shelf.drop_unused([])

    def switch(self, chat: str, turn: int, sibling: int, name: str | None = None) -> None:
        """Shows the k-th version of a turn, counted from 1."""
        self._answers.refuse_if_busy(chat)
        versions = Branch(self._store, chat).versions(self._question(chat, turn, name))
        if not 1 <= sibling <= len(versions):
            raise RequestError("turn_gone", turn=turn)
        with title_follows(self._store, chat):
            self._store.switch(chat, versions[sibling - 1])

    def stop(self, chat: str) -> None:
        live = self.live(chat)
        if live is not None:
            live.stop()

    def live(self, chat: str) -> LiveAnswer | None:
        """The answer being made, or None."""
        return self._answers.live(chat)

    def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        overrides: Mapping[str, object],
        stop: tuple[str, ...] = (),
    ) -> LiveAnswer:
        """One answer for /v1. With the setting `list_api_chats` it is a chat's, else no chat's.

        `overrides`: settings for this answer only. Raises SettingsError.
        """
        return self._answers.complete(messages, overrides, stop)

    def _question(self, chat: str, turn: int, name: str | None = None) -> Message:
        return Branch(self._store, chat).question(turn, name)

    # --- pins, and taking back --------------------------------------------------------------------

    def pin_turn(
        self, chat: str, turn: int, name: str | None = None, *, pinned: bool = True
    ) -> None:
        """A pinned turn is never left out, stored in less or moved. Raises OutOfMemory where all
        that is pinned could not fit with it, and keeps nothing then.
        """
        self._pinning.pin_turn(chat, self._question(chat, turn, name).hash, pinned=pinned)

    def pin_document(
        self, chat: str, document: str, page: int | None = None, *, pinned: bool = True
    ) -> None:
        """The same for a document that the chat has, or one page of it. Raises RequestError for any
        other.
        """
        self._store.chat(chat)
        self._pinning.pin_document(chat, document, page, pinned=pinned)

    def undo_cost(self, chat: str, entry: int) -> Cost:
        """What it takes to take a ledger entry back. Raises RequestError where nothing of it is
        left, OutOfMemory with the numbers where there is no room; ModelError while it is loaded.
        """
        engine = self._worker.wait_ready(0.0)
        return self._taking_back.cost(chat, entry, engine, self.settings)

    def undo(self, chat: str, entry: int) -> Cost:
        """Takes it back with the next question; raises the same and changes nothing then."""
        engine = self._worker.wait_ready(0.0)
        return self._taking_back.ask(chat, entry, engine, self.settings)

    # --- documents --------------------------------------------------------------------------------

    def add_document(self, chat: str, path: Path, name: str) -> str:
        """Adds a file to a chat and begins to read it; returns its sha256. Raises DocumentError."""
        self._store.chat(chat)
        document = self._shelf.add(chat, path, name)
        self.ahead.look(chat)
        return document

    def remove_document(self, chat: str, document: str) -> None:
        self._store.detach(chat, document)
        self._shelf.drop_unused([document])
        self.ahead.look(chat)

    def documents(self, chat: str) -> list[DocumentRow]:
        return self._document_rows.of(chat)

    def wait_documents(self, chat: str) -> list[DocumentRow]:
        """The rows once all documents of the chat are read, or found unreadable. Blocks."""
        for one in self._store.chat_documents(chat):
            self._shelf.wait(one.document, one.name)
        return self.documents(chat)

    def page_image(self, document: str, page: int) -> bytes:
        """A page as PNG. Raises DocumentError. Blocks."""
        return self._shelf.picture(document, page)

    def page_marks(self, document: str, page: int, texts: Sequence[str]) -> list[list[Mark]]:
        """For each text the boxes that cover it on the page's picture. Blocks."""
        return self._shelf.marks(document, page, texts)

    # --- settings ---------------------------------------------------------------------------------

    def verdicts(self) -> dict[str, Verdict]:
        """What the model that runs here was measured with, by pair of KV formats."""
        return self.held.verdicts()

    def apply(
        self,
        changes: Mapping[str, object],
        resets: Sequence[str] = (),
        *,
        only_model: bool = False,
    ) -> list[str]:
        """Changes settings and keeps them for the next start; returns those that need a reload.
        Raises SettingsError if one of them is wrong, StoreError if they cannot be kept, and changes
        nothing then.
        """
        before = self.settings.ocr
        later = self.held.apply(changes, resets, only_model=only_model)
        if before == "off" != self.settings.ocr:
            self._shelf.readings.recognise_again()
        return later
