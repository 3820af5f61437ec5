"""The whole program with its real model, as it is asked for: one question, twenty turns, a kill."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from kvchat.chat.answer import LiveAnswer
from kvchat.chat.conversations import Conversations
from kvchat.chat.told import told_of_messages
from kvchat.store.store import Store
from tests.program import Serving, ask, builtin_folder_in
from tests.starts import resolve

pytestmark = pytest.mark.slow

TOKEN_BYTES = 2 * 3 * 64 * 30 * 4  # keys and values, heads, head size, layers, fp32
INT8_TOKEN_BYTES = 30 * 3 * 2 * (64 + 2)  # layers, heads, keys and values with their scales
NOTES = ("What is this document about?", "Name one thing that it says.", "And another?", "Thanks.")
NUM_TURNS = 20
REPLY_TOKENS = 8
SYSTEM = "You answer the questions of people who visit a small museum of clocks. Be short and kind."
QUESTIONS = [
    f"Visitor {number} asks: which clock stands in room {number}, and who made it long ago?"
    for number in range(1, NUM_TURNS + 1)
]


def num_tokens(spans: list[dict[str, Any]]) -> float:
    """Tokens by their bytes, as computed and as they come back from disk."""
    plain = sum(span["formats"].get("fp/fp", 0) for span in spans)
    return plain / TOKEN_BYTES + (sum(span["bytes"] for span in spans) - plain) / INT8_TOKEN_BYTES


def check_frames(events: list[dict[str, Any]]) -> None:
    """Span bytes are those of the tensors, and everything sums to what the device has."""
    frames = [event for event in events if event["type"] == "frame"]
    assert len(frames) > 3
    for frame in frames:
        kv, spans = frame["kv"], frame["spans"]
        assert all(span["bytes"] <= span["tokens"] * TOKEN_BYTES for span in spans)
        held = sum(span["bytes"] for span in spans)
        assert held == sum(sum(span["formats"].values()) for span in spans)
        assert num_tokens(spans) == int(num_tokens(spans))
        assert held + kv["slack_bytes"] + kv["hot_window_bytes"] == kv["device_bytes"]
        assert min(kv.values()) >= 0
        whole = frame["weights_bytes"] + frame["library_bytes"] + kv["device_bytes"]
        whole += frame["activations_bytes"] + frame["runtime_bytes"]
        device = frame["device"]
        assert whole + device["other_processes"] + device["free"] == device["total"]
    done = events[-1]["figures"]
    fed = done["prompt_tokens"] + done["reply_tokens"] - 1
    assert num_tokens(frames[-1]["spans"]) == fed
    assert sum(span["tokens"] for span in frames[-1]["spans"]) == fed


def answered(live: LiveAnswer) -> LiveAnswer:
    assert live.wait_ended(600)
    assert live.error is None, live.error
    return live


def common(left: list[int], right: list[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def asked_twice(folder: Path, shared_pdfs: Path) -> list[list[dict[str, Any]]]:
    """Two questions in one chat, each in a program of its own; the first brings the document."""
    more = ("--chat", "notes", "--max-new-tokens", "12")
    pdf = str(shared_pdfs / "small-4pages.pdf")
    return [ask(folder, NOTES[0], "--pdf", pdf, *more), ask(folder, NOTES[1], *more)]


@pytest.fixture(scope="module")
def talks(folder: Path, asked_twice: object) -> Iterator[Conversations]:
    """The conversations of that folder, in this program."""
    flags = {"temperature": 0, "max_new_tokens": 12}
    conversations = Conversations(resolve(flags=flags), folder)
    conversations.wait_ready(300)
    yield conversations
    conversations.close()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(builtin_folder_in(folder))


def test_an_answer_names_the_page(folder: Path, shared_pdfs: Path) -> None:
    question = "Where must process identifier (PID) files be placed?"
    pdf = str(shared_pdfs / "long-fhs-3.0.pdf")
    events = ask(folder, question, "--pdf", pdf, "--max-new-tokens", "32")
    cited = [event for event in events if event["type"] == "citation"]
    assert (21, "14") in {(one["page"], one["label"]) for one in cited}
    assert {one["name"] for one in cited} == {"long-fhs-3.0.pdf"}
    assert {one["support"] for one in cited} <= {"given", "matched"}
    assert [e["code"] for e in events if e["type"] == "took"] == ["read_passages"]
    assert events[-1]["type"] == "done"
    assert "/run" in events[-1]["text"]
    assert any(one["page"] == 21 and one["support"] == "matched" for one in cited)
    check_frames(events)


def test_a_small_document_goes_whole(asked_twice: list[list[dict[str, Any]]]) -> None:
    first, second = asked_twice
    (taken,) = [event for event in first if event["type"] == "took"]
    assert (taken["code"], taken["reason"]) == ("read_whole", "fits")
    assert 3000 < taken["arguments"]["tokens"] < 4000
    # Decided once, and read once: a second program finds it on disk.
    assert [event["code"] for event in second if event["type"] == "took"] == ["restore"]
    for events in asked_twice:
        check_frames(events)
        frame = [event for event in events if event["type"] == "frame"][-1]
        (document,) = [span for span in frame["spans"] if span["kind"] == "document"]
        assert document["tokens"] == pytest.approx(taken["arguments"]["tokens"], abs=8)
        whole = document["tokens"] * TOKEN_BYTES
        assert document["bytes"] == sum(document["formats"].values())
        assert document["bytes"] == whole if events is first else document["bytes"] < whole / 3
    turn = second[-1]["figures"]["prompt_tokens"] - first[-1]["figures"]["prompt_tokens"]
    assert 0 < turn < 60  # the document is there once


def test_the_next_question_reads_only_its_own_tokens(talks: Conversations) -> None:
    (chat,) = [row.id for row in talks.chats() if row.title == "notes"]
    assert [one.text for one in talks.history(chat)] == list(NOTES[:2])
    third = answered(talks.ask(chat, NOTES[2]))
    fourth = answered(talks.ask(chat, NOTES[3]))
    assert third.figures is not None
    assert fourth.figures is not None
    fed = third.figures["prompt_tokens"] + third.figures["reply_tokens"] - 1
    # Nothing of it was in this program's memory: it was read from disk.
    assert 0 < third.figures["prompt_tokens"] - third.figures["reused_tokens"] < 60
    assert third.figures["prompt_tokens"] > 3000
    assert fourth.figures["reused_tokens"] == fed
    assert fourth.figures["prompt_tokens"] - fed < 30


def test_a_korean_question_finds_its_page(talks: Conversations, shared_pdfs: Path) -> None:
    """Q16: a text layer without blanks between words."""
    chat = talks.new_chat()
    name = "ko-debian-history.pdf"
    talks.add_document(chat, shared_pdfs / name, name)
    question = "스테파노 자히콜리(Stefano Zacchiroli)는 언제부터 언제까지 데비안 리더였나?"
    live = answered(talks.ask(chat, question))
    assert 8 in {one["page"] for one in live.citations}
    assert {one["name"] for one in live.citations} == {name}
    talks.delete(chat)


def test_what_was_changed_leaves_nothing_behind(talks: Conversations) -> None:
    """C22: Rex becomes Bella; a chat that never knew Rex says the same, token for token."""
    asks = "What is the name of my dog? Answer with the name."
    chat = talks.new_chat()
    answered(talks.ask(chat, "My dog is called Rex. He likes long walks."))
    answered(talks.ask(chat, asks))
    for _ in range(2):
        answered(talks.regenerate(chat, 2))
    edited = answered(talks.edit(chat, 1, "My dog is called Bella. She likes long walks."))
    answered(talks.ask(chat, "Good. Now count to three."))
    name = answered(talks.ask(chat, asks))
    talks.delete_turn(chat, 2)
    again = answered(talks.regenerate(chat, 2))
    said = " ".join(one.reply or "" for one in talks.history(chat))
    assert "Bella" in said
    assert "Rex" not in said + name.text

    fresh = talks.new_chat()
    first = answered(talks.ask(fresh, "My dog is called Bella. She likes long walks."))
    second = answered(talks.ask(fresh, asks))
    assert (edited.text, again.text) == (first.text, second.text)


class Museum:
    """Twenty questions over /v1, as a program asks them: it keeps the messages, and all figures."""

    def __init__(self, serving: Serving) -> None:
        self.messages: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
        self.prompts: list[list[dict[str, str]]] = []
        self.answers: list[Any] = []
        client = serving.client()
        for question in QUESTIONS:
            self.messages.append({"role": "user", "content": question})
            self.prompts.append(list(self.messages))
            answer = client.chat.completions.create(
                model="any",
                messages=self.messages,  # type: ignore[arg-type]
                max_tokens=REPLY_TOKENS,
                temperature=0,
            )
            self.answers.append(answer)
            said = answer.choices[0].message.content
            self.messages.append({"role": "assistant", "content": said or ""})

    def ledger(self, turn: int) -> list[dict[str, Any]]:
        extra = self.answers[turn].model_extra or {}
        return list(extra.get("kvchat", {}).get("ledger", []))

    def usage(self, turn: int) -> tuple[int, int, int]:
        """Prompt, cached and completion tokens."""
        usage = self.answers[turn].usage
        details = usage.prompt_tokens_details
        return usage.prompt_tokens, details.cached_tokens, usage.completion_tokens


def rendered(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """The library's own rendering."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Museum]:
    serving = Serving(tmp_path_factory.mktemp("serve"))
    yield Museum(serving)
    assert serving.end() == 143


