"""`python app.py doctor`: what was found on this machine, what is wrong with it, and what to do.

Loads no model, starts no server, makes no folder. Exit code 1 if something keeps kvchat from
starting.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from kvchat.chat.export import report_lines
from kvchat.doctor import machine, place
from kvchat.doctor.findings import Finding, Problem
from kvchat.doctor.report import shown_log
from kvchat.doctor.telling import as_text, told
from kvchat.settings import Settings
from kvchat.store.ledger import ledger_in
from kvchat.wording import Language, say


def run(args: argparse.Namespace, settings: Settings, data_dir: Path, lang: Language) -> int:
    found = examine(settings, data_dir)
    problems = [problem for finding in found.values() for problem in finding.problems]
    fatal = any(problem.fatal for problem in problems)
    facts = {name: finding.facts for name, finding in found.items()}
    if args.report:
        _report(facts, problems, data_dir, lang)
    elif args.json:
        print(json.dumps(as_json(facts, problems, lang), ensure_ascii=False))
    else:
        print("\n".join(as_text(facts, problems, lang)))
    return 1 if fatal else 0


def examine(settings: Settings, data_dir: Path) -> dict[str, Finding]:
    """Every part, each on its own: what one cannot find out keeps no other from being told."""
    memory = machine.memory(settings)
    port = place.port(data_dir)
    # One that runs already has its model in memory: what is left then says nothing.
    usable = None if port.facts["running"] else memory.facts["usable"]
    return {
        "system": machine.system(),
        "packages": machine.packages(machine.requirements()),
        "compute": machine.compute(),
        "memory": memory,
        "data": place.data_folder(data_dir),
        "model": place.model(settings, data_dir, usable),
        "tools": place.tools(),
        "port": port,
    }


def as_json(
    facts: dict[str, dict[str, Any]], problems: list[Problem], lang: Language
) -> dict[str, Any]:
    usable = not any(problem.fatal for problem in problems)
    return {"type": "doctor", "usable": usable, **facts, "problems": told(problems, lang)}


def _report(
    facts: dict[str, dict[str, Any]], problems: list[Problem], data_dir: Path, lang: Language
) -> None:
    """What was found as one line, without its paths; then, without their texts, the ledger, an
    entry a line, and the log.
    """
    print(json.dumps(_without_paths(as_json(facts, problems, "en")), ensure_ascii=False))
    for line in report_lines(ledger_in(data_dir)):
        print(line)
    lines = shown_log(data_dir)
    print("\n".join(lines) if lines else say("doctor.no_log", lang))


def _without_paths(found: dict[str, Any]) -> dict[str, Any]:
    system = {k: v for k, v in found["system"].items() if k != "interpreter"}
    data = {k: v for k, v in found["data"].items() if k != "folder"}
    model = found["model"] | {"model": Path(found["model"]["model"]).name}
    problems = [{"code": one["code"], "fatal": one["fatal"]} for one in found["problems"]]
    # What else runs there is nobody's business.
    memory = {k: v for k, v in found["memory"].items() if k != "programs"}
    known = {"system": system, "data": data, "model": model, "memory": memory}
    return found | known | {"problems": problems}
