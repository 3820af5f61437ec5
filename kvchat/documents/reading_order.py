"""A page's characters in the order in which a person reads them.

PDFium gives characters in the order of the file, and on some pages goes line by line across
columns. Where boxes show columns of prose that were interleaved, the page is put together again,
column by column; every other page keeps PDFium's order. Pure geometry; knows no PDF.

Columns are found by a cut at a gutter, then within both sides again (recursive X-Y cut: Nagy and
Seth 1984). What crosses a gutter (a headline) divides a page into bands.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from math import floor
from statistics import median
from typing import NamedTuple

Box = tuple[float, float, float, float]
"""left, bottom, right, top in points, y upwards, as the page is seen."""

_NO_LETTER = re.compile(r"[\W\d_]+")
_NARROW, _ENDING = "fijlrtI", ".,;:)!?"

MOST_CHARACTERS = 60_000
"""Pages with more are left as they come: a drawing's labels, or an attack."""


Range = tuple[int, int]
"""start, stop of characters in the text as PDFium gave it, half-open."""


class Ordered(NamedTuple):
    """A page's text in reading order. `ranges`: the parts of the given text that it is made of, in
    order; between two of them stands `joints[i]`, which no character of the page stands for.
    """

    text: str
    ranges: Sequence[Range]
    joints: Sequence[str]

    def places(self) -> list[int]:
        """For each character of `text` its place in the text as given, -1 where it has none."""
        found: list[int] = []
        for number, (start, stop) in enumerate(self.ranges):
            found += range(start, stop)
            if number < len(self.joints):
                found += [-1] * len(self.joints[number])
        return found


MOST_WIDTH = 20_000
"""Points; a PDF page has 14,400 at most. What is wider was set off the page."""


class Piece(NamedTuple):
    """Characters of one line with no gap as wide as a gutter between them; `ranges` of them stand
    a blank apart.
    """

    left: float
    bottom: float
    right: float
    top: float
    text: str
    ranges: tuple[Range, ...]

    @property
    def middle(self) -> float:
        return (self.bottom + self.top) / 2


def in_reading_order(text: str, boxes: Sequence[Box]) -> Ordered:
    """`text` with lost blanks restored and columns unravelled; `boxes[i]` is `text[i]`'s box."""
    heights = [top - bottom for _, bottom, _, top in boxes if top > bottom]
    if not heights or len(text) > MOST_CHARACTERS:
        return Ordered(text, [(0, len(text))], [])
    size = median(heights)
    pieces, blanks = _pieces(text, boxes, size)
    ordered, has_columns = _ordered(pieces, size)
    if not has_columns or not _was_interleaved(pieces, ordered):
        return _as_given(text, blanks)
    return _joined(text, _lines(ordered, size))


def _as_given(text: str, blanks: Sequence[int]) -> Ordered:
    ranges = _parted(0, len(text), blanks)
    joints = [" "] * (len(ranges) - 1)
    return Ordered(" ".join(text[a:b] for a, b in ranges), ranges, joints)


def _joined(text: str, lines: Iterable[Iterable[Range]]) -> Ordered:
    """The ranges of a line a blank apart, the lines each on its own."""
    ranges: list[Range] = []
    joints: list[str] = []
    for line in lines:
        for number, part in enumerate(line):
            if ranges:
                joints.append(" " if number else "\n")
            ranges.append(part)
    whole = [text[a:b] + joint for (a, b), joint in zip(ranges, [*joints, ""], strict=True)]
    return Ordered("".join(whole), ranges, joints)


class _Run(NamedTuple):
    """text[start:stop] of one line, and its box."""

    start: int
    stop: int
    box: Box


def _pieces(text: str, boxes: Sequence[Box], size: float) -> tuple[list[Piece], list[int]]:
    """The pieces that the text is made of, and the places where a blank was lost between words."""
    runs, blanks = _runs(text, boxes, size)
    pieces = []
    for start, stop, box in runs:
        ranges = _parted(start, stop, blanks)
        pieces.append(Piece(*box, " ".join([text[a:b] for a, b in ranges]), tuple(ranges)))
    return pieces, blanks


