"""`pip install .`: the wheel holds the settings, and its script starts."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.packaging.checkout import REPO

pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("kvchat", "settings"):
        shutil.copytree(REPO / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(REPO / name, folder)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder / "out", folder]
    subprocess.run(command, check=True, capture_output=True)
    return next((folder / "out").glob("kvchat-*.whl"))


def test_the_wheel_holds_what_the_checkout_holds(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    for file in [*(REPO / "settings").rglob("*.toml"), *(REPO / "kvchat").rglob("*.*")]:
        if "__pycache__" not in file.parts and file.is_file():
            name = file.relative_to(REPO).as_posix()
            assert name.replace("settings/", "kvchat/settings/", name[:9] == "settings/") in names
    assert not [name for name in names if name.startswith(("tests/", "packaging/", "app.py"))]


def test_its_script_starts(wheel: Path, tmp_path: Path) -> None:
    """Beside the libraries of this environment, yet with nothing of the checkout in reach."""
    install = ["install", "--no-deps", "--no-index", "--target", tmp_path / "there", wheel]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, capture_output=True)
    ran = subprocess.run(
        [sys.executable, tmp_path / "there" / "bin" / "kvchat", "--lang", "ko", "--preset", "none"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "there"), "KVCHAT_DATA_DIR": str(tmp_path / "data")},
    )
    assert ran.returncode == 1
    assert "balanced" in ran.stderr  # the presets of the wheel, in a sentence of the wheel
    assert ran.stderr.count("\n") == 1
