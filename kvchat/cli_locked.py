"""Passwords of files that `ask` is given: from the command line, else asked for on the terminal.

A password on the command line can be seen by other programs of this machine while `ask` runs; one
that is typed cannot. Neither is stored or logged.
"""

import getpass
import sys
from collections.abc import Callable, Iterator, Sequence

from kvchat.wording import Language, say

MOST_TRIES = 3
Ask = Callable[[str], str]


def passwords(given: Sequence[str], name: str, lang: Language, ask: Ask | None) -> Iterator[str]:
    """Those given, then what a person types, a few times. `ask` is None where nobody can type."""
    yield from given
    if ask is None:
        return
    for number in range(MOST_TRIES):
        if number:
            print(say("ask.password_wrong", lang, name=name), file=sys.stderr)
        typed = ask(say("ask.password", lang, name=name))
        if not typed:
            return
        yield typed


def on_terminal() -> Ask | None:
    """Asks without showing what is typed; None where no person sits at a terminal."""
    return getpass.getpass if sys.stdin is not None and sys.stdin.isatty() else None
