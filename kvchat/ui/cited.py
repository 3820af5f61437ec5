"""Marks inside a reply: small numbers behind the sentences that a page confirms.

They are put into the text before it becomes HTML, as characters that no text has, and made buttons
afterwards; the numbers are those of the pages in the line below. In a paragraph a page is marked
behind the first sentence that it confirms, and again only after another page's mark; what the reply
says a second time has no mark. Asks nobody.
"""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvchat.wording import Language, say

_OPEN, _CLOSE = "\ue0f0", "\ue0f1"  # of the private use area
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+|\n+")
_PLACED = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


def numbered(citations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Pages that the reply matches, each once, in the order of their numbers."""
    found: dict[tuple[str, int], Mapping[str, Any]] = {}
    for one in citations:
        if one.get("support") == "matched":
            found.setdefault((one["document"], one["page"]), one)
    return list(found.values())


def placed(reply: str, citations: Sequence[Mapping[str, Any]]) -> str:
    """The reply with a place for each mark; as it was where it has such characters of its own."""
    if _OPEN in reply or _CLOSE in reply:
        return reply
    pages = [(one["document"], one["page"]) for one in numbered(citations)]
    marks: dict[int, set[int]] = {}
    for one in citations:
        if one.get("support") == "matched":
            number = pages.index((one["document"], one["page"])) + 1
            for at in one.get("at", ()):
                if 0 < at <= len(reply) and _may_stand(reply, at):
                    marks.setdefault(at, set()).add(number)
    for at in reversed(_useful(reply, marks)):
        stands = "".join(f"{_OPEN}{number}{_CLOSE}" for number in sorted(marks[at]))
        reply = reply[:at] + stands + reply[at:]
    return reply


def _useful(reply: str, marks: Mapping[int, set[int]]) -> list[int]:
    """The places, first to last, where a mark says something that none before it says."""
    found: list[int] = []
    said: set[str] = set()
    paragraph, last = -1, set[int]()
    for at in sorted(marks):
        sentence = " ".join(_SENTENCE_END.split(reply[:at].rstrip())[-1].casefold().split())
        here = reply.count("\n", 0, at)
        if sentence in said or (here == paragraph and marks[at] == last):
            said.add(sentence)
            continue
        said.add(sentence)
        found.append(at)
        paragraph, last = here, marks[at]
    return found


def _may_stand(reply: str, at: int) -> bool:
    """Not in code, a formula or a table, which a mark would break."""
    before = reply[:at]
    line = before.rpartition("\n")[2]
    if before.count("```") % 2 or line.count("`") % 2 or before.count("$$") % 2:
        return False
    if before.count("\\[") > before.count("\\]") or line.count("\\(") > line.count("\\)"):
        return False
    return not (line.startswith(("    ", "\t")) or line.lstrip().startswith(("|", "#")))


def drawn(markup: str, citations: Sequence[Mapping[str, Any]], lang: Language) -> str:
    """HTML of the reply with a button in each place."""
    pages = numbered(citations)

    def button(found: re.Match[str]) -> str:
        number = int(found[1])
        if not 1 <= number <= len(pages):
            return ""
        one = pages[number - 1]
        label = one.get("label")
        printed = label and label != str(one["page"])
        page = say("ui.cite.printed" if printed else "ui.cite", lang, page=one["page"], label=label)
        name = html.escape(say("ui.mark", lang, number=number, name=one["name"], page=page))
        # gradio takes labels off; words that are only heard stay
        return (
            f'<button type="button" class="kv-ref" title="{name}"><b>{number}</b>'
            f"<i> {name}</i></button>"
        )

    return _PLACED.sub(button, markup)


def bare(text: str) -> str:
    """Without any place for a mark."""
    return _PLACED.sub("", text)
