"""Whether a benchmark fits beside what is in memory: refused with the numbers before it begins."""

from kvchat.engine.engine import Engine
from kvchat.errors import OutOfMemory
from kvchat.units import format_least, format_size


def refuse_too_large(engine: Engine, needed_bytes: int) -> None:
    """`needed_bytes`: with the weights. Raises OutOfMemory."""
    allowed = engine.room.snapshot().allowed_bytes
    if needed_bytes > allowed:
        raise OutOfMemory(
            "bench_no_room", needed=format_least(needed_bytes), allowed=format_size(max(0, allowed))
        )
