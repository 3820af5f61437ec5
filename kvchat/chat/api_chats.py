"""Conversations of programs as chats in the list: a request over /v1 goes on in one, or begins one.

A program sends all messages each time. A chat whose messages are the same up to the last question
is the one it goes on with; as messages are named by all that came before, one name is compared.
Documents are never in play: what a screen added is not told to a program.
"""

from contextlib import suppress

from kvchat.chat.admit import Told
from kvchat.chat.titles import title_of
from kvchat.errors import StoreError
from kvchat.store.records import Message
from kvchat.store.store import Store


def chats_to_go_on_with(store: Store, told: Told) -> list[str]:
    """Chats without documents that hold all of the request but its question, newest first."""
    if len(told.messages) < 2:
        return []
    tip = told.messages[-2].name
    return [
        row.id
        for row in store.chats()
        if row.system_text == told.system
        and _holds(store, row.id, tip)
        and not store.chat_documents(row.id)
    ]


def _holds(store: Store, chat: str, message: str) -> bool:
    with suppress(StoreError):
        return message in store.siblings(chat, message)
    return False


def go_on(store: Store, chat: str, told: Told) -> Message:
    """The request's question in that chat, after the messages that it names."""
    store.fork(chat, told.messages[-2].name)
    return store.append(chat, "user", told.messages[-1].content)


def begin(store: Store, told: Told) -> tuple[str, Message]:
    """A new chat that holds all of the request; its last message is the question."""
    chat = store.new_chat(title_of(told.messages[0].content), told.system).id
    for one in told.messages:
        question = store.append(chat, "user" if one.role == "user" else "assistant", one.content)
    return chat, question
