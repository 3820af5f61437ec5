"""The answers under way: one a chat at most, each made on a thread of its own, whoever watches it.

Writes the question down, decides what the model is told, and leaves the rest to `turn.make_answer`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvchat.chat.admit import Told
from kvchat.chat.answer import ENDED, LiveAnswer, Way
from kvchat.chat.api_chats import begin, chats_to_go_on_with, go_on
from kvchat.chat.asking import Admit, Asking, Keeper, as_told, less_repeating
from kvchat.chat.at_own_risk import at_own_risk
from kvchat.chat.attached import attached
from kvchat.chat.bring import Brought, asking_of, bring
from kvchat.chat.citing import citer
from kvchat.chat.frames import Frames
from kvchat.chat.going_on import KeepLonger, begun, last_reply
from kvchat.chat.keep import KeepInChat, KeepNothing, write_ledger
from kvchat.chat.reasoning import opening_of
from kvchat.chat.rendering import KnownSizes
from kvchat.chat.shelf import PATIENCE_S, Shelf
from kvchat.chat.summarizer import KeptSummaries, PassingSummaries, Summarizer
from kvchat.chat.summing import SummingUp
from kvchat.chat.threads import Threads
from kvchat.chat.titles import follow_edit, title_of
from kvchat.chat.told import told_of_branch, told_of_messages
from kvchat.chat.turn import Stopped, end_stopped, fail, make_answer
from kvchat.engine.events import Priority
from kvchat.engine.worker import Worker
from kvchat.errors import KVChatError, RequestError
from kvchat.planner.measures import Summarize
from kvchat.settings import Settings, changed
from kvchat.store.records import Attachment, Message
from kvchat.store.store import Store

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

logger = logging.getLogger(__name__)

_LONGEST_END_S = 10.0
_LOOK_S = 0.05


class Answers:
    """`settings` gives those of the moment. Calls return at once, with an answer that grows."""

    def __init__(
        self,
        store: Store,
        shelf: Shelf,
        worker: Worker,
        frames: Frames,
        settings: Callable[[], Settings],
    ) -> None:
        self._store = store
        self._shelf = shelf
        self._worker = worker
        self._frames = frames
        self._settings = settings
        self._live: dict[str, LiveAnswer] = {}
        self._one_shot: list[LiveAnswer] = []
        self._sizes = KnownSizes()
        self._passing = PassingSummaries()
        self._threads = Threads("kvchat-answer")
        self._lock = threading.Lock()

    # --- what is under way ------------------------------------------------------------------------

    def live(self, chat: str) -> LiveAnswer | None:
        """The answer being made, or None."""
        live = self._live.get(chat)
        return live if live is not None and live.status not in ENDED else None

    def refuse_if_busy(self, chat: str) -> None:
        if self.live(chat) is not None:
            raise RequestError("answer_under_way")

    def end(self, chat: str) -> None:
        """Stops the chat's answer, waits for its end and forgets it."""
        live = self._live.pop(chat, None)
        if live is not None:
            live.stop()
            live.wait_ended(_LONGEST_END_S)

    def stop_all(self) -> list[LiveAnswer]:
        """Tells every answer to end, and gives them back."""
        with self._lock:
            found = [*self._live.values(), *self._one_shot]
        for live in found:
            live.stop()
        return found

    def close(self) -> None:
        """Keeps no thread any more; who is told to end ends."""
        self._threads.close()

    def _begin(self, chat: str, turn: int, text: str) -> LiveAnswer:
        with self._lock:
            self.refuse_if_busy(chat)
            live = self._live[chat] = LiveAnswer(chat, turn, text)
            return live

    # --- asking -----------------------------------------------------------------------------------

    def ask(self, chat: str, text: str, overrides: Mapping[str, object]) -> LiveAnswer:
        """Raises RequestError for an empty question, and where the chat is being answered."""
        _refuse_if_empty(text)
        live = self._begin(chat, self._store.chat(chat).num_turns + 1, text)
        live.overrides = overrides
        with self._unless_it_fails(live):
            return self._asked(live)

    def regenerate(self, chat: str, question: Message, turn: int, way: Way) -> LiveAnswer:
        live = self._begin(chat, turn, question.content)
        live.way = way
        with self._unless_it_fails(live):
            self._store.fork(chat, question.hash)
            return self._start(live, lambda engine: self._told(engine, live, question))

    def edit(self, chat: str, question: Message, turn: int, text: str) -> LiveAnswer:
        _refuse_if_empty(text)
        live = self._begin(chat, turn, text)
        with self._unless_it_fails(live):
            pinned = question.hash in self._store.pins(chat)
            self._store.fork(chat, question.parent)
            if question.parent is None:
                follow_edit(self._store, chat, question.content, text)
            return self._asked(live, pinned=pinned)

    def go_on(self, chat: str, question: Message, turn: int) -> LiveAnswer:
        """Goes on with the reply that was cut. Raises RequestError where it is not the last."""
        live = self._begin(chat, turn, question.content)
        with self._unless_it_fails(live):
            reply = last_reply(self._store, chat, question)
            live.text = reply.content
            return self._start(live, lambda engine: self._told(engine, live, question, reply))

    def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        overrides: Mapping[str, object],
        stop: tuple[str, ...],
    ) -> LiveAnswer:
        """Raises SettingsError where an override is wrong."""
        settings = changed(self._settings(), overrides)
        live = LiveAnswer("", 1, messages[-1]["content"])
        with self._lock:
            self._one_shot.append(live)

        def make() -> None:
            engine, told = self._engine(live), told_of_messages(messages)
            keeper = self._listed(live, engine, told) if settings.list_api_chats else KeepNothing()
            kept = self._store if settings.list_api_chats else self._passing
            admit = self._admit(live, keeper, settings, kept, Priority.API)
            asking = Asking(settings, stop, Priority.API, admit=admit)
            make_answer(live, self._worker, engine, asking, told, keeper)

        with self._unless_it_fails(live):
            return self._run(live, make)

    def _listed(self, live: LiveAnswer, engine: Engine, told: Told) -> KeepInChat:
        """A request's answer becomes that of a chat in the list."""
        live.turn = sum(one.role == "user" for one in told.messages)
        question = None
        for chat in chats_to_go_on_with(self._store, told):
            with suppress(RequestError):  # a chat that is being answered is left alone
                self._adopt(chat, live)
                question = go_on(self._store, chat, told)
                break
        if question is None:
            chat, question = begin(self._store, told)
            self._adopt(chat, live)
        return KeepInChat(self._store, live, question.hash, engine.loaded.name, tells_all=True)

    def _adopt(self, chat: str, live: LiveAnswer) -> None:
        with self._lock:
            self.refuse_if_busy(chat)
            live.chat = chat
            self._live[chat] = live

    def _asked(self, live: LiveAnswer, *, pinned: bool = False) -> LiveAnswer:
        """`pinned`: the question takes the place of one that is."""
        chat, text = live.chat, live.question

        def written(attachments: Sequence[Attachment] = ()) -> Message:
            message = self._store.append(chat, "user", text, attachments)
            if pinned:
                self._store.pin(chat, message.hash)
            return message

        if not self._store.chat(chat).title:
            self._store.rename(chat, title_of(text))
        if not self._store.chat_documents(chat):
            message = written()
            return self._start(live, lambda engine: self._told(engine, live, message))
        return self._start(
            live, lambda engine: self._told_with_documents(engine, live, written), written
        )

    # --- how an answer comes about ----------------------------------------------------------------

    def _start(
        self,
        live: LiveAnswer,
        told: Callable[[Engine], tuple[Told, Keeper]],
        when_stopped: Callable[[], object] = lambda: None,
    ) -> LiveAnswer:
        """`told` writes down what is not yet written; `when_stopped` does it if that came first."""

        def make() -> None:
            try:
                engine = self._engine(live)
                words, keeper = told(engine)
            except Stopped:
                when_stopped()
                raise
            make_answer(live, self._worker, engine, self._asking(live, keeper), words, keeper)

        return self._run(live, make)

    def _engine(self, live: LiveAnswer) -> Engine:
        """Waits for the model to be loaded. Raises ModelError, and Stopped."""
        while not self._worker.is_loaded(_LOOK_S):
            if live.cancel.is_set():
                raise Stopped
        return self._worker.wait_ready()

    def _settings_for(self, live: LiveAnswer) -> Settings:
        settings = changed(self._settings(), live.overrides)
        return less_repeating(settings) if live.way == "less_repeating" else settings

    def _asking(self, live: LiveAnswer, keeper: Keeper) -> Asking:
        settings = self._settings_for(live)
        self._frames.answering(live.chat)
        admit = self._admit(live, keeper, settings, self._store)
        admit = at_own_risk(admit) if live.way == "at_own_risk" else admit
        return Asking(
            settings,
            dress=lambda frame: self._frames.dressed(frame, live.chat),
            admit=self._sizes.remembering(live.chat, admit),
        )

    def _admit(
        self,
        live: LiveAnswer,
        keeper: Keeper,
        settings: Settings,
        kept: KeptSummaries,
        priority: Priority = Priority.PERSON,
    ) -> Admit:
        """How a prompt is made to fit: with summaries where those are wanted."""

        def tell(taken: dict[str, Any]) -> None:
            live.add({"type": "took", **keeper.took(taken)})

        summarizer = Summarizer(kept, live, self._worker, tell, priority)
        return summarizer.admit if Summarize.code in settings.ladder else as_told

    def _run(self, live: LiveAnswer, make: Callable[[], None]) -> LiveAnswer:
        def outermost() -> None:
            try:
                make()
            except Stopped:
                self._drop_empty_fork(live)
                end_stopped(live)
            except Exception as error:
                if not isinstance(error, KVChatError):
                    logger.exception("an answer failed")
                self._give_up(live, error)
            finally:
                self._let_go(live)

        self._threads.run(outermost)
        return live

    def _let_go(self, live: LiveAnswer) -> None:
        """Who watches an answer keeps it; nobody else does once it has ended."""
        with self._lock:
            if self._live.get(live.chat) is live:
                del self._live[live.chat]
            if live in self._one_shot:
                self._one_shot.remove(live)

    @contextmanager
    def _unless_it_fails(self, live: LiveAnswer) -> Iterator[None]:
        """What fails before the answer's thread has begun ends the answer here."""
        try:
            yield
        except Exception as error:
            self._give_up(live, error)
            self._let_go(live)
            raise

    def _give_up(self, live: LiveAnswer, error: Exception) -> None:
        live.cancel.set()
        self._drop_empty_fork(live)
        if isinstance(error, KVChatError):
            fail(live, error)
        else:
            why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            fail(live, RequestError("step_failed", why=why))

    def _drop_empty_fork(self, live: LiveAnswer) -> None:
        """Where nothing was written: the branch that was to be stays as it was."""
        if live.chat:
            with suppress(KVChatError):
                self._store.drop_empty_fork(live.chat)

    def _told_with_documents(
        self,
        engine: Engine,
        live: LiveAnswer,
        write: Callable[[Sequence[Attachment]], Message],
    ) -> tuple[Told, Keeper]:
        """Waits for the documents, as long as is wanted, then writes the question down with what it
        brings along.
        """
        live.status = "reading"
        store, chat, settings = self._store, live.chat, self._settings_for(live)
        fits = engine.fits()
        documents = store.chat_documents(chat)
        until_s = time.monotonic() + PATIENCE_S if settings.answer_while_reading else None
        for one in documents:
            self._shelf.wait(one.document, one.name, live.cancel, until_s)
        if live.cancel.is_set():
            raise Stopped
        there, asking = attached(store, chat), asking_of(store, chat, live.question)
        is_read = all(self._shelf.is_complete(one.document) for one in documents)
        # What it says of pages that were read is to be true of what it brings along.
        with nullcontext() if is_read else self._shelf.unchanged():
            brought = bring(there, asking, self._shelf, settings, fits.tokens, fits.in_steps_tokens)
        self._sum_up(engine, live, brought)
        for entry in brought.entries:
            live.add({"type": "took", **write_ledger(store, chat, entry)})
        message = write(brought.attachments)
        return self._told(engine, live, message)

    def _sum_up(self, engine: Engine, live: LiveAnswer, brought: Brought) -> None:
        """Sums up what the question is to bring along so; what it takes is told before. Raises
        Stopped.
        """
        summing = SummingUp(self._shelf, live, self._worker, engine, self._settings_for(live))
        for document, numbers in brought.to_sum:
            cost = summing.cost(document, numbers)
            live.add({"type": "took", **write_ledger(self._store, live.chat, cost)})
            room_tokens = brought.room_tokens / len(brought.to_sum)
            found = summing.summed(document, numbers, room_tokens)
            if live.cancel.is_set():
                raise Stopped
            missed = summing.missed(document, numbers, found)
            if missed is not None:
                live.add({"type": "took", **write_ledger(self._store, live.chat, missed)})
            if found is not None:
                others = (one for one in brought.attachments if one.document != found.document)
                brought.attachments = [*others, found]

    def _told(
        self, engine: Engine, live: LiveAnswer, question: Message, reply: Message | None = None
    ) -> tuple[Told, Keeper]:
        """All that the chat could tell the model, and who keeps the answer to it; it goes on with
        `reply`, where there is one.
        """
        store, chat = self._store, live.chat
        there = attached(store, chat)
        keeps = self._settings().keep_reasoning
        told = told_of_branch(store, chat, self._shelf, there, keeps_reasoning=keeps)
        cite = citer(there.as_told(question), there, self._shelf)
        about = (question.hash, engine.loaded.name, cite, self._frames.held_bytes)
        live.opening = opening_of(engine.loaded)

        def when_kept() -> None:
            self._frames.answered(chat)

        if reply is None:
            return told, KeepInChat(store, live, *about, when_kept=when_kept)
        found = begun(store, chat, reply, engine.loaded.tokenizer, live.opening)
        kept = KeepInChat(store, live, *about, when_kept=when_kept, begun=found)
        longer = replace(told, messages=told.messages[:-1], begun=found.ids)
        return longer, KeepLonger(kept, store, chat, found)


def _refuse_if_empty(text: str) -> None:
    if not text.strip():
        raise RequestError("empty_question")
