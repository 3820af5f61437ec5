"""A chat as the model reads it: token ids, and which of them are system text, document or turn.

The model's own chat template writes the text, once for the ids and once more with a mark at the
head of each question, to see where the spans begin. Nothing in a prompt changes by itself: the same
chat gives the same ids on any day. Knows no cache, no budget and no store.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise, takewhile
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from kvchat.chat.arrange import ChatMessage, Entry, Part, Role, folded, head, turns
from kvchat.chat.encode import Encoded, defanged, encode, unused_marks
from kvchat.documents.fence import PAGE_MARK
from kvchat.errors import ModelError
from kvchat.kvcache.spans import PageSpan, Span

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatMessage", "Prompt", "render"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids and the spans that cover them all, in order: system, documents, turns. `pages`:
    those of the documents, what stands before the first of one apart. `begun`: the ids that it
    ends with, of a reply that goes on.
    """

    token_ids: tuple[int, ...]
    spans: tuple[Span, ...]
    pages: tuple[PageSpan, ...] = ()
    begun: tuple[int, ...] = ()

    def with_begun(self, ids: tuple[int, ...]) -> Prompt:
        """The prompt with the beginning of a reply at its end, as part of the last turn."""
        if not ids or not self.spans:
            return self
        last = replace(self.spans[-1], stop=self.spans[-1].stop + len(ids))
        token_ids = (*self.token_ids, *ids)
        return replace(self, token_ids=token_ids, spans=(*self.spans[:-1], last), begun=ids)


def render(
    tokenizer: PreTrainedTokenizerBase,
    chat_template: str,
    system: str,
    documents: Sequence[tuple[str, str]],
    messages: Sequence[ChatMessage],
    *,
    turn_numbers: Sequence[int | None] | None = None,
    add_generation_prompt: bool = True,
    date: datetime.date | None = None,
) -> Prompt:
    """The prompt of a chat. `documents` are (hash, fenced text) and stand after the system text.

    `turn_numbers`: one for each user message, as the person counts them; by default from 1. `date`:
    the day that the template is told, one for all turns of a chat (None: today). Control tokens in
    the texts stay text. What the template writes around a message belongs to that message; what
    stands before all of them, to the system span. Without a question it is what the template makes
    of the rest, which may be nothing. Raises ModelError where the template fails.
    """
    template = _Template(tokenizer, _dated(chat_template, date), add_generation_prompt)
    first = head(system, documents, messages)
    entries = turns(messages, turn_numbers)
    if first.parts:
        entries = [first, *entries] if template.knows_system() else folded(first, entries)
    if not entries:
        return Prompt((), ())
    text, cut, openings = template.written(entries)
    marks = _page_marks(text.replace(cut, ""), openings)
    encoded = encode(tokenizer, text, cut, [place for _, place in openings])
    return Prompt(encoded.ids, _spans(encoded, openings), _pages(encoded, marks))


def _said(role: Role, text: str) -> Entry:
    return Entry(role, (Part(text),))


# What a template may raise: its own complaints, and the mistakes of whoever wrote it.
_FAILURES = (TemplateError, ArithmeticError, LookupError, TypeError, ValueError)
_PROBE = (_said("user", "FIRST"), _said("assistant", "REPLY"), _said("user", "SECOND"))


