"""Words are found in titles and texts of all branches, in every script, as parts of words."""

import unicodedata

import pytest

from kvchat.store.store import Store


def said(store: Store, *texts: str, title: str = "") -> str:
    chat = store.new_chat(title, "").id
    for number, text in enumerate(texts):
        store.append(chat, "assistant" if number % 2 else "user", text)
    return chat


def test_korean_is_found_within_words_composed_or_not(store: Store) -> None:
    text = "에어컨필터청소는 두 주에 한 번"
    chat = said(store, unicodedata.normalize("NFD", text))
    said(store, "another")
    for query in ("필터", unicodedata.normalize("NFD", "필터"), "컨필터청", "두 주에"):
        assert list(store.search(query)) == [chat], query


@pytest.mark.parametrize("query", ["STRASSE", "straße", "Élan", "ÉLAN", "élan strasse"])
def test_case_does_not_matter(store: Store, query: str) -> None:
    chat = said(store, "Die Straße mit élan")
    assert list(store.search(query)) == [chat]


def test_every_word_is_somewhere_in_the_chat(store: Store) -> None:
    chat = said(store, "apples", "pears", title="Fruit 100%_x")
    assert list(store.search("fruit pears")) == [chat]
    assert store.search("fruit plums") == {}
    assert list(store.search("100%_")) == [chat]
    assert store.search("1000%") == {}


def test_a_title_alone_has_no_places(store: Store) -> None:
    chat = said(store, "hello", title="Fruit")
    assert store.search("fruit") == {chat: ()}


def test_the_best_and_newest_messages_come_first_on_any_branch(store: Store) -> None:
    chat = said(store, "one cat", "one dog", "a cat and a dog", "cat cat")
    question = store.messages(chat)[0]
    store.fork(chat, question.hash)
    other = store.append(chat, "assistant", "dog, on another branch")
    (hits,) = store.search("cat dog").values()
    assert [one.text for one in hits] == ["a cat and a dog", other.content, "cat cat"]
    assert [(one.turn, one.role) for one in hits] == [
        (2, "user"),
        (1, "assistant"),
        (2, "assistant"),
    ]


def test_nothing_is_looked_for_in_blanks_or_in_chats_that_are_not_listed(store: Store) -> None:
    chat = store.new_chat("hidden", "", listed=False).id
    store.append(chat, "user", "secret")
    assert store.search("secret") == {}
    assert store.search("  ") == {}
