"""Budgets and headrooms that cannot be: one sentence each, before anything is computed."""

from pathlib import Path

import pytest

from kvchat.cli import main
from kvchat.errors import SettingsError
from kvchat.settings import checked
from kvchat.wording import LANGUAGES
from tests.starts import resolve

ABSURD = ["-1", "-5GiB", "nan", "inf", "1e400", "6GB", "1TB", "half", "1GiB2", "٣GiB", "--"]


@pytest.mark.parametrize("name", ["memory_budget", "headroom", "host_quota", "disk_quota"])
@pytest.mark.parametrize("value", [*ABSURD, -1, 2**70, 1.5, True, [1], {}])
def test_it_is_one_sentence_that_names_the_setting(name: str, value: object) -> None:
    with pytest.raises(SettingsError) as caught:
        checked(name, value)
    for lang in LANGUAGES:
        line = caught.value.line(lang)
        assert f"'{name}'" in line
        assert "\n" not in line


@pytest.mark.parametrize("value", ["0", 0, "1", "1000KiB"])
def test_a_budget_of_nothing_is_refused_and_a_headroom_of_nothing_is_not(value: object) -> None:
    with pytest.raises(SettingsError, match="'memory_budget'"):
        checked("memory_budget", value)
    assert isinstance(checked("headroom", value), int)


@pytest.mark.parametrize("value", ["999999TiB", "1025 GiB", "2T", "9" * 400 + "GiB"])
def test_a_size_out_of_range_is_said_with_the_range(value: str) -> None:
    assert checked("memory_budget", "1TiB") == checked("memory_budget", "1t") == 1024**4
    with pytest.raises(SettingsError) as caught:
        checked("memory_budget", value)
    for lang in LANGUAGES:
        assert "1,024.00 GiB" in caught.value.line(lang)


@pytest.mark.parametrize("flags", [["--memory-budget", "-1"], ["--set", "headroom=-1"]])
def test_nothing_is_begun_with_one(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "not" / "there"
    assert main(["ask", "why?", "--data-dir", str(folder), *flags]) == 1
    said = capsys.readouterr()
    assert len((said.out + said.err).strip().splitlines()) == 1
    assert not folder.exists()


def test_what_can_be_is_taken() -> None:
    settings = resolve(flags={"memory_budget": "6GiB", "headroom": "0", "host_quota": "auto"})
    assert (settings.memory_budget, settings.headroom) == (6 * 1024**3, 0)
    assert settings.host_quota is None
