"""The command line: what it reads, what it refuses in one sentence, and how quickly."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvchat import cli
from kvchat.cli_arguments import FACES, flags_of, parse
from kvchat.errors import SettingsError
from kvchat.locales import asked_language, machine_language
from kvchat.settings import SCHEMA
from tests.starts import resolve

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    for name in ("NO_PROXY", "no_proxy"):  # main() adds to them
        monkeypatch.setenv(name, "example.org")


@pytest.mark.parametrize(
    ("argv", "face"),
    [
        ([], "serve"),
        (["--port", "8000"], "serve"),
        (["serve", "--no-browser"], "serve"),
        (["ask", "why?"], "ask"),
        (["plan", "--context", "4096"], "plan"),
        (["bench", "decode", "prefill"], "bench"),
        (["doctor"], "doctor"),
    ],
)
def test_face(argv: list[str], face: str) -> None:
    assert parse(argv, "en").face == face


def test_flags_are_settings() -> None:
    words = "ask hi --set top-k=40 --set temperature=1 --temperature 0 --memory-budget 2GiB"
    arguments = parse([*words.split(), "--seed", "7", "--model", "x", "--threads", "auto"], "en")
    settings = resolve(flags=flags_of(arguments))
    assert settings.top_k == 40
    assert settings.temperature == 0.0  # a flag of its own goes before --set
    assert settings.memory_budget == 2 * 1024**3
    assert (settings.seed, settings.model, settings.threads) == (7, "x", None)


def test_no_flag_sets_nothing() -> None:
    assert flags_of(parse(["doctor"], "en")) == {}


def test_ask_takes_several_files() -> None:
    arguments = parse(["ask", "q", "--pdf", "a.pdf", "--pdf", "b.pdf", "--chat", "c"], "en")
    assert arguments.pdf == [Path("a.pdf"), Path("b.pdf")]
    assert arguments.chat == "c"


BAD = [
    (["nonsense"], "nonsense"),
    (["--nonsense"], "--nonsense"),
    (["--port", "http"], "http"),
    (["ask"], "QUESTION"),
    (["plan", "--context"], "--context"),
    (["plan", "--context", "many"], "many"),
    (["--port", "80", "plan"], "'plan'"),
    (["--set", "no_such=1"], "no_such"),
    (["--set", "top_k"], "top_k"),
    (["--set", "top_k=-1"], "-1"),
    (["--set", "seed=1.5"], "1.5"),
    (["--memory-budget", "6GB"], "6GB"),
    (["--memory-budget", "1000"], "1000"),
    (["--dtype", "fp4"], "fp4"),
    (["--preset", "fastest"], "fastest"),
    (["--settings", "/nowhere/at/all.toml"], "/nowhere/at/all.toml"),
]


@pytest.mark.parametrize("lang", ["en", "ko"])
@pytest.mark.parametrize(("argv", "named"), BAD, ids=[" ".join(argv) for argv, _ in BAD])
def test_bad_input_is_one_line_and_exit_1(
    argv: list[str], named: str, lang: str, capsys: pytest.CaptureFixture[str], data_dir: Path
) -> None:
    assert cli.main([*argv, "--lang", lang]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert named in said.err
    assert _is_korean(said.err) == (lang == "ko")
    assert "argument" not in said.err  # argparse's own words, in English only
    assert list(data_dir.iterdir()) == []  # nothing half-written


def test_a_language_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--lang", "fr"]) == 1
    assert capsys.readouterr().err == "'fr' is not a choice for --lang. Choose from: en, ko.\n"


@pytest.mark.parametrize("lang", ["en", "ko"])
@pytest.mark.parametrize(
    "content",
    [b"top_k = ", b"\xff\xfe", b"top_k = 'many'\n", b"unheard_of = 1\n", b"[top_k]\nx = 1\n"],
)
def test_settings_file_that_cannot_be_used(
    tmp_path: Path, content: bytes, lang: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(content)
    assert cli.main(["--settings", str(file), "--lang", lang]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert _is_korean(said) == (lang == "ko")


def test_settings_of_the_data_folder_are_read(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data_dir / "settings.toml").write_text("top_k = 'many'\n")
    assert cli.main([]) == 1
    said = capsys.readouterr().err
    assert "many" in said
    assert str(data_dir / "settings.toml") in said


def test_json_errors_are_a_line_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ask", "hi", "--json", "--set", "no_such=1"]) == 1
    said = capsys.readouterr()
    assert said.err == ""
    failed = json.loads(said.out)
    assert failed["type"] == "failed"
    assert failed["code"] == "setting_unknown"
    assert "no_such" in failed["message"]
    assert failed["remedy"]


@pytest.mark.parametrize(
    ("environ", "lang"),
    [
        ({"LANG": "ko_KR.UTF-8"}, "ko"),
        ({"LANG": "en_US.UTF-8"}, "en"),
        ({"LC_ALL": "C", "LANG": "ko_KR.UTF-8"}, "en"),
        ({"LC_ALL": "", "LC_MESSAGES": "ko", "LANG": "C"}, "ko"),
        ({}, "en"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows says its own language")
def test_machine_language(environ: dict[str, str], lang: str) -> None:
    assert machine_language(environ) == lang


@pytest.mark.parametrize(
    ("argv", "lang"),
    [
        (["--lang", "ko"], "ko"),
        (["ask", "--lang=ko", "--no-such"], "ko"),
        (["--lang"], "en"),
        (["--lang", "fr"], "en"),
    ],
)
def test_asked_language(argv: list[str], lang: str) -> None:
    assert asked_language(argv) == lang


def test_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    assert cli.data_folder(None) == data_dir
    assert cli.data_folder(tmp_path) == tmp_path
    monkeypatch.chdir(tmp_path)
    assert cli.data_folder(Path("here")) == tmp_path / "here"
    monkeypatch.delenv("KVCHAT_DATA_DIR")
    assert cli.data_folder(None).name == "kvchat"


def test_interruption_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_resolved", interrupted)
    assert cli.main(["doctor"]) == 130


def test_nothing_is_sent_home_and_no_proxy_stands_between(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("GRADIO_ANALYTICS_ENABLED", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    cli.main(["nonsense"])
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert os.environ["NO_PROXY"] == "example.org,127.0.0.1,localhost"
    cli.main(["nonsense"])
    assert os.environ["NO_PROXY"] == "example.org,127.0.0.1,localhost"


@pytest.mark.parametrize("lang", ["en", "ko"])
@pytest.mark.parametrize("face", [face for face in FACES if face != "test"])
def test_help_of_each_face(
    face: str, lang: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as leaving:
        parse([face, "--help"], "ko" if lang == "ko" else "en")
    assert leaving.value.code == 0
    said = capsys.readouterr().out
    assert _is_korean(said) == (lang == "ko")
    assert said.startswith("사용법: kvchat" if lang == "ko" else "usage: kvchat")
    for name in ("model", "memory_budget", "weights"):
        assert SCHEMA[name].help[lang].split(".")[0] in said  # type: ignore[index]


def test_help_loads_no_library(tmp_path: Path) -> None:
    """A mistyped flag or a question for help must answer at once: no torch, no gradio."""
    code = (
        "import sys; from kvchat import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'gradio', 'numpy', 'fastapi', 'uvicorn', 'psutil'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPO, check=True, stdout=subprocess.DEVNULL)


def test_a_reader_that_leaves_is_no_traceback() -> None:
    code = (
        "import sys; from kvchat import cli\n"
        "def talk(*_): \n"
        "    while True: print('x' * 1000, flush=True)\n"
        "cli._resolved = talk\n"
        "sys.exit(cli.main(['doctor']))"
    )
    talker = subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert talker.stdout is not None
    assert talker.stderr is not None
    talker.stdout.read(10)
    talker.stdout.close()
    assert talker.stderr.read() == b""
    assert talker.wait(30) == 1


def test_korean_on_a_console_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    console = io.TextIOWrapper(raw, encoding="ascii")
    console.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", console)
    assert cli.main(["nonsense", "--lang", "ko"]) == 1
    console.flush()
    assert b"nonsense" in raw.getvalue()


def test_tests_run_in_the_same_environment(capfd: pytest.CaptureFixture[str]) -> None:
    """`kvchat test` hands its words and pytest's exit code on; 5: no test was collected."""
    code = cli.main(["test", "-q", "-n0", "tests/test_cli.py", "-k", "no_test_has_this_name"])
    assert code == 5
    assert "deselected" in capfd.readouterr().out


def test_an_installation_without_tests_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "kvchat" / "cli.py"))
    assert cli.main(["test"]) == 1
    assert "app.py test" in capsys.readouterr().err


def test_unreadable_set_names_the_way_to_write_it() -> None:
    with pytest.raises(SettingsError) as error:
        flags_of(parse(["doctor", "--set", "top_k"], "en"))
    assert "--set name=value" in str(error.value)


def _is_korean(text: str) -> bool:
    return any("가" <= letter <= "힣" for letter in text)
