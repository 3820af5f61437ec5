"""Bodies of /v1/chat/completions: what is understood, what is refused and under which name."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchat.api.asked import read_asked
from kvchat.errors import RequestError
from kvchat.settings import Settings, changed

HELLO = [{"role": "user", "content": "Hello"}]


def asked(**parameters):
    return read_asked(json.dumps({"messages": HELLO, **parameters}).encode())


def refusal(**parameters):
    with pytest.raises(RequestError) as raised:
        asked(**parameters)
    return raised.value


def test_messages_alone_are_enough():
    found = read_asked(b'{"messages": [{"role": "user", "content": "Hello"}]}')
    assert found.messages == HELLO
    assert (found.overrides, found.stop, found.stream, found.include_usage) == (
        {},
        (),
        False,
        False,
    )


def test_parameters_become_settings():
    found = asked(
        temperature=0, top_p=0.5, top_k=40, min_p=0.1, repetition_penalty=1.1, max_tokens=7, seed=3
    )
    assert found.overrides == {
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 40,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "max_new_tokens": 7,
        "seed": 3,
    }


@pytest.mark.parametrize(
    ("given", "overrides"),
    [
        ({"max_completion_tokens": 5}, {"max_new_tokens": 5}),
        ({"max_completion_tokens": 5, "max_tokens": 5}, {"max_new_tokens": 5}),
        ({"max_tokens": 100.0}, {"max_new_tokens": 100}),
        ({"top_p": 0}, {"top_k": 1, "top_p": 1.0}),
        ({"seed": -1}, {"seed": 2**63 - 1}),
        ({"temperature": None, "max_tokens": None, "seed": None, "stop": None}, {}),
    ],
)
def test_other_ways_to_say_it(given, overrides):
    assert asked(**given).overrides == overrides


def test_stop_and_stream():
    assert asked(stop="END").stop == ("END",)
    assert asked(stop=["a", "b"]).stop == ("a", "b")
    assert asked(stop=[]).stop == ()
    found = asked(stream=True, stream_options={"include_usage": True})
    assert (found.stream, found.include_usage) == (True, True)
    assert not asked(stream=True, stream_options=None).include_usage


def test_harmless_parameters_are_ignored():
    found = asked(
        model="gpt-4o-mini",
        user="somebody",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        some_future_parameter=[1, 2],
        n=1,
        tools=[],
        tool_choice="auto",
        logprobs=False,
        logit_bias={},
        frequency_penalty=0,
        presence_penalty=0.0,
        response_format={"type": "text"},
        modalities=["text"],
    )
    assert found.overrides == {}


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("n", 2),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("logit_bias", {"50": 1}),
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy"}),
    ],
)
def test_what_is_not_offered_is_refused_by_name(parameter, value):
    error = refusal(**{parameter: value})
    assert (error.code, error.facts["parameter"]) == ("api_not_offered", parameter)
    assert parameter in error.message("en")
    assert parameter in error.message("ko")


@pytest.mark.parametrize(
    ("parameter", "value", "code"),
    [
        ("temperature", 99, "api_range"),
        ("temperature", -0.1, "api_range"),
        ("temperature", 1e308, "api_range"),
        ("temperature", 10**40, "api_range"),
        ("temperature", "0.5", "api_no_number"),
        ("temperature", True, "api_no_number"),
        ("top_p", 1.5, "api_range"),
        ("top_p", [], "api_no_number"),
        ("top_k", -1, "api_range"),
        ("top_k", 0.5, "api_no_integer"),
        ("min_p", 2, "api_range"),
        ("repetition_penalty", 0, "api_range"),
        ("max_tokens", 0, "api_range"),
        ("max_tokens", -5, "api_range"),
        ("max_tokens", 10**9, "api_range"),
        ("max_tokens", "12", "api_no_integer"),
        ("max_completion_tokens", 0, "api_range"),
        ("seed", 2**63, "api_range"),
        ("seed", 0.5, "api_no_integer"),
        ("stream", "yes", "api_no_truth"),
        ("stream_options", True, "api_no_mapping"),
        ("stop", 5, "api_no_list"),
        ("stop", "", "api_empty"),
        ("stop", ["x"] * 17, "api_too_many"),
        ("model", 5, "api_no_text"),
        ("messages", "Hello", "api_no_list"),
        ("messages", [], "api_empty"),
        ("messages", None, "api_missing"),
    ],
)
def test_wrong_values_name_their_parameter(parameter, value, code):
    error = refusal(**{parameter: value})
    assert (error.code, error.facts["parameter"]) == (code, parameter)
    assert parameter in error.message("en")
    assert parameter in error.message("ko")
    assert len(error.line("en")) < 200


def test_one_stop_of_many_is_named():
    assert refusal(stop=["a", 5]).facts["parameter"] == "stop[1]"
    assert refusal(stream_options={"include_usage": 3}).facts["parameter"].endswith("include_usage")


def test_two_lengths_that_differ():
    error = refusal(max_tokens=5, max_completion_tokens=6)
    assert (error.code, error.facts["parameter"]) == ("api_both", "max_completion_tokens")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "api_json"),
        (b"{", "api_json"),
        (b"\xff\xfe{}", "api_utf8"),
        (b'{"messages": "\xed\xa0\x80"}', "api_utf8"),
        (b"[]", "api_not_object"),
        (b'"text"', "api_not_object"),
        (b"null", "api_not_object"),
        (b"[" * 100_000, "api_json_extreme"),
        (b'{"seed": ' + b"9" * 10_000 + b"}", "api_json_extreme"),
        (b'{"temperature": NaN}', "api_json_constant"),
        (b'{"temperature": -Infinity}', "api_json_constant"),
    ],
)
def test_bodies_that_are_no_request(body, code):
    with pytest.raises(RequestError) as raised:
        read_asked(body)
    assert raised.value.code == code
    assert raised.value.line("ko") != raised.value.line("en")


def test_an_infinite_number_is_out_of_range():
    """1e999 is JSON, and infinite for Python."""
    with pytest.raises(RequestError) as raised:
        read_asked(b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}')
    assert raised.value.code == "api_range"


_PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_JSON = st.recursive(
    _PLAIN, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(), part, max_size=3)
)
_PART = st.fixed_dictionaries({"type": st.just("text") | _JSON, "text": st.text() | _JSON})
_MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]) | _JSON,
        "content": st.text() | st.lists(_PART, max_size=2) | _JSON,
    },
    optional={"name": _JSON, "tool_calls": _JSON},
)
_NAMES = [
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens",
    "max_completion_tokens", "seed", "stop", "stream", "stream_options", "n", "tools", "logprobs",
    "response_format", "model", "logit_bias", "frequency_penalty",
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries(
        {"messages": st.lists(_MESSAGE, max_size=4) | _JSON},
        optional=dict.fromkeys(_NAMES, _JSON),
    )
)
def test_any_json_is_a_request_or_a_refusal_in_one_sentence(body):
    try:
        found = read_asked(json.dumps(body).encode())
    except RequestError as error:
        said = [error.line("en"), error.line("ko")]
        found = None
    if found is None:
        assert not any("\n" in line for line in said)
        return
    roles = [one["role"] for one in found.messages]
    turns = roles[1:] if roles[0] == "system" else roles
    assert turns == ["user", "assistant"] * (len(turns) // 2) + ["user"]
    assert changed(Settings(), found.overrides) is not None
    "".join([one["content"] for one in found.messages] + list(found.stop)).encode()


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_refused(body):
    with pytest.raises(RequestError):
        read_asked(body)