def test_twenty_turns_reuse_all_that_the_template_kept(visited: Museum, tokenizer: Any) -> None:
    """cached_tokens = the ids of the prompt before and its reply that stand at the head of this
    prompt, less the ids that were never fed: the last one sampled.
    """
    prompts = [rendered(tokenizer, messages) for messages in visited.prompts]
    for turn in range(NUM_TURNS):
        num_prompt, num_cached, _ = visited.usage(turn)
        assert num_prompt == len(prompts[turn])
        assert visited.ledger(turn) == []
        if turn:
            before, reply = prompts[turn - 1], visited.messages[2 * turn]["content"]
            kept = common(prompts[turn], before + tokenizer(reply)["input_ids"])
            num_sampled = visited.usage(turn - 1)[2]
            assert num_cached == min(kept, len(before) + num_sampled - 1), turn
            assert num_prompt - num_cached < 60


@pytest.fixture(scope="module")
def budget(talks: Conversations, tokenizer: Any, visited: Museum) -> int:
    """Bytes in which eight turns fit, with the ninth's question."""
    engine = talks._worker.engine
    assert engine is not None
    tokens = len(rendered(tokenizer, visited.prompts[8])) + REPLY_TOKENS
    return engine.costs.needed_bytes(tokens, 64)


class Watching(threading.Thread):
    """Looks at /api/memory again and again until told to end."""

    def __init__(self, serving: Serving) -> None:
        super().__init__(daemon=True)
        self.used: list[int] = []
        self._serving, self._end = serving, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._end.wait(0.1):
            frame = self._serving.get("/api/memory")
            used = frame["weights_bytes"] + frame["library_bytes"] + frame["activations_bytes"]
            self.used.append(used + frame["kv"]["device_bytes"])

    def end(self) -> list[int]:
        self._end.set()
        self.join(60)
        return self.used


