"""The models that kvchat knows by name, from `settings/models.toml`: the built-in one, and open
ones that fit cards of 8 to 24 GiB. Knows nothing of what is on this machine.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from kvchat.wording import settings_folder


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model as it is published. `parameters` counts its weights' values, tied ones once.

    `languages` are ISO 639-1 codes, as its publisher names them; `config` is its config.json as far
    as memory is concerned; `sampling`: settings that its publisher recommends.
    """

    name: str
    family: str
    repository: str
    parameters: int
    languages: tuple[str, ...]
    licence: str
    config: Mapping[str, Any]
    sampling: Mapping[str, float] = field(default_factory=dict)

    @property
    def serves_korean(self) -> bool:
        return "ko" in self.languages


@dataclass(frozen=True, slots=True)
class Builtin:
    """The file that the built-in model is made of, and the package that it comes in."""

    name: str
    package: str
    requirement: str
    file: str
    bytes: int
    sha256: str


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((settings_folder() / "models.toml").read_text(encoding="utf-8"))


@cache
def builtin() -> Builtin:
    return Builtin(**_table()["builtin"])


@cache
def catalog() -> Mapping[str, CatalogEntry]:
    """By name, the smallest first."""
    found = [_entry(name, about) for name, about in _table()["models"].items()]
    return {one.name: one for one in sorted(found, key=lambda one: one.parameters)}


def _entry(name: str, about: dict[str, Any]) -> CatalogEntry:
    config = {key: None if value == "null" else value for key, value in about["config"].items()}
    languages = tuple(about["languages"])
    return CatalogEntry(name=name, **(about | {"languages": languages, "config": config}))
