"""Pages of Arabic, Hebrew and their kin, put into the order in which they are written.

A PDF places letters; in which order the file names them differs from program to program, and PDFium
takes each for a visual order. So the places alone are used here: lines by their baselines, letters
from right to left, numbers and Latin words in them from left to right, vowel marks by the letter
that they stand on. The rules are those of the Unicode bidirectional algorithm (UAX 9), backwards
and without its explicit levels. Pure geometry; knows no PDF.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from statistics import median

from kvchat.documents.reading_order import Box, Ordered

_RIGHT = ("R", "AL")
_MAY_BE_RIGHT = re.compile(
    "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\U00010800-\U00010fff\U0001e800-\U0001efff]"
)
"""The blocks where all such letters are."""

_LEFT = ("L", "EN", "AN")
_WITHIN_NUMBERS = frozenset(".,:/-−٫٬%")
_BLANK_GAP = 0.1
"""Of a line's height, between the advances of two letters: within words there is none."""

_LINE_GAP = 0.3
"""Of a line's height: baselines nearer than this are one line's."""

_COLUMN_GAP = 1.5
_ALEFS = frozenset("\u0622\u0623\u0625\u0627\u0671")
_LAM = "\u0644"
_MIRRORED = str.maketrans("()[]{}<>«»", ")(][}{><»«")
_OPENING, _CLOSING = "([{", ")]}"


def is_right_to_left(text: str) -> bool:
    """Whether enough of a page is written so that its lines are to be put together anew."""
    if not _MAY_BE_RIGHT.search(text):
        return False
    counts = [(c, n) for c, n in Counter(text).items() if c.isalpha()]
    num_right = sum(n for c, n in counts if unicodedata.bidirectional(c) in _RIGHT)
    return num_right > sum(n for _, n in counts) / 5


@dataclass(slots=True)
class _Unit:
    """Letters that one sign of the page stands for, in the order of writing, with their marks."""

    places: list[int]
    box: Box
    baseline: float
    marks: list[int] = field(default_factory=list)

    @property
    def middle(self) -> float:
        return (self.box[0] + self.box[2]) / 2


@dataclass(slots=True)
class _Line:
    baseline: float
    units: list[_Unit] = field(default_factory=list)


def written_order(
    text: str, advances: Sequence[Box], inks: Sequence[Box], baselines: Sequence[float]
) -> Ordered:
    """Of `text[i]`: `advances[i]`, the box with the room that it takes in its line; `inks[i]`, what
    is black of it; `baselines[i]`, the height of its origin.
    """
    heights = [top - bottom for _, bottom, _, top in advances if top > bottom]
    size = median(heights) if heights else 1.0
    units, marks = _units(text, advances, baselines)
    lines = _lines(units, size)
    _put_marks(text, marks, inks, baselines, lines)
    ranges: list[tuple[int, int]] = []
    joints: list[str] = []
    letters: list[str] = []
    for line in _in_columns(lines, size):
        written, places, gaps = _written(text, line, size)
        for at, place in enumerate(places):
            if ranges:
                joints.append("\n" if at == 0 else gaps[at])
            ranges.append((place, place + 1))
        letters.append(written)
    return Ordered("\n".join(letters), ranges, joints)


def _units(
    text: str, boxes: Sequence[Box], baselines: Sequence[float]
) -> tuple[list[_Unit], list[int]]:
    """The signs of a page, and its vowel marks apart. Blanks are found again by the gaps."""
    units: list[_Unit] = []
    marks: list[int] = []
    places = [at for at, char in enumerate(text) if not char.isspace() and ord(char) >= 32]
    for box, group in groupby(places, key=lambda at: boxes[at]):
        same = list(group)
        if box[2] <= box[0] and box[3] <= box[1]:
            continue
        if len(same) == 1 and unicodedata.combining(text[same[0]]):
            marks.append(same[0])
            continue
        if len(same) > 1 and _is_turned(text, same):
            same.reverse()
        units.append(_Unit(same, box, baselines[same[0]]))
    return _apart(units), marks


def _apart(units: Sequence[_Unit]) -> list[_Unit]:
    """A word that stands for a picture of it has no place of its own, but that of another sign: it
    goes where the file has it, after the sign before it.
    """
    owners: dict[Box, _Unit] = {}
    found: list[_Unit] = []
    for unit in units:
        if len(unit.places) > 1 and owners.setdefault(unit.box, unit) is not unit and found:
            right = found[-1].box[2]
            unit.box = (right, unit.box[1], right + 0.01, unit.box[3])
        owners.setdefault(unit.box, unit)
        found.append(unit)
    return found


def _is_turned(text: str, places: Sequence[int]) -> bool:
    """PDFium turns what one sign stands for along with the line; lam-alef it resolves itself."""
    letters = [text[at] for at in places]
    if not any(unicodedata.bidirectional(c) in _RIGHT for c in letters):
        return False
    return not (len(letters) == 2 and letters[0] == _LAM and letters[1] in _ALEFS)


def _lines(units: Sequence[_Unit], size: float) -> list[_Line]:
    """From the top, each with its units from left to right."""
    lines: list[_Line] = []
    for unit in sorted(units, key=lambda one: -one.baseline):
        if not lines or lines[-1].baseline - unit.baseline > _LINE_GAP * size:
            lines.append(_Line(unit.baseline))
        lines[-1].units.append(unit)
    for line in lines:
        # A letter that is set over the next one's edge still begins further to the right.
        line.units.sort(key=lambda one: (one.box[2], one.middle))
    return lines


