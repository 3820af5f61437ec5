"""Where texts stand on a page whose words were recognised: the boxes of those words, one a line."""

from collections.abc import Sequence
from typing import Any

from kvchat.documents.pages import Mark
from kvchat.documents.squeeze import found_at, squeezed


def word_marks(words: Sequence[Sequence[Any]], texts: Sequence[str]) -> list[list[Mark]]:
    """`words`: [text, left, top, right, bottom]. For each text its boxes; none where it is not."""
    letters = ""
    owners: list[int] = []
    for number, word in enumerate(words):
        found, _ = squeezed(word[0])
        letters += found
        owners += [number] * len(found)
    marks: list[list[Mark]] = []
    for text in texts:
        numbers = dict.fromkeys(owners[at] for at in found_at(letters, text))
        marks.append(lines_of([Mark(*words[number][1:]) for number in numbers]))
    return marks


def lines_of(boxes: Sequence[Mark]) -> list[Mark]:
    """Boxes that follow each other on one line, as one."""
    lines: list[Mark] = []
    for box in boxes:
        if box.right <= box.left or box.bottom <= box.top:
            continue
        last = lines[-1] if lines else None
        if last is not None and _are_on_one_line(last, box):
            lines[-1] = Mark(
                min(last.left, box.left),
                min(last.top, box.top),
                max(last.right, box.right),
                max(last.bottom, box.bottom),
            )
        else:
            lines.append(box)
    return lines


def _are_on_one_line(line: Mark, box: Mark) -> bool:
    """They overlap in height by a third of the lower one, and no column's gap lies between them."""
    overlap = min(line.bottom, box.bottom) - max(line.top, box.top)
    lower = min(line.bottom - line.top, box.bottom - box.top)
    apart = max(box.left - line.right, line.left - box.right)
    return overlap > 0.3 * lower and apart < 0.08
