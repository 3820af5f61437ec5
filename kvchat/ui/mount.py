"""Puts the screen of each language on a FastAPI application: `/ko` and `/en`, and what belongs to
both.
"""

import os
from typing import TYPE_CHECKING, Any

# Before gradio is imported: it asks its makers' server for news otherwise.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr
from fastapi import FastAPI

from kvchat.ui.look import theme
from kvchat.ui.manifest import icon, manifest
from kvchat.ui.screen import build_ui
from kvchat.ui.static_files import head
from kvchat.wording import LANGUAGES, Language

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations

LARGEST_UPLOAD = "512mb"


def mount_options(lang: Language) -> dict[str, Any]:
    """What `gr.mount_gradio_app` is to be told, apart from the screen and its path."""
    return {
        "theme": theme(),
        "head": head(lang),
        "footer_links": [],
        "run_history": False,
        "max_file_size": LARGEST_UPLOAD,
        "show_error": False,
        "ssr_mode": False,
        "pwa": False,
        "enable_monitoring": False,
        "app_kwargs": {"docs_url": None, "redoc_url": None, "openapi_url": None},
    }


def mount_ui(app: FastAPI, conversations: "Conversations") -> None:
    """One screen a language, over the same conversations."""
    app.add_route("/manifest.json", manifest, ["GET"])
    app.add_route("/icon.svg", icon, ["GET"])
    for lang in LANGUAGES:
        screen = build_ui(conversations, lang)
        gr.mount_gradio_app(app, screen, path=f"/{lang}", **mount_options(lang))
