"""The settings form: every setting of the schema, in both languages, and back again."""

import re

import pytest

from kvchat.memory.verdicts import STEPS, Verdict
from kvchat.settings import SCHEMA, Settings, changed, checked, presets
from kvchat.settings_schema import FORMAT_PAIRS
from kvchat.ui.forms import form, mistakes, preset_values, written
from kvchat.wording import LANGUAGES, Language, table


def fields(lang: Language) -> dict[str, dict[str, object]]:
    return {f["name"]: f for group in form(Settings(), lang)["groups"] for f in group["fields"]}


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_setting_is_in_the_form_with_label_and_help(lang: Language) -> None:
    found = fields(lang)
    assert set(found) == set(SCHEMA)
    for name, entry in SCHEMA.items():
        assert found[name]["label"] == entry.label[lang]
        if "auto" not in entry.help[lang]:
            assert found[name]["help"] == entry.help[lang]
        assert found[name]["reload"] == (entry.applies == "reload")


def test_every_kind_has_a_control() -> None:
    from importlib import resources

    script = (resources.files("kvchat.ui") / "static" / "fields.js").read_text("utf-8")
    kinds = script.split("const KINDS = {")[1].split("}")[0]
    for kind in {entry.kind for entry in SCHEMA.values()}:
        assert kind in kinds


@pytest.mark.parametrize("name", SCHEMA)
def test_what_the_form_shows_reads_back_as_the_same_value(name: str) -> None:
    value = getattr(Settings(), name)
    assert checked(name, written(SCHEMA[name], value)) == value


@pytest.mark.parametrize(
    "size", [1, 1023, 1024, 64 * 2**20, 6 * 2**30, 6 * 2**30 + 1, 1536 * 2**20]
)
def test_a_size_is_written_exactly(size: int) -> None:
    assert checked("headroom", written(SCHEMA["headroom"], size)) == size


def test_choices_units_groups_and_presets_have_words_or_need_none() -> None:
    literal = {"fp32", "bf16", "fp16", "int8", "int6", "int4", "int2", "fp8", "auto"}
    for name, entry in SCHEMA.items():
        assert f"ui.group.{entry.group}" in table()
        assert entry.unit in ("", "B") or f"ui.unit.{entry.unit}" in table()
        for choice in entry.choices:
            named = choice in literal or "/" in choice
            assert named or f"ui.choice.{name}.{choice}" in table(), (name, choice)
    assert all(f"ui.preset.{name}" in table() for name in presets())


def test_presets_fill_the_form_with_values_that_can_be_applied() -> None:
    for name in presets():
        assert changed(Settings(), preset_values(name)) != Settings() or name == "balanced"


def test_each_mistake_stands_with_its_setting() -> None:
    wrong = {"temperature": 9, "memory_budget": "6 GB", "nosuch": 1, "top_k": 5}
    found = mistakes(wrong, "ko")
    assert set(found) == {"temperature", "memory_budget", "nosuch"}
    assert all(one["message"] and one["remedy"] for one in found.values())


def test_a_mistake_names_the_field_and_the_unit_that_was_left_out() -> None:
    (found,) = mistakes({"memory_budget": "500"}, "en").values()
    label = SCHEMA["memory_budget"].label["en"]
    assert found["message"] == f"500 is out of range for '{label}'."
    assert found["remedy"].endswith("Is 500 MiB meant?")
    (found,) = mistakes({"memory_budget": "500"}, "ko").values()
    assert SCHEMA["memory_budget"].label["ko"] in found["message"]
    assert "500 MiB" in found["remedy"]
    for name, value in (("memory_budget", "6 GB"), ("memory_budget", "-5"), ("top_k", "-500")):
        assert "meant" not in mistakes({name: value}, "en")[name]["remedy"]


def test_help_calls_automatic_what_the_button_calls_so() -> None:
    english, korean = fields("en"), fields("ko")
    assert not any(re.search(r"\bauto\b", one["help"]) for one in english.values())
    assert not any("auto" in one["help"] for one in korean.values())
    assert english["dtype"]["help"].startswith("Automatic: ")
    assert "자동이면 torch가" in korean["threads"]["help"]


def test_formats_say_what_the_model_was_measured_with() -> None:
    about = {"num_scored": 1024, "text": "t", "measured_at_s": 0.0}
    rows = (("int8/int8", 0.00003, 99.6, 0.0), ("int4/int4", 0.3, 60.0, 9.0))
    known = {row[0]: Verdict(*row, **about) for row in rows}

    def notes(settings: Settings) -> dict[str, tuple[str, bool]]:
        found = form(settings, "en", known)["groups"]
        entries = {entry["name"]: entry for group in found for entry in group["fields"]}
        for name in ("floor_format", "disk_format"):
            assert [one["note"] for one in entries[name]["choices"]] == [
                one["note"] for one in entries["seal_format"]["choices"]
            ]
        choices = [one for one in entries["seal_format"]["choices"] if one["value"] in FORMAT_PAIRS]
        return {one["value"]: (one["note"], one["closed"]) for one in choices}

    found = notes(Settings())
    assert found["fp"] == ("Nothing is lost.", False)
    assert "99.6 %" in found["int8"][0]
    assert found["int6"] == (
        "Not measured on this model yet.",
        False,
    )
    assert "60.0 %" in found["int4"][0]
    assert "in INT4 KL" in found["int2"][0]
    assert {name for name, (_, closed) in found.items() if closed} == {"int4", "int2"}
    allowed = notes(changed(Settings(), {"allow_unproven": True}))
    assert not any(closed for _, closed in allowed.values())
    assert "quanto4" not in found


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("stage", ["waiting", "measuring", "done", "given_up"])
def test_what_was_not_measured_says_so_in_the_choice_itself(lang: Language, stage: str) -> None:
    """And whether it will be by itself: what is no better than the least that is tried is not."""

    def choices(known: dict[str, Verdict]) -> dict[str, dict[str, object]]:
        groups = form(Settings(), lang, known, stage)["groups"]
        entries = {entry["name"]: entry for group in groups for entry in group["fields"]}
        found = entries["seal_format"]["choices"]
        return {one["value"]: one for one in found if one["value"] in FORMAT_PAIRS}

    mark = table()["ui.choice.unmeasured"][lang]
    by_itself = f"ui.verdict.{stage if stage in ('waiting', 'measuring') else 'unknown'}"
    for value, one in choices({}).items():
        if value == "fp":
            assert one["label"] == table()["ui.choice.seal_format.fp"][lang]
            continue
        code = "ui.verdict.unknown" if value == "int2" else by_itself
        assert one["label"] == mark.format(label=value.upper())
        assert (one["note"], one["closed"]) == (table()[code][lang], False)
    least = Verdict(str(STEPS[-1]), 0.004, 97.0, 0.0, 512, "t", 0.0)
    found = choices({least.pair: least})
    assert [value for value in found if found[value]["label"] != value.upper()] == ["fp", "int2"]
    assert "97.0" in str(found["int8"]["note"])
    assert "INT4" in str(found["int8"]["note"])
