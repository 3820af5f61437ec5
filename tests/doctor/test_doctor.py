"""`doctor` on this machine and on machines that have something wrong with them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.cli import main
from kvchat.cli_running import Running
from kvchat.device.drivers import installed_drivers
from kvchat.doctor import machine, place
from kvchat.doctor.findings import Problem
from kvchat.memory.verdicts import STEPS, Verdict
from kvchat.models.verdicts import keep_verdicts
from kvchat.settings import Settings, changed
from kvchat.units import GIB, format_size
from kvchat.wording import LANGUAGES, Language, say, table
from packaging.requirements import Requirement
from tests.tiny import key_of, tiny_folder


def doctor(
    capsys: pytest.CaptureFixture[str], data_dir: Path, *flags: str
) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["doctor", "--json", "--data-dir", str(data_dir), *flags])
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return code, found


def test_this_machine_with_a_model_of_its_own(
    capsys: pytest.CaptureFixture[str], data_dir: Path, tmp_path: Path
):
    model = tiny_folder("gemma3", tmp_path / "tiny")
    code, found = doctor(capsys, data_dir, "--model", str(model))
    assert code == 0
    assert found["usable"]
    assert found["compute"]["torch"] == torch.__version__
    assert found["memory"]["total"] >= found["memory"]["free"] > 0
    assert found["data"]["writable"]
    assert found["model"]["needed"] > found["model"]["weights"] > 0
    rows = found["model"]["attention"]
    assert {row["layers"] for row in rows} == {"full", "sliding"}
    assert {row["decode"] for row in rows} == {"numba"}
    assert all(row["fits"] for row in found["packages"]["packages"])
    assert {"torch", "transformers", "gradio"} <= {
        row["package"] for row in found["packages"]["packages"]
    }
    assert found["port"]["port"] >= 7860
    assert not [problem for problem in found["problems"] if problem["fatal"]]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_what_is_known_of_the_formats_of_this_model(
    capsys: pytest.CaptureFixture[str], data_dir: Path, tmp_path: Path, lang: Language
):
    """Measured or not, passed or failed; the one that text is stored in is among them."""
    folder = tiny_folder("llama", tmp_path / "tiny")
    flags = ["--model", str(folder), "--set", "seal_format=int2"]
    _, found = doctor(capsys, data_dir, *flags)
    unknown = {"passed": None, "kl": None, "same_percent": None}
    names = [*map(str, STEPS), "int2/int2"]
    assert found["model"]["formats"] == [{"pair": name} | unknown for name in names]
    figures = (0.1, 512, "wording.en", 1.0)
    passed, failed = Verdict(names[0], 0.001, 99.5, *figures), Verdict(names[1], 0.3, 71, *figures)
    lower = Verdict("int4/int2", 0.5, 60, *figures)  # of those that nobody chose, all that failed
    keep_verdicts(data_dir, key_of(folder), [passed, failed, lower])
    assert main(["doctor", "--data-dir", str(data_dir), "--lang", lang, *flags[:2]]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("KV ")]
    last = say("doctor.format.failed", lang, pair="int4/int2", kl="0.5000", same="60.0")
    assert lines.pop() == last
    assert lines == [
        say("doctor.format.passed", lang, pair=names[0], kl="0.0010", same="99.5"),
        say("doctor.format.failed", lang, pair=names[1], kl="0.3000", same="71.0"),
        say("doctor.format.failed", lang, pair=names[2], kl="0.3000", same="71.0"),
    ]


def test_nothing_is_made(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    folder = tmp_path / "not" / "there"
    _, found = doctor(capsys, folder)
    assert found["data"] | {"free": 0} == {
        "folder": str(folder),
        "exists": False,
        "writable": True,
        "free": 0,
    }
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--memory-budget", "100MiB"], "model_too_large"),
        (["--model", "/nowhere"], "model_not_found"),
        (["--model", "Qwen3-8B"], "model_not_found"),
    ],
)
def test_what_keeps_it_from_starting_is_exit_1(
    capsys: pytest.CaptureFixture[str], data_dir: Path, flags: list[str], problem: str
):
    code, found = doctor(capsys, data_dir, *flags)
    assert code == 1
    assert not found["usable"]
    fatal = [one["code"] for one in found["problems"] if one["fatal"]]
    assert problem in fatal or "builtin_missing" in fatal


@pytest.mark.parametrize("lang", LANGUAGES)
def test_it_reads_as_sentences_in_one_language(
    capsys: pytest.CaptureFixture[str], data_dir: Path, tmp_path: Path, lang: Language
):
    model = tiny_folder("llama", tmp_path / "tiny")
    flags = ["doctor", "--data-dir", str(data_dir), "--model", str(model), "--lang", lang]
    capsys.readouterr()
    assert main(flags) == 0
    out = capsys.readouterr().out
    assert ("메모리" in out) == (lang == "ko")
    assert "{" not in out


@pytest.mark.parametrize("lang", LANGUAGES)
def test_beside_one_that_runs_it_says_whose_budget_it_is(
    capsys: pytest.CaptureFixture[str],
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    lang: Language,
):
    fits = {"tokens": 8700, "most_tokens": 31400, "stored": None, "pair": "int6/int4", "helps": []}
    frame = {"device": {"budget": 3 * GIB, "headroom": 0}, "fits": fits}
    one = Running("http://127.0.0.1:1", "", None, 1)
    monkeypatch.setattr(place, "running_on", lambda _: one)
    monkeypatch.setattr(place, "memory_of", lambda _: frame)
    flags = ["doctor", "--data-dir", str(data_dir), "--memory-budget", "5GiB", "--lang", lang]
    capsys.readouterr()
    main(flags)
    out = capsys.readouterr().out
    headroom = format_size(0)
    assert say("doctor.running.budget", lang, budget="3.00 GiB", headroom=headroom) in out
    assert "31,400" in out
    assert say("doctor.budget", lang, size="5.00 GiB") in out, "of a second one, and said so"
    assert "{" not in out


def test_a_data_folder_that_cannot_be_written_is_fatal(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        found = place.data_folder(folder)
        assert [(p.code, p.fatal) for p in found.problems] == [("data_unwritable", True)]


def test_a_card_that_lies_idle_is_told():
    """The build of torch that runs here against drivers that may be there."""
    build = machine.torch_build()
    idle = machine.compute(frozenset({"cuda"})).problems
    if torch.cuda.is_available():
        assert idle == []
    else:
        wrong = "driver_unusable" if build.startswith("cuda") else "torch_build"
        assert [problem.code for problem in idle] == [wrong]
        assert not idle[0].fatal
    assert machine.compute(frozenset()).problems == []


@pytest.mark.parametrize(
    ("paths", "platform", "found"),
    [
        ((), "linux", set()),
        (("/proc/driver/nvidia/version",), "linux", {"cuda"}),
        (("/usr/lib/wsl/lib/libcuda.so.1",), "linux", {"cuda"}),
        (("/dev/kfd", "/opt/rocm"), "linux", {"rocm"}),
        (("/opt/rocm",), "linux", set()),
        ((), "darwin", {"mps"}),
        ((), "win32", set()),
    ],
)
def test_drivers_by_what_they_leave_behind(paths: tuple[str, ...], platform: str, found: set[str]):
    assert installed_drivers(lambda path: path in paths, platform) == found


def test_packages_that_are_missing_or_of_another_version():
    found = machine.packages(
        [
            Requirement("torch>=2"),
            Requirement("psutil<0.1"),
            Requirement("kvchat-no-such-package>=1"),
            Requirement("nvidia-ml-py>=9999"),
        ]
    )
    assert [row["fits"] for row in found.facts["packages"]] == [True, False, False, False]
    assert [(p.code, p.fatal) for p in found.problems] == [
        ("package_untested", False),
        ("package_missing", True),
        ("package_untested", False),
    ]


def test_a_model_beside_which_no_answer_fits(tmp_path: Path):
    model = tiny_folder("llama", tmp_path / "tiny")
    settings = changed(Settings(), {"model": str(model), "dtype": "fp32"})
    found = place.model(settings, tmp_path, 10 * GIB)
    assert found.problems == []
    assert place.model(settings, tmp_path, None).problems == []
    (nothing,) = place.model(settings, tmp_path, 1000).problems
    assert (nothing.code, nothing.fatal) == ("budget_below_weights", True)
    (smaller,) = place.model(settings, tmp_path, found.facts["needed"] - 1).problems
    assert (smaller.code, smaller.fatal) == ("budget_fits_smaller", True)
    assert "--dtype bf16" in smaller.remedy("ko")


def test_every_problem_has_a_sentence_and_a_remedy_that_fill_in():
    codes = {key for key in table() if key.startswith("doctor.problem.")}
    sentences = {key for key in codes if not key.endswith(".remedy")}
    assert sentences
    for key in sentences:
        assert f"{key}.remedy" in codes
        for lang in LANGUAGES:
            names = re.findall(r"{(\w+)}", table()[key][lang] + table()[f"{key}.remedy"][lang])
            problem = Problem(key.rpartition(".")[2], dict.fromkeys(names, "x"), fatal=True)
            assert problem.message(lang)
            assert problem.remedy(lang)
