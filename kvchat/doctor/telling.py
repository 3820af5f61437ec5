"""An examination as a person reads it. Finds nothing out."""

from collections.abc import Iterator
from typing import Any

from kvchat.attention.telling import told as attention
from kvchat.cli_plan.telling import fits_line
from kvchat.doctor.findings import Problem
from kvchat.units import format_least, format_size
from kvchat.wording import Language, say

Facts = dict[str, dict[str, Any]]


def told(problems: list[Problem], lang: Language) -> list[dict[str, Any]]:
    return [
        {
            "code": problem.code,
            "fatal": problem.fatal,
            "message": problem.message(lang),
            "remedy": problem.remedy(lang),
        }
        for problem in problems
    ]


def as_text(facts: Facts, problems: list[Problem], lang: Language) -> Iterator[str]:
    yield say("doctor.system", lang, **facts["system"])
    yield from _compute(facts["compute"], lang)
    yield from _memory(facts["memory"], lang, is_second=facts["port"]["running"] is not None)
    yield _data(facts["data"], lang)
    yield _model(facts["model"], lang)
    yield from _calibration(facts["model"], facts["memory"]["device"], lang)
    yield from (_format(row, lang) for row in facts["model"].get("formats", ()))
    for row in facts["model"].get("attention", ()):
        yield attention(row, lang)
    yield _tools(facts["tools"], lang)
    yield from _port(facts["port"], lang)
    untested = [row for row in facts["packages"]["packages"] if not row["fits"]]
    code = "doctor.packages.tested" if not untested else "doctor.packages.untested"
    yield say(code, lang, num=len(facts["packages"]["packages"]), untested=len(untested))
    yield ""
    if not problems:
        yield say("doctor.well", lang)
    for problem in problems:
        yield say(
            "doctor.fatal" if problem.fatal else "doctor.note", lang, what=problem.message(lang)
        )
        yield "  " + problem.remedy(lang)


def _compute(compute: dict[str, Any], lang: Language) -> Iterator[str]:
    yield say("doctor.torch", lang, **compute)
    for row in compute["devices"]:
        total = format_size(row["memory"]["total"])
        shared = say("doctor.shared", lang) if row["memory"]["shared"] else ""
        yield (
            say("doctor.device", lang, device=row["device"], name=row["name"], total=total) + shared
        )
    yield say("doctor.chosen", lang, device=compute["device"])
    if compute["nvidia_driver"] is not None:
        yield say("doctor.driver", lang, version=compute["nvidia_driver"])


def _memory(memory: dict[str, Any], lang: Language, *, is_second: bool) -> Iterator[str]:
    """`is_second`: what is told is of another kvchat beside the one that runs."""
    if not memory["total"]:
        return  # a problem says why
    sizes = {
        name: format_size(memory[name])
        for name in ("total", "free", "other_processes", "headroom", "usable")
    }
    budget = memory["budget"]
    told_budget = "" if budget is None else say("doctor.budget", lang, size=format_size(budget))
    code = "doctor.memory.second" if is_second else "doctor.memory"
    yield say(code, lang, **sizes) + told_budget
    why = say(f"headroom.{memory['headroom_reason']}", lang)
    yield say("doctor.headroom", lang, headroom=sizes["headroom"], why=why)
    if memory["nvml"] is not None:
        yield say(f"doctor.nvml.{memory['nvml']}", lang)
    for one in memory["programs"]:
        taken = "?" if one["bytes_used"] is None else format_size(one["bytes_used"])
        yield say("doctor.program", lang, name=one["name"] or "?", pid=one["pid"], size=taken)


def _calibration(model: dict[str, Any], device: str, lang: Language) -> Iterator[str]:
    steps = model.get("calibrated_steps")
    if steps:
        yield say("doctor.calibrated", lang, steps=steps)
    elif steps == 0:
        yield say("doctor.not_calibrated", lang)
    elif "needed" in model:
        yield say("doctor.never_calibrated", lang, device=device)


def _format(row: dict[str, Any], lang: Language) -> str:
    if row["passed"] is None:
        return say("doctor.format.unknown", lang, pair=row["pair"])
    code = "doctor.format.passed" if row["passed"] else "doctor.format.failed"
    same = f"{row['same_percent']:.1f}"
    return say(code, lang, pair=row["pair"], kl=f"{row['kl']:.4f}", same=same)


def _data(data: dict[str, Any], lang: Language) -> str:
    free = "?" if data["free"] is None else format_size(data["free"])
    code = "doctor.data.there" if data["exists"] else "doctor.data.new"
    return say(code, lang, folder=data["folder"], free=free)


def _model(model: dict[str, Any], lang: Language) -> str:
    if "needed" not in model:
        return say("doctor.model.unknown", lang, model=model["model"])
    sizes = {"weights": format_size(model["weights"]), "needed": format_least(model["needed"])}
    named = say("doctor.model", lang, model=model["model"], dtype=model["dtype"], **sizes)
    return f"{named} {say('doctor.builtin.' + model['builtin'], lang)}"


def _tools(tools: dict[str, Any], lang: Language) -> str:
    if tools["tesseract"] is None:
        return say("doctor.tesseract.none", lang)
    return say("doctor.tesseract", lang, languages=", ".join(tools["languages"]) or "?")


def _port(port: dict[str, Any], lang: Language) -> Iterator[str]:
    if port["running"] is not None:
        yield say("doctor.running", lang, url=port["running"])
        yield from _runs_with(port["runs_with"], lang)
    elif port["port"] is None:
        yield say("doctor.port.none", lang)
    else:
        yield say("doctor.port", lang, port=port["port"])


def _runs_with(about: dict[str, Any], lang: Language) -> Iterator[str]:
    """The budget of the one that runs is its own, whatever the settings here say."""
    if about["headroom"] is None:
        return
    headroom, budget = format_size(about["headroom"]), about["budget"]
    if budget is None:
        yield say("doctor.running.no_budget", lang, headroom=headroom)
    else:
        yield say("doctor.running.budget", lang, budget=format_size(budget), headroom=headroom)
    if about["fits"] is not None:
        yield say("doctor.running.fits", lang, fits=fits_line(about["fits"], lang))