def _runs(text: str, boxes: Sequence[Box], size: float) -> tuple[list[_Run], list[int]]:
    """As `_pieces`. A loop over all characters: plain local names make it twice as fast."""
    runs: list[_Run] = []
    blanks: list[int] = []
    least_gap, back, ahead = 0.55 * size, -4 * size, 1.5 * size
    is_open = False
    start = stop = 0
    first = low = last = high = 0.0
    for at, (char, (left, bottom, right, top)) in enumerate(zip(text, boxes, strict=True)):
        if char == " " or top <= bottom:
            if is_open and char in "\r\n":
                runs.append(_Run(start, stop, (first, low, last, high)))
                is_open = False
            continue
        if is_open and bottom < high and top > low:
            gap = left - last
            if gap > least_gap and stop == at and _is_lost_blank(text, boxes, at, size):
                blanks.append(at)
            if back <= gap <= ahead:
                stop, last = at + 1, right
                if bottom < low:
                    low = bottom
                if top > high:
                    high = top
                continue
        if is_open:
            runs.append(_Run(start, stop, (first, low, last, high)))
        is_open, start, stop = True, at, at + 1
        first, low, last, high = left, bottom, right, top
    if is_open:
        runs.append(_Run(start, stop, (first, low, last, high)))
    return runs, blanks


def _is_lost_blank(text: str, boxes: Sequence[Box], at: int, size: float) -> bool:
    """Whether text[at] begins a word right after text[at - 1], with a wide gap between."""
    (_, low, last, high), (left, bottom, _, top) = boxes[at - 1], boxes[at]
    gap, scale = left - last, max(size, min(high - low, top - bottom))
    return gap > 0.55 * scale and _part_words(text, at, gap / scale)


def _parted(start: int, stop: int, blanks: Sequence[int]) -> list[Range]:
    """[start, stop) at the places among `blanks`, which are in order."""
    inside = blanks[bisect_right(blanks, start) : bisect_left(blanks, stop)]
    return list(pairwise([start, *inside, stop]))


def _part_words(text: str, at: int, gap: float) -> bool:
    """Whether a gap before text[at], in heights of a letter, is a blank that was not written.

    Latin letters, digits and signs that end a word only, and a wider gap by narrow ones: those
    stand apart in a typewriter face.
    """
    pair = text[at - 1 : at + 1]
    if pair.isascii() and (pair.isdigit() or (pair[0] in _ENDING and pair[1].isalpha())):
        return gap > 0.85
    if not (pair.isascii() and pair.isalpha()):
        return False
    return gap > 0.85 or not (pair[0] in _NARROW or pair[1] in _NARROW)


def _ordered(pieces: list[Piece], size: float) -> tuple[list[list[Piece]], bool]:
    """Groups of pieces in reading order, and whether columns were found among them."""
    for gutter in _gutters(pieces, size):
        spanning = sorted(
            (p for p in pieces if p.left < gutter < p.right), key=lambda p: p.middle, reverse=True
        )
        bands = _bands(pieces, spanning, gutter)
        if any(_are_columns(left, right) for left, right in bands):
            return _ordered_bands(bands, spanning, size), True
    return [pieces], False


def _gutters(pieces: list[Piece], size: float) -> list[float]:
    """Middles of the vertical strips that few pieces cross, the emptiest and widest first."""
    if len(pieces) < 8:
        return []
    start = floor(min(p.left for p in pieces))
    width = floor(max(p.right for p in pieces)) - start + 1
    if width > MOST_WIDTH:
        return []
    steps = [0.0] * (width + 1)
    for piece in pieces:
        if piece.right < piece.left:
            continue  # its letters go backwards
        height = piece.top - piece.bottom
        steps[floor(piece.left) - start] += height
        steps[min(floor(piece.right) - start + 1, width)] -= height
    covered = list(accumulate(steps[:width]))
    peak = max(covered)
    found: list[tuple[float, int, float]] = []
    begin = None
    for x in range(width + 1):
        if x < width and covered[x] <= peak / 2:
            begin = x if begin is None else begin
        elif begin is not None:
            found += _emptiest(covered, begin, x, start, size)
            begin = None
    return [middle for _, _, middle in sorted(found)[:4]]


