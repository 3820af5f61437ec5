"""The stand-in's documents: how each is read, its pages, and where passages stand on them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvchat.chat.rows import DocumentRow
from kvchat.errors import DocumentError

if TYPE_CHECKING:
    from tests.ui.standin import StandIn

TOKENS_A_PAGE, ROOM_TOKENS, TOKEN_BYTES = 640, 9000, 147_456
VERDICTS = ("text", "text", "form", "scan", "hidden")  # by page, over and over
PASSWORD = "열려라 참깨"


class StandInDocuments:
    """In the place of `Conversations.choosing` and `Conversations.library`."""

    def __init__(self, talks: "StandIn") -> None:
        self._talks = talks

    def _change(self, chat: str, document: str, **about: Any) -> DocumentRow:
        here = self._talks._chat(chat)
        at = next(n for n, one in enumerate(here.documents) if one.document == document)
        here.documents[at] = replace(here.documents[at], **about)
        return here.documents[at]

    def _row(self, chat: str, document: str) -> DocumentRow:
        return next(one for one in self._talks.documents(chat) if one.document == document)

    def choose(self, chat: str, document: str, mode: str | None) -> None:
        self._refuse()
        self._change(chat, document, chosen=mode, mode=mode)

    def _refuse(self) -> None:
        if self._talks.fail_next:
            error, self._talks.fail_next = self._talks.fail_next, None
            raise error

    def leave_page(self, chat: str, document: str, page: int, *, left: bool) -> None:
        self._refuse()
        pages = set(self._row(chat, document).left_pages) - {page} | ({page} if left else set())
        self._change(chat, document, left_pages=tuple(sorted(pages)))

    def plan(self, chat: str) -> list[dict[str, Any]]:
        return [self._plan(one) for one in self._talks.documents(chat) if not one.problem]

    def _plan(self, one: DocumentRow) -> dict[str, Any]:
        tokens = TOKENS_A_PAGE * (one.num_pages - len(one.left_pages))
        fits = tokens <= ROOM_TOKENS
        return {
            "document": one.document, "mode": one.chosen or ("whole" if fits else "passages"),
            "reason": "chosen" if one.chosen else "fits" if fits else "too_large",
            "chosen": one.chosen, "tokens": tokens, "bytes": tokens * TOKEN_BYTES, "fits": fits,
            "room": {"capacity": 10000, "others": 0, "reserve": 300, "reply": 512, "share": 60,
                     "most": 90, "chosen": {"tokens": ROOM_TOKENS, "limit": "most"},
                     "unasked": {"tokens": ROOM_TOKENS, "limit": "most"}},
            "again": {"whole": {"tokens": 300, "s": None}, "passages": None, "off": None},
            "passage_tokens": min(1340, tokens),
            "passage_bytes": min(1340, tokens) * TOKEN_BYTES, "bytes_per_token": TOKEN_BYTES,
        }  # fmt: skip

    def pages(self, chat: str, document: str) -> list[dict[str, Any]]:
        return [
            {
                "number": page,
                "label": "iii" if page == 3 else None,
                "verdict": VERDICTS[(page - 1) % len(VERDICTS)],
                "num_tokens": TOKENS_A_PAGE,
                "order": None,
                "confidence": None,
            }
            for page in range(1, self._row(chat, document).pages_done + 1)
        ]

    def rename(self, document: str, name: str) -> str:
        for chat in list(self._talks._chats):
            if any(one.document == document for one in self._talks.documents(chat)):
                self._change(chat, document, name=name)
        return name

    def unlock(self, chat: str, document: str, password: str) -> None:
        if password != PASSWORD:
            raise DocumentError("document_password", name=self._row(chat, document).name)
        self._change(chat, document, problem=None, asks_password=False, pages_done=4)


def page_marks(document: str, page: int, texts: Sequence[str]) -> list[list[list[float]]]:
    """The first line of each page's picture, whatever is looked for; nothing for an empty text."""
    return [[[0.11, 0.15, 0.88, 0.17], [0.11, 0.19, 0.6, 0.21]] if one else [] for one in texts]
