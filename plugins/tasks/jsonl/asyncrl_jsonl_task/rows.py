"""Reading and checking JSON lines. Everything that is wrong with a file is one line that names the file and the line in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import orjson
from asyncrl import DataError

Message: TypeAlias = Mapping[str, str]
"""One chat message: ``role`` and ``content``."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt with its answer. `source` is where it came from, for people."""

    prompt: str | tuple[Message, ...]
    answer: str
    source: str


@dataclass(frozen=True)
class Fields:
    """Names of the fields that are read; `id` may be empty."""

    prompt: str
    answer: str
    id: str


def read_rows(path: Path, fields: Fields, origin: str) -> list[Row]:
    """Return the rows of a file, or of every ``*.jsonl`` of a directory in the order of their names. Blank lines are passed over.

    Args:
        origin: the option that named `path`, for messages.

    Raises:
        DataError: a file is missing, unreadable or empty, or a line is not what it should be.
    """
    rows = [row for file in _files(path, origin) for row in _rows_of_file(file, fields, origin)]
    if not rows:
        raise DataError(f"{path} has no rows", origin=origin)
    return rows


def _files(path: Path, origin: str) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.jsonl"))
    if not files:
        raise DataError(f"{path} is a directory without *.jsonl files", origin=origin)
    return files


def _rows_of_file(path: Path, fields: Fields, origin: str) -> Iterator[Row]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.removeprefix(BYTE_ORDER_MARK).strip() if number == 1 else line.strip()
                if text:
                    yield _row(text, fields, Place(path, number, origin))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist", origin=origin) from None
    except OSError as cause:
        raise DataError(f"can't read {path}: {cause.strerror or cause}", origin=origin) from cause


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row is, and the option that led there."""

    path: Path
    line: int
    origin: str

    def wrong(self, what: str, remedy: str = "") -> DataError:
        return DataError(f"{self.path}, line {self.line}: {what}", origin=self.origin, remedy=remedy)


def _row(text: bytes, fields: Fields, place: Place) -> Row:
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError as cause:
        raise place.wrong(f"no valid JSON: {cause.msg} at column {cause.colno}") from None
    if not isinstance(data, dict):
        raise place.wrong(f"{_kind(data)} where an object is wanted")
    source = f"{place.path.name}:{place.line}"
    if fields.id:
        source += f" ({_field(data, fields.id, 'id_field', place)})"
    prompt = _prompt(_field(data, fields.prompt, "prompt_field", place), fields.prompt, place)
    return Row(prompt, _answer(_field(data, fields.answer, "answer_field", place), fields.answer, place), source)


def _field(data: dict[str, Any], name: str, option: str, place: Place) -> Any:
    if name not in data:
        there = ", ".join(repr(key) for key in list(data)[:8]) or "none"
        raise place.wrong(f"no field {name!r}", remedy=f"its fields: {there}; task.{option} names the one to use")
    return data[name]


def _prompt(value: Any, name: str, place: Place) -> str | tuple[Message, ...]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(_is_message(item) for item in value):
        return tuple(value)
    wanted = 'text or a list of messages like {"role": "user", "content": "…"} is wanted'
    raise place.wrong(f"field {name!r} is {_kind(value)} where {wanted}")


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _answer(value: Any, name: str, place: Place) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise place.wrong(f"field {name!r} is {_kind(value)} where text or a number is wanted")
    answer = str(value).strip()
    if not answer:
        raise place.wrong(f"field {name!r} is empty")
    return answer


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if value == "" or value == []:
        return "empty"
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return names[type(value)]
