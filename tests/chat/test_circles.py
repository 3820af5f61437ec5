"""An answer that goes round in circles is ended for a person, and not for a program."""

import pytest
from torch import Tensor

from kvchat.chat.conversations import Conversations
from kvchat.engine.circles import Circles
from kvchat.engine.sampling import Sampler
from tests.chat.conftest import Start
from tests.chat.test_conversations import ended

MOST = 310


@pytest.fixture(autouse=True)
def in_circles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that says forty words, then twenty over and over, unless there is a penalty."""
    num_drawn: dict[Sampler, int] = {}

    def draw(sampler: Sampler, _logits: Tensor, _seen: Tensor | None) -> int:
        number = num_drawn[sampler] = num_drawn.get(sampler, -1) + 1
        if sampler._sampling.repetition_penalty > 1:
            return 60 + number
        return 40 + number if number < 40 else 300 + number % 20

    monkeypatch.setattr(Sampler, "draw", draw)


def sampled(talks: Conversations, chat: str) -> tuple[int, ...]:
    reply = talks.history(chat)[-1].reply_hash
    assert reply
    made = talks._store.generation(reply, chat)
    assert made
    return made.sampled_ids


def test_it_is_ended_where_it_closes_and_not_a_token_is_changed(start: Start) -> None:
    talks = start(max_new_tokens=MOST, end_circles=False)
    chat = talks.new_chat()
    whole = ended(talks.ask(chat, "Say it again."))
    assert whole.finish_reason == "length"
    ids, circles = sampled(talks, chat), Circles()
    closed = next(n for n, token in enumerate(ids, 1) if circles.closed(token))

    talks.apply({"end_circles": True})
    cut = ended(talks.regenerate(chat, 1))
    assert cut.finish_reason == "circles"
    assert sampled(talks, chat) == ids[:closed]
    assert talks.history(chat)[-1].finish_reason == "circles"

    going_on = ended(talks.go_on(chat, 1))
    assert going_on.text.startswith(cut.text)
    assert len(sampled(talks, chat)) > closed

    other = ended(talks.regenerate(chat, 1, way="less_repeating"))
    assert (other.text != cut.text, other.finish_reason) == (True, "length")
    assert talks.settings.repetition_penalty == 1.0  # it was for that answer

    asked = [{"role": "user", "content": "Say it again."}]
    program = ended(talks.complete(asked, {}))
    assert program.finish_reason == "length"