def test_twenty_turns_where_eight_fit(
    tmp_path: Path, budget: int, tokenizer: Any, talks: Conversations
) -> None:
    ladder = "drop_idle,shrink_chunk,truncate_turns"  # nothing is stored in less here
    settings = {"memory_budget": budget, "prefill_chunk": 64, "headroom": 0, "ladder": ladder}
    words = [f"--set={name}={value}" for name, value in settings.items()]
    serving = Serving(tmp_path, *words)
    watching = Watching(serving)
    visited = Museum(serving)
    used = watching.end()
    assert serving.end() == 143
    assert len(used) > 20
    assert budget * 0.9 < max(used) <= budget

    head = rendered(tokenizer, visited.prompts[0][:1])[:-3]  # without the reply's opening
    counts = []
    for turn in range(NUM_TURNS):
        cuts = [row for row in visited.ledger(turn) if row["code"] == "truncate_turns"]
        assert len(cuts) <= 1
        names = [one.name for one in told_of_messages(visited.prompts[turn]).messages]
        left_out = len(cuts[0]["turns"]) if cuts else 0
        assert (cuts[0]["turns"] if cuts else []) == names[::2][:left_out]
        shown = [visited.prompts[turn][0], *visited.prompts[turn][1 + 2 * left_out :]]
        prompt = rendered(tokenizer, shown)
        num_prompt, num_cached, _ = visited.usage(turn)
        assert num_prompt == len(prompt)  # all that is not in the ledger was read
        assert num_cached >= (len(head) if turn else 0)
        counts.append(left_out)
    assert counts[7] == 0 < counts[9]
    assert counts == sorted(counts)
    assert counts[-1] < NUM_TURNS - 3
    assert len(set(counts)) <= 6  # in large steps, not at each turn

    before = talks.settings
    talks.apply(settings)
    live = answered(talks.complete(visited.prompts[-1], {"max_new_tokens": REPLY_TOKENS}))
    talks.apply({name: getattr(before, name) for name in settings})
    engine = talks._worker.engine
    assert engine is not None
    assert engine.room.text is not None
    assert engine.room.text.sequence.token_ids[: len(head)] == head
    assert [row["code"] for row in live.ledger].count("truncate_turns") == 1


def test_a_kill_in_mid_answer_loses_at_most_the_token_in_flight(tmp_path: Path) -> None:
    listed = ("--set", "list_api_chats=true")
    serving = Serving(tmp_path, *listed)
    question = {"role": "user", "content": "Tell me a very long story about a clock."}
    stream = serving.client().chat.completions.create(
        model="any", messages=[question], max_tokens=400, temperature=0, stream=True
    )
    pieces: list[str] = []
    for piece in stream:
        text = piece.choices[0].delta.content if piece.choices else None
        pieces += [text] if text else []
        if len(pieces) == 15:
            break
    assert serving.end(signal.SIGKILL) == -signal.SIGKILL

    with Store(tmp_path) as store:
        assert store.verify() == []
        (chat,) = store.chats()
        asked, reply = store.messages(chat.id)
        assert asked.content == question["content"]
        assert reply.content.startswith("".join(pieces[:-1]))
        made = store.generation(reply.hash)
        assert made is not None
        assert made.stop_reason == "interrupted"
        assert len(made.sampled_ids) >= 14

    serving = Serving(tmp_path, *listed)
    more = {"role": "user", "content": "And then?"}
    said = {"role": "assistant", "content": reply.content}
    serving.client().chat.completions.create(
        model="any", messages=[question, said, more], max_tokens=4
    )
    assert serving.end() == 143
    with Store(tmp_path) as store:
        assert store.verify() == []
        assert [row.id for row in store.chats()] == [chat.id]
        kept = [one.content for one in store.messages(chat.id)]
        assert kept[:3] == [question["content"], reply.content, "And then?"]
        assert len(kept) == 4
