"""Every sentence of this area exists, in both languages, with the same facts, and is used."""

import re
import string
import tomllib
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
WORDING = tomllib.loads((REPO / "settings/wording/api.toml").read_text(encoding="utf-8"))


def _facts(sentence: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}


def test_codes_raised_are_codes_worded():
    source = "".join(file.read_text() for file in (REPO / "kvchat/api").glob("*.py"))
    raised = set(re.findall(r'"(api_[a-z_0-9]+)"', source))
    assert {f"error.{code}" for code in raised} == {
        code for code in WORDING if not code.endswith((".remedy", ".one"))
    }
    assert {f"error.{code}.remedy" for code in raised} == {
        code for code in WORDING if code.endswith(".remedy")
    }


def test_both_languages_say_the_same_facts():
    for code, sentence in WORDING.items():
        assert sentence.keys() == {"en", "ko"}, code
        assert _facts(sentence["en"]) == _facts(sentence["ko"]), code
        assert re.search("[가-힣]", sentence["ko"]), code
        assert sentence["en"][-1] == sentence["ko"][-1] == ".", code
