"""Arguments of calls. They come from a browser and are checked as such."""

from pathlib import Path
from typing import Any

from gradio.utils import get_upload_folder

from kvchat.errors import RequestError
from kvchat.ui.asked import count_of, text_of


def chat(sent: Any) -> str:
    chat = text_of(sent, "chat")
    if not chat:
        raise RequestError("ui_request")
    return chat


def whole(sent: Any, name: str) -> int | None:
    """A count, None where there is none. Raises RequestError for anything else."""
    if isinstance(sent, dict) and sent.get(name) is None:
        return None
    value = count_of(sent, name)
    if value < 1:
        raise RequestError("ui_request")
    return value


def entry(sent: Any) -> int:
    number = whole(sent, "entry")
    if number is None:
        raise RequestError("ui_request")
    return number


def uploaded(sent: str) -> Path:
    """The file of an upload. Raises RequestError for any path outside the upload folder."""
    folder = Path(get_upload_folder()).resolve()
    try:
        path = Path(sent).resolve(strict=True)
    except (OSError, ValueError):
        raise RequestError("ui_upload") from None
    if not path.is_relative_to(folder) or not path.is_file():
        raise RequestError("ui_upload")
    return path
