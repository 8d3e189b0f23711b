"""One typed option: how it is described in words, read from a flag's text, and written as plain data."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ByteSize, SecretBytes, SecretStr, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

_NAMES: dict[Any, str] = {
    int: "integer",
    float: "number",
    bool: "true or false",
    str: "text",
    Path: "path",
    ByteSize: "bytes",
    SecretStr: "secret text",
    SecretBytes: "secret text",
    Any: "anything",
}
_BOUNDS = {"ge": ">= {}", "gt": "> {}", "le": "<= {}", "lt": "< {}", "min_length": "length >= {}", "max_length": "length <= {}"}
_HIDDEN = object()


# Types ------------------------------------------------------------------------------------------------------------------


def _bare(annotation: Any) -> Any:
    return _bare(get_args(annotation)[0]) if get_origin(annotation) is Annotated else annotation


def _parts(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Origin and arguments of a type; every union counts as `Union`, and `Annotated` is seen through."""
    annotation = _bare(annotation)
    origin = get_origin(annotation)
    return (Union if origin is types.UnionType else origin), get_args(annotation)


def can_be_none(annotation: Any) -> bool:
    origin, arguments = _parts(annotation)
    return origin is Union and type(None) in arguments


def is_switch(info: FieldInfo) -> bool:
    """Whether the option is a plain boolean, which needs no value on the command line."""
    return info.annotation is bool


def is_secret(annotation: Any) -> bool:
    _, arguments = _parts(annotation)
    return _bare(annotation) in (SecretStr, SecretBytes) or any(is_secret(part) for part in arguments)


def _collection(annotation: Any) -> Literal["list", "dict", ""]:
    origin, arguments = _parts(annotation)
    if origin is Union:
        return next((found for part in arguments if (found := _collection(part))), "")
    base = origin or _bare(annotation)
    if not isinstance(base, type):
        return ""
    if issubclass(base, Mapping):
        return "dict"
    return "list" if issubclass(base, list | tuple | set | frozenset) else ""


def _name(annotation: Any) -> str:
    origin, arguments = _parts(annotation)
    if get_origin(annotation) is Annotated:
        return " ".join([_name(get_args(annotation)[0]), *_bounds(get_args(annotation)[1:])])
    if origin is Union:
        names = [_name(part) for part in arguments if part is not type(None)]
        return " or ".join([*names, *(["none"] if type(None) in arguments else [])])
    if origin is Literal:
        return "one of " + ", ".join(str(part) or '""' for part in arguments)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "one of " + ", ".join(str(member.value) for member in annotation)
    kind = _collection(annotation)
    inner = [part for part in arguments if part is not Ellipsis]
    if kind == "list":
        return f"list of {' and '.join(_name(part) for part in inner)}" if inner else "list"
    if kind == "dict":
        return f"table of {_name(inner[-1])}" if inner else "table"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    return _NAMES.get(annotation) or str(getattr(annotation, "__name__", annotation))


def _bounds(metadata: Any) -> list[str]:
    found = []
    for item in metadata:
        found += [text.format(value) for key, text in _BOUNDS.items() if (value := getattr(item, key, None)) is not None]
        if pattern := getattr(item, "pattern", None):
            found.append(f"matching {pattern}")
    return [" and ".join(found)] if found else []


def words(info: FieldInfo) -> str:
    """Type and bounds of an option, such as ``integer >= 1``."""
    return " ".join([_name(info.annotation), *_bounds(info.metadata)])


def default_text(info: FieldInfo, *, portable: bool = False) -> str:
    """The default as people read it; ``required`` when there is none.

    Args:
        portable: give the rule instead of the value where the default depends on the machine.
    """
    if info.is_required():
        return "required"
    extra = info.json_schema_extra
    if portable and isinstance(extra, dict) and "default" in extra:
        return str(extra["default"])
    value = plain(info.get_default(call_default_factory=True), secrets=False)
    if value is _HIDDEN:
        return "hidden"
    if value is None:
        return "none"
    return value or "empty" if isinstance(value, str) else json.dumps(value)


