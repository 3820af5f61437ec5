"""Documents over all chats: renamed everywhere, forgotten for good."""

from kvchat.store.records import Attachment, DocumentFile, DocumentPage
from kvchat.store.store import Store


def add(store: Store, sha: str) -> None:
    pages = [DocumentPage(1, None, "text", f"text of {sha}")]
    store.add_document(DocumentFile(sha, f"{sha}.pdf", f"/{sha}"), pages)


def brought(sha: str) -> Attachment:
    return Attachment(sha, f"{sha}.pdf", "passages", (0,), f"fenced {sha}")


def test_the_library_knows_which_chats_have_what(store: Store) -> None:
    chat, other = store.new_chat("", "").id, store.new_chat("", "").id
    add(store, "one")
    add(store, "two")
    store.attach_document(chat, "one", "one.pdf")
    store.append(other, "user", "q", [brought("one")])
    found = {one.sha: one for one in store.library()}
    assert set(found["one"].chats) == {chat, other}
    assert found["two"].chats == ()
    assert (found["one"].kind, found["one"].num_pages) == ("pdf", 1)


def test_a_new_name_holds_in_every_chat(store: Store) -> None:
    chats = [store.new_chat("", "").id for _ in range(2)]
    add(store, "one")
    for chat in chats:
        store.attach_document(chat, "one", "old.pdf")
    store.rename_document("one", "새 이름.pdf")
    assert {store.chat_documents(chat)[0].name for chat in chats} == {"새 이름.pdf"}
    assert store.library()[0].name == "새 이름.pdf"


def test_what_is_forgotten_leaves_no_text_and_the_chat_goes_on(store: Store) -> None:
    chat = store.new_chat("", "").id
    add(store, "secret")
    add(store, "other")
    store.attach_document(chat, "secret", "secret.pdf")
    store.attach_document(chat, "other", "other.pdf")
    first = store.append(chat, "user", "first", [brought("secret"), brought("other")])
    store.append(chat, "assistant", "reply one")
    second = store.append(chat, "user", "second")
    store.pin(chat, second.hash)
    store.append(chat, "assistant", "reply two")
    store.fork(chat, first.hash)
    store.append(chat, "assistant", "another reply")

    store.forget_document("secret")

    messages = store.messages(chat)
    assert [one.content for one in messages] == ["first", "another reply"]
    assert [one.document for one in messages[0].attachments] == ["other"]
    assert messages[0].hash != first.hash
    assert len(store.replies(chat, messages[0].hash)) == 2
    store.switch(chat, store.replies(chat, messages[0].hash)[0])
    kept = store.messages(chat)
    assert [one.content for one in kept] == ["first", "reply one", "second", "reply two"]
    assert store.pins(chat) == {kept[2].hash}
    assert [one.document for one in store.chat_documents(chat)] == ["other"]
    assert {one.sha for one in store.remove_unreferenced()} == {"secret"}
    with store._database.read() as connection:
        assert not connection.execute(
            "SELECT 1 FROM attachments WHERE document = 'secret'"
        ).fetchall()
        assert connection.execute("SELECT count(*) FROM messages").fetchone()[0] == 5
    assert store.verify() == []


def test_forgetting_what_nobody_has_changes_nothing(store: Store) -> None:
    chat = store.new_chat("", "").id
    message = store.append(chat, "user", "q", [brought("other")])
    store.forget_document("secret")
    assert store.messages(chat) == [message]
