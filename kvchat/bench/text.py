"""The text that fidelity is measured on: one's own, or the sentences that kvchat itself ships.

Knows no model but its tokenizer.
"""

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from kvchat.documents.reader import read
from kvchat.errors import SettingsError
from kvchat.models.catalog import catalog
from kvchat.wording import Language, table


@dataclass(frozen=True, slots=True)
class Sample:
    """`name`: what the verdict says it was measured on; `lang`: that of questions about it."""

    name: str
    text: str
    lang: Language

    def ids(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        return encode(tokenizer, self.text, begins=True)


def encode(tokenizer: PreTrainedTokenizerBase, text: str, *, begins: bool = False) -> list[int]:
    """`begins`: with what the tokenizer puts before a text."""
    found: list[int] = tokenizer.encode(text, add_special_tokens=begins, verbose=False)
    return found


def sample(file: Path | None, model: str, lang: Language) -> Sample:
    """Raises SettingsError or DocumentError for a file that cannot be read."""
    if file is None:
        entry = catalog().get(model)
        lang = lang if entry is None or lang in entry.languages else "en"
        return Sample(f"wording.{lang}", "\n".join(one[lang] for one in table().values()), lang)
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
