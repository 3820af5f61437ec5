"""Seams that import-linter cannot see, since they lie inside a library: one place each."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
SEAMS = {
    "torch.cuda": "kvchat/device/",
    "transformers.AttentionInterface": "kvchat/attention/hf_seam.py",
    "transformers.AttentionMaskInterface": "kvchat/attention/hf_seam.py",
    "transformers.cache_utils": "kvchat/attention/hf_seam.py",
    "transformers.PreTrainedModel": "kvchat/models/",
}


def names_used(tree: ast.AST) -> Iterator[str]:
    """Dotted names as they are written, and what is imported by its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def places(seam: str) -> set[str]:
    return {
        file.relative_to(REPO).as_posix()
        for file in (REPO / "kvchat").rglob("*.py")
        for name in names_used(ast.parse(file.read_text(encoding="utf-8")))
        if name == seam or name.startswith(f"{seam}.")
    }


@pytest.mark.parametrize("seam", SEAMS)
def test_used_in_one_place(seam: str) -> None:
    found = places(seam)
    assert found, f"{seam} is used nowhere: take it out of this list"
    assert not [place for place in found if not place.startswith(SEAMS[seam])]


def test_names_are_found_however_they_are_written() -> None:
    code = "import torch.cuda\nfrom torch import cuda\ntorch.cuda.mem_get_info()"
    assert [name for name in names_used(ast.parse(code)) if name.startswith("torch.cuda")] == [
        "torch.cuda",
        "torch.cuda",
        "torch.cuda.mem_get_info",
        "torch.cuda",
    ]
