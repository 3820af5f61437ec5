"""Every code that the program names has its sentences, in both languages, with the same facts."""

import re
import string
from pathlib import Path

import pytest

from kvchat import errors
from kvchat.errors import RequestError, ServeError
from kvchat.planner.measures import DropIdle, ShrinkChunk, ShrinkReply, TruncateTurns
from kvchat.units import GIB, format_size
from kvchat.wording import LANGUAGES, say, table, with_particle

REPO = Path(__file__).resolve().parent.parent
SOURCES = {path: path.read_text(encoding="utf-8") for path in (REPO / "kvchat").rglob("*.py")}
NAMES = "|".join(name for name, one in vars(errors).items() if isinstance(one, type))
RAISED = re.compile(rf"\b(?:{NAMES})\(\s*\"([a-z][a-z0-9_]+)\"")
SAID = re.compile(r"\b(?:say|_say|K\.say)\(\s*\"([a-z]+\.[a-z0-9_.]+)\"")


def codes(pattern: re.Pattern[str]) -> list[str]:
    return sorted({code for text in SOURCES.values() for code in pattern.findall(text)})


def facts(sentence: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}


@pytest.mark.parametrize("code", codes(RAISED))
def test_every_error_has_a_sentence_and_a_remedy(code: str) -> None:
    for name in (f"error.{code}", f"error.{code}.remedy"):
        assert set(table()[name]) == set(LANGUAGES)


def test_what_is_told_on_the_screen_instead_names_no_flag() -> None:
    codes = [code for code in table() if code.endswith(".remedy.screen")]
    assert {code.removesuffix(".screen") for code in codes} <= table().keys()
    flags = re.compile(r"--[a-z]|python app.py|=true")
    assert [c for c in codes if any(map(flags.search, table()[c].values()))] == []


def test_every_sentence_that_is_said_is_there() -> None:
    assert len(codes(SAID)) > 10
    assert [code for code in codes(SAID) if code not in table()] == []


def test_every_measure_and_its_reason_have_a_sentence() -> None:
    taken = {one.code for one in (DropIdle, ShrinkChunk, ShrinkReply, TruncateTurns)}
    for code in taken | {"retry", "restore_turns", "read_whole", "read_passages", "fewer_passages"}:
        assert f"ledger.{code}" in table()
    reasons = "no_room out_of_memory prompt_too_long fits too_large setting left_out"
    for reason in reasons.split():
        assert f"reason.{reason}" in table()


def test_both_languages_tell_the_same_facts() -> None:
    differing = {
        code: sentences
        for code, sentences in table().items()
        if len({frozenset(facts(sentence)) for sentence in sentences.values()}) > 1
    }
    assert differing == {}


def test_counts_have_separators_and_ports_have_none() -> None:
    facts = {"tokens": 50020, "capacity": 8192, "needed": "1", "allowed": "2"}
    said = RequestError("prompt_over_length", **facts).message()
    assert "50,020 tokens" in said
    assert "8,192" in said
    assert format_size(13733 * GIB) == "13,733.00 GiB"
    assert ServeError("port_range", port=99999).message() == "99999 is not a port."
    ports = [code for code, one in table().items() if re.search(r"\{(port|asked)\}", one["en"])]
    assert ports == []


