"""Sampled ids to text as it grows: nothing that is shown is ever taken back.

Half a character is held until its other bytes have come, and what may be the beginning of a stop
string until it is none. U+FFFD never appears: bytes that turn out to be no text are dropped. Only
the newest tokens are decoded again, starting where the text was whole, with at least one token
before the new ones, so that a SentencePiece tokenizer's rule about the first blank is applied to
the first token of all and to no other. Knows no model; end tokens are the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_HALF = "\ufffd"  # what decoders put for bytes that are no character, or not yet
_WINDOW_TOKENS = 16  # decoded again with each token; moved on when it gets longer
_GARBAGE_TOKENS = (
    64  # so long with never a whole character at the end: not a character that will be
)


class Detokenizer:
    """One reply's text. `text` is all that was given out, `stopped` whether a stop string was met.
    `begun`: ids of the text that it goes on from, which is whole and not given out again.

    After `flush`, `text` is `tokenizer.decode(ids, skip_special_tokens=True)` without the
    tokenizer's clean-up of blanks (it would alter code, and the reply's ids when they are read
    again).
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop: tuple[str, ...],
        begun: tuple[int, ...] = (),
    ) -> None:
        self.text = ""
        self.stopped = False
        self._tokenizer = tokenizer
        self._stop = tuple(one for one in stop if one)
        added = tokenizer.added_tokens_decoder
        self._special_ids = {i for i, token in added.items() if token.special}
        self._special_ids.update(tokenizer.all_special_ids)
        self._window = [one for one in begun[-_WINDOW_TOKENS:] if one not in self._special_ids]
        # Of the window's tokens, those after which its text was last whole.
        self._num_whole = len(self._window)
        self._held = ""  # read, not given: perhaps the beginning of a stop string
        self._num_read = len(self._decode())  # of its characters, those that were read

    def push(self, token_id: int) -> str:
        """The text that this token completed, often empty. Special tokens have none."""
        if self.stopped or token_id in self._special_ids:
            return ""
        self._window.append(token_id)
        decoded = self._decode()
        whole = decoded.rstrip(_HALF)
        fresh = whole[self._num_read :].replace(_HALF, "")
        self._num_read = max(self._num_read, len(whole))
        if len(whole) == len(decoded):
            if len(self._window) > _WINDOW_TOKENS:
                self._move_window(self._num_whole)
            self._num_whole = len(self._window)
        elif len(self._window) > _GARBAGE_TOKENS:
            self._move_window(len(self._window) - _WINDOW_TOKENS)
            self._num_whole = 0
        return self._give(fresh)

    def flush(self) -> str:
        """At the end: what began like a stop string and was none. Never half a character."""
        rest = "" if self.stopped else self._held
        self._held = ""
        self.text += rest
        return rest

    def _decode(self) -> str:
        # One list of ids decodes to one string; the library's annotation allows for batches.
        return str(
            self._tokenizer.decode(
                self._window, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def _move_window(self, start: int) -> None:
        del self._window[:start]
        self._num_read = len(self._decode().rstrip(_HALF))

    def _give(self, fresh: str) -> str:
        text = self._held + fresh
        starts = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if starts:
            self.stopped = True
            given = text[: min(starts)]
            self._held = ""
        else:
            given = text[: len(text) - self._num_doubtful(text)]
            self._held = text[len(given) :]
        self.text += given
        return given

    def _num_doubtful(self, text: str) -> int:
        """The length of the longest end of the text that a stop string begins with."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0
