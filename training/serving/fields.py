"""Reading and checking the fields of a request's JSON: unsupported fields are refused, not ignored."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from training.serving.errors import RequestError


def check_fields(body: Any, read: Collection[str], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Check that a request is an object with only the fields in `read`, and those in `neutral` with values that have no
    effect. Raises RequestError, which names the field.
    """
    if not isinstance(body, dict):
        raise RequestError("expected a JSON object")
    for name, value in body.items():
        if name not in read and name not in neutral:
            raise RequestError(f"unknown parameter {name!r}; expected one of {', '.join(read)}", parameter=name)
        if name in neutral and value not in neutral[name]:
            raise RequestError(f"{name} is not supported: leave it out", parameter=name)


def check_model(name: Any, model: str) -> None:
    """Raise RequestError unless `name` is the name of the model."""
    if name is None:
        raise RequestError(f"model: expected {model!r}, got nothing", parameter="model")
    if name != model:
        message = f"there is no model {name!r}, only {model!r}"
        raise RequestError(message, status=404, parameter="model", code="model_not_found")


def integer(body: Mapping[str, Any], name: str, default: int, *, least: int, most: int) -> int:
    """Return an integer field, or the default if it is missing or null. Raises RequestError if it is not an integer, or
    outside these limits.
    """
    value = default if body.get(name) is None else body[name]
    if type(value) is not int or not least <= value <= most:
        raise RequestError(f"{name}: expected an integer from {least} to {most}, got {value!r}", parameter=name)
    return value


def number(body: Mapping[str, Any], name: str, default: float) -> float:
    """Return a number field, or the default if it is missing or null. Raises RequestError if it is not a number."""
    value = default if body.get(name) is None else body[name]
    if type(value) not in (int, float):
        raise RequestError(f"{name}: expected a number, got {value!r}", parameter=name)
    try:
        return float(value)
    except OverflowError:
        raise RequestError(f"{name}: expected a number below 10^308, got one of more digits", parameter=name) from None


def boolean(body: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """Return a Boolean field, or the default if it is missing or null. Raises RequestError if it is not a Boolean."""
    value = default if body.get(name) is None else body[name]
    if not isinstance(value, bool):
        raise RequestError(f"{name}: expected true or false, got {value!r}", parameter=name)
    return value


@contextlib.contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Turn a ValueError into a RequestError about this field."""
    try:
        yield
    except RequestError:
        raise
    except ValueError as wrong:
        raise RequestError(f"{name}: {wrong}", parameter=name) from None
