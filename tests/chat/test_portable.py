"""A chat as a file: back as it was, readable as Markdown, and no file does harm."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.chat.conversations import Conversations
from kvchat.chat.portable import file_name, from_json, to_markdown
from kvchat.chat.rows import Exchange
from kvchat.errors import RequestError
from tests.chat.test_conversations import answered

Start = Callable[..., Conversations]


def branched(conversations: Conversations) -> str:
    chat = conversations.new_chat()
    answered(conversations.ask(chat, "Tell me <b>a</b> story 이야기."))
    answered(conversations.ask(chat, "And then?"))
    answered(conversations.edit(chat, 2, "Why?"))
    answered(conversations.regenerate(chat, 2))
    conversations.switch(chat, 2, 1)
    conversations.pin_turn(chat, 1)
    conversations.rename(chat, "A title: with/slash")
    return chat


def test_a_chat_comes_back_with_its_branches(start: Start) -> None:
    conversations = start(temperature=1.0)
    chat = branched(conversations)
    name, text = conversations.carrying.as_json(chat)
    assert name == "A title with slash.json"
    again = conversations.carrying.bring(text.encode())
    before, after = conversations.history(chat), conversations.history(again)
    assert before == after
    assert [one.num_siblings for one in after] == [1, 3]
    assert after[0].pinned
    assert conversations._store.verify() == []
    titles = {one.title for one in conversations._store.chats()}
    assert titles == {"A title: with/slash", "A title: with/slash (2)"}
    # and goes on
    assert answered(conversations.ask(again, "More.")).turn == 3
    _, markdown = conversations.carrying.as_markdown(chat, before, "ko")
    for part in ("# A title: with/slash", "Tell me <b>a</b> story 이야기.", before[1].reply or "?"):
        assert part in markdown


def saved(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kvchat_chat": 1, "title": "t", "system_text": "s", "created_at_s": 1.0, "documents": [],
        "messages": [
            {"number": 1, "parent": None, "role": "user", "text": "q", "created_at_s": 1.0,
             "documents": [], "pinned": False, "made": None},
            {"number": 2, "parent": 1, "role": "assistant", "text": "r", "created_at_s": 1.0,
             "documents": [], "pinned": False, "made": {
                 "sampled_ids": [1], "stop_reason": "stop", "figures": {}, "citations": [],
                 "model": "m", "created_at_s": 1.0}},
        ],
        "branches": [2],
    }  # fmt: skip
    return found | changes


def refused(content: bytes) -> str:
    with pytest.raises(RequestError) as error:
        from_json(content)
    assert error.value.message("ko") != error.value.message("en")
    return error.value.code


def test_what_is_written_is_read() -> None:
    there, texts = from_json(b"\xef\xbb\xbf" + json.dumps(saved()).encode())  # a byte order mark
    assert [one.content for one in there.messages] == ["q", "r"]
    assert texts == {}


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[]", b"{}", b"null", b"%PDF-1.4", b'{"messages": []}', b"[" * 100_000],
)
def test_another_file_is_said_to_be_no_chat(content: bytes) -> None:
    assert refused(content) == "chat_file_other"


def test_a_later_versions_file_says_so() -> None:
    assert refused(json.dumps(saved(kvchat_chat=2)).encode()) == "chat_file_newer"


def with_message(at: int, /, **changes: Any) -> dict[str, Any]:
    found = saved()
    found["messages"][at - 1] |= changes
    return found


def with_made(**changes: Any) -> dict[str, Any]:
    found = saved()
    found["messages"][1]["made"] |= changes
    return found


BROKEN = [
    saved(messages=None), saved(branches=[3]), saved(branches=[1]), saved(branches=[]),
    saved(title=3), saved(created_at_s="now"), saved(created_at_s=-1), saved(created_at_s=1e300),
    saved(documents=[{"document": "../x", "name": "n", "leading": True, "text": ""}]),
    with_message(1, number=2), with_message(2, parent=2), with_message(2, parent=9),
    with_message(1, role="system"), with_message(1, text=None), with_message(2, created_at_s=True),
    with_message(1, made=with_made()["messages"][1]["made"]),
    with_message(1, documents=[{"document": "f" * 64, "name": "n", "mode": "all", "passages": [],
                                "text": ""}]),
    with_made(stop_reason="<b>"), with_made(sampled_ids=[-1]), with_made(sampled_ids=[2**32]),
    with_made(figures=[]), with_made(citations=[{"document": "x"}]), with_made(model=None),
    *(with_made(citations=[{"document": "f" * 64, "name": "n", "page": 1, "label": None, "text": "",
                            "support": "matched"} | more])
      for more in ({"at": "x"}, {"at": [-1]}, {"at": ["x"]}, {"quote": 3}, {"page": True})),
    with_made(citations=[{"document": "f" * 64, "name": "n", "page": 0, "label": None, "text": "",
                          "support": "matched"}]),
]  # fmt: skip


@pytest.mark.parametrize("found", BROKEN)
def test_a_damaged_file_is_refused_whole(found: dict[str, Any]) -> None:
    assert refused(json.dumps(found).encode()) == "chat_file_damaged"


def test_a_reply_before_the_first_question_is_not_lost_in_silence() -> None:
    greeting = with_message(1, role="assistant")
    assert refused(json.dumps(greeting).encode()) == "chat_file_reply_first"
    other_beginning = with_message(2, parent=None) | {"branches": [1, 2]}
    assert refused(json.dumps(other_beginning).encode()) == "chat_file_reply_first"


def test_figures_are_numbers_or_none_at_all() -> None:
    figures = {"prompt_tokens": 3, "reply_tokens": "<img>"}
    assert (
        from_json(json.dumps(with_made(figures=figures)).encode())[0].generations["2"].figures == {}
    )
    whole = dict.fromkeys(
        ("prompt_tokens", "reply_tokens", "reused_tokens", "prefill_s", "time_to_first_token_s",
         "decode_s", "bytes"), 1,
    )  # fmt: skip
    for formats in ({"<b>": 1}, {"fp/fp": "x"}, {"fp/fp": -1}, 3):
        broken = with_made(figures={**whole, "formats": formats})
        assert refused(json.dumps(broken).encode()) == "chat_file_damaged"
    broken = with_made(figures={**whole, "formats": {}, "decode_s": "1"})
    assert refused(json.dumps(broken).encode()) == "chat_file_damaged"


def test_half_a_character_anywhere_becomes_one_that_can_be_written(start: Start) -> None:
    """JSON can say it; neither the store nor an answer to a browser can."""
    half, sha = "\ud800", "f" * 64
    cited = {"type": half, "document": sha, "name": half, "page": 1, "label": half, "text": half,
             "support": "matched", "quote": half}  # fmt: skip
    found = with_made(model=half, citations=[cited]) | {"title": half, "system_text": half}
    brought = {"document": sha, "name": half, "mode": "passages", "passages": [], "text": half}
    found["messages"][0] |= {"text": half, "documents": [brought]}
    conversations = start()
    chat = conversations.carrying.bring(json.dumps(found).encode())
    (shown,) = conversations.history(chat)
    assert shown.citations == [dict.fromkeys(("name", "label", "text", "quote"), "\ufffd")
                               | {"type": "citation", "document": sha, "page": 1,
                                  "support": "matched"}]  # fmt: skip
    assert conversations.carrying.as_json(chat)[1].encode()


def test_nothing_is_kept_of_a_bad_file(start: Start) -> None:
    conversations = start()
    for found in BROKEN:
        with pytest.raises(RequestError):
            conversations.carrying.bring(json.dumps(found).encode())
    assert conversations.chats() == []


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def taken_or_refused(content: bytes) -> None:
    """Any other error is a fault of ours."""
    with suppress(RequestError):
        from_json(content)


@given(st.sampled_from(sorted(saved())), ANYTHING)
def test_whatever_stands_anywhere_is_taken_or_refused(name: str, value: Any) -> None:
    content = json.dumps(saved(**{name: value})).encode()
    taken_or_refused(content)


@given(st.sampled_from(sorted(saved()["messages"][1]["made"])), ANYTHING)
def test_whatever_stands_in_a_reply_is_taken_or_refused(name: str, value: Any) -> None:
    taken_or_refused(json.dumps(with_made(**{name: value})).encode())


def exchange(**about: Any) -> Exchange:
    plain: dict[str, Any] = {
        "turn": 1, "user_hash": "u", "text": "q", "documents": ("a.pdf",), "reply_hash": "r",
        "reply": "<think>hm\n\nso</think>yes", "finish_reason": "length", "figures": None,
        "citations": [{"name": "a.pdf", "page": 3, "support": "matched"}], "left_out": False,
        "sibling": 1, "num_siblings": 1,
    }  # fmt: skip
    return Exchange(**plain | about)


def test_markdown_has_reasoning_quoted_pages_and_how_it_ended() -> None:
    text = to_markdown("", [exchange(), exchange(turn=2, reply=None)], "en")
    assert text.startswith("# kvchat\n\n## Question 1\n\nWith: a.pdf\n\nq\n\n### Reply\n\n")
    assert "> **Reasoning**\n>\n> hm\n>\n> so\n\nyes\n\nPages: a.pdf, page 3\n" in text
    assert text.endswith("## Question 2\n\nWith: a.pdf\n\nq\n\n*This question was not answered.*\n")


@pytest.mark.parametrize(
    ("title", "name"),
    [("a/b\\c:d", "a b c d.md"), ("..", None), ("", None), ("x" * 300, "x" * 80 + ".md"),
     ("필터 <청소>?\n둘", "필터 청소 둘.md"), ("CON", "CON.md")],
)  # fmt: skip
def test_file_names_are_such_everywhere(title: str, name: str | None) -> None:
    found = file_name(title, "md")
    assert found == name if name else found.startswith("kvchat ")


def test_replies_in_a_row_are_all_shown(start: Start) -> None:
    """As another program may have sent them over /v1."""
    found = saved(branches=[3])
    more = {"number": 3, "parent": 2, "text": "and more"}
    found["messages"].append(found["messages"][1] | more)
    conversations = start()
    chat = conversations.carrying.bring(json.dumps(found).encode())
    (shown,) = conversations.history(chat)
    assert shown.reply == "r\n\nand more"
    again = json.loads(conversations.carrying.as_json(chat)[1])
    assert [one["text"] for one in again["messages"]] == ["q", "r", "and more"]
    answered(conversations.ask(chat, "More."))
    assert conversations.history(chat)[0].reply == "r\n\nand more"
