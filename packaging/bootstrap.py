"""Makes the environment that kvchat runs in, and keeps it as packaging/requirements/ says.

Loaded by path from app.py before anything is installed: standard library only, and nothing that a
second start would have to wait for. Of kvchat it knows only the wording of the ground floor.

`.venv/setup/steps.json` says what was done: each step with a digest of what it was made from, and
the step that is running. A step whose digest is current is not repeated; a step that is found
running was killed in the middle, and the environment is made anew. pip inherits the lock beside
that file, so a pip that outlives a killed start still keeps the next one waiting.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pip_lines
    import torch_build
else:

    def _beside(name: str) -> Any:
        """By path, as app.py loads this file: packaging/ is no package, or it would hide the
        library.
        """
        spec = util.spec_from_file_location(
            f"kvchat_{name}", Path(__file__).with_name(f"{name}.py")
        )
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    pip_lines = _beside("pip_lines")
    torch_build = _beside("torch_build")

# Disk that a first start takes, from the sizes of torch 2.13's wheels and what they unpack to.
_NEEDED_GIB = {"cpu": 3, "apple": 3, "cuda": 10, "rocm": 18}

# What pip's log says when a step failed, most telling first.
_CAUSES = (
    ("no_space", ("No space left on device", "[Errno 28]", "WinError 112")),
    (
        "no_network",
        (
            "NewConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "NameResolutionError",
            "name resolution", "getaddrinfo failed", "ProxyError", "ProtocolError", "SSLError",
            "Network is unreachable", "RemoteDisconnected",
        ),
    ),
    ("no_right", ("[Errno 13]", "Permission denied", "Read-only file system")),
    ("no_match", ("No matching distribution found", "Could not find a version")),
)  # fmt: skip


class SetupFailed(Exception):
    """A step that failed: `setup.CODE` and `setup.CODE.remedy` of settings/wording/setup.toml."""

    def __init__(self, code: str, /, **facts: object) -> None:
        super().__init__(code)
        self.code = code
        self.facts = facts


class Place:
    """Where the environment of one checkout lies."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.requirements = root / "packaging" / "requirements"
        self.folder = root / ".venv"
        self.python = self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.notes = self.folder / "setup"
        self.steps = self.notes / "steps.json"
        self.log = self.notes / "pip.log"

    def interpreter(self) -> str:
        """The Python that the environment stands on; empty if it is gone."""
        return os.path.realpath(self.python) if self.python.exists() else ""


Tell = Callable[..., None]


def enter(root: str, argv: Sequence[str]) -> int | None:
    """None inside the ready environment; else prepares it and runs app.py there to its end."""
    place = Place(Path(root))
    tests = argv[:1] == ["test"]
    try:
        record = read_record(place)
        build = _build(record)
        inside = os.path.realpath(sys.prefix) == os.path.realpath(place.folder)
        if pending(place, record, build, tests):
            _prepare_and_tell(place, build, tests, argv)
        elif inside:
            return None
        return _hand_over(place, argv)
    except KeyboardInterrupt:
        _teller(argv)("interrupted")
        return 130
    except SetupFailed as failure:
        tell = _teller(argv)
        tell(failure.code, **failure.facts)
        tell(f"{failure.code}.remedy", **failure.facts)
        return 1


def _build(record: dict[str, Any]) -> str:
    forced = os.environ.get("KVCHAT_TORCH")
    build = torch_build.build_for(record["build"], torch_build.hardware(), forced)
    if build is None:
        raise SetupFailed("torch_unknown", name=forced, known=torch_build.forced_names())
    return build


def read_record(place: Place) -> dict[str, Any]:
    """What was done so far. A record that cannot be read counts as a step killed in the middle."""
    try:
        record: dict[str, Any] = json.loads(place.steps.read_text(encoding="utf-8"))
        return {
            "done": dict(record["done"]),
            "build": record["build"],
            "running": record["running"],
        }
    except FileNotFoundError:
        return {"done": {}, "build": None, "running": None}
    except (OSError, ValueError, KeyError, TypeError):
        return {"done": {}, "build": None, "running": "venv"}


