"""What a model thought before it answered, told apart from the answer.

Models put it between tags at the head of a reply. Some templates write the first tag themselves, so
it may be missing; a reply that was cut lacks the last one. A tag anywhere else is a word like any
other. Knows no model and no screen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jinja2 import TemplateError

if TYPE_CHECKING:
    from kvchat.models.load import LoadedModel

TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
)
# A last tag without a first one ends the reasoning only where it stands alone in its line.
_LAST_ALONE = re.compile(rf"^[ \t]*(?:{'|'.join(re.escape(tag[1]) for tag in TAGS)})[ \t]*$", re.M)


_BLANKS = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class Reasoned:
    """`is_open`: no tag ends the reasoning (yet), so there is no answer."""

    reasoning: str
    answer: str
    is_open: bool = False


def reasoned(reply: str, *, growing: bool = False) -> Reasoned:
    """A reply's reasoning and its answer, without the tags, apart from blanks all of the rest.

    `growing`: more of it is to come, so a part of a tag at the edge belongs to neither.
    """
    at, found = _after_blanks(reply, 0), list[str]()
    while True:  # by places: an imported reply may have a million of them
        tag = next((tag for tag in TAGS if reply.startswith(tag[0], at)), None)
        if tag is None:
            break
        start = at + len(tag[0])
        stop = reply.find(tag[1], start)
        if stop < 0:
            inside = reply[start:]
            inside = _without_part(inside, tag[1]) if growing else inside
            return Reasoned(_joined([*found, inside]), "", is_open=True)
        found.append(reply[start:stop])
        at = _after_blanks(reply, stop + len(tag[1]))
    head = reply[at:]
    if growing and head and any(tag[0].startswith(head) for tag in TAGS):
        return Reasoned(_joined(found), "")
    if found:
        return Reasoned(_joined(found), head)
    last = _LAST_ALONE.search(reply)
    if last is None or any(tag[0] in reply[: last.start()] for tag in TAGS):
        return Reasoned("", reply)
    return Reasoned(reply[: last.start()].strip(), reply[last.end() :].lstrip())


def without_reasoning(reply: str) -> str:
    if "<" not in reply and "[" not in reply:  # as most: a long chat has thousands of them
        return reply
    return reasoned(reply).answer


def masked(reply: str) -> str:
    """The reply with blanks in the place of its reasoning: what stands in the answer is where it
    was.
    """
    answer = without_reasoning(reply)
    return answer.rjust(len(reply))


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found is not None else at


def _without_part(text: str, tag: str) -> str:
    """Without a beginning of the tag at its end."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return text[:-length]
    return text


def _joined(parts: list[str]) -> str:
    return "\n\n".join(part.strip() for part in parts if part.strip())


def opening_of(loaded: LoadedModel) -> str:
    """The tag with which this model's template begins each reply; empty where it writes none."""
    try:
        written = loaded.tokenizer.apply_chat_template(
            [{"role": "user", "content": "?"}],
            chat_template=loaded.chat_template,
            tokenize=False,
            add_generation_prompt=True,
        )
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError):
        return ""  # asking will fail as well, and say so
    assert isinstance(written, str)  # one chat gives one text
    end = written.rstrip()
    tag = next((tag[0] for tag in TAGS if end.endswith(tag[0])), "")
    return tag + written[len(end) :] if tag else ""
