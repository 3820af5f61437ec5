"""Whatever a person does, in whatever order: answers stay right, and nothing is lost or left."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.attention import hf_seam
from kvchat.chat.answer import LiveAnswer
from kvchat.chat.conversations import Conversations
from kvchat.errors import KVChatError
from kvchat.kvcache.blocks import FP
from kvchat.settings import RUNGS
from tests.documents.small_pdf import write_pdf

Start = Callable[..., Conversations]
WORDS = (
    *("the", "pump", "lamp", "clock", "runs", "green", "slow", "night", "harbour", "tower"),
    *("and", "why", "not", "한국어", "메모리", "😀"),
)
ROOMY = 512 * 1024**2


class Person:
    """Does one thing after another, by chance, and looks at everything after each."""

    def __init__(self, start: Start, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.start = start
        self.talks = start(max_new_tokens=10)
        self.chats: list[str] = []
        self.files = self._files(folder)
        self.done: list[str] = []
        self.failures: list[str] = []

    def _files(self, folder: Path) -> list[Path]:
        (folder / "broken.pdf").write_bytes(b"%PDF-1.4 and then nothing")
        facts = [["The pump runs at night."], ["The lamp is green.", "The clock is slow."]]
        made = [
            write_pdf(folder / f"{n}.pdf", [[(50, 700, line)] for line in lines])
            for n, lines in enumerate(facts)
        ]
        leaves = [[(50, 700, f"Leaf {n}: {self._words(12)}")] for n in range(60)]
        return [*made, write_pdf(folder / "long.pdf", leaves), folder / "broken.pdf"]

    def _words(self, most: int) -> str:
        return " ".join(self.chance.choices(WORDS, k=self.chance.randint(1, most)))

    def act(self) -> None:
        acts = [self.ask] * 8 + [self.regenerate, self.edit, self.delete_turn, self.switch] * 2
        acts += [self.stop, self.add, self.add, self.remove, self.budget, self.complete]
        acts += [self.pin, self.pin, self.pin_document, self.undo, self.undo]
        acts += [self.new_chat, self.delete_chat, self.restart]
        act = self.chance.choice(acts) if self.chats else self.new_chat
        self.done.append(act.__name__)
        try:
            act()
        except KVChatError as error:
            self.failures.append(error.line("ko"))
        self.look()

    # --- what a person does -----------------------------------------------------------------------

    def chat(self) -> str:
        return self.chance.choice(self.chats)

    def turn(self, chat: str) -> int:
        return self.chance.randint(1, max(1, len(self.talks.history(chat))))

    def new_chat(self) -> None:
        self.chats.append(self.talks.new_chat())

    def ask(self) -> None:
        self.answered(self.talks.ask(self.chat(), self._words(30)))

    def regenerate(self) -> None:
        chat = self.chat()
        self.answered(self.talks.regenerate(chat, self.turn(chat)))

    def edit(self) -> None:
        chat = self.chat()
        self.answered(self.talks.edit(chat, self.turn(chat), self._words(20)))

    def delete_turn(self) -> None:
        chat = self.chat()
        self.talks.delete_turn(chat, self.turn(chat))

    def switch(self) -> None:
        chat = self.chat()
        self.talks.switch(chat, self.turn(chat), self.chance.randint(1, 3))

    def pin(self) -> None:
        chat = self.chat()
        self.talks.pin_turn(chat, self.turn(chat), pinned=self.chance.random() < 0.6)

    def pin_document(self) -> None:
        chat = self.chat()
        for row in self.talks.documents(chat)[:1]:
            page = self.chance.choice((None, 1, row.num_pages or 1))
            pinned = self.chance.random() < 0.5
            self.talks.pin_document(chat, row.document, page, pinned=pinned)

    def undo(self) -> None:
        chat = self.chat()
        offered = self.talks.frame(chat)["undo"]["offered"]
        if offered:
            self.talks.undo(chat, self.chance.choice(offered))

    def stop(self) -> None:
        live = self.talks.ask(self.chat(), self._words(30))
        time.sleep(self.chance.random() / 20)
        live.stop()
        assert live.wait_ended(30)

    def add(self) -> None:
        path = self.chance.choice(self.files)
        self.talks.add_document(self.chat(), path, path.name)

    def remove(self) -> None:
        chat = self.chat()
        rows = self.talks.documents(chat)
        if rows:
            self.talks.remove_document(chat, self.chance.choice(rows).document)

    def budget(self) -> None:
        engine = self.talks._worker.engine
        assert engine is not None
        tokens = self.chance.choice((300, 500, 900, 4000))
        budget = engine.costs.needed_bytes(tokens, 64) if tokens < 4000 else ROOMY
        mode = self.chance.choice(("auto", "whole", "passages"))
        changes: dict[str, Any] = {"memory_budget": max(budget, 1024**2), "document_mode": mode}
        changes["ladder"] = self.chance.choice((RUNGS, (*RUNGS[:-1], "summarize")))
        self.talks.apply({**changes, "prefill_chunk": self.chance.choice((16, 64, 512))})

    def complete(self) -> None:
        self.talks.apply({"list_api_chats": self.chance.random() < 0.5})
        said = [{"role": "user", "content": self._words(9)}]
        history = self.talks.history(self.chat())
        for one in history[: self.chance.randint(0, 3)]:
            if one.reply:
                said[-1:] = [
                    {"role": "user", "content": one.text},
                    {"role": "assistant", "content": one.reply},
                    said[-1],
                ]
        self.answered(self.talks.complete(said, {}))
        self.chats += [row.id for row in self.talks.chats() if row.id not in self.chats]

    def delete_chat(self) -> None:
        chat = self.chat()
        self.talks.delete(chat)
        self.chats.remove(chat)

    def restart(self) -> None:
        if self.chance.random() < 0.3:
            settings = self.talks.settings
            kept = {"memory_budget": settings.memory_budget, "max_new_tokens": 10}
            self.talks = self.start(**kept, prefill_chunk=settings.prefill_chunk)

    # --- what must hold ---------------------------------------------------------------------------

    def answered(self, live: LiveAnswer) -> None:
        assert live.wait_ended(60), self.done[-5:]
        if live.error is not None:
            # what is admitted never fails
            refused = {"prompt_over_memory", "prompt_over_length"}
            refused |= {"pinned_turns_too_large", "pinned_documents_too_large"}
            assert live.error.code in refused, (self.done[-5:], live.error.line())
            self.failures.append(live.error.code)
            return
        engine = self.talks._worker.engine
        assert engine is not None
        assert engine.room.text is not None
        assert live.figures is not None
        fed = engine.room.text.sequence.token_ids
        prompt = fed[: live.figures["prompt_tokens"]]
        sequence = engine.room.text.sequence
        if sequence.over == FP and not sequence.evicted:  # else it sees the text with losses
            expected, clear = generated(engine.loaded, prompt)
            ours = fed[len(prompt) :]
            assert ours[:clear] == expected[: min(clear, len(ours))], self.done
        history = self.talks.history(live.chat) if live.chat else []
        if len(history) == live.turn:  # a reply that was there already shows what followed it
            assert not any(one.left_out and one.pinned for one in history), self.done[-5:]
            seen = {one.user_hash for one in history if not one.left_out}
            spans = self.talks.frame(live.chat)["turns"]
            assert {span["name"] for span in spans} == seen, self.done[-5:]
        frame = self.talks.frame(live.chat or None)
        used = frame["weights_bytes"] + frame["kv"]["device_bytes"] + frame["activations_bytes"]
        assert used <= (self.talks.settings.memory_budget or ROOMY), self.done[-5:]
        attached = {row.name for row in self.talks.documents(live.chat)} if live.chat else set()
        assert {one["name"] for one in live.citations} <= attached | {
            one.name for one in self.files
        }

    def look(self) -> None:
        talks = self.talks
        assert talks._store.verify() == [], self.done[-5:]
        until = time.monotonic() + 10  # a file may turn out to be bad in between
        while (listed := {row.id for row in talks.chats()}) != (
            there := {chat for chat in self.chats if not talks.listing.is_nothing(chat)}
        ) and time.monotonic() < until:
            time.sleep(0.02)
        assert listed == there, self.done[-5:]
        for chat in self.chats:
            history = talks.history(chat)
            assert [one.turn for one in history] == list(range(1, len(history) + 1))
            assert all(1 <= one.sibling <= one.num_siblings for one in history)
            assert talks.live(chat) is None
        frame = talks.frame(self.chats[0] if self.chats else None)
        kv = frame["kv"]
        held = sum(span["bytes"] for span in frame["spans"])
        assert held + kv["slack_bytes"] + kv["hot_window_bytes"] == kv["device_bytes"]
        assert min(kv.values()) >= 0
        engine = talks._worker.engine
        assert engine is not None
        engine.pool.check_integrity()


def generated(loaded: Any, prompt: list[int]) -> tuple[list[int], int]:
    """What the library's own loop and cache make of the prompt, and how far its choice is clear."""
    loaded.model.set_attn_implementation("eager")
    output = loaded.model.generate(
        torch.tensor([prompt]),
        max_new_tokens=10,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        eos_token_id=sorted(loaded.eos_token_ids),
        pad_token_id=0,
    )
    loaded.model.set_attn_implementation(hf_seam.NAME)
    best = [logits[0].topk(2).values for logits in output.logits]
    clear = next((i for i, two in enumerate(best) if two[0] - two[1] < 1e-3), len(best))
    return output.sequences[0, len(prompt) :].tolist(), clear


@pytest.mark.parametrize(
    ("seed", "num_acts"),
    [
        (0, 40),
        (1, 40),
        (18, 60),
    ],  # the last: a prompt that lacked a few bytes was asked again as it was
)
def test_any_order(start: Start, tmp_path: Path, seed: int, num_acts: int) -> None:
    person = Person(start, tmp_path, seed)
    for _ in range(num_acts):
        person.act()
    for chat in list(person.chats):
        person.talks.delete(chat)
    folder = person.talks._saved._path.parent / "documents"
    ends_s = time.monotonic() + 30  # a file that is being read goes after that
    while folder.exists() and list(folder.iterdir()) and time.monotonic() < ends_s:
        time.sleep(0.05)
    assert not folder.exists() or list(folder.iterdir()) == []
    assert person.talks._store.documents() == []
