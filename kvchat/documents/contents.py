"""Which text is a table of contents: it names what stands elsewhere, with the page, and says none
of it. Told by the leaders before its page numbers, which `clean.py` has made one sign.
"""

import re

_LEADER = re.compile(r"…\s*(?:\d{1,4}|[ivxlc]{1,7})$", re.IGNORECASE)
_LEAST_SHARE = 0.5


def is_contents(text: str) -> bool:
    """Whether lines end with a leader and a page number, half of them at least: long titles take
    two lines.
    """
    if "…" not in text:
        return False
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    leaders = sum(bool(_LEADER.search(line)) for line in lines)
    return leaders > 0 and leaders >= _LEAST_SHARE * len(lines)
