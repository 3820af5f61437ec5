"""The real OpenAI client against a real server: streams, usage, ledger, errors, many at once."""

import concurrent.futures
import http.client
import json
import threading
import time
from collections.abc import Callable

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from kvchat.chat.answer import LiveAnswer
from kvchat.errors import ModelError
from kvchat.wording import Language
from tests.api.conftest import Serve, Served


class NoModel(ModelError):
    """Stands for an error of loading: its sentence does not come from a wording file."""

    def message(self, lang: Language = "en") -> str:
        return "There is no model."

    def remedy(self, lang: Language = "en") -> str:
        return "Choose one."


def user(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


def test_models_are_listed(serve: Serve):
    client = serve().openai()
    assert [model.id for model in client.models.list()] == ["stand-in"]
    assert client.models.retrieve("stand-in").owned_by == "kvchat"
    with pytest.raises(openai.NotFoundError, match="The model is stand-in"):
        client.models.retrieve("gpt-4o")


def test_an_answer(serve: Serve):
    answer = serve().openai().chat.completions.create(model="stand-in", messages=user("한국어 😀"))
    assert answer.choices[0].message.content == "You said: 한국어 😀"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.model == "stand-in"
    assert abs(answer.created - time.time()) < 60
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 3, 6)
    assert usage.prompt_tokens_details.cached_tokens == 0
    assert answer.model_extra == {}


def test_a_stream(serve: Serve):
    client = serve().openai()
    pieces = list(client.chat.completions.create(model="x", messages=user("a b"), stream=True))
    assert all(isinstance(piece, ChatCompletionChunk) for piece in pieces)
    assert pieces[0].choices[0].delta.role == "assistant"
    texts = [piece.choices[0].delta.content or "" for piece in pieces]
    assert [text for text in texts if text] == ["You said: ", "a ", "b"]
    assert [piece.choices[0].finish_reason for piece in pieces] == [None] * 4 + ["stop"]
    assert len({piece.id for piece in pieces}) == 1
    assert all(piece.usage is None for piece in pieces)


def test_a_stream_with_usage(serve: Serve):
    *pieces, last = (
        serve()
        .openai()
        .chat.completions.create(
            model="x", messages=user("a"), stream=True, stream_options={"include_usage": True}
        )
    )
    assert all(piece.usage is None for piece in pieces)
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (2, 2)


def test_the_stream_on_the_wire(serve: Serve):
    """Not only as one client reads it: lines that begin with `data: `, blank lines, `[DONE]`."""
    served = serve()
    connection = http.client.HTTPConnection("127.0.0.1", served.port)
    body = json.dumps({"messages": user("가"), "stream": True})
    connection.request("POST", "/v1/chat/completions", body)
    answer = connection.getresponse()
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    events = answer.read().decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])
    assert "가" in events[2]


def test_a_stream_is_not_held_back(serve: Serve):
    client = serve(token_s=0.15).openai()
    stream = client.chat.completions.create(model="x", messages=user("count to 8"), stream=True)
    arrived_s = [time.monotonic() for piece in stream if piece.choices[0].delta.content]
    assert len(arrived_s) == 8
    assert arrived_s[-1] - arrived_s[0] > 0.6


