"""`POST /api/ask`: a question with files, as `ask` hands it to the program that runs already.

    question, chat, pdf_password…, max_new_tokens, temperature, seed    fields of a form
    pdf…                                                                its files

The answer is a stream of the events that `ask --json` prints, `note`s before them; what cannot be
asked is told as the last one, `refused`. A client that leaves, at any point of it, stops the answer
and takes back what was begun. Knows the conversations only through `AskedOnce`.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from kvchat.api.tail import COMMENT, ENDS, Tail
from kvchat.api.values import missing
from kvchat.api.wire import EventStream, Waiting, encoded, sse, too_large
from kvchat.chat.once import AskedOnce, Once
from kvchat.documents.clean import clean_name
from kvchat.documents.limits import MOST_BYTES
from kvchat.documents.reader import check_file
from kvchat.errors import RequestError
from kvchat.settings import checked
from kvchat.units import MIB

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations

OF_A_REPLY = ("max_new_tokens", "temperature", "seed")
_ONCE = {"question", "chat", *OF_A_REPLY}
_MANY = {"pdf", "pdf_password"}
_MOST_FILES, _MOST_FIELDS, _MOST_FIELD_BYTES = 100, 100, 16 * MIB
MOST_BODY_BYTES = 4 * MOST_BYTES  # several of the largest files


class Ask:
    def __init__(self, conversations: "Conversations", waiting: Waiting) -> None:
        self._conversations = conversations
        self._waiting = waiting

    async def ask(self, request: Request) -> Response:
        with ExitStack() as leaving:
            leaving.enter_context(self._waiting.place())
            folder = leaving.enter_context(
                TemporaryDirectory(prefix="kvchat-ask-", ignore_cleanup_errors=True)
            )
            once, passwords = await _read(_limited(request), Path(folder))
            tail = Tail(AskedOnce(self._conversations, once, lambda _name: passwords))
            leaving.callback(tail.leave)
            return EventStream(_events(tail), at_end=leaving.pop_all().close)


async def _events(tail: Tail[AskedOnce]) -> AsyncGenerator[bytes, None]:
    while True:
        event = await tail.patiently()
        yield COMMENT if event is None else sse(encoded(event))
        if event is not None and event["type"] in ENDS:
            return


def _limited(request: Request) -> Request:
    """The same; reading more than `MOST_BODY_BYTES` of it raises RequestError."""
    num_bytes = 0
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > MOST_BODY_BYTES:
        raise too_large(MOST_BODY_BYTES)

    async def receive() -> Message:
        nonlocal num_bytes
        message = await request.receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > MOST_BODY_BYTES:
            raise too_large(MOST_BODY_BYTES)
        return message

    return Request(request.scope, receive)


async def _read(request: Request, folder: Path) -> tuple[Once, list[str]]:
    """The files lie in `folder` then, under names of ours. Raises RequestError, SettingsError,
    DocumentError.
    """
    try:
        async with request.form(
            max_files=_MOST_FILES, max_fields=_MOST_FIELDS, max_part_size=_MOST_FIELD_BYTES
        ) as form:
            files = [
                (await run_in_threadpool(_saved, file, folder / str(number)), _name(file))
                for number, file in enumerate(form.getlist("pdf"))
                if isinstance(file, UploadFile)
            ]
            return _once(_fields(form), files), _texts(form, "pdf_password")
    except HTTPException:
        raise RequestError("api_no_form") from None


def _fields(form: FormData) -> dict[str, str]:
    unknown = sorted(form.keys() - _ONCE - _MANY)
    if unknown:
        raise RequestError("api_not_offered", parameter=unknown[0])
    found = {name: _texts(form, name) for name in _ONCE}
    return {name: texts[-1] for name, texts in found.items() if texts}


def _texts(form: FormData, name: str) -> list[str]:
    return [one for one in form.getlist(name) if isinstance(one, str)]


def _once(fields: Mapping[str, str], files: list[tuple[Path, str]]) -> Once:
    if "question" not in fields:
        raise missing("question")
    if not fields["question"].strip():
        raise RequestError("empty_question")
    for path, name in files:
        check_file(path, name)
    overrides = {name: checked(name, fields[name]) for name in OF_A_REPLY if name in fields}
    return Once(fields["question"], files, fields.get("chat", ""), overrides)


def _name(upload: UploadFile) -> str:
    return clean_name(upload.filename or "")


def _saved(upload: UploadFile, path: Path) -> Path:
    with path.open("wb") as file:
        copyfileobj(upload.file, file, MIB)
    return path
