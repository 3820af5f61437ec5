"""From the branch's messages to a prompt that fits: render, plan, leave out what must be, render
again.

The only loop before anything is computed. Knows no store and no device: the snapshot is given.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvchat.chat.outline import NOTHING_KNOWN, Outline, Sizes
from kvchat.chat.rendering import Rendering
from kvchat.chat.template import ChatMessage, Prompt
from kvchat.errors import OutOfMemory
from kvchat.planner.costs import Costs
from kvchat.planner.ledger import entry
from kvchat.planner.measures import Evict, Measure, Offload, Requantize, Summarize, TruncateTurns
from kvchat.planner.plan import Need, Plan, Snapshot, TurnTokens, plan_admission
from kvchat.settings import Settings
from kvchat.store.records import PinnedPages
from kvchat.units import format_least, format_size

if TYPE_CHECKING:
    from kvchat.models.load import LoadedModel

MOST_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Told:
    """All that could stand in the prompt. `messages` begin with a user message; the last is the
    question.

    `documents`: (hash, fenced text) of those that stand after the system text. `pinned`: names of
    user messages that are never left out, stored in less or moved; `pinned_pages`: the same of
    documents. `wanted`: turns that are left out only where they do not fit even without the others.
    `restore`: what is held in less than as sealed is read again. `date`: what a template that asks
    is told, so that the prompt of a chat stays the same on any day. `summary`: what stands in the
    place of turns that are left out, if any are. `begun`: ids of the reply that goes on. `sizes`:
    what its turns took in earlier prompts. `refused`: numbers of turns that are not among the
    messages, since they never fitted.
    """

    system: str
    documents: Sequence[tuple[str, str]]
    messages: Sequence[ChatMessage]
    pinned: Collection[str] = ()
    date: datetime.date | None = None
    pinned_pages: PinnedPages = field(default_factory=dict)
    wanted: Collection[str] = ()
    restore: bool = False
    summary: str = ""
    sizes: Sizes = NOTHING_KNOWN
    begun: tuple[int, ...] = ()
    refused: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Admitted:
    """A prompt that fits, how it was made to fit, and the names of the turns left out. `old`:
    ranges of its tokens that may be stored in less or moved. `sizes`: what its turns take.
    """

    prompt: Prompt
    plan: Plan
    measures: tuple[Measure, ...]
    left_out: tuple[str, ...]
    old: tuple[tuple[int, int], ...] = ()
    restore: bool = False
    sizes: Sizes = NOTHING_KNOWN


def admit(
    told: Told, loaded: LoadedModel, settings: Settings, snapshot: Snapshot, costs: Costs
) -> Admitted:
    """Raises OutOfMemory with the numbers where even the question alone does not fit, or what is
    pinned does not fit beside it.
    """
    if told.wanted:
        with suppress(OutOfMemory):
            return admit_with(told, told.wanted, loaded, settings, snapshot, costs)
    return admit_with(told, (), loaded, settings, snapshot, costs)


def admit_with(
    told: Told,
    wanted: Collection[str],
    loaded: LoadedModel,
    settings: Settings,
    snapshot: Snapshot,
    costs: Costs,
    left_out: tuple[str, ...] = (),
) -> Admitted:
    """The same where `wanted` turns are kept beside the pinned ones, whatever is wanted else, and
    these are left out in any case.
    """
    rendering, ladder = Rendering(told, loaded), plannable(settings.ladder)
    truncations: list[TruncateTurns] = []
    for _ in range(MOST_ROUNDS):
        outline = rendering.outline(left_out)
        need = _need(outline, told, wanted, settings)
        plan = plan_admission(need, snapshot, costs, ladder)
        if not plan.left_out:
            break
        left_out += plan.left_out
        truncations.extend(m for m in plan.measures if isinstance(m, TruncateTurns))
    if not plan.fits:
        free = _need(outline, replace(told, pinned=(), pinned_pages={}), (), settings)
        trial = plan_admission(free, snapshot, costs, ladder)
        short = _too_long(outline, plan, snapshot, costs)
        raise _pins_too_large(outline, told, short) if trial.fits else short
    measures = (*plan.measures, *_as_one(truncations))
    prompt, sizes = rendering.prompt(left_out), rendering.sizes(left_out)
    return Admitted(prompt, plan, measures, left_out, need.old, told.restore, sizes)


def _as_one(truncations: Sequence[TruncateTurns]) -> tuple[TruncateTurns, ...]:
    """However many rounds it took, turns were left out once."""
    if not truncations:
        return ()
    turns = tuple(turn for one in truncations for turn in one.turns)
    frees_bytes = sum(one.frees_bytes for one in truncations)
    return (TruncateTurns(frees_bytes, turns, sum(one.tokens for one in truncations)),)


def plannable(ladder: Sequence[str]) -> tuple[str, ...]:
    """To the planner, turns that are summarized are turns that are left out."""
    cut = (TruncateTurns.code if rung == Summarize.code else rung for rung in ladder)
    return tuple(dict.fromkeys(cut))


def _need(outline: Outline, told: Told, wanted: Collection[str], settings: Settings) -> Need:
    earlier = [span for span in outline.spans if span.kind == "turn"][:-1]
    turns = [span for span in earlier if span.name not in told.pinned]
    old_turns = tuple((one.start, one.stop) for one in turns)
    return Need(
        outline.num_tokens,
        settings.max_new_tokens,
        settings.prefill_chunk,
        tuple(TurnTokens(span.name, span.num_tokens) for span in turns if span.name not in wanted),
        (*_old_documents(outline, told.pinned_pages), *old_turns),
        old_turns,
    )


def _old_documents(outline: Outline, pinned: PinnedPages) -> Iterator[tuple[int, int]]:
    """Ranges of the documents that stand after the system text, without what is pinned. Where the
    pages of a document are not known, one that is pinned keeps them all.
    """
    for span in (one for one in outline.spans if one.kind == "document"):
        numbers = pinned.get(span.name, frozenset())
        pages = [one for one in outline.pages if one.document == span.name]
        if numbers is None or (numbers and not pages):
            continue
        start = span.start
        for page in pages:
            if page.page in numbers:
                yield start, page.start
                start = page.stop
        yield start, span.stop


def _too_long(outline: Outline, plan: Plan, snapshot: Snapshot, costs: Costs) -> OutOfMemory:
    """The refusal, by what nothing else could mend: a budget without room for a single token, a
    text longer than the model reads, or memory that is short.
    """
    facts = {
        "tokens": outline.num_tokens,
        "capacity": max(0, plan.capacity_tokens),
        "needed": format_least(plan.expected.total - plan.expected.headroom),
        "allowed": format_size(max(0, snapshot.allowed_bytes)),
    }
    if plan.capacity_tokens <= 0 and snapshot.allowed_bytes == snapshot.budget:
        return OutOfMemory("no_room_at_all", **facts, weights=format_size(costs.weight_bytes))
    if plan.short_by_tokens:
        longest = costs.spec.max_positions - plan.reply_tokens
        return OutOfMemory("prompt_over_length", **facts | {"capacity": longest})
    return OutOfMemory("prompt_over_memory", **facts)


def _pins_too_large(outline: Outline, told: Told, short: OutOfMemory) -> OutOfMemory:
    """The refusal where the prompt would fit without the pins: it names the pinned turns, or else
    says that documents are.
    """
    turns = [one for one in outline.spans if one.kind == "turn" and one.name in told.pinned]
    tokens = sum(one.num_tokens for one in turns)
    for span in outline.spans:
        if span.kind == "document" and span.name in told.pinned_pages:
            tokens += span.num_tokens
    facts = {name: short.facts[name] for name in ("tokens", "capacity")} | {"pinned": tokens}
    if not turns:
        return OutOfMemory("pinned_documents_too_large", **facts)
    return OutOfMemory(
        "pinned_turns_too_large", **facts, turns=", ".join(str(one.turn) for one in turns)
    )


def admission_entries(admitted: Admitted) -> list[dict[str, Any]]:
    """The ledger entries of what made a prompt fit; the turns left out are named. What is done
    about old text the engine says once it is done.
    """
    rows = []
    for measure in admitted.measures:
        if isinstance(measure, (Requantize, Offload, Evict)):
            continue
        about: dict[str, Any] = {}
        if isinstance(measure, (TruncateTurns, Summarize)):
            about = {
                "turns": measure.turns,
                "lost_tokens": measure.tokens,
                "undo": measure.undo,
            }
        rows.append(
            entry(
                measure.code,
                measure.arguments,
                "prompt_too_long",
                measure.frees_bytes,
                None,
                **about,
            )
        )
    return rows
