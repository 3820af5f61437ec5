"""What a person sees of pip while it works: what is fetched and installed, nothing else.

Loaded by path from bootstrap.py: standard library only. Knows no environment and starts nothing.
"""

from collections.abc import Iterable
from typing import TextIO

# A live line that wraps could not be taken back. Blanks clear it, since not every console knows
# escape sequences.
_MOST_COLUMNS = 76


def show_progress(said: Iterable[bytes], screen: TextIO) -> None:
    """What pip fetches and installs: one line that changes on a terminal, plain lines elsewhere.

    Its warnings (of mirrors, of retries) are the log's. Reads to the end, or pip would wait.
    """
    live = screen.isatty()
    for line in said:
        words = line.decode("utf-8", "replace").split()
        if words[:1] == ["Downloading"] and len(words) > 1:
            if words[1].endswith(".metadata"):
                continue
            shown = " ".join([words[1].rpartition("/")[2], *words[2:]])
        elif words[:2] == ["Installing", "collected"]:
            shown = " ".join(words[3:])
        else:
            continue
        encoding = screen.encoding or "utf-8"
        shown = shown.encode(encoding, "replace").decode(encoding)
        line_here = f"\r  {shown[:_MOST_COLUMNS]:{_MOST_COLUMNS}}"
        screen.write(line_here if live else f"  {shown}\n")
        screen.flush()
    if live:
        screen.write("\r" + " " * (_MOST_COLUMNS + 2) + "\r")
        screen.flush()
