"""Secrets of a plugin's options, and texts without them: what a plugin says in an exception is shown, logged and sent to W&B."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from asyncrl.fields import is_secret, plain

SHORTEST = 4
"""Characters of the shortest text that is looked for; a shorter one is no secret, and would be found in every word."""
MASK = "**********"


def secrets_of(options: BaseModel) -> tuple[str, ...]:
    """Return the texts of every secret in validated options."""
    return secrets_in(type(options), plain(options, secrets=True))


def secrets_in(kind: Any, values: Any) -> tuple[str, ...]:
    """Return the texts that stand where a type (or model) has secrets, in JSON data that need not be valid for it."""
    found = {text for text in _secrets(kind, values) if len(text) >= SHORTEST}
    return tuple(sorted(found, key=len, reverse=True))  # one may be a part of another


def hide(text: str, secrets: Iterable[str]) -> str:
    """Return a text with every secret masked."""
    for secret in secrets:
        text = text.replace(secret, MASK).replace(repr(secret)[1:-1], MASK)
    return text


def said_by(cause: BaseException) -> str:
    """Return ``KeyError: 'x'`` for an exception. Of options that do not validate, what is wrong and not what was written."""
    try:
        text = "; ".join(_complaints(cause)) if isinstance(cause, ValidationError) else str(cause)
    except Exception:  # an exception class of the plugin's own may be at fault too
        text = "(its text can't be made)"
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


def _complaints(error: ValidationError) -> Iterator[str]:
    for one in error.errors(include_url=False, include_context=False, include_input=False):
        where = ".".join(str(part) for part in one["loc"])
        yield f"{where}: {one['msg']}" if where else one["msg"]


def _secrets(kind: Any, values: Any) -> Iterator[str]:
    if is_secret(kind):
        yield from _texts(values)
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, info in kind.model_fields.items():
            if isinstance(values, Mapping) and name in values:
                yield from _secrets(info.annotation, values[name])
    else:
        items = list(values.values()) if isinstance(values, Mapping) else values if isinstance(values, list) else []
        for inner in get_args(kind):
            for item in [values, *items]:
                yield from _secrets(inner, item)


def _texts(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, Mapping | list):
        for item in values.values() if isinstance(values, Mapping) else values:
            yield from _texts(item)
