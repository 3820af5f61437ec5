"""Messages of many shapes become one system text or none, then question and answer by turns."""

import pytest

from kvchat.api.messages import read_messages
from kvchat.errors import RequestError


def message(role, content):
    return {"role": role, "content": content}


def refusal(messages):
    with pytest.raises(RequestError) as raised:
        read_messages(messages)
    error = raised.value
    assert str(error.facts["parameter"]) in error.message("en")
    assert str(error.facts["parameter"]) in error.message("ko")
    return error.code, error.facts["parameter"]


def test_a_plain_chat_stays_as_it_is():
    chat = [
        message("system", "Be brief."),
        message("user", "One?"),
        message("assistant", "One."),
        message("user", "Two?"),
    ]
    assert read_messages(chat) == chat


def test_parts_of_text_are_lines():
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "세계"}]
    assert read_messages([message("user", parts)]) == [message("user", "Hello\n세계")]


def test_a_developer_is_a_system_and_leading_ones_are_joined():
    chat = [message("system", "A"), message("developer", "B"), message("user", "Q")]
    assert read_messages(chat) == [message("system", "A\n\nB"), message("user", "Q")]


def test_neighbours_of_one_role_are_one_message():
    chat = [
        message("user", "A"),
        message("user", "B"),
        message("assistant", "C"),
        message("assistant", "D"),
        message("user", "E"),
    ]
    assert read_messages(chat) == [
        message("user", "A\n\nB"),
        message("assistant", "C\n\nD"),
        message("user", "E"),
    ]


def test_an_empty_answer_and_an_empty_system_text_may_stand():
    chat = [
        message("system", ""),
        message("user", "Q"),
        message("assistant", ""),
        message("user", "R"),
    ]
    assert read_messages(chat) == chat


def test_other_fields_of_a_message_are_ignored():
    sent = {"role": "user", "content": "Q", "name": "somebody", "tool_calls": None, "refusal": None}
    assert read_messages([sent]) == [message("user", "Q")]


def test_ten_thousand_messages_are_read():
    turns = [message("user", "Q"), message("assistant", "A")] * 5_000
    assert len(read_messages([*turns, message("user", "Q")])) == 10_001


@pytest.mark.parametrize(
    ("messages", "code", "parameter"),
    [
        (["Hello"], "api_no_mapping", "messages[0]"),
        ([{}], "api_missing", "messages[0].role"),
        ([{"role": "user"}], "api_missing", "messages[0].content"),
        ([{"role": "user", "content": None}], "api_missing", "messages[0].content"),
        ([{"role": 5, "content": "x"}], "api_no_text", "messages[0].role"),
        ([message("tool", "x")], "api_role", "messages[0].role"),
        ([message("function", "x")], "api_role", "messages[0].role"),
        ([message("User", "x")], "api_role", "messages[0].role"),
        ([message("user", 5)], "api_no_text", "messages[0].content"),
        ([message("user", "")], "api_empty", "messages[0].content"),
        ([message("user", " \n")], "api_empty", "messages[0].content"),
        ([message("user", [])], "api_empty", "messages[0].content"),
        ([message("user", "\ud800")], "api_half_letter", "messages[0].content"),
        ([message("user", ["x"])], "api_no_mapping", "messages[0].content[0]"),
        ([message("user", [{"type": "text"}])], "api_no_text", "messages[0].content[0].text"),
        (
            [message("user", [{"type": "text", "text": "x"}, {"type": "image_url"}])],
            "api_only_text",
            "messages[0].content[1].type",
        ),
        ([message("system", "x")], "api_user_last", "messages[0].role"),
        ([message("assistant", "x")], "api_user_first", "messages[0].role"),
        ([message("user", "x"), message("assistant", "y")], "api_user_last", "messages[1].role"),
        (
            [message("user", "x"), message("system", "y"), message("user", "z")],
            "api_system_late",
            "messages[1].role",
        ),
        (
            [
                message("user", "x"),
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
                message("user", "z"),
            ],
            "api_not_offered",
            "messages[1].tool_calls",
        ),
    ],
)
def test_what_is_no_chat_is_refused_by_name(messages, code, parameter):
    assert refusal(messages) == (code, parameter)
