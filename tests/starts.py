"""The settings of a start, without the recommendations of the model's makers."""

from collections.abc import Mapping
from pathlib import Path

from kvchat.settings import Settings
from kvchat.settings_sources import Sources


def resolve(
    preset: str | None = None, file: Path | None = None, flags: Mapping[str, object] | None = None
) -> Settings:
    return Sources.of_start(preset, file, flags or {}).settings()
