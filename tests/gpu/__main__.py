"""`just gpu`: the tests that need a card, then what it reaches, in one table. Under nine minutes.

Run from the checkout in kvchat's own environment: `python -m tests.gpu`.
"""

import json
import subprocess
import sys
import tempfile
from typing import Any

import torch

_COLUMNS = ("name", "context", "pair", "kvchat_ms", "library_ms", "ratio", "copy_percent")
_TESTS_S, _BENCH_S = 270, 200


def main() -> int:
    if not torch.cuda.is_available():
        print("There is no card that torch can use here.")
        return 1
    tests = [sys.executable, "-m", "pytest", "-q", "-n4", "--dist=load", "-m", "gpu", "tests"]
    passed = _run(tests, _TESTS_S) is not None
    rows = _kernel_rows() + _bench_rows()
    print(torch.cuda.get_device_name(), "| tests", "passed" if passed else "FAILED")
    print("\n".join(_lines(rows)))
    return 0 if passed and rows else 1


def _run(command: list[str], limit_s: int, *, quiet: bool = False) -> str | None:
    """Its output, or None where it failed or took too long."""
    try:
        done = subprocess.run(
            command,
            timeout=limit_s,
            check=True,
            text=True,
            stdout=subprocess.PIPE if quiet else None,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return None
    return done.stdout or ""


def _kernel_rows() -> list[dict[str, Any]]:
    from tests.gpu.kernel_speed import rows

    return rows()


def _bench_rows() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        words = ["bench", "attention", "decode", "prefill", "--json", "--data-dir", folder]
        told = _run([sys.executable, "app.py", *words], _BENCH_S, quiet=True)
    return [json.loads(line) for line in (told or "").splitlines() if line.startswith("{")]


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    table = [_COLUMNS, *(tuple(str(row.get(name, "")) for name in _COLUMNS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in table
    ]


if __name__ == "__main__":
    sys.exit(main())
