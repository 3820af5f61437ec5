"""Which of several values of a setting holds, where it comes from, and what a file keeps of it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.errors import SettingsError
from kvchat.settings import SCHEMA, Settings, changed, parse_file, to_toml
from kvchat.settings_sources import Saved, Sources

MODEL = '/models/a "quoted" 모델'


def start(tmp_path: Path, text: str, preset: str | None = None, **flags: object) -> Sources:
    file = tmp_path / "settings.toml"
    file.write_text(text, encoding="utf-8")
    return Sources.of_start(preset, file, flags)


LAYERED = """
prefill_chunk = 200
top_k = 3
[models."smollm2"]
top_k = 4
min_p = 0.2
[models."other"]
top_k = 9
"""


def test_each_layer_holds_over_those_below_it(tmp_path: Path) -> None:
    found = start(tmp_path, LAYERED, "low_vram", min_p="0.5")
    settings = found.settings()
    assert (settings.prefill_chunk, settings.top_k, settings.min_p) == (200, 4, 0.5)
    assert settings.max_new_tokens == 512
    names = ("temperature", "max_new_tokens", "prefill_chunk", "top_k", "min_p")
    assert [found.source(name, "smollm2") for name in names] == [
        "schema", "preset", "file", "model", "flag",
    ]  # fmt: skip
    assert found.source("top_k", "third") == "file"


def test_a_flag_that_names_the_model_brings_what_is_that_models_own(tmp_path: Path) -> None:
    assert start(tmp_path, LAYERED, model="other").settings().top_k == 9
    assert start(tmp_path, LAYERED, model="third").settings().top_k == 3


def test_a_change_for_all_models_holds_for_the_one_that_had_its_own(tmp_path: Path) -> None:
    found = start(tmp_path, LAYERED).changed({"top_k": 7})
    assert found.settings().top_k == 7
    assert found.source("top_k", "smollm2") == "file"
    assert found.changed({"model": "other"}).settings().top_k == 9


def test_a_change_for_one_model_holds_for_no_other(tmp_path: Path) -> None:
    found = start(tmp_path, LAYERED, top_p=0.5).changed({"top_p": 0.8}, only_model=True)
    assert found.settings().top_p == 0.8, "the flag was changed on the screen"
    assert found.changed({"model": "third"}).settings().top_p == 0.95
    kept = found.changed({"model": "third", "model_folders": ["/x"]}, only_model=True)
    assert kept.saved.general["model_folders"] == ["/x"], "what names models is nobody's own"


def test_a_reset_goes_back_to_the_preset_of_the_start(tmp_path: Path) -> None:
    found = start(tmp_path, LAYERED, "low_vram", min_p=0.5)
    back = found.changed({}, ["top_k", "prefill_chunk", "min_p"])
    assert (back.settings().top_k, back.settings().min_p) == (0, 0.0)
    assert back.settings().prefill_chunk == 128 == found.below("smollm2").prefill_chunk
    assert back.source("prefill_chunk", "smollm2") == "preset"
    assert back.saved.models == {"smollm2": {}, "other": {"top_k": 9}} or "smollm2" not in (
        back.saved.models
    )


def test_a_wrong_change_changes_nothing(tmp_path: Path) -> None:
    found = start(tmp_path, LAYERED)
    with pytest.raises(SettingsError):
        found.changed({"top_k": -1})
    assert found.settings().top_k == 4


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=20),
        st.fixed_dictionaries({}, optional={
            "system_text": st.text(max_size=30), "top_k": st.integers(0, 1000),
            "ladder": st.just(["evict", "drop_idle"]), "seed": st.just("auto"),
            "keep_originals": st.booleans(), "model_folders": st.just([]),
        }).map(lambda one: {k: v for k, v in one.items() if k != "model_folders"}),
        max_size=3,
    ),
)  # fmt: skip
def test_what_is_written_down_is_read_back(models: dict[str, dict[str, object]]) -> None:
    general = {"model": MODEL, "system_text": 'a "b"\\\n\x7f\t한국어', "memory_budget": "6 GiB"}
    saved = Saved(general, models)
    found = Saved(*parse_file(saved.to_toml(), "x.toml"))
    assert found.general == general
    assert found.models == models


@pytest.mark.parametrize(
    "text",
    [
        "models = 3", "[models]\nx = 3", '[models."a"]\nmodel = "b"', '[models."a"]\ntop_k = -1',
        "top_k = ", "= = =", "[" * 5000, '[models.""]\ntop_k = 1', "top_k = 1\ntop_k = 2",
        "nosuch = 1", '[models."a"]\nnosuch = 1', "top_k = 1979-05-27", "\x00",
        f"top_k = {'1' * 5000}",
    ],
)  # fmt: skip
def test_a_bad_file_is_told_in_one_sentence_with_its_name(text: str) -> None:
    with pytest.raises(SettingsError) as error:
        parse_file(text, "mine.toml")
    for lang in ("en", "ko"):
        assert "mine.toml" in error.value.message(lang)
        assert "\n" not in error.value.message(lang)
        assert error.value.remedy(lang)


def test_settings_from_nowhere_count_as_flags_where_the_file_does_not_say_so(
    tmp_path: Path,
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("top_k = 5\nprefill_chunk = 256\n")
    settings = changed(Settings(), {"top_k": 5, "min_p": 0.3})
    found = Sources.as_resolved(settings, file)
    assert found.settings() == settings
    assert set(found.flags) == {"min_p", "prefill_chunk"}


def test_the_exported_file_starts_the_program_with_the_same_settings(tmp_path: Path) -> None:
    settings = changed(Settings(), {"model_folders": ["/a", "/b c"], "seal_format": "int8/int8"})
    file = tmp_path / "out.toml"
    file.write_text(to_toml(settings))
    assert Sources.of_start(None, file, {}).settings() == settings
    assert settings.seal_format == "int8", "one name where keys and values are alike"


@pytest.mark.parametrize(("value", "kept"), [("int6/int4", "int6/int4"), ("fp/int8", "fp/int8"),
    ("int4 / int4", "int4"), ("quanto4", "quanto4")])  # fmt: skip
def test_keys_and_values_may_be_in_any_two_formats(value: str, kept: str) -> None:
    assert changed(Settings(), {"seal_format": value}).seal_format == kept


@pytest.mark.parametrize("value", ["", "int3", "int8/", "a/b/c", 8, None, ["int8"]])
def test_what_is_no_pair_of_formats_is_refused(value: object) -> None:
    with pytest.raises(SettingsError):
        changed(Settings(), {"floor_format": value})


def test_texts_come_from_lines_and_lists_and_are_there_once() -> None:
    for value in ("/a\n /b \n\n/a", ["/a", " /b", "", "/a"], "/a;/b"):
        assert changed(Settings(), {"model_folders": value}).model_folders == ("/a", "/b")
    for wrong in (3, [1], {"a": 1}):
        with pytest.raises(SettingsError):
            changed(Settings(), {"model_folders": wrong})


def test_half_a_character_becomes_one_that_a_file_can_hold() -> None:
    found = changed(Settings(), {"system_text": "a\ud800", "model_folders": ["\udfff"]})
    assert (found.system_text, found.model_folders) == ("a\ufffd", ("\ufffd",))
    assert to_toml(found).encode()


def test_every_setting_says_when_it_takes_effect() -> None:
    times = {entry.applies for entry in SCHEMA.values()}
    assert times == {"now", "next answer", "new chat", "reload"}
