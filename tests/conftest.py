"""What every test may ask for. Sets the environment before torch, transformers or gradio load."""

import os
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

from kvchat.device.heap import keep_one_heap

# What takes long on a busy machine has not failed.
hypothesis.settings.register_profile("kvchat", deadline=None)
hypothesis.settings.load_profile("kvchat")

keep_one_heap()  # as the program does before anything else
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

REPO = Path(__file__).resolve().parent.parent


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many faults the tests injected that were survived, by kind (tests/faults.py)."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        told = [value for name, value in report.user_properties if name == "faults"]
        counts.update({kind: survived for kind, survived in told if report.when == "call"})
    if counts:
        terminalreporter.section("faults injected and survived")
        for kind, survived in sorted(counts.items()):
            terminalreporter.line(f"{survived:7,d} {kind}")


@pytest.fixture(scope="session")
def shared_pdfs() -> Path:
    """The folder of third-party PDFs beside the checkout; they are not part of the project."""
    folder = REPO.parent / "shared" / "pdfs"
    if not folder.is_dir():
        pytest.skip("the folder shared/pdfs is not beside this checkout")
    return folder


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder of its own, which kvchat finds through KVCHAT_DATA_DIR."""
    folder = tmp_path / "kvchat-data"
    folder.mkdir()
    monkeypatch.setenv("KVCHAT_DATA_DIR", str(folder))
    return folder
