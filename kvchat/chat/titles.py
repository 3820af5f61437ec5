"""What a chat is called until somebody names it: its first question, whichever that is by now."""

from collections.abc import Iterator
from contextlib import contextmanager

from kvchat.store.store import Store

TITLE_CHARACTERS = 60


def title_of(question: str) -> str:
    return " ".join(question.split())[:TITLE_CHARACTERS]


def follow_edit(store: Store, chat: str, before: str, now: str) -> None:
    """The first question is another one: a title that was made of it follows."""
    if store.chat(chat).title == title_of(before):
        store.rename(chat, title_of(now))


@contextmanager
def title_follows(store: Store, chat: str) -> Iterator[None]:
    """What is done meanwhile may show another first question. Where none is left, the title stays:
    it is all that is left of the chat.
    """
    before = store.messages(chat)
    yield
    now = store.messages(chat)
    if before and now:
        follow_edit(store, chat, before[0].content, now[0].content)