@pytest.mark.parametrize(
    ("text", "subject", "topic", "object_", "towards"),
    [
        ("문서", "가", "는", "를", "로"),
        ("설정", "이", "은", "을", "으로"),
        ("파일", "이", "은", "을", "로"),
        ("590 MiB", "가", "는", "를", "로"),  # mebibyte
        ("1.50 GiB", "가", "는", "를", "로"),
        ("512 B", "가", "는", "를", "로"),
        ("93%", "가", "는", "를", "로"),
        ("fp/fp", "가", "는", "를", "로"),
        ("int8", "이", "은", "을", "로"),  # pal
        ("fp16", "이", "은", "을", "으로"),
        ("int4", "가", "는", "를", "로"),
        ("8,192", "가", "는", "를", "로"),
        ("1,000", "이", "은", "을", "으로"),  # cheon
        ("50", "이", "은", "을", "으로"),
        ("2,000,000,000,000", "가", "는", "를", "로"),  # jo
        ("0", "이", "은", "을", "으로"),
        ("0.7", "이", "은", "을", "로"),
        ("'top_k'", "가", "는", "를", "로"),
        ("model", "이", "은", "을", "로"),
        ("/data/kvchat/", "가", "는", "를", "로"),
        ("config.json", "이", "은", "을", "으로"),
        ("보고서 (최종)", "이", "은", "을", "으로"),
        ("漢", "이(가)", "은(는)", "을(를)", "(으)로"),
        ("", "이(가)", "은(는)", "을(를)", "(으)로"),
    ],
)
def test_particles_fit_the_last_sound(
    text: str, subject: str, topic: str, object_: str, towards: str
) -> None:
    both = ("이(가)", "은(는)", "을(를)", "(으)로")
    assert [with_particle(text, one) for one in both] == [subject, topic, object_, towards]


def test_sentences_choose_their_particles_and_leave_facts_alone() -> None:
    facts = {"tokens": 50020, "needed": "590 MiB", "allowed": "64 MiB", "capacity": 1024}
    assert "590 MiB가 필요한데" in say("error.prompt_over_memory", "ko", **facts)
    assert "int8로 둘 때" in say("plan.text", "ko", tokens=1, chunk=2, format="int8")
    assert say("error.document_empty", "ko", name="을(를){}.pdf").startswith("'을(를){}.pdf'는 ")
    assert "'cat'라는 설정은" in say("error.setting_unknown", "ko", name="cat", known="")
    assert "99999는 " in say("error.port_range", "ko", port=99999)


def test_every_particle_after_a_fact_is_one_to_be_chosen() -> None:
    single = re.compile(
        r"\{[^}]*\}['’”]?(?:은|는|이|가|을|를|과|와|으로|로|이라는|라는|이며|며)(?![가-힣(])"
    )
    both = re.compile(r"은\(는\)|이\(가\)|을\(를\)|와\(과\)|\(으\)로|\(이\)")
    korean = {code: one["ko"] for code, one in table().items()}
    assert {code for code, sentence in korean.items() if single.search(sentence)} == set()
    drawn = ("ui.", "ledger.", "reason.", "undo.", "notice.", "document.")  # filled in by scripts
    assert {c for c, one in korean.items() if c.startswith(drawn) and both.search(one)} == set()


_MANY = "tokens|pages|turns|blocks|files|passages|entries|chats|changes|threads|answers"
_COUNTS = re.compile(rf"\{{(\w+)\}} (?:\w+ ){{0,2}}?(?:{_MANY})\b(?!/s)")
_NEVER_ONE = re.compile(
    r"bench\.|plan\.|error\.(?!document|api)|fits\.|ask\.figures"  # sizes and capacities
    r"|ledger\.(?:requantize|offload|evict_from|restore|spill|sum_up)|doctor\.packages\.tested"
    r"|ui\.(?:room|whatif|outlook|timeline|card\.(?:long|fewer_bits))"
    r"|ui\.(?:turns\.newest|pages\.all|context\.used|context\.over|context\.evicted)|ui\.(?:ahead|live\.prefill|recognising|too_long)|document\.divided"
    r"|error\.document_too|error\.api_too"
)


def test_a_sentence_with_a_count_has_a_form_for_one() -> None:
    counting = {code for code, one in table().items() if _COUNTS.search(one["en"])}
    counting = {code.removesuffix(".one") for code in counting if not _NEVER_ONE.match(code)}
    assert len(counting) > 25
    assert {code for code in counting if f"{code}.one" not in table()} == set()
    assert say("ledger.drop_idle", blocks=1) == "Dropped 1 idle block of earlier texts"
    assert say("ledger.drop_idle", blocks=2) == "Dropped 2 idle blocks of earlier texts"
