"""The settings as one typed schema: defaults, ranges, and when a change applies.

Flags, files, presets and the settings screen are made from it. Knows no model and no device, and
not how a value is read or written: that is `settings.py`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from kvchat.units import GIB, MIB
from kvchat.wording import table

Kind = Literal[
    "int", "float", "size", "choice", "text", "bool", "list", "layers", "texts", "formats"
]
# When a change takes effect: at once, with the next answer, in chats that are begun after it, or
# once the model is loaded again.
Applies = Literal["now", "next answer", "new chat", "reload"]
Group = Literal["memory", "formats", "shortage", "tiers", "model", "sampling", "documents", "chat"]


@dataclass(frozen=True, slots=True)
class Entry:
    """What one setting is, apart from its value; what it is called stands in the wording tables.
    Sizes are bytes; `choices` serve `choice` and `list`, and are what is proposed for `formats`.

    `optional` settings may be None, which is written `auto`. `within`: the memory whose size a
    slider for a size ends at.
    """

    name: str
    kind: Kind
    group: Group
    unit: str = ""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    applies: Applies = "next answer"
    optional: bool = False
    within: Literal["", "device", "host"] = ""

    @property
    def label(self) -> Mapping[str, str]:
        return table()[f"setting.{self.name}"]

    @property
    def help(self) -> Mapping[str, str]:
        return table()[f"setting.{self.name}.help"]


def _entry(default: object, **about: Any) -> Any:
    return field(default=default, metadata={"about": about})


# Keys and values of the KV cache, the most exact first; one name stands for both. These are what is
# proposed; keys and values may be in any two formats.
FORMAT_PAIRS = ("fp", "int8", "int6", "int8/int4", "int6/int4", "int5/int4", "int4", "int2", "fp8")
# optimum-quanto's, for comparison: no kernel reads them.
COMPARED = ("quanto4", "quanto2")
FORMAT_NAMES = tuple(
    dict.fromkeys(part for pair in (*FORMAT_PAIRS, *COMPARED) for part in pair.split("/"))
)
RUNGS = ("drop_idle", "shrink_chunk", "requantize", "offload", "evict", "truncate_turns")
ALL_RUNGS = (*RUNGS[:-1], "summarize", RUNGS[-1])  # what is not in RUNGS must be asked for


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, as they hold for one run. Made by `Sources`, changed by `changed`."""

    memory_budget: int | None = _entry(
        None,
        kind="size",
        group="memory",
        optional=True,
        unit="B",
        least=MIB,
        most=1024 * GIB,
        applies="now",
        within="device",
    )
    headroom: int | None = _entry(
        None,
        kind="size",
        group="memory",
        optional=True,
        unit="B",
        least=0,
        most=256 * GIB,
        applies="now",
        within="device",
    )
    prefill_chunk: int = _entry(512, kind="int", group="memory", unit="tokens", least=16, most=8192)
    seal_format: str = _entry("fp", kind="formats", group="formats", choices=FORMAT_PAIRS)
    floor_format: str = _entry("int6/int4", kind="formats", group="formats", choices=FORMAT_PAIRS)
    layer_formats: str = _entry("", kind="layers", group="formats", applies="reload")
    allow_unproven: bool = _entry(False, kind="bool", group="formats")
    sink_tokens: int = _entry(64, kind="int", group="formats", unit="tokens", least=0, most=4096)
    newest_tokens: int = _entry(0, kind="int", group="formats", unit="tokens", least=0, most=8192)
    host_quota: int | None = _entry(
        None,
        kind="size",
        group="tiers",
        optional=True,
        unit="B",
        least=0,
        most=1024 * GIB,
        applies="now",
        within="host",
    )
    keep_originals: bool = _entry(False, kind="bool", group="tiers")
    disk_quota: int = _entry(
        4 * GIB, kind="size", group="tiers", unit="B", least=0, most=1024 * GIB, applies="now"
    )
    disk_format: str = _entry("int8", kind="formats", group="tiers", choices=FORMAT_PAIRS)
    ladder: tuple[str, ...] = _entry(
        RUNGS, kind="list", group="shortage", choices=ALL_RUNGS, applies="now"
    )
    evict_by: str = _entry(
        "window", kind="choice", group="shortage", choices=("window", "heavy_hitter"), applies="now"
    )
    model: str = _entry("smollm2", kind="text", group="model", applies="reload")
    model_folders: tuple[str, ...] = _entry((), kind="texts", group="model", applies="now")
    dtype: str = _entry(
        "auto",
        kind="choice",
        group="model",
        choices=("auto", "fp32", "bf16", "fp16"),
        applies="reload",
    )
    weights: str = _entry(
        "as-is", kind="choice", group="model", choices=("as-is", "int8"), applies="reload"
    )
    threads: int | None = _entry(
        None, kind="int", group="model", optional=True, unit="threads", least=1, most=256
    )
    max_new_tokens: int = _entry(
        1024, kind="int", group="sampling", unit="tokens", least=1, most=131072
    )
    temperature: float = _entry(0.7, kind="float", group="sampling", least=0.0, most=5.0)
    top_k: int = _entry(0, kind="int", group="sampling", least=0, most=1000)
    top_p: float = _entry(0.95, kind="float", group="sampling", least=0.01, most=1.0)
    min_p: float = _entry(0.0, kind="float", group="sampling", least=0.0, most=1.0)
    repetition_penalty: float = _entry(1.0, kind="float", group="sampling", least=0.5, most=2.0)
    end_circles: bool = _entry(True, kind="bool", group="sampling")
    seed: int | None = _entry(
        None, kind="int", group="sampling", optional=True, least=0, most=2**63 - 1
    )
    document_mode: str = _entry(
        "auto", kind="choice", group="documents", choices=("auto", "whole", "passages")
    )
    answer_while_reading: bool = _entry(True, kind="bool", group="documents")
    ocr: str = _entry(
        "auto", kind="choice", group="documents", choices=("auto", "off"), applies="now"
    )
    embedding_model: str = _entry("", kind="text", group="documents")
    passages: int = _entry(5, kind="int", group="documents", least=1, most=50)
    system_text: str = _entry(
        "You are a helpful assistant.", kind="text", group="chat", applies="new chat"
    )
    keep_reasoning: bool = _entry(False, kind="bool", group="chat")
    list_api_chats: bool = _entry(False, kind="bool", group="chat", applies="now")


SCHEMA: Mapping[str, Entry] = {
    f.name: Entry(f.name, **f.metadata["about"]) for f in fields(Settings)
}
