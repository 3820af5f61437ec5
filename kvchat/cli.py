"""The program `kvchat`: reads the command line, resolves settings, calls a face, reports errors.

Faces are imported when they are called, so that `--help` and a mistyped flag answer at once. Knows
no model, no server and no document.
"""

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from kvchat.cli_arguments import flags_of, parse, settings_file
from kvchat.device.heap import keep_one_heap
from kvchat.errors import KVChatError, SettingsError
from kvchat.locales import asked_language
from kvchat.models.recommended import recommended
from kvchat.settings import Settings
from kvchat.settings_sources import Sources
from kvchat.wording import Language

Face = Callable[[Namespace, Settings, Path, Language], int]
_MODULES = {
    "serve": "kvchat.cli_serve",
    "ask": "kvchat.cli_ask",
    "plan": "kvchat.cli_plan",
    "bench": "kvchat.bench",
    "doctor": "kvchat.doctor",
}
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line to its exit code. Raises nothing that a person should read."""
    argv = sys.argv[1:] if argv is None else list(argv)
    lang = asked_language(argv)
    keep_one_heap()
    _prepare_output()
    _prepare_environment()
    try:
        if argv[:1] == ["test"]:
            return _test(argv[1:])
        arguments = parse(argv, lang)
        data_dir = data_folder(arguments.data_dir)
        settings = _resolved(arguments, data_dir)
        face: Face = import_module(_MODULES[arguments.face]).run
        return face(arguments, settings, data_dir, lang)
    except KVChatError as error:
        report(error, lang, as_json="--json" in argv)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our lines left; stdout is turned away so that closing it cannot fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def report(error: KVChatError, lang: Language, *, as_json: bool) -> None:
    """One line: on stderr for people, on stdout as a `failed` line for scripts."""
    if as_json:
        failed = {"type": "failed", "message": error.message(lang), "remedy": error.remedy(lang)}
        print(json.dumps(failed | {"code": error.code}, ensure_ascii=False), flush=True)
    else:
        print(" ".join(error.line(lang).split()), file=sys.stderr, flush=True)


def data_folder(asked: Path | None) -> Path:
    """Where chats, documents, KV files and settings lie: a flag, KVCHAT_DATA_DIR, or the usual."""
    if asked is not None:
        return asked.expanduser().absolute()
    if os.environ.get("KVCHAT_DATA_DIR"):
        return Path(os.environ["KVCHAT_DATA_DIR"]).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("kvchat", appauthor=False))


def _resolved(arguments: Namespace, data_dir: Path) -> Settings:
    file, flags = settings_file(arguments, data_dir), flags_of(arguments)
    arguments.sources = Sources.of_start(arguments.preset, file, flags, recommended)
    settings: Settings = arguments.sources.settings()
    return settings


def _test(pytest_arguments: list[str]) -> int:
    """The test suite of the checkout, in this environment; pytest's exit code."""
    root = Path(__file__).resolve().parent.parent
    if not (root / "tests").is_dir():
        raise SettingsError("tests_absent")
    command = [sys.executable, "-m", "pytest", *pytest_arguments]
    with subprocess.Popen(command, cwd=root) as pytest:
        try:
            return pytest.wait()
        except KeyboardInterrupt:
            pytest.wait()
            raise


def _prepare_output() -> None:
    """Korean and emoji must not end a program whose console cannot show them."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is None:
            continue
        if stream.isatty():
            reconfigure(errors="backslashreplace")
        else:
            reconfigure(encoding="utf-8", errors="backslashreplace")


def _prepare_environment() -> None:
    """What gradio and the hub's library read at import: nothing leaves this machine."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host for host in os.environ.get(name, "").split(",") if host]
        hosts += [host for host in ("127.0.0.1", "localhost") if host not in hosts]
        os.environ[name] = ",".join(hosts)


if __name__ == "__main__":
    sys.exit(main())