# Values -----------------------------------------------------------------------------------------------------------------


def from_text(info: FieldInfo, texts: list[str]) -> Any:
    """Return the JSON value that a flag's text means for an option; texts that fit nothing come back as they are.

    A list or table is JSON, or bit by bit: the flag once for each item or ``KEY=VALUE``. Nothing is separated by commas. Where text and
    other values fit, what is spelled as one of the others is one, and quotes make it text.

    Args:
        texts: the value of each time the flag was given. The last one counts, except for lists and tables.
    """
    text, kind = texts[-1], _collection(info.annotation)
    candidates: list[Any] = []
    if not kind or len(texts) == 1:
        candidates += [None] if can_be_none(info.annotation) and text in ("", "none") else []
        candidates += [*_spelled_out(text), text] if _is_mixed(info.annotation) else [text, *_as_json(text)]
    if kind == "list" and any(map(_is_mixed, _items(info.annotation))):
        candidates += [[(_spelled_out(bit) or [bit])[0] for bit in texts]]
    if kind == "list" and not any(map(_looks_like_several, texts)):
        read = [(_as_json(bit) or [bit])[0] for bit in texts]
        bits = list(zip(texts, read, strict=True))
        candidates += [[item for bit, value in bits for item in (value if isinstance(value, list) else [bit])]]
        candidates += [[item for value in read for item in (value if isinstance(value, list) else [value])], read]
    if kind == "dict" and all(map(_is_pair, texts)):
        pairs = [bit.split("=", 1) for bit in texts]
        candidates += [{key: table_value(info, [value]) for key, value in pairs}]
    checked: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    adapter: TypeAdapter[Any] = TypeAdapter(checked)
    best = text
    for candidate in candidates:
        try:
            adapter.validate_json(json.dumps(candidate), strict=True)
            return candidate
        except ValidationError as error:
            if not error.errors()[0]["type"].endswith("_type"):  # right type, wrong value: the best one to complain about
                best = candidate
    return best


def table_values(info: FieldInfo) -> Any:
    """Return the type of a table's values; None for an option that is no table."""
    if _collection(info.annotation) != "dict":
        return None
    _, arguments = _parts(info.annotation)
    return arguments[-1] if len(arguments) == 2 else Any


def table_value(info: FieldInfo, texts: list[str]) -> Any:
    """Return the JSON value that texts mean for one key of a table."""
    kind = table_values(info)
    return (_as_json(texts[-1]) or texts[-1:])[0] if kind is Any else from_text(FieldInfo(annotation=kind), texts)


def how_to_write(info: FieldInfo, text: str) -> str:
    """Return how a list or table is written in flags, shown with what is in `text`; '' for any other option, and where it is no help."""
    kind = _collection(info.annotation)
    if kind == "list" and _looks_like_several(text):
        items = [item for part in text.split(",") if (item := part.strip(" []\"'"))]
        shown = items if str in _items(info.annotation) else [(_as_json(item) or [item])[0] for item in items]
        example = "JSON" if is_secret(info.annotation) else f"JSON as in '{json.dumps(shown, ensure_ascii=False)}'"
        return f"commas do not separate: give the flag once for each item, or {example}"
    if kind == "dict" and not _is_pair(text) and not _as_json(text):
        return """commas do not separate: give the flag once for each KEY=VALUE, or JSON as in '{"KEY": "VALUE"}'"""
    return ""


def _looks_like_several(text: str) -> bool:
    """Whether a text that is no JSON was perhaps meant as a list. An item that looks so is written in JSON."""
    return not _as_json(text) and not text.strip().startswith("{") and ("," in text or text.strip().startswith("["))


def _is_pair(text: str) -> bool:
    """Whether a text is one ``KEY=VALUE``: no JSON, and not several with commas between them."""
    return "=" in text and not text.strip().startswith("{") and not re.search(r"=.*,\s*[\w.-]+=", text)


