"""Text to token ids with the place of each token; control tokens that someone typed stay text.

Where a person, a document or a model wrote `<|im_end|>`, a mark after its first character cuts the
text in two; the pieces are encoded one by one, so that no piece holds the token, and the marks are
left out. The text stays the same, to the letter. Knows no chat and no template.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# Nobody writes these; where somebody does, the next one is taken.
_MARKS = range(0x10FF00, 0x10FFF0)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Ids and, for each, the character at which it starts; starts never fall."""

    ids: tuple[int, ...]
    starts: tuple[int, ...]

    def token_at(self, character: int) -> int:
        """The first token that starts there or later."""
        return bisect_left(self.starts, character)


def unused_marks(texts: Sequence[str], num_marks: int) -> list[str]:
    """Private-use characters that none of the texts holds."""
    there = set().union(*texts)
    return [mark for mark in map(chr, _MARKS) if mark not in there][:num_marks]


def defanged(text: str, tokens: frozenset[str], mark: str) -> str:
    """The text with the mark after the first character of each token in it, overlapping ones too.

    Blanks are no control tokens (Gemma adds some), and one character cannot be cut in two.
    """
    cuts = [match.start() + 1 for match in _anywhere(tokens).finditer(text)]
    return mark.join(text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True))


@cache
def _anywhere(tokens: frozenset[str]) -> re.Pattern[str]:
    words = sorted(re.escape(token) for token in tokens if len(token) > 1 and not token.isspace())
    return re.compile(f"(?={'|'.join(words)})" if words else "(?!)")  # (?!) is found nowhere


def encode(
    tokenizer: PreTrainedTokenizerBase, text: str, mark: str, places: Sequence[int]
) -> Encoded:
    """The ids of the marked text, with no special tokens but those that stand in it.

    Places and starts are characters of the text without marks; `places`, in rising order, are those
    that `token_at` will be asked for.
    """
    ids: list[int] = []
    starts: list[int] = []
    done = 0
    for piece in text.split(mark):
        inside = places[bisect_right(places, done) : bisect_left(places, done + len(piece))]
        found = _encode_piece(tokenizer, piece, [one - done for one in inside], first=not done)
        ids += found.ids
        starts += [done + start for start in found.starts]
        done += len(piece)
    return Encoded(tuple(ids), tuple(accumulate(starts, max)))


def _encode_piece(
    tokenizer: PreTrainedTokenizerBase, piece: str, places: Sequence[int], *, first: bool
) -> Encoded:
    """SentencePiece puts a blank before any text: what is not first is encoded after a line feed,
    whose ids are taken away again, where they are the same as alone."""
    if not first:
        line_feed = _plain(tokenizer, "\n", ()).ids
        after = _plain(tokenizer, "\n" + piece, [place + 1 for place in places])
        if after.ids[: len(line_feed)] == line_feed:
            return Encoded(
                after.ids[len(line_feed) :],
                tuple(max(0, start - 1) for start in after.starts[len(line_feed) :]),
            )
    return _plain(tokenizer, piece, places)


def _plain(tokenizer: PreTrainedTokenizerBase, text: str, places: Sequence[int]) -> Encoded:
    if not tokenizer.is_fast:
        return _by_pieces(tokenizer, text, places)
    found = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
    )
    return Encoded(tuple(found["input_ids"]), tuple(start for start, _ in found["offset_mapping"]))


def _by_pieces(tokenizer: PreTrainedTokenizerBase, text: str, places: Sequence[int]) -> Encoded:
    """A tokenizer that tells no offsets: each stretch between two places is counted on its own.

    The ids are those of the whole text; at a border the count may be one off, which moves a token
    from one span to its neighbour.
    """
    ids = tokenizer.encode(text, add_special_tokens=False)
    starts: list[int] = []
    for begin, end in zip([0, *places], [*places, len(text)], strict=True):
        starts += [begin] * len(tokenizer.encode(text[begin:end], add_special_tokens=False))
    missing = len(ids) - len(starts)
    return Encoded(tuple(ids), tuple(starts[: len(ids)] + [len(text)] * missing))
