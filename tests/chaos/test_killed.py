"""A program killed at any moment of a chat whose KV goes to disk: the next one opens, no turn is
lost, and no block is reused that is not what it was.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import killed
from tests.faults import RecordFaults, count_faults
from tests.tiny import tiny_folder

REPO = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("num_kills", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_at_random_moments(
    tmp_path: Path, num_kills: int, record_property: RecordFaults
) -> None:
    model = tiny_folder("llama", tmp_path / "tiny")
    command = [sys.executable, "-m", killed.__name__, str(model), str(tmp_path / "data")]
    ran = subprocess.run(
        [*command, str(num_kills)],
        cwd=REPO,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["faults"] == []
    assert told["parts"] == []
    counts = told["counts"]
    assert counts["closed"] == killed.NUM_CLOSED
    assert counts["opened"] > num_kills // 2, "most programs got as far as to chat"
    assert counts["checked"] >= killed.NUM_CLOSED + num_kills // 8
    assert counts["restored"] > 0, "nothing was read from the disk"
    count_faults(record_property, "programs killed", num_kills)
    count_faults(record_property, "answers after a kill, as a fresh engine's", counts["checked"])
