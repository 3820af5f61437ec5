"""Every code that the screen uses has its words, in both languages; nothing is left without use."""

import re
from importlib import resources
from pathlib import Path
from typing import get_args

import pytest

from kvchat.chat.answer import ENDED, Status
from kvchat.engine.events import FinishReason
from kvchat.engine.foretold import Binding
from kvchat.engine.worker import Stage as WorkerStage
from kvchat.errors import DocumentError
from kvchat.models.progress import Stage as LoadStage
from kvchat.planner.ledger import Undo
from kvchat.planner.measures import Measure
from kvchat.settings import SCHEMA, presets
from kvchat.settings_schema import Applies
from kvchat.settings_sources import Source
from kvchat.store.records import Choice
from kvchat.ui.static_files import ICON, SCRIPTS, STYLES, head
from kvchat.ui.words import problem, sentence, words
from kvchat.wording import LANGUAGES, Language, table

STATIC = Path(str(resources.files("kvchat.ui"))) / "static"
CODE = re.compile(r"[\"'`](ui\.[\w.${}-]+)[\"'`]")
FIELD = re.compile(r"\{(\w+)")


def used() -> set[str]:
    sources = [*STATIC.glob("*.js"), *STATIC.parent.glob("*.py")]
    return {code for one in sources for code in CODE.findall(one.read_text("utf-8"))}


def test_every_code_that_is_used_has_words() -> None:
    for code in used():
        # a code that is put together stands for all codes that fit it
        parts = re.sub(r"\$?\{[^}]*\}", "\0", code).split("\0")
        pattern = re.compile(r"[\w.-]+".join(map(re.escape, parts)))
        assert any(pattern.fullmatch(one) for one in table()), code


COLUMNS = {"turn", "tokens", "bytes", "format", "reused", "reading", "rate"}
# What the codes that are put together end with: everything that the program can say there.
ENDINGS: dict[str, set[str]] = {
    "ui.stage.{}": {*get_args(WorkerStage)},
    "ui.load.{}": {*get_args(LoadStage), "start"},
    "ui.live.{}": {*get_args(Status)} - set(ENDED),
    "ui.end.{}": {*get_args(FinishReason), "interrupted", "unanswered"} - {"stop"},
    "ui.tier.{}": {"host", "disk", "mixed"},
    "ui.tier.short.{}": {"device", "host", "disk", "mixed"},
    "ui.speed.{}": {"prefill", "decode"},
    "ui.speed.{}.bound": {"prefill", "decode"},
    "ui.ledger.tier.{}": {"device", "host", "disk"},
    "ui.sample.{}": {"1", "2", "3"},
    "ui.sample.english.{}": {"1", "2", "3"},
    "ui.chats.{}": {"today", "week", "older"},
    "ui.tab.{}": {"documents", "turns", "ledger", "models", "whatif", "settings"},
    "ui.column.{}": COLUMNS,
    "ui.column.{}.help": COLUMNS,
    "ui.bar.{}": {
        "system", "summary", "library", "hot", "idle", "slack", "weights", "activations", "runtime",
        "other", "free",
        "taken", "residue", "headroom", "outside", "chats",
    },
    "ui.context.{}": {"kept", "disk", "gone"},
    "ui.group.{}": {entry.group for entry in SCHEMA.values()},
    "ui.preset.{}": {*presets()},
    "ui.preset.{}.about": {*presets()},
    "ui.source.{}": {*get_args(Source), "going"},
    "ui.effect.{}": {one.replace(" ", "_") for one in get_args(Applies)},
    "ui.item.{}": {"weights", "kv_device", "workspace", "activations", "total"},
    "ui.outlook.limit.{}": {*get_args(Binding)},
    "ui.formats.{}": {"key", "value"},
    "ui.models.korean.{}": {"yes", "no", "unknown"},
    "ui.whatif.column.{}": {"pair", "token", "kv", "fits", "most"},
    "ui.cost.{}": {"whole", "passages", "off"},
    "ui.room.{}": {"share", "most", "rest"},
    "ui.verdict.{}": {"passed", "passed_by", "failed", "waiting", "measuring", "unknown"},
}  # fmt: skip
PLAIN = {"ui.unit.{}", "ui.choice.{}.{}"}  # fall back to what the settings file would say


def test_every_code_that_is_put_together_has_words_for_all_its_endings() -> None:
    built = {re.sub(r"\$?\{[^}]*\}", "{}", code) for code in used() if "{" in code}
    assert built - PLAIN == set(ENDINGS)
    for code, endings in ENDINGS.items():
        assert {one for one in endings if code.format(one) not in table()} == set(), code


def test_no_code_of_the_ledger_is_without_words() -> None:
    sources = "\n".join(one.read_text("utf-8") for one in STATIC.parent.parent.rglob("*.py"))
    said = set(re.findall(r"\bentry\(\s*\"(\w+)\"", sources))
    said |= {f"read_{mode}" for mode in get_args(Choice)}
    said |= {one.code for one in get_args(Measure)}
    assert "answer_failed" in said
    assert {code for code in said if f"ledger.{code}" not in table()} == set()
    assert {code for code in get_args(Undo) if f"undo.{code}" not in table()} == set()


def test_every_code_of_the_screen_is_used() -> None:
    patterns = [
        re.compile(r"[\w.-]+".join(map(re.escape, re.sub(r"\$?\{[^}]*\}", "\0", one).split("\0"))))
        for one in used()
    ]
    ours = {code.removesuffix(".one") for code in table() if code.startswith("ui.")}
    remedies = {"ui.offline.remedy", "ui.upload_failed.remedy"}
    unused = {one for one in ours - remedies if not any(p.fullmatch(one) for p in patterns)}
    assert unused == set()


def test_both_languages_say_the_same_things() -> None:
    for code, entry in table().items():
        if code.startswith(("ui.", "error.ui_")):
            assert set(entry) == set(LANGUAGES), code
            assert set(FIELD.findall(entry["en"])) == set(FIELD.findall(entry["ko"])), code
            assert entry["en"].strip(), code


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_head_carries_the_words_and_cannot_be_ended_by_them(lang: Language) -> None:
    markup = head(lang)
    assert markup.count("<script>") == markup.count("</script>") == 1
    assert markup.count("</style>") == 1
    assert words(lang)["ui.send"] in markup


def test_all_static_files_are_served() -> None:
    assert {one.name for one in STATIC.iterdir()} == {*SCRIPTS, *STYLES, ICON}


def test_nothing_is_fetched_from_elsewhere() -> None:
    for one in STATIC.iterdir():
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", one.read_text("utf-8")))
        assert addresses <= {"http://www.w3.org"}, one.name  # the name of SVG, not an address


def test_problems_are_said_in_the_language_of_the_page() -> None:
    error = DocumentError("ui_upload")
    row = {"code": "ui_upload", "message": "english", "remedy": "english"}
    for lang in LANGUAGES:
        assert problem(error, lang) == problem(row, lang)
    assert problem(None, "ko") is None
    lacking = {"code": "document_scan", "message": "as it came", "remedy": "do"}
    assert problem(lacking, "ko") == {"message": "as it came", "remedy": "do"}


def test_a_note_is_a_code_with_or_without_facts() -> None:
    assert sentence("notice.plain_template", "ko") == table()["notice.plain_template"]["ko"]
    note = {"code": "document.pages_unreadable", "facts": {"pages": "2, 3"}}
    assert "2, 3" in sentence(note, "en")
    assert sentence("no.such_code", "en") == ""
