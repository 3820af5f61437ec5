"""A frame with a newer reading of its device: the items still sum to the total."""

from hypothesis import given
from hypothesis import strategies as st

from kvchat.device.memory import DeviceMemory, Program
from kvchat.kvcache.frame import on_device
from kvchat.units import GIB

FRAME = {
    "device": {"budget": None, "headroom": 7},
    "weights_bytes": 40,
    "library_bytes": 3,
    "activations_bytes": 9,
    "estimated": ["free", "activations_bytes"],
    "kv": {"device_bytes": 20},
    "spans": ["kept"],
}


@given(
    total=st.integers(1, 500),
    parts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    activations=st.integers(0, 50),
)
def test_all_items_sum_to_the_total(
    total: int, parts: tuple[float, float], activations: int
) -> None:
    free = int(parts[0] * total)
    others = int(parts[1] * (total - free))
    now = DeviceMemory("cuda:0", total, free, 0, 0, others, 5.0)
    frame = on_device(FRAME | {"activations_bytes": activations}, now)
    shown = frame["device"]
    items = (
        frame["weights_bytes"] + frame["library_bytes"] + frame["kv"]["device_bytes"],
        frame["activations_bytes"],
        frame["runtime_bytes"],
        shown["other_processes"],
        shown["free"],
    )
    assert min(items[1:4]) >= 0
    assert sum(items) == total
    assert (frame["at_s"], frame["spans"]) == (5.0, ["kept"])


def test_what_is_told_of_the_device() -> None:
    programs = (Program(7, "game", GIB), Program(8, "", None))
    now = DeviceMemory(
        "cuda:0", 99, 9, 0, 0, 9, 5.0, ("other_processes",), True, age_s=2.5, programs=programs
    )
    frame = on_device(FRAME, now)
    assert frame["estimated"] == ["other_processes", "activations_bytes"]
    assert frame["device"] == {
        "budget": None,
        "headroom": 7,
        "name": "cuda:0",
        "total": 99,
        "free": 9,
        "other_processes": 9,
        "shared": True,
        "age_s": 2.5,
        "programs": [
            {"pid": 7, "name": "game", "bytes_used": GIB},
            {"pid": 8, "name": "", "bytes_used": None},
        ],
    }
