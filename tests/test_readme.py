"""The README says what the program says: its table is that of `plan --markdown`."""

import re
from pathlib import Path

import pytest

from kvchat.arch.from_hf import spec_from_config
from kvchat.models.catalog import catalog
from kvchat.planner.pairs import markdown_table

README = Path(__file__).resolve().parent.parent / "README.md"
KOREAN = README.with_name("README.ko.md")
BOTH = pytest.mark.parametrize("readme", [README, KOREAN], ids=lambda one: one.name)
NAMES = ("smollm2", "Qwen3-8B", "Llama-3.1-8B-Instruct", "gemma-3-12b-it", "Llama-3-70B")


def table() -> str:
    configs = {name: catalog()[name].config for name in NAMES}
    return markdown_table([(n, spec_from_config(c, name=n)) for n, c in configs.items()])


@BOTH
def test_the_table_is_what_the_program_computes(readme: Path) -> None:
    assert table() in readme.read_text(encoding="utf-8")


def test_a_published_row_that_is_often_wrong_by_half() -> None:
    """Llama-3-70B in fp16: 327,680 bytes a token, 1.25 GiB at 4,096, 40 GiB at 131,072."""
    row = next(line for line in table().splitlines() if "70B | fp16" in line)
    assert row == "| Llama-3-70B | fp16 | 327,680 | 1.25 GiB | 9.77 GiB | 40.00 GiB |"


@BOTH
def test_it_begins_with_the_two_commands(readme: Path) -> None:
    lines = [line for line in readme.read_text(encoding="utf-8").splitlines() if line]
    assert lines[0] == "# kvchat"
    assert lines[2].startswith("python app.py ")
    assert lines[3].startswith("python app.py test ")


def test_both_languages_name_the_same_commands_flags_and_settings() -> None:
    """Each in backticks or in the table of commands; the tour of the code is told once."""
    english, korean = (one.read_text(encoding="utf-8") for one in (README, KOREAN))
    english = english.partition("## Follow one turn")[0]
    named = re.compile(r"(?<![\w-])(?:--[a-z][\w-]+|[a-z]+_[a-z_]+|/v1[\w/]*|int\d(?:/int\d)?)")
    assert set(named.findall(korean)) == set(named.findall(english))
    rows = [
        [row for row in one.splitlines() if row.startswith("| int")] for one in (english, korean)
    ]
    assert len(rows[0]) == len(rows[1]) > 5
    assert [row.split("|")[2:] for row in rows[0]] == [row.split("|")[2:] for row in rows[1]]


def test_the_files_it_names_exist() -> None:
    text = README.read_text(encoding="utf-8")
    named = [part.split(")")[0] for part in text.split("](")[1:]]
    assert len([name for name in named if name.startswith("kvchat/")]) == 11
    for name in named:
        assert (README.parent / name).exists(), name
