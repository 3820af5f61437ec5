"""A long chat is planned as if all of it had been rendered, though only its newest turns were."""

import random
from dataclasses import replace

import pytest

from kvchat.chat import rendering
from kvchat.chat.admit import Admitted, Told, admit
from kvchat.chat.outline import NOTHING_KNOWN
from kvchat.chat.rendering import MOST_CHATS, KnownSizes
from kvchat.chat.told import told_of_messages
from kvchat.engine.engine import Engine
from kvchat.errors import OutOfMemory
from kvchat.models.load import LoadedModel
from tests.chat.templates import ALL
from tests.chat.test_admit import SETTINGS, SYSTEM
from tests.chat.test_admit import engine as engine


def chat(num_turns: int, system: str, seed: int) -> list[dict[str, str]]:
    """Turns of different lengths; some questions were never answered, and meet the next one."""
    chance = random.Random(seed)
    said = [{"role": "system", "content": system}] if system else []
    for turn in range(num_turns):
        words = "word " * chance.randint(0, 12)
        said.append({"role": "user", "content": f"question {turn}? {words}"})
        if chance.random() > 0.2:
            thoughts = "<think>so it is</think>" if chance.random() < 0.3 else ""
            said.append({"role": "assistant", "content": f"{thoughts}answer {turn}! " * 2})
    return said


def upto(said: list[dict[str, str]], question: int) -> Told:
    """As it was when that question was asked."""
    places = [i for i, one in enumerate(said) if one["role"] == "user"]
    return told_of_messages(said[: places[question] + 1])


def admitted(engine: Engine, loaded: LoadedModel, told: Told, tokens: int) -> Admitted:
    budget = engine.costs.needed_bytes(tokens, SETTINGS.prefill_chunk)
    snapshot = replace(engine.room.latest, budget=budget, headroom=0)
    return admit(told, loaded, SETTINGS, snapshot, engine.costs)


@pytest.mark.parametrize("template", ALL)
@pytest.mark.parametrize("system", [SYSTEM, ""])
def test_what_is_remembered_plans_as_what_is_rendered(
    engine: Engine, template: str, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a chat that grows, while the room changes and turns are pinned and wanted."""
    loaded = replace(engine.loaded, chat_template=ALL[template])
    said, chance = chat(60, system, 1), random.Random(2)
    rendered: list[int] = []
    right = rendering.render

    def render(*args, **named):
        rendered.append(len(args[4]))
        return right(*args, **named)

    monkeypatch.setattr(rendering, "render", render)
    sizes, short, was_remembered = NOTHING_KNOWN, 0, 0
    for question in range(60):
        told = upto(said, question)
        names = [one.name for one in told.messages if one.role == "user"]
        if question % 7 == 3:
            told = replace(told, pinned=frozenset(names[question // 2 : question // 2 + 1]))
        if question % 11 == 5:
            told = replace(told, wanted=frozenset(names[:1]))
        if question % 13 == 6:
            told = replace(told, summary="All that was said before, in short.")
        tokens = 700 if question % 9 else chance.choice((500, 900, 1800))
        rendered.clear()
        found = admitted(engine, loaded, replace(told, sizes=sizes), tokens)
        short += bool(found.left_out)
        was_remembered += bool(found.left_out) and max(rendered) < len(told.messages)
        expected = admitted(engine, loaded, told, tokens)
        assert replace(found, sizes=NOTHING_KNOWN) == replace(expected, sizes=NOTHING_KNOWN)
        sizes = found.sizes
    assert short > 20
    assert was_remembered > short / 2


def test_other_texts_are_measured_anew(engine: Engine) -> None:
    """A turn whose text is told otherwise (with its thoughts, say) has another size."""
    said = chat(40, SYSTEM, 3)
    first = admitted(engine, engine.loaded, upto(said, 38), 600)
    longer = upto(said, 39)
    more = [
        replace(one, content="thoughts " * 9 + one.content) if one.role == "assistant" else one
        for one in longer.messages
    ]
    longer = replace(longer, messages=more)
    found = admitted(engine, engine.loaded, replace(longer, sizes=first.sizes), 600)
    expected = admitted(engine, engine.loaded, longer, 600)
    assert found.measures == expected.measures
    assert found.prompt == expected.prompt


def test_what_never_fits_is_refused_with_the_same_numbers(engine: Engine) -> None:
    said = chat(40, SYSTEM, 4)
    before = admitted(engine, engine.loaded, upto(said, 38), 600)
    told = upto(said, 39)
    names = frozenset(one.name for one in told.messages if one.role == "user")
    facts = []
    for sizes in (before.sizes, NOTHING_KNOWN):
        with pytest.raises(OutOfMemory) as caught:
            admitted(engine, engine.loaded, replace(told, sizes=sizes, pinned=names), 600)
        facts.append((caught.value.code, caught.value.facts))
    assert facts[0] == facts[1]


def test_sizes_are_kept_for_chats_in_use_and_for_one_model(engine: Engine) -> None:
    known = KnownSizes()
    told = upto(chat(8, SYSTEM, 5), 7)
    seen: list[int] = []

    def look(told: Told, asked: Engine, settings: object) -> Admitted:
        seen.append(len(told.sizes.tokens))
        return admitted(asked, asked.loaded, told, 2000)

    for number in range(MOST_CHATS + 1):
        known.remembering(f"{number}", look)(told, engine, SETTINGS)
    known.remembering(f"{MOST_CHATS}", look)(told, engine, SETTINGS)
    known.remembering("0", look)(told, engine, SETTINGS)  # too long ago
    assert [bool(one) for one in seen] == [False] * (MOST_CHATS + 1) + [True, False]
    engine.loaded = replace(engine.loaded, chat_template=ALL["gemma"])
    known.remembering("0", look)(told, engine, SETTINGS)
    assert seen[-1] == 0
