"""A test in a process of its own: what it measures of the process is its own doing.

What other tests left behind (models that are let go of later, heaps of threads) is resident in
theirs, and comes and goes while it measures.
"""

import os
import subprocess
import sys

import pytest

ALONE = "KVCHAT_TEST_ALONE"


def ran_alone(request: pytest.FixtureRequest) -> bool:
    """Runs the test that asks in such a process, and fails with what is said there. False in that
    process itself: it is to go on.
    """
    node = request.node
    name = f"{node.path}::{node.name}"
    if os.environ.get(ALONE) == name:
        return False
    others = {key: one for key, one in os.environ.items() if not key.startswith("PYTEST_")}
    usual = "addopts=--import-mode=importlib"
    plain = ("-q", "-n0", "-p", "no:cacheprovider", "-o", usual, name)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *plain],
        env=others | {ALONE: name},
        cwd=request.config.rootpath,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        pytest.fail(ran.stdout[-6000:] + ran.stderr[-2000:], pytrace=False)
    return True
