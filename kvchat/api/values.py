"""Values as JSON brings them, checked: each check names the parameter, and raises RequestError."""

from collections.abc import Mapping
from typing import Any

from kvchat.errors import RequestError


def missing(parameter: str) -> RequestError:
    return RequestError("api_missing", parameter=parameter)


def truth(parameter: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise RequestError("api_no_truth", parameter=parameter)
    return value


def number(parameter: str, value: object, least: float | None, most: float | None) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError("api_no_number", parameter=parameter)
    _within(parameter, value, least, most)
    return float(value)


def integer(parameter: str, value: object, least: float | None, most: float | None) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError("api_no_integer", parameter=parameter)
    _within(parameter, value, least, most)
    return value


def _within(parameter: str, value: float, least: float | None, most: float | None) -> None:
    if (least is not None and value < least) or (most is not None and value > most):
        shown = value if abs(value) < 2**63 else "…"
        raise RequestError("api_range", parameter=parameter, value=shown, least=least, most=most)


def listed(parameter: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise RequestError("api_no_list", parameter=parameter)
    return value


def mapping(parameter: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RequestError("api_no_mapping", parameter=parameter)
    return value


def text(parameter: str, value: object) -> str:
    """A text that UTF-8 can carry: JSON's \\ud800 alone is half a character."""
    if not isinstance(value, str):
        raise RequestError("api_no_text", parameter=parameter)
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise RequestError("api_half_letter", parameter=parameter)
    return value


def whole_text(parameter: str, value: object) -> str:
    """A text with something in it."""
    if not text(parameter, value):
        raise RequestError("api_empty", parameter=parameter)
    return str(value)
