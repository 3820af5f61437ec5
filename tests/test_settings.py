"""Settings from flags and files: what a wrong value is told as, and where it stands."""

from pathlib import Path
from typing import get_args

import pytest

from kvchat.errors import SettingsError
from kvchat.settings import SCHEMA, changed, presets, read_preset, to_toml
from kvchat.settings_schema import Kind
from kvchat.wording import LANGUAGES, settings_folder, table
from tests.starts import resolve

WRONG = {
    "top_k": ("'many'", "'many' is not a whole number, which 'top_k' takes. "),
    "temperature": ("'warm'", "'warm' is not a number, which 'temperature' takes. "),
    "memory_budget": ("'6GB'", "'6GB' is not a memory size, which 'memory_budget' takes. "),
    "headroom": ("true", "'True' is not a memory size, which 'headroom' takes. "),
    "model": ("5", "'5' is not a text, which 'model' takes. "),
    "list_api_chats": ("1", "'1' is neither true nor false, which 'list_api_chats' takes. "),
    "ladder": ("7", "'7' is not a list of names, which 'ladder' takes. "),
    "layer_formats": ("'0=int3'", "'0=int3' is not a list of layers and their KV formats. "),
    "dtype": ("'fp4'", "'fp4' is not a choice for 'dtype'. "),
    "seed": ("-1", "-1 is out of range for 'seed'. "),
    "unheard_of": ("1", "There is no setting named 'unheard_of'. "),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_in_a_file_names_the_file(tmp_path: Path, name: str) -> None:
    value, sentence = WRONG[name]
    file = tmp_path / "mine.toml"
    file.write_text(f"{name} = {value}\n")
    with pytest.raises(SettingsError) as error:
        resolve(file=file)
    assert str(error.value).startswith(f"In {file}: {sentence}")
    assert error.value.message("ko").startswith(f"{file}에서: ")
    assert "kind" not in str(error.value)


def test_a_wrong_preset_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "mine.toml").write_text("top_k = -1\n")
    monkeypatch.setattr("kvchat.settings.settings_folder", lambda: tmp_path)
    with pytest.raises(SettingsError, match=r"^In .*mine\.toml: -1 is out of range"):
        resolve("mine")


def test_a_flag_names_no_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("top_k = 40\n")
    with pytest.raises(SettingsError, match=r"^-1 is out of range for 'top_k'"):
        resolve(file=tmp_path / "mine.toml", flags={"top_k": -1})


def test_every_kind_has_its_own_sentence() -> None:
    for kind in set(get_args(Kind)) - {"choice"}:
        for code in (f"error.setting_not_{kind}", f"error.setting_not_{kind}.remedy"):
            assert set(table()[code]) == set(LANGUAGES)


def test_sizes_are_limited_in_sizes() -> None:
    with pytest.raises(SettingsError, match=r"from 1\.0 MiB to 1,024\.00 GiB"):
        resolve(flags={"memory_budget": "1000"})


def test_the_shipped_presets_load_and_what_is_written_is_read_back(tmp_path: Path) -> None:
    assert presets() == tuple(sorted(p.stem for p in (settings_folder() / "presets").iterdir()))
    for name in presets():
        settings = resolve(name)
        assert {key: getattr(settings, key) for key in read_preset(name)} == read_preset(name)
        file = tmp_path / f"{name}.toml"
        file.write_text(
            to_toml(changed(settings, {"system_text": 'say "hi"\n\\', "seed": 2**63 - 1}))
        )
        assert resolve(file=file).system_text == 'say "hi"\n\\'
        assert resolve(file=file).seed == 2**63 - 1


def test_every_setting_says_what_it_is_in_both_languages() -> None:
    for name, entry in SCHEMA.items():
        assert set(entry.label) == set(entry.help) == set(LANGUAGES), name
        assert all(entry.label.values()), name
        assert all(entry.help.values()), name


@pytest.mark.parametrize("value", [[], "", " , "])
def test_a_list_with_nothing_in_it_is_refused(value: object) -> None:
    with pytest.raises(SettingsError, match="'ladder' has nothing in it"):
        changed(resolve(), {"ladder": value})
