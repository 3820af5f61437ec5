"""What was chosen for a document of a chat: kept, changed, and gone with the document."""

from kvchat.store.store import Store

SHA, OTHER = "a" * 64, "b" * 64


def test_choices_are_kept_by_chat_and_go_with_the_document(store: Store) -> None:
    chat, second = store.new_chat("", "", True).id, store.new_chat("", "", True).id
    for one in (chat, second):
        store.attach_document(one, SHA, "a.pdf")
    before = store.version(chat)
    store.choose_mode(chat, SHA, "off")
    store.choose_mode(chat, SHA, "whole")
    store.choose_mode(chat, OTHER, "whole")  # it has no such document
    assert store.chosen_modes(chat) == {SHA: "whole"}
    assert store.chosen_modes(second) == {}
    assert store.version(chat) != before
    for page in (3, 1, 3):
        store.leave_page(chat, SHA, page)
    store.leave_page(chat, OTHER, 1)
    assert store.left_pages(chat) == {SHA: frozenset({1, 3})}
    store.leave_page(chat, SHA, 1, left=False)
    assert store.left_pages(chat) == {SHA: frozenset({3})}
    store.choose_mode(chat, SHA, None)
    assert store.chosen_modes(chat) == {}
    store.choose_mode(chat, SHA, "off")
    store.detach(chat, SHA)
    store.attach_document(chat, SHA, "a.pdf")
    assert store.chosen_modes(chat) == {}
    assert store.left_pages(chat) == {}
    store.leave_page(chat, SHA, 2)
    store.delete(chat)
    assert store.left_pages(chat) == {}
