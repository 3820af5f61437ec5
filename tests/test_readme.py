"""The README says what the program says: its table is that of `plan --markdown`."""

from pathlib import Path

from kvchat.arch.from_hf import spec_from_config
from kvchat.models.catalog import catalog
from kvchat.planner.pairs import markdown_table

README = Path(__file__).resolve().parent.parent / "README.md"
NAMES = ("smollm2", "Qwen3-8B", "Llama-3.1-8B-Instruct", "gemma-3-12b-it", "Llama-3-70B")


def table() -> str:
    configs = {name: catalog()[name].config for name in NAMES}
    return markdown_table([(n, spec_from_config(c, name=n)) for n, c in configs.items()])


def test_the_table_is_what_the_program_computes() -> None:
    assert table() in README.read_text(encoding="utf-8")


def test_a_published_row_that_is_often_wrong_by_half() -> None:
    """Llama-3-70B in fp16: 327,680 bytes a token, 1.25 GiB at 4,096, 40 GiB at 131,072."""
    row = next(line for line in table().splitlines() if "70B | fp16" in line)
    assert row == "| Llama-3-70B | fp16 | 327,680 | 1.25 GiB | 9.77 GiB | 40.00 GiB |"


def test_it_begins_with_the_two_commands() -> None:
    lines = [line for line in README.read_text(encoding="utf-8").splitlines() if line]
    assert lines[0] == "# kvchat"
    assert lines[2].startswith("python app.py ")
    assert lines[3].startswith("python app.py test ")


def test_the_files_it_names_exist() -> None:
    text = README.read_text(encoding="utf-8")
    named = [part.split(")")[0] for part in text.split("](")[1:]]
    assert len([name for name in named if name.startswith("kvchat/")]) == 10
    for name in named:
        assert (README.parent / name).exists(), name
