"""Bytes as people write and read them: 512MiB, 6GiB. Binary units only (1 KiB = 1,024 bytes)."""

import re
from decimal import Decimal

from kvchat.errors import SettingsError

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

_FACTOR = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB}
_FACTOR |= {"k": KIB, "m": MIB, "g": GIB, "t": TIB}
_SIZE = re.compile(r"\s*([0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_size(text: str) -> int:
    """'512MiB' -> 536870912. Raises SettingsError for anything that is not a positive size.

    Decimal units (MB, GB, TB) are refused rather than guessed: 6 GB is not 6 GiB.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTOR.get(match[2].lower()) if match else None
    size_bytes = int(Decimal(match[1].replace(",", "")) * factor) if match and factor else 0
    if size_bytes <= 0:
        raise SettingsError("size_unreadable", text=text)
    return size_bytes


def format_size(size_bytes: int) -> str:
    """MiB below 1 GiB, else GiB with two decimals; bytes and KiB where those are all there is."""
    if abs(size_bytes) >= GIB:
        return f"{size_bytes / GIB:,.2f} GiB"
    if abs(size_bytes) >= 10 * MIB:
        return f"{size_bytes / MIB:.0f} MiB"
    if abs(size_bytes) >= MIB:
        return f"{size_bytes / MIB:.1f} MiB"
    return f"{size_bytes / KIB:.0f} KiB" if abs(size_bytes) >= KIB else f"{size_bytes} B"


def format_least(size_bytes: int) -> str:
    """As `format_size`, rounded up: whoever allows what is shown has allowed enough."""
    if size_bytes < KIB:
        return format_size(size_bytes)
    unit, name, places = (
        (GIB, "GiB", 2)
        if size_bytes >= GIB
        else (MIB, "MiB", 0 if size_bytes >= 10 * MIB else 1)
        if size_bytes >= MIB
        else (KIB, "KiB", 0)
    )
    parts = -(-size_bytes * 10**places // unit)
    return f"{parts / 10**places:,.{places}f} {name}"
