"""Where passages stand on a page: boxes for each text, and nothing for what is no page."""

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from kvchat.api.app import build_app
from kvchat.api.marks import MOST_CHARACTERS, MOST_TEXTS
from tests.api.running import run
from tests.api.standin import StandIn


@pytest.fixture
def document() -> tuple[FastAPI, str]:
    talks = StandIn()
    chat = talks.new_chat()
    return build_app(talks), talks.add_document(chat, Path("a.pdf"), "a.pdf")


def asked(app: FastAPI, path: str, *texts: str) -> httpx.Response:
    async def once() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(path, params=[("q", text) for text in texts])

    return run(once())


def test_each_text_has_its_boxes(document: tuple[FastAPI, str]) -> None:
    app, sha = document
    answer = asked(app, f"/doc/{sha}/2.json", "씻어야 합니다 & <b>", "")
    assert answer.status_code == 200
    assert answer.json() == {"marks": [[[0.1, 0.2, 0.9, 0.25]], []]}
    assert answer.headers["cache-control"].startswith("private")
    assert asked(app, f"/doc/{sha}/2.json").json() == {"marks": []}


@pytest.mark.parametrize("path", ["9.json", "0.json", "-1.json", "1.5.json", "x.json", "٣.json"])
def test_what_is_no_page_has_none(document: tuple[FastAPI, str], path: str) -> None:
    app, sha = document
    answer = asked(app, f"/doc/{sha}/{path}", "words")
    assert answer.status_code in (400, 404)
    assert "marks" not in answer.json()


def test_neither_has_another_document_nor_a_path(document: tuple[FastAPI, str]) -> None:
    app, _ = document
    for path in (f"/doc/{'1' * 64}/1.json", "/doc/..%2f..%2fetc/1.json", "/doc/x/1.json"):
        assert asked(app, path, "words").status_code in (400, 404)


def test_too_much_is_refused(document: tuple[FastAPI, str]) -> None:
    app, sha = document
    assert asked(app, f"/doc/{sha}/1.json", *["x"] * (MOST_TEXTS + 1)).status_code in (400, 404)
    assert asked(app, f"/doc/{sha}/1.json", "x" * (MOST_CHARACTERS + 1)).status_code in (400, 404)