def _emptiest(
    covered: list[float], begin: int, stop: int, start: int, size: float
) -> list[tuple[float, int, float]]:
    """(cover, -width, middle) of the emptiest strip in [begin, stop), if it is wide enough."""
    least = min(covered[begin:stop])
    most = least + max(covered) / 10
    inside = [x for x in range(begin, stop) if covered[x] <= most]
    longest, run = (inside[0], inside[0]), inside[0]
    for a, b in zip(inside, [*inside[1:], inside[-1] + 2], strict=True):
        if b != a + 1:
            longest = max(longest, (run, a), key=lambda pair: pair[1] - pair[0])
            run = b
    width = longest[1] - longest[0] + 1
    if width < size:
        return []
    return [(least, -width, start + (longest[0] + longest[1] + 1) / 2)]


def _bands(
    pieces: list[Piece], spanning: list[Piece], gutter: float
) -> list[tuple[list[Piece], list[Piece]]]:
    """Left and right of the gutter, for each band between two spanning pieces, from the top."""
    bands: list[tuple[list[Piece], list[Piece]]] = [([], []) for _ in range(len(spanning) + 1)]
    depths = [-p.middle for p in spanning]
    for piece in pieces:
        if piece.left < gutter < piece.right:
            continue
        band = bisect_left(depths, -piece.middle)
        bands[band][piece.left >= gutter].append(piece)
    return bands


def _are_columns(left: list[Piece], right: list[Piece]) -> bool:
    return _is_prose(left) and _is_prose(right)


def _is_prose(pieces: list[Piece]) -> bool:
    """Lines of running text rather than cells of a table: long, and mostly letters."""
    if len(pieces) < 4:
        return False
    texts = [p.text.replace(".", "").replace(" ", "") for p in pieces]
    if median(map(len, texts)) < 10:
        return False
    whole = "".join(texts)
    return len(_NO_LETTER.sub("", whole)) > 0.65 * len(whole)


def _ordered_bands(
    bands: list[tuple[list[Piece], list[Piece]]], spanning: list[Piece], size: float
) -> list[list[Piece]]:
    groups: list[list[Piece]] = []
    together: list[Piece] = []
    for number, (left, right) in enumerate(bands):
        if _are_columns(left, right):
            groups += [together, *_ordered(left, size)[0], *_ordered(right, size)[0]]
            together = []
        else:
            together += left + right
        if number < len(spanning):
            together.append(spanning[number])
    return [group for group in [*groups, together] if group]


def _was_interleaved(pieces: list[Piece], ordered: list[list[Piece]]) -> bool:
    """Whether the file's order hops between the groups much more often than reading them needs."""
    group_of = {id(piece): n for n, group in enumerate(ordered) for piece in group}
    hops = sum(group_of[id(a)] != group_of[id(b)] for a, b in pairwise(pieces))
    return hops > 2 * len(ordered) + 0.1 * len(pieces)


def _lines(groups: list[list[Piece]], size: float) -> Iterator[list[Range]]:
    """Each group from top to bottom, pieces of one line from left to right."""
    for group in groups:
        row: list[Piece] = []
        for piece in sorted(group, key=lambda p: -p.middle):
            if row and row[0].middle - piece.middle > 0.6 * size:
                yield _ranges(row)
                row = []
            row.append(piece)
        yield _ranges(row)


def _ranges(row: list[Piece]) -> list[Range]:
    return [one for piece in sorted(row) for one in piece.ranges]
