"""Real refusals of the allocator: a chat under a limit of address space goes on, and its process
ends clean.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import limited
from tests.tiny import tiny_folder

REPO = Path(__file__).resolve().parents[2]
# Large pieces are taken from the system and given back to it, one by one, as on a card.
ENVIRON = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
# 64 KiB a token: some hundred tokens are tens of MiB.
WIDE = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 256}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="address-space limits are Linux's")
def test_a_chat_goes_on_where_the_allocator_really_refuses(tmp_path: Path) -> None:
    model = tiny_folder("llama", tmp_path / "wide", **WIDE)
    command = [sys.executable, "-m", limited.__name__, str(model), str(tmp_path / "data")]
    ran = subprocess.run(
        command,
        cwd=REPO,
        env=os.environ | ENVIRON,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, (ran.returncode, ran.stderr[-3000:])
    *rows, end = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {row["status"] for row in rows} <= {"done", "failed"}
    failed = [row for row in rows if row["status"] == "failed"]
    assert {row["error"]["code"] for row in failed} <= {"out_of_memory"}
    assert all(row["error"]["message"] and row["error"]["remedy"] for row in failed)
    taken = [code for row in rows for code in row["ledger"]]
    assert "retry" in taken, "nothing was refused: the limits are too wide"
    assert "truncate_turns" in taken
    assert any(row["status"] == "done" and "retry" in row["ledger"] for row in rows)
    assert len(failed) <= limited.TURNS, "at most while next to nothing is left"
    assert [row["status"] for row in rows if row.get("is") == "small"] == ["done"] * 4
    assert (rows[0]["status"], rows[-1]["status"]) == ("done", "done")
    assert end["problems"] == []
    assert end["turns"] == 2 + len(limited.SLACK_MIB) * limited.TURNS
