"""What a client asks for: the body of `/v1/chat/completions`, checked where it enters.

Every parameter is one of three: it means a setting (and is checked by the setting's own range), it
changes the answer in a way that is not offered (and is refused by name), or it is harmless and
ignored. Whatever is wrong names the parameter. Knows no conversation and no model.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvchat.api.messages import read_messages
from kvchat.api.values import integer, listed, mapping, missing, number, text, truth, whole_text
from kvchat.errors import RequestError
from kvchat.settings import SCHEMA

_SETTING_OF = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
}
# What is not offered, with the values that ask for nothing. null always asks for nothing.
_NOT_OFFERED: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (False, 0),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "echo": (False,),
    "grammar": ("",),
    "json_schema": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
_MOST_STOPS = 16
_SEEDS = 2**63


@dataclass(frozen=True, slots=True)
class Asked:
    """`overrides` are settings with checked values; what is absent is as the person set it."""

    messages: list[dict[str, str]]
    overrides: dict[str, object]
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool


def read_asked(body: bytes) -> Asked:
    """Raises RequestError with one sentence, naming the parameter."""
    given = {name: value for name, value in _object(body).items() if value is not None}
    for name, harmless in _NOT_OFFERED.items():
        if name in given and given[name] not in harmless:
            raise RequestError("api_not_offered", parameter=name)
    if "messages" not in given:
        raise missing("messages")
    if "model" in given:
        text("model", given["model"])
    options = mapping("stream_options", given.get("stream_options", {}))
    return Asked(
        messages=read_messages(given["messages"]),
        overrides=_overrides(given),
        stop=_stop(given.get("stop", [])),
        stream=truth("stream", given.get("stream", False)),
        include_usage=truth("stream_options.include_usage", options.get("include_usage") or False),
    )


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise RequestError("api_utf8") from None
    except json.JSONDecodeError as error:
        raise RequestError("api_json", line=error.lineno, column=error.colno) from None
    except (ValueError, RecursionError):  # a number of thousands of digits, a thousand brackets
        raise RequestError("api_json_extreme") from None
    if not isinstance(found, dict):
        raise RequestError("api_not_object")
    return found


def _no_constant(name: str) -> float:
    """NaN and Infinity are Python's, not JSON's; where they stood is not told."""
    raise RequestError("api_json_constant", name=name)


def _overrides(given: Mapping[str, Any]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, setting in _SETTING_OF.items():
        if name in given:
            value = _checked(name, setting, given[name])
            if found.get(setting, value) != value:
                raise RequestError("api_both", parameter=name)
            found[setting] = value
    if given.get("top_p") == 0:  # OpenAI allows 0: nothing but the likeliest token
        found |= {"top_k": 1, "top_p": 1.0}
    if "seed" in given:
        # OpenAI's seeds are any 64-bit integer, ours are not negative
        found["seed"] = integer("seed", given["seed"], -_SEEDS, _SEEDS - 1) % _SEEDS
    return found


def _checked(name: str, setting: str, value: object) -> int | float:
    entry = SCHEMA[setting]
    least = 0 if name == "top_p" else entry.least
    check = integer if entry.kind == "int" else number
    return check(name, value, least, entry.most)


def _stop(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (whole_text("stop", value),)
    stops = listed("stop", value)
    if len(stops) > _MOST_STOPS:
        raise RequestError("api_too_many", parameter="stop", most=_MOST_STOPS)
    return tuple(whole_text(f"stop[{n}]", one) for n, one in enumerate(stops))