def test_settings_go_along(serve: Serve):
    served = serve()
    served.openai().chat.completions.create(
        model="x",
        messages=[{"role": "developer", "content": "S"}, *user("Q")],
        temperature=0.3,
        top_p=0.5,
        max_completion_tokens=9,
        seed=7,
        stop=["END"],
        extra_body={"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.2, "unheard_of": 1},
    )
    messages, overrides, stop = served.conversations.asked[0]
    assert messages == [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    assert overrides == {
        "temperature": 0.3, "top_p": 0.5, "max_new_tokens": 9, "seed": 7,
        "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.2,
    }  # fmt: skip
    assert stop == ("END",)


def test_length_and_stop_end_an_answer(serve: Serve):
    client = serve().openai()
    short = client.chat.completions.create(model="x", messages=user("count to 9"), max_tokens=3)
    assert short.choices[0].message.content == "1 2 3 "
    assert short.choices[0].finish_reason == "length"
    ended = client.chat.completions.create(model="x", messages=user("count to 9"), stop="5")
    assert ended.choices[0].message.content == "1 2 3 4 "
    assert ended.choices[0].finish_reason == "stop"


def test_reused_tokens_are_cached_tokens(serve: Serve):
    """Turn n finds turn n-1's prompt and reply; the last token of a prompt is always computed."""
    client = serve().openai()
    messages: list[dict] = []
    before = 0
    for turn in range(5):
        messages += user(f"question {turn}")
        answer = client.chat.completions.create(model="x", messages=messages)
        assert answer.usage.prompt_tokens_details.cached_tokens == before
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        before = answer.usage.prompt_tokens  # the reply's first word is a role, which was not made


def test_what_was_left_out_stands_in_the_ledger(serve: Serve):
    served = serve(context_tokens=12)
    client = served.openai()
    messages = [*user("one"), {"role": "assistant", "content": "two"}, *user("w " * 6)]
    whole = client.chat.completions.create(model="x", messages=messages)
    assert whole.model_extra == {}
    messages = [*user("one " * 9), {"role": "assistant", "content": "two"}, *user("three")]
    answer = client.chat.completions.create(model="x", messages=messages)
    (entry,) = answer.model_extra["kvchat"]["ledger"]
    assert entry["code"] == "truncate_turns"
    assert entry["turns"] == [1]
    assert entry["reason"] == "prompt_too_long"
    for options in ({}, {"stream_options": {"include_usage": True}}):
        *pieces, last = client.chat.completions.create(
            model="x", messages=messages, stream=True, **options
        )
        (again,) = last.model_extra["kvchat"]["ledger"]
        assert again | {"at_s": 0} == entry | {"at_s": 0}
        assert not [piece for piece in pieces if "kvchat" in (piece.model_extra or {})]


# Errors


def test_a_refusal_before_the_answer_has_a_status_even_as_a_stream(serve: Serve):
    client = serve(context_tokens=5).openai()
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="has 10 tokens") as raised:
            client.chat.completions.create(model="x", messages=user("w " * 9), stream=stream)
        assert raised.value.code == "context_length_exceeded"
        assert raised.value.type == "invalid_request_error"


def test_a_failure_in_mid_stream_is_an_error_event(serve: Serve):
    served = serve(token_s=0.05)
    stream = served.openai().chat.completions.create(
        model="x", messages=user("count to 100"), stream=True
    )
    next(stream)
    next(stream)
    (answer,) = served.conversations.answers
    answer.error = ModelError("api_internal")
    answer.add({"type": "failed", "code": "api_internal", "message": "", "remedy": ""})
    with pytest.raises(openai.APIError, match="went wrong inside kvchat"):
        list(stream)
    answer.stop()


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_somebody_stopped_is_no_answer(serve: Serve, stream: bool):
    served = serve(token_s=0.05)

    def stop_soon() -> None:
        while not served.conversations.answers or not served.conversations.answers[0].text:
            time.sleep(0.01)
        served.conversations.answers[0].stop()

    stopping = threading.Thread(target=stop_soon)
    stopping.start()
    with pytest.raises(openai.APIError, match="stopped before its end"):
        _told(served, "count to 100", stream)
    stopping.join()


def test_events_that_break_off_do_not_hang_the_client(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
):
    def broken(_answer: LiveAnswer):
        raise ZeroDivisionError
        yield

    monkeypatch.setattr(LiveAnswer, "events", broken)
    monkeypatch.setattr(threading, "excepthook", lambda _args: None)
    with pytest.raises(openai.InternalServerError, match="went wrong inside kvchat"):
        serve().openai().chat.completions.create(model="x", messages=user("a"))


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temperature": 99}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0].role"),
    ],
)
def test_the_client_learns_which_parameter_is_wrong(serve: Serve, parameters, named):
    served = serve()
    with pytest.raises(openai.BadRequestError) as raised:
        served.openai().chat.completions.create(
            **({"model": "x", "messages": user("a")} | parameters)
        )
    assert raised.value.param == named
    assert named in raised.value.body["message"]
    assert "\n" not in raised.value.body["message"]
    assert served.conversations.answers == []


def test_errors_are_korean_for_who_asks_for_it(serve: Serve):
    client = serve().openai(default_headers={"accept-language": "ko"})
    with pytest.raises(openai.BadRequestError, match="temperature의 범위를 벗어납니다"):
        client.chat.completions.create(model="x", messages=user("a"), temperature=99)


# Loading


def test_a_request_waits_for_the_model(serve: Serve):
    served = serve(load_s=0.7)
    begun_s = time.monotonic()
    answer = served.openai().chat.completions.create(model="x", messages=user("a"))
    assert answer.choices[0].message.content == "You said: a"
    assert time.monotonic() - begun_s > 0.4


def test_a_model_that_failed_to_load(serve: Serve):
    served = serve(load_s=0.3, load_error=NoModel("no_model"))
    client = served.openai(max_retries=2)
    with pytest.raises(openai.InternalServerError, match="There is no model") as raised:
        client.chat.completions.create(model="x", messages=user("a"))
    assert (raised.value.status_code, raised.value.code) == (503, "no_model")
    assert raised.value.response.headers["x-should-retry"] == "false"


def test_a_model_that_takes_too_long(serve: Serve):
    served = serve(load_s=30, app={"load_wait_s": 0.2})
    with pytest.raises(openai.InternalServerError, match="still loading") as raised:
        served.openai().chat.completions.create(model="x", messages=user("a"))
    assert (raised.value.status_code, raised.value.code) == (503, "loading")
    assert raised.value.response.headers["retry-after"] == "5"


# Many at once (case C33)


def _told(served: Served, text: str, stream: bool) -> str:
    client = served.openai(timeout=60)
    found = client.chat.completions.create(model="x", messages=user(text), stream=stream)
    if not stream:
        return found.choices[0].message.content
    return "".join(piece.choices[0].delta.content or "" for piece in found)


def test_answers_at_the_same_time_do_not_mix(serve: Serve):
    served = serve(token_s=0.002)
    texts = [" ".join([word] * 20) for word in ("red", "green", "blue", "가", "나", "다")]
    with concurrent.futures.ThreadPoolExecutor(len(texts)) as pool:
        told = list(pool.map(lambda n: _told(served, texts[n], n % 2 == 0), range(len(texts))))
    assert told == [f"You said: {text}" for text in texts]


def test_too_many_at_once_are_refused_not_piled_up(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kvchat.api.wire.MOST_WAITING", 2)
    served = serve(token_s=0.02)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        told = [pool.submit(_told, served, "count to 30", stream) for stream in (True, False)]
        _until(lambda: len(served.conversations.answers) == 2)
        with pytest.raises(openai.RateLimitError, match="2 answers are waiting"):
            _told(served, "hello", False)
        assert all(one.result().endswith("29 30 ") for one in told)
    assert _told(served, "hello", False) == "You said: hello"


def _until(holds: Callable[[], bool], most_s: float = 10) -> None:
    until_s = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.01)
