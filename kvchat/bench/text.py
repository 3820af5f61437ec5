"""The text that fidelity is measured on: one's own, or the sentences that kvchat itself ships.

Knows no model.
"""

from pathlib import Path

from kvchat.documents.reader import read
from kvchat.engine.fidelity import Sample, shipped_sample
from kvchat.errors import SettingsError
from kvchat.wording import Language


def sample(file: Path | None, model: str, lang: Language) -> Sample:
    """Raises SettingsError or DocumentError for a file that cannot be read."""
    if file is None:
        return shipped_sample(model, lang)
    if file.suffix.lower() == ".pdf":
        pages = read(file, file.name).pages
        return Sample(file.name, "\n\n".join(page.text for page in pages), lang)
    try:
        return Sample(file.name, file.read_text(encoding="utf-8"), lang)
    except UnicodeDecodeError:
        why = "not UTF-8"
    except OSError as error:
        why = error.strerror or type(error).__name__
    raise SettingsError("bench_text", file=file, why=why)
