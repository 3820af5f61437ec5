"""app.py itself: what an old Python sees, and the way into the environment."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.checkout import REPO

SOURCE = (REPO / "app.py").read_text(encoding="utf-8")


def test_an_old_python_can_read_it() -> None:
    tree = ast.parse(SOURCE, feature_version=(3, 4))
    too_new = (ast.JoinedStr, ast.NamedExpr, ast.Match, ast.AnnAssign, ast.AsyncFunctionDef)
    assert not [node for node in ast.walk(tree) if isinstance(node, too_new)]


def test_an_old_python_gets_one_sentence(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.version_info = (3, 9, 2, 'final', 0); sys.argv = [{str(REPO)!r}]\n"
        f"import runpy; runpy.run_path({str(REPO / 'app.py')!r}, run_name='__main__')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert re.fullmatch(
        r"kvchat needs Python 3\.11 or newer, and this is Python 3\.9\. .*\n", ran.stderr
    )


@pytest.mark.parametrize(("argv", "code"), [(["--version"], 0), (["nonsense"], 1)])
def test_it_goes_on_in_an_environment_that_is_vouched_for(
    tmp_path: Path, argv: list[str], code: int
) -> None:
    """From any folder, with the exit code of the command."""
    ran = subprocess.run(
        [sys.executable, str(REPO / "app.py"), *argv],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "KVCHAT_NO_BOOTSTRAP": "1"},
    )
    assert ran.returncode == code
    assert list(tmp_path.iterdir()) == []


def test_the_folder_packaging_hides_no_library() -> None:
    assert not (REPO / "packaging" / "__init__.py").exists()
    code = "import packaging.version; print(packaging.__file__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO)
    assert "site-packages" in ran.stdout


@pytest.mark.parametrize("launcher", ["kvchat.sh", "kvchat.command", "kvchat.desktop"])
def test_launchers_can_be_started(launcher: str) -> None:
    assert os.access(REPO / "packaging" / "launchers" / launcher, os.X_OK)


def test_launcher_finds_python_and_passes_words(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "$@"\n')
    python.chmod(0o755)
    ran = _launch(tmp_path, "plan", "--context", "8")
    assert ran.stdout.split()[1:] == ["plan", "--context", "8"]
    assert Path(ran.stdout.split()[0]).resolve() == REPO / "app.py"


@pytest.mark.parametrize(("lang", "words"), [("ko_KR.UTF-8", "파이썬 3.11"), ("C", "Python 3.11")])
def test_launcher_without_python_says_where_to_get_it(
    tmp_path: Path, lang: str, words: str
) -> None:
    ran = _launch(tmp_path, lang=lang)
    assert ran.returncode == 1
    assert words in ran.stdout
    assert "python.org" in ran.stdout


def _launch(bin_folder: Path, *words: str, lang: str = "C") -> "subprocess.CompletedProcess[str]":
    """The launcher with a PATH on which only `bin_folder` may have a Python."""
    for tool in ("dirname", "readlink"):
        found = next(p for p in ("/usr/bin", "/bin") if (Path(p) / tool).exists())
        (bin_folder / tool).symlink_to(Path(found) / tool)
    return subprocess.run(
        ["/bin/sh", str(REPO / "packaging/launchers/kvchat.sh"), *words],
        capture_output=True,
        text=True,
        env={"PATH": str(bin_folder), "LC_ALL": lang},
    )
