"""What an examination gives: facts for whoever tells them, and problems with what to do about
each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvchat.errors import KVChatError
from kvchat.wording import Language, say


@dataclass(frozen=True, slots=True)
class Problem:
    """`doctor.problem.CODE` is its sentence, or that of the error itself. `fatal`: kvchat cannot
    start.
    """

    code: str
    facts: Mapping[str, object]
    fatal: bool
    error: KVChatError | None = None

    @classmethod
    def of(cls, error: KVChatError, fatal: bool = True) -> "Problem":
        return cls(error.code, error.facts, fatal, error)

    def message(self, lang: Language) -> str:
        if self.error is not None:
            return self.error.message(lang)
        return say(f"doctor.problem.{self.code}", lang, **self.facts)

    def remedy(self, lang: Language) -> str:
        if self.error is not None:
            return self.error.remedy(lang)
        return say(f"doctor.problem.{self.code}.remedy", lang, **self.facts)


@dataclass(slots=True)
class Finding:
    """One part of an examination: values as JSON has them, and what is wrong with them."""

    facts: dict[str, Any]
    problems: list[Problem] = field(default_factory=list)
