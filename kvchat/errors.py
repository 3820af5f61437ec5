"""The errors that a person may see: one sentence, and what to do about it.

KVChatError
├── SettingsError      a flag, a settings file, a preset
├── ModelError         a model that is not there, or cannot be loaded or run
├── OutOfMemory        carries the footprint, the snapshot and the measures tried
├── DocumentError      a file that cannot be read
├── StoreError         the data folder: locked, too new, full
├── RequestError       a request over HTTP or from a script that cannot be served
└── ServeError         the port, the host

Sentences stand in `settings/wording/errors*.toml`: `error.CODE` and `error.CODE.remedy`.
"""

from pathlib import Path
from typing import Any, Self

from kvchat.wording import Language, say


class KVChatError(Exception):
    """May be shown as it is. `code` names the sentence, `facts` fill it in."""

    def __init__(self, code: str, /, **facts: object) -> None:
        super().__init__(code, facts)
        self.code = code
        self.facts = facts

    def message(self, lang: Language = "en") -> str:
        return say(f"error.{self.code}", lang, **self.facts)

    def remedy(self, lang: Language = "en") -> str:
        return say(f"error.{self.code}.remedy", lang, **self.facts)

    def line(self, lang: Language = "en") -> str:
        """The sentence and the remedy in one line, as a terminal shows it."""
        return f"{self.message(lang)} {self.remedy(lang)}"

    def row(self) -> dict[str, Any]:
        """As scripts and screens get it: the code and its facts, for a sentence in any language."""
        simple = {
            key: value if isinstance(value, (int, float)) else str(value)
            for key, value in self.facts.items()
        }
        return {
            "code": self.code,
            "facts": simple,
            "message": self.message(),
            "remedy": self.remedy(),
        }

    def alone(self) -> Self:
        """Itself without the frames it came through, which keep alive whatever stood in them."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)

    def __str__(self) -> str:
        return self.line()


class SettingsError(KVChatError):
    """`file`: the settings file in which the wrong value stands, if it came from one."""

    file: Path | None = None

    def in_file(self, file: Path) -> Self:
        """The same error, whose sentence begins with the file."""
        self.file = file
        return self

    def message(self, lang: Language = "en") -> str:
        said = super().message(lang)
        return (
            said if self.file is None else say("settings.in_file", lang, file=self.file, what=said)
        )


class ModelError(KVChatError):
    pass


class OutOfMemory(KVChatError):
    pass


class DocumentError(KVChatError):
    pass


class StoreError(KVChatError):
    pass


class RequestError(KVChatError):
    pass


class ServeError(KVChatError):
    pass