@dataclass(frozen=True, slots=True)
class _Template:
    """A chat template with the tokenizer that runs it."""

    tokenizer: PreTrainedTokenizerBase
    source: str
    add_generation_prompt: bool

    def text(self, entries: Sequence[Entry], *, add_generation_prompt: bool = False) -> str:
        """What the template makes of them. Raises one of `_FAILURES`."""
        written = self.tokenizer.apply_chat_template(
            [{"role": one.role, "content": one.content} for one in entries],
            chat_template=self.source,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
        assert isinstance(written, str)  # one chat gives one text
        return written

    def knows_system(self) -> bool:
        """Whether a system text comes out, and before the first question.

        Some templates put it before the last one, where each new turn would have it read again.
        """
        try:
            written = self.text([_said("system", "SYSTEM"), *_PROBE])
        except _FAILURES:
            return False
        return 0 <= written.find("SYSTEM") < written.find("FIRST")

    def opening(self) -> str:
        """What is written between the end of a turn and the next question; "" if unclear."""
        try:
            ended, followed = self.text(_PROBE[:2]), self.text(_PROBE)
        except _FAILURES:
            return ""
        end = ended.rpartition("REPLY")[2]
        between = followed.rpartition("REPLY")[2].partition("SECOND")[0]
        same = takewhile(lambda pair: pair[0] == pair[1], zip(end, between, strict=False))
        return between[sum(1 for _ in same) :]

    def control_tokens(self) -> tuple[frozenset[str], frozenset[str]]:
        """The special tokens; and with them the added tokens that the template itself writes.

        Models write the latter in replies (`<think>`); in anyone else's text they are words.
        """
        added = self.tokenizer.added_tokens_decoder.values()
        special = {token.content for token in added if token.special}
        written = {token.content for token in added if token.content in self.source}
        return frozenset(special), frozenset(special | written)

    def written(self, entries: Sequence[Entry]) -> tuple[str, str, list[tuple[Span, int]]]:
        """The text, the mark that cuts typed control tokens in it, and where each span begins.

        The places are characters of the text without marks. Raises ModelError.
        """
        texts = [part.text for one in entries for part in one.parts]
        cut, edge = unused_marks([*texts, self.source], 2)
        special, all_control = self.control_tokens()
        safe = []
        for one in entries:
            tokens = special if one.role == "assistant" else all_control
            safe.append(_changed(one, partial(_safe, tokens=tokens, mark=cut)))
        try:
            text = self.text(safe, add_generation_prompt=self.add_generation_prompt)
            edged = self.text(
                [_changed(one, partial(_edged, mark=edge)) for one in safe],
                add_generation_prompt=self.add_generation_prompt,
            )
        except _FAILURES as error:
            raise ModelError("template_failed", why=" ".join(str(error).split())) from None
        plain = text.replace(cut, "")
        places = _places(plain, edged.replace(cut, "").split(edge), entries)
        return text, cut, _openings(plain, places, entries, self.opening())


def _changed(entry: Entry, text: Callable[[Part], str]) -> Entry:
    return replace(entry, parts=tuple(replace(part, text=text(part)) for part in entry.parts))


def _safe(part: Part, tokens: frozenset[str], mark: str) -> str:
    return defanged(part.text, tokens, mark)


def _edged(part: Part, mark: str) -> str:
    """The mark before the first letter of what opens a span: templates trim blanks around it."""
    letters = part.text.lstrip()
    blanks = part.text[: len(part.text) - len(letters)]
    return blanks + mark + letters if part.opens and letters else part.text


def _places(plain: str, stretches: Sequence[str], entries: Sequence[Entry]) -> list[int]:
    """The character at which each part that opens a span begins, in the order of the parts.

    `stretches` are what the marks leave of the text: if the template wrote every mark and nothing
    else has changed, they tell the places; otherwise the texts are looked for, one after the other.
    """
    opening = [part for one in entries for part in one.parts if part.opens]
    if len(stretches) == len(opening) + 1 and "".join(stretches) == plain:
        return list(accumulate(len(stretch) for stretch in stretches[:-1]))
    places = []
    after = 0
    for part in (part for one in entries for part in one.parts):
        text = part.text.strip()
        at = plain.find(text, after)
        place, after = (after, after) if at < 0 else (at, at + len(text))
        if part.opens:
            places.append(place)
    return places


def _openings(
    plain: str, places: Sequence[int], entries: Sequence[Entry], opening: str
) -> list[tuple[Span, int]]:
    """Where each span begins: a turn with what the template writes before its text, if it does."""
    found = [(Span("system", "system", None, 0, 0), 0)]
    left = iter(places)
    for one in entries:
        for number, part in enumerate(one.parts):
            if part.opens is None:
                continue
            place = next(left)
            if part.opens.kind == "system":
                continue
            before = opening if number == 0 and one.role == "user" else ""
            place = _with_head(plain, place, part.text, before)
            found.append((part.opens, max(place, found[-1][1])))
    return found


def _with_head(plain: str, place: int, text: str, opening: str) -> int:
    """The place before the opening and the text's leading blanks, if the template wrote them."""
    blanks = text[: len(text) - len(text.lstrip())]
    for before in (opening + blanks, opening, blanks):
        if plain.endswith(before, 0, place):
            return place - len(before)
    return place


def _spans(encoded: Encoded, openings: Sequence[tuple[Span, int]]) -> tuple[Span, ...]:
    """A token at a border belongs to the span in which it starts. Empty spans are left out."""
    starts = [0, *(encoded.token_at(place) for _, place in openings[1:]), len(encoded.ids)]
    ranged = [
        replace(span, start=start, stop=stop)
        for (span, _), (start, stop) in zip(openings, pairwise(starts), strict=True)
    ]
    return tuple(span for span in ranged if span.num_tokens)


def _page_marks(
    plain: str, openings: Sequence[tuple[Span, int]]
) -> list[tuple[PageSpan | None, int]]:
    """Where each page of a document begins, and, with None, where the last one's end is."""
    found: list[tuple[PageSpan | None, int]] = []
    ends = [place for _, place in openings[1:]] + [len(plain)]
    for (span, place), end in zip(openings, ends, strict=True):
        if span.kind == "document":
            for mark in PAGE_MARK.finditer(plain, place, end):
                found.append((PageSpan(span.name, int(mark[1]), 0, 0), mark.start()))
            found.append((None, end))
    return found


def _pages(encoded: Encoded, marks: Sequence[tuple[PageSpan | None, int]]) -> tuple[PageSpan, ...]:
    """None where the tokenizer tells no places but those of spans."""
    found = [
        replace(page, start=encoded.token_at(place), stop=encoded.token_at(end))
        for (page, place), (_, end) in pairwise(marks)
        if page is not None
    ]
    return tuple(page for page in found if page.start < page.stop)


def _dated(chat_template: str, date: datetime.date | None) -> str:
    """The template with its clock stopped: `strftime_now` becomes a macro that knows one day."""
    if date is None or "strftime_now" not in chat_template:
        return chat_template
    filled = "format"
    for directive in "aAbBdDeFHIjmMpSyY":
        filled += f"|replace('%{directive}', '{date.strftime('%' + directive)}')"
        filled += f"|replace('%-{directive}', '{date.strftime('%' + directive).lstrip('0')}')"
    clock = f"{{%- macro strftime_now(format) -%}}{{{{ {filled} }}}}{{%- endmacro %}}\n"
    return clock + chat_template
