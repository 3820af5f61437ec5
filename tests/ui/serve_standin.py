"""The screen over the stand-in, to look at: `python tests/ui/serve_standin.py [--port 7861]`."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import uvicorn
from fastapi import FastAPI

from kvchat.api.app import build_app
from kvchat.ui import mount_ui
from tests.ui.standin import StandIn


def app_over(conversations: Any) -> FastAPI:
    """The application as it is served, so that a chat that is gone or a policy bites here too."""
    return build_app(conversations, mount=partial(mount_ui, conversations=conversations))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=7861)
    parser.add_argument("--token-s", type=float, default=0.03)
    parser.add_argument("--load-s", type=float, default=0.0)
    parser.add_argument("--budget", type=int)
    given = parser.parse_args()
    talks = StandIn(
        token_s=given.token_s, load_s=given.load_s, budget=given.budget, squeeze=True,
        notices=("notice.english_only",),
    )  # fmt: skip
    uvicorn.run(app_over(talks), host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