def _put_marks(
    text: str,
    marks: Sequence[int],
    inks: Sequence[Box],
    baselines: Sequence[float],
    lines: Sequence[_Line],
) -> None:
    """Each to the letter that it stands over or under, of the line that it belongs to."""
    for at in marks:
        if not lines:
            return
        line = min(lines, key=lambda one: abs(one.baseline - baselines[at]))
        middle = (inks[at][0] + inks[at][2]) / 2
        unit = min(line.units, key=lambda one: _distance(one, middle, text, inks))
        unit.marks.append(at)


def _distance(unit: _Unit, x: float, text: str, inks: Sequence[Box]) -> float:
    """To a letter's ink; what carries no marks is far away."""
    far = 0.0 if text[unit.places[-1]].isalpha() else 1000.0
    left, _, right, _ = inks[unit.places[0]]
    return far + max(left - x, 0.0, x - right) + abs((left + right) / 2 - x) / 10


def _in_columns(lines: Sequence[_Line], size: float) -> list[_Line]:
    """Where a gutter runs through nearly all lines, the right column first, then the left one."""
    gutter = _gutter(lines, size)
    if gutter is None:
        return list(lines)
    right = [_Line(one.baseline, [u for u in one.units if u.middle > gutter]) for one in lines]
    left = [_Line(one.baseline, [u for u in one.units if u.middle <= gutter]) for one in lines]
    return [line for line in (*right, *left) if line.units]


def _gutter(lines: Sequence[_Line], size: float) -> float | None:
    gaps: list[tuple[float, float]] = []
    for line in lines:
        wide = [
            (a.box[2], b.box[0])
            for a, b in pairwise(line.units)
            if b.box[0] - a.box[2] > _COLUMN_GAP * size
        ]
        if len(wide) == 1:
            gaps += wide
    if len(gaps) < 4 or len(gaps) < 0.6 * len(lines):
        return None
    left, right = max(a for a, _ in gaps), min(b for _, b in gaps)
    return (left + right) / 2 if right > left else None


def _written(text: str, line: _Line, size: float) -> tuple[str, list[int], list[str]]:
    """(the line as it is written, the place of each of its characters, what stands before each)."""
    kinds = _directions(text, line.units)
    base = "R" if kinds.count("R") >= kinds.count("L") else "L"
    runs = [
        [unit for unit, _ in group]
        for _, group in groupby(zip(line.units, kinds, strict=True), key=lambda pair: pair[1])
    ]
    directions = [kind for kind, _ in groupby(kinds)]
    ordered: list[tuple[_Unit, str]] = []
    pairs = list(zip(runs, directions, strict=True))
    for run, direction in reversed(pairs) if base == "R" else pairs:
        ordered += [(unit, direction) for unit in (run[::-1] if direction == "R" else run)]
    return _spelled(text, ordered, size)


def _directions(text: str, units: Sequence[_Unit]) -> list[str]:
    """R or L for each unit; what has none of its own takes that of both its neighbours, else the
    line's.
    """
    own = [_direction(text, unit) for unit in units]
    for at in range(1, len(own) - 1):  # 1,260.00 and 3/4 are one number
        is_between = own[at] is None and own[at - 1] == own[at + 1] == "N"
        if is_between and text[units[at].places[0]] in _WITHIN_NUMBERS:
            own[at] = "N"
    strong = [kind for kind in own if kind in ("R", "L")]
    base = "R" if strong.count("R") >= strong.count("L") else "L"
    found: list[str] = []
    for at, kind in enumerate(own):
        if kind is not None:
            found.append("L" if kind == "N" else kind)
            continue
        before = next((k for k in reversed(own[:at]) if k is not None), base)
        after = next((k for k in own[at + 1 :] if k is not None), base)
        # A number takes part on the side of the line's own direction.
        sides = {base if side == "N" else side for side in (before, after)}
        found.append(sides.pop() if len(sides) == 1 else base)
    return found


def _direction(text: str, unit: _Unit) -> str | None:
    kinds = {unicodedata.bidirectional(text[at]) for at in unit.places}
    if kinds & set(_RIGHT):
        return "R"
    if kinds & {"EN", "AN"}:
        return "N"
    return "L" if "L" in kinds else None


def _spelled(
    text: str, ordered: Sequence[tuple[_Unit, str]], size: float
) -> tuple[str, list[int], list[str]]:
    places: list[int] = []
    gaps: list[str] = []
    turned: list[bool] = []
    previous: _Unit | None = None
    for unit, direction in ordered:
        gap = "" if previous is None or not _stand_apart(previous, unit, size) else " "
        for place in (*unit.places, *unit.marks):
            places.append(place)
            gaps.append(gap)
            turned.append(direction == "R")
            gap = ""
        previous = unit
    letters = [text[place] for place in places]
    if _is_mirrored("".join(c for c, r in zip(letters, turned, strict=True) if r)):
        letters = [c.translate(_MIRRORED) if r else c for c, r in zip(letters, turned, strict=True)]
    return "".join(g + c for g, c in zip(gaps, letters, strict=True)), places, gaps


def _stand_apart(a: _Unit, b: _Unit, size: float) -> bool:
    """Side by side with a blank's gap, whichever comes first; or not side by side at all, where
    the direction changes.
    """
    gap = max(b.box[0] - a.box[2], a.box[0] - b.box[2])
    return gap > _BLANK_GAP * size


def _is_mirrored(text: str) -> bool:
    """Whether brackets close before they open: then the file names them by their looks."""
    depth = wrong = right = 0
    for char in text:
        if char in _OPENING:
            depth += 1
            right += 1
        elif char in _CLOSING:
            wrong += depth == 0
            depth = max(0, depth - 1)
    return wrong > 0 and (wrong > right or text.find(")") < max(text.find("("), 1))
