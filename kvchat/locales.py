"""Which language a person at this machine reads, as the operating system says it.

Standard library only, for the first start asks before anything is installed.
"""

import os
import sys
from collections.abc import Mapping, Sequence

from kvchat.wording import Language

# Primary language identifier of Korean (Windows, winnt.h: LANG_KOREAN).
_KOREAN_ON_WINDOWS = 0x12


def machine_language(environ: Mapping[str, str] | None = None) -> Language:
    """Korean where the locale is Korean, else English. POSIX variables win on every system."""
    environ = os.environ if environ is None else environ
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if environ.get(name):
            return "ko" if environ[name].lower().startswith("ko") else "en"
    if sys.platform == "win32":
        import ctypes

        screen_language = ctypes.windll.kernel32.GetUserDefaultUILanguage()
        return "ko" if screen_language & 0x3FF == _KOREAN_ON_WINDOWS else "en"
    return "en"


def asked_language(argv: Sequence[str]) -> Language:
    """What `--lang` asks for, even on a command line that cannot be read otherwise."""
    for number, word in enumerate(argv):
        value = word.partition("=")[2] if word.startswith("--lang=") else ""
        if word == "--lang" and number + 1 < len(argv):
            value = argv[number + 1]
        if value in ("ko", "en"):
            return "ko" if value == "ko" else "en"
    return machine_language()
