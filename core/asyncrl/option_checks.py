"""Whether a plugin's options are declared so that files, flags and other processes can say them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from asyncrl.authoring import PluginOptions
from asyncrl.fields import can_be_none, is_secret, plain, words


def option_faults(kind: type[PluginOptions]) -> Iterator[str]:
    """Everything for which a plugin's options are refused, each as the end of a sentence about their class."""
    if kind.model_config.get("extra") != "forbid" or not kind.model_config.get("frozen"):
        yield "they are not frozen, or accept unknown keys"
    for option, info in kind.model_fields.items():
        if not info.description:
            yield f"the option {option!r} has no description"
        if option == "name":
            yield "the option 'name' can't be: that is how plugins are selected"
        if not info.is_required() and not info.default_factory_takes_validated_data:
            default = info.get_default(call_default_factory=True)
            if can_be_none(info.annotation) and default is not None:
                yield f"the option {option!r} may be None but has another default: a file could not say None"
            yield from _default_faults(kind, option, info, default)


def _default_faults(kind: type[PluginOptions], option: str, info: FieldInfo, default: Any) -> Iterator[str]:
    """pydantic takes a default as it is; but a default, too, is written as JSON for other processes, and read there."""
    if info.validate_default or kind.model_config.get("validate_default"):
        return
    checked: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    try:
        TypeAdapter(checked).validate_json(json.dumps(plain(default, secrets=True)), strict=True)
    except (ValidationError, ValueError, TypeError):
        shown = f", {text}" if not is_secret(info.annotation) and len(text := repr(default)) <= 60 else ""
        yield f"the option {option!r} has a default of type {type(default).__name__}{shown}, and wants {words(info)}"
