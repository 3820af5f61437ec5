"""The setting `layer_formats`: which layers are never stored in less than which pair of formats.

    0-1=int8, 29=fp/int8, -2--1=int6/int4

Layer numbers count from 0, those below 0 from the end; both ends of a range belong to it. Where a
layer is named twice the later pair holds. Knows no model: how many layers there are is told later.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kvchat.errors import SettingsError
from kvchat.settings_schema import FORMAT_NAMES

_ITEM = re.compile(r"(-?[0-9]{1,6})(?:\s*-\s*(-?[0-9]{1,6}))?\s*=\s*([a-z0-9]+)(?:/([a-z0-9]+))?")


@dataclass(frozen=True, slots=True)
class LayerFormats:
    """Layers `first` to `last`, both included, and the lowest pair that they are stored in."""

    first: int
    last: int
    key: str
    value: str

    def __str__(self) -> str:
        layers = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"{layers}={self.key}/{self.value}"

    def numbers(self, num_layers: int) -> range:
        """The layers of a model. Raises SettingsError where it has no such layer, or none."""
        first, last = (n + num_layers if n < 0 else n for n in (self.first, self.last))
        if not 0 <= first <= last < num_layers:
            raise SettingsError("layer_range", item=str(self), layers=num_layers)
        return range(first, last + 1)


def parse_layers(value: object) -> tuple[LayerFormats, ...]:
    """From text with commas; nothing for an empty one. Raises SettingsError."""
    wrong = SettingsError("setting_not_layers", value=value, known=", ".join(FORMAT_NAMES))
    if not isinstance(value, str):
        raise wrong
    found = []
    for item in filter(None, (part.strip() for part in value.split(","))):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise wrong
        first, last, key, each = match.groups()
        one = LayerFormats(int(first), int(last or first), key, each or key)
        same_end = (one.first < 0) == (one.last < 0)
        if {one.key, one.value} - set(FORMAT_NAMES) or (same_end and one.first > one.last):
            raise wrong
        found.append(one)
    return tuple(found)


def layers_text(layers: Iterable[LayerFormats]) -> str:
    """As it is written down; `parse_layers` reads it back."""
    return ", ".join(map(str, layers))