def write_record(place: Place, record: dict[str, Any]) -> None:
    written = place.steps.with_suffix(".new")
    with open(written, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(written, place.steps)


def wanted(place: Place, build: str, tests: bool) -> dict[str, str]:
    """Each step after the environment itself, in order, with the digest of the files it follows."""
    files: dict[str, tuple[str, ...]] = {
        "torch": (f"{build}.txt", "torch.txt"),
        "base": ("base.txt", "pins.txt"),
        "model": ("model.txt",),
    }
    if tests:
        files["tests"] = (*_of_tests(build), "pins.txt")
    return {
        step: hashlib.sha256(
            b"\0".join((place.requirements / name).read_bytes() for name in names)
        ).hexdigest()
        for step, names in files.items()
    }


def pending(place: Place, record: dict[str, Any], build: str, tests: bool) -> list[str]:
    """The steps still to do. Empty on every start but the first and those after a change."""
    steps = wanted(place, build, tests)
    done = record["done"]
    if record["running"] or not place.interpreter() or done.get("venv") != place.interpreter():
        return ["venv", *steps]
    return [step for step, digest in steps.items() if done.get(step) != digest]


def prepare(place: Place, build: str, tests: bool, tell: Tell) -> None:
    """Does what is pending, one start at a time. Raises SetupFailed; what was done stays done."""
    with _locked(place, tell) as lock:
        record = read_record(place)
        steps = pending(place, record, build, tests)
        for number, step in enumerate(steps, start=1):
            begun = time.monotonic()
            tell(f"step.{step}", number=number, of=len(steps), build=build)
            if step == "venv":
                _make(place, record, build)
            else:
                _install(place, record, step, build, lock)
                record["done"][step] = wanted(place, build, tests)[step]
            record["build"] = build if step == "torch" else record["build"]
            record["running"] = None
            write_record(place, record)
            tell("step_done", number=number, of=len(steps), s=time.monotonic() - begun)
        if "torch" in steps and torch_build.missed(build, _torch_installed(place)):
            tell("cpu_build", build=build)


def _begin(place: Place, record: dict[str, Any], step: str) -> None:
    record["running"] = step
    write_record(place, record)


def _make(place: Place, record: dict[str, Any], build: str) -> None:
    """An environment with pip in it. One that somebody made by hand is completed, not made anew."""
    import shutil
    import subprocess

    by_hand = not record["running"] and "venv" not in record["done"] and place.interpreter()
    free_gib = shutil.disk_usage(place.root).free / 1024**3
    needed_gib = _NEEDED_GIB[torch_build.HARDWARE[build]]
    if free_gib < needed_gib and not place.interpreter():
        raise SetupFailed("no_space_ahead", free=free_gib, needed=needed_gib, path=place.root)
    record["done"] = {}
    _begin(place, record, "venv")
    if not by_hand or _python_of(place) < (3, 11):
        _clear(place)
        # Inside an environment, sys.executable may be the very one that is being made.
        python = getattr(sys, "_base_executable", None) or sys.executable
        command = [python, "-m", "venv", str(place.folder)]
        made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        with open(place.log, "a", encoding="utf-8") as log:
            log.write(made.stdout)
        if made.returncode:
            raise _venv_failure(made.stdout, place)
    record["done"]["venv"] = place.interpreter()


def _clear(place: Place) -> None:
    """Empties the environment but for the notes, whose lock this start holds."""
    import shutil

    for old in place.folder.iterdir():
        if old.is_dir() and not old.is_symlink():
            if old != place.notes:
                shutil.rmtree(old)
        else:
            old.unlink()


def _venv_failure(said: str, place: Place) -> SetupFailed:
    if "ensurepip" in said or "No module named venv" in said:
        return SetupFailed("no_venv", package=f"python3.{sys.version_info[1]}-venv")
    return SetupFailed(_cause(said), what="venv", log=place.log)


def _python_of(place: Place) -> tuple[int, ...]:
    """The version in pyvenv.cfg; (0,) where it does not say."""
    try:
        lines = (place.folder / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
        found = [line.partition("=")[2] for line in lines if line.startswith("version")]
        return tuple(int(part) for part in found[0].strip().split(".")[:2])
    except (OSError, ValueError, IndexError):
        return (0,)


def _torch_installed(place: Place) -> str:
    """The names of torch's metadata folders, such as `torch-2.13.0+cpu.dist-info`."""
    return " ".join(found.name for found in place.folder.glob("**/torch-*.dist-info"))


def _install(place: Place, record: dict[str, Any], step: str, build: str, lock: IO[str]) -> None:
    _begin(place, record, step)
    for way in _ways(place, step, build):
        log_bytes = place.log.stat().st_size if place.log.exists() else 0
        if _pip(place, way, lock) == 0:
            return
    with open(place.log, "rb") as log:
        log.seek(log_bytes)
        said = log.read().decode("utf-8", "replace")
    # pip came to its own end: it installs after all downloads, and takes back what then failed.
    record["running"] = None
    write_record(place, record)
    raise SetupFailed(_cause(said), what=step, log=place.log)


def _ways(place: Place, step: str, build: str) -> list[list[str]]:
    """What pip is asked for, tried in order until one succeeds."""
    files = place.requirements
    plain = ["-r", str(files / "torch.txt")]
    if step == "torch":
        own = files / f"{build}.txt"
        index = torch_build.index_of(own)
        return [["-r", str(own)], plain] if index and torch_build.reachable(index) else [plain]
    if step == "model":
        return [["--no-deps", "-r", str(files / "model.txt")]]
    names = ("base.txt",) if step == "base" else _of_tests(build)
    asked = [part for name in names for part in ("-r", str(files / name))]
    return [[*asked, "-c", str(files / "torch.txt")]]


def _of_tests(build: str) -> tuple[str, ...]:
    """What the tests need. A build of torch for a card brings the Triton that it wants."""
    return ("test.txt", "triton.txt") if build == "torch-cpu" else ("test.txt",)


def _pip(place: Place, arguments: list[str], lock: IO[str]) -> int:
    """Runs pip in the environment; all that it says is in the log, a little of it on stderr."""
    import subprocess

    command = [str(place.python), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    command += ["--disable-pip-version-check", "--log", str(place.log), *arguments]
    environ = {**os.environ, "PIP_USER": "0"}
    for name in ("PYTHONPATH", "PYTHONHOME"):
        environ.pop(name, None)
    kept = () if os.name == "nt" else (lock.fileno(),)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, pass_fds=kept
    ) as pip:
        assert pip.stdout is not None
        try:
            pip_lines.show_progress(pip.stdout, sys.stderr)
            return pip.wait()
        except KeyboardInterrupt:
            pip.wait()  # Ctrl+C reached it too
            raise


def _cause(said: str) -> str:
    for code, signs in _CAUSES:
        if any(sign in said for sign in signs):
            return code
    return "failed"


@contextmanager
def _locked(place: Place, tell: Tell) -> Iterator[IO[str]]:
    """Holds the lock of this environment; a second start waits, and says so."""
    place.notes.mkdir(parents=True, exist_ok=True)
    with open(place.notes / "lock", "a", encoding="utf-8") as file:
        if not _lock(file):
            tell("waiting")
            while not _lock(file):
                time.sleep(0.2)
        yield file


def _lock(file: IO[str]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _prepare_and_tell(place: Place, build: str, tests: bool, argv: Sequence[str]) -> None:
    if sys.platform == "darwin" and os.uname().machine != "arm64":
        raise SetupFailed("intel_mac")
    tell = _teller(argv)
    steps = pending(place, read_record(place), build, tests)
    code = {"venv": "begin", "tests": "begin_tests"}.get(steps[0], "begin_update")
    tell(code, path=place.folder)
    try:
        prepare(place, build, tests, tell)
    except OSError as error:
        raise SetupFailed(_cause(str(error)), what="venv", log=error) from None


def _teller(argv: Sequence[str]) -> Tell:
    """Says sentences of setup.toml on stderr, in the language of `--lang` or of the machine."""
    from kvchat.locales import asked_language
    from kvchat.wording import say

    lang = asked_language(argv)

    def tell(code: str, /, **facts: object) -> None:
        for name in ("what", "build"):
            if name in facts:
                facts[name] = say(f"setup.{name}.{facts[name]}", lang)
        words = say(f"setup.{code}", lang, **facts)
        encoding = sys.stderr.encoding or "utf-8"
        print(words.encode(encoding, "replace").decode(encoding), file=sys.stderr, flush=True)

    return tell


def _hand_over(place: Place, argv: Sequence[str]) -> int:
    """Runs app.py in the environment. Does not come back where a program can replace itself."""
    command = [str(place.python), str(place.root / "app.py"), *argv]
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name != "nt":
        os.execv(command[0], command)
    import subprocess

    with subprocess.Popen(command) as app:
        while True:
            try:
                return app.wait()
            except KeyboardInterrupt:
                continue  # Ctrl+C reached the app as well; its exit code is what counts