def _is_mixed(annotation: Any) -> bool:
    """Whether text and other JSON values fit: read as text first, nothing would ever be one of the others."""
    origin, arguments = _parts(annotation)
    return (
        origin is Union
        and str in map(_bare, arguments)
        and any(_bare(part) in (bool, int, float) or _collection(part) for part in arguments)
    )


def _spelled_out(text: str) -> list[Any]:
    """The JSON value that a text is; none for a number that would be written in another way, as 1e999, which may be a name."""
    return [value for value in _as_json(text) if not isinstance(value, int | float) or json.dumps(value) == text]


def _items(annotation: Any) -> tuple[Any, ...]:
    """The types that the items of a list may have."""
    origin, arguments = _parts(annotation)
    if origin is Union:
        return next((_items(part) for part in arguments if _collection(part)), ())
    return tuple(_bare(part) for part in arguments)


def _as_json(text: str) -> list[Any]:
    for read in (json.loads, float):
        try:
            return [read(text)]
        except ValueError:
            pass
    return []


def rebase(annotation: Any, value: Any, base: Path) -> Any:
    """Return JSON data with every relative path in it made absolute below `base`."""
    annotation = _bare(annotation)
    origin, arguments = _parts(annotation)
    if annotation is Path and isinstance(value, str):
        return str(base / Path(value).expanduser())
    if origin is Union:
        inner = [part for part in arguments if part is not type(None)]
        if len(inner) > 1:
            inner = [part for part in inner if _takes(part, value) and not (str in inner and isinstance(value, str))]
        return rebase(inner[0], value, base) if len(inner) == 1 else value
    if isinstance(value, list) and arguments:
        return [rebase(arguments[0], item, base) for item in value]
    if isinstance(value, dict) and len(arguments) == 2:
        return {key: rebase(arguments[1], item, base) for key, item in value.items()}
    if isinstance(value, dict) and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields
        return {key: rebase(fields[key].annotation, item, base) if key in fields else item for key, item in value.items()}
    return value


def _takes(annotation: Any, value: Any) -> bool:
    """Whether JSON data can mean a type as far as its outer shape goes."""
    annotation = _bare(annotation)
    if isinstance(value, dict):
        return _collection(annotation) == "dict" or (isinstance(annotation, type) and issubclass(annotation, BaseModel))
    return annotation is Path if isinstance(value, str) else _collection(annotation) == "list" and isinstance(value, list)


def has_empty_path(annotation: Any, value: Any) -> bool:
    """Whether JSON data for a type has '' where a path belongs: it would mean the current directory, which nobody writes so."""
    annotation = _bare(annotation)
    origin, arguments = _parts(annotation)
    if annotation is Path:
        return bool(value == "")
    if origin is Union:
        return str not in arguments and any(has_empty_path(part, value) for part in arguments)
    if isinstance(value, list) and arguments:
        return any(has_empty_path(arguments[0], item) for item in value)
    if isinstance(value, dict) and len(arguments) == 2:
        return any(has_empty_path(arguments[1], item) for item in value.values())
    if isinstance(value, dict) and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields
        return any(has_empty_path(fields[key].annotation, item) for key, item in value.items() if key in fields)
    return False


def plain(value: Any, *, secrets: bool) -> Any:
    """Return an option, or a whole model of options, as JSON data.

    Args:
        secrets: whether secrets are spelled out; if not, they are left out.
    """
    if isinstance(value, SecretStr | SecretBytes):
        return to_jsonable_python(value.get_secret_value()) if secrets else _HIDDEN
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        items = {str(plain(key, secrets=secrets)): plain(item, secrets=secrets) for key, item in value.items()}
        return {key: item for key, item in items.items() if item is not _HIDDEN}
    if isinstance(value, list | tuple | set | frozenset):
        found = [item for item in (plain(item, secrets=secrets) for item in value) if item is not _HIDDEN]
        return sorted(found, key=json.dumps) if isinstance(value, set | frozenset) else found
    if value is None or value is PydanticUndefined:
        return None
    return value if type(value) in (bool, int, float, str) else to_jsonable_python(value)
