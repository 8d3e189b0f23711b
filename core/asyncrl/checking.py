"""Values that somebody wrote become a checked model of options; what is wrong becomes one line that says where it was written."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from asyncrl.errors import AsyncrlError, OptionError, PluginLoadError
from asyncrl.fields import (
    can_be_none,
    from_text,
    has_empty_path,
    how_to_write,
    is_secret,
    is_switch,
    plain,
    rebase,
    table_value,
    table_values,
    words,
)
from asyncrl.hook_checks import place_of
from asyncrl.plugins import SLOTS, load_error
from asyncrl.run_file import Given
from asyncrl.run_options import Contradiction, RunOptions
from asyncrl.scrub import hide, said_by, secrets_in

M = TypeVar("M", bound=BaseModel)


def build(
    kind: type[M],
    given: Mapping[str, Given],
    key: str,
    what: str,
    origins: dict[str, str],
    *,
    at: str = "",
    owner: str = "",
    elsewhere: Callable[[str], Sequence[str]] = lambda option: (),
) -> M:
    """Validate what was written into a model of options, with all paths absolute; record the origins.

    Args:
        owner: the plugin whose options they are, in full; '' for core's own.
        elsewhere: says of an option that `kind` has not which other plugins of its slot have it.
    """
    prefix = f"{key}." if key else ""
    values = {}
    given = _in_tables(given, kind, prefix, origins)
    for option, one in given.items():
        info = kind.model_fields.get(option)
        if info is None:
            candidates = [*(prefix + name for name in kind.model_fields), *RunOptions.model_fields]
            others = f"it has {', '.join(kind.model_fields)}" if kind.model_fields else "it has none"
            if having := elsewhere(option):
                remedy = f"{' and '.join(map(repr, having))} would have it; this one{others.removeprefix('it')}"
            else:
                remedy = hint(prefix + option, candidates, "--" if one.text else "", otherwise=others)
            wrong = "there is no such option" if "." in option else f"{what} has no option {option!r}"
            raise OptionError(wrong, origin=one.origin, remedy=remedy)
        origins[prefix + option] = one.origin
        value = one.value
        if one.text:
            value = _flag_value(option, one, kind)
        if any(has_empty_path(info.annotation, each) for each in (value, one.value[-1] if one.text else None)):
            without = "write none" if one.text else "leave it out"
            remedy = f"for no path {without}" if can_be_none(info.annotation) else "the current directory is ."
            raise OptionError("got '', wants a path", origin=one.origin, remedy=remedy)
        values[option] = rebase(info.annotation, value, one.base)
    try:
        model = kind.model_validate_json(json.dumps(values, default=str), strict=True)
        # Defaults may be relative paths too, and every process must mean the same place.
        dumped = plain(model, secrets=True)
        absolute = {name: rebase(info.annotation, dumped[name], Path.cwd()) for name, info in kind.model_fields.items()}
    except ValidationError as error:
        problem = _explain(error, kind, given, key, what, at)
        problem.message = hide(problem.message, secrets_in(kind, values))  # a validator of the plugin's own may quote what it got
        raise problem from None
    except (AsyncrlError, KeyboardInterrupt):
        raise
    except BaseException as cause:  # a validator of the plugin's may do anything, sys.exit() too
        if not owner:
            raise
        raised = load_error(f"{owner}: {place_of(kind)}: can't be checked: {said_by(cause)}", cause, secrets_in(kind, values))
        raise raised from raised.__cause__
    try:
        return kind.model_validate_json(json.dumps(absolute), strict=True)
    except (ValidationError, TypeError, ValueError) as cause:
        fault = _unreadable(kind, model, cause)
        raise PluginLoadError(hide(f"{owner or what}: {place_of(kind)}: {fault}", secrets_in(kind, values))) from None


def _unreadable(kind: type[BaseModel], model: BaseModel, cause: Exception) -> str:
    """Why options that are valid are not, once they have been written as JSON for another process."""
    first = cause.errors(include_url=False)[0] if isinstance(cause, ValidationError) else None
    option = str(first["loc"][0]) if first and first["loc"] else ""
    if option not in kind.model_fields:
        return f"written as JSON they are not read again: {said_by(cause)}"
    value = type(getattr(model, option)).__name__
    return f"the option {option!r}, of type {value}, is written as JSON and not read again: it wants {words(kind.model_fields[option])}"


def _in_tables(given: Mapping[str, Given], kind: type[BaseModel], prefix: str, origins: dict[str, str]) -> dict[str, Given]:
    """Put flags that name one key of a table, as in ``--eval.engine.threads 2``, over what the table says otherwise."""
    tables = {name: info for name, info in kind.model_fields.items() if table_values(info) is not None}
    inside = {name: one for name, one in given.items() if "." in name and name.partition(".")[0] in tables}
    found = {name: one for name, one in given.items() if name not in inside}
    for name, one in inside.items():
        option, _, key = name.partition(".")
        table = found.get(option, replace(one, value={}, text=False))
        whole = _flag_value(option, table, kind) if table.text else table.value
        if isinstance(whole, dict):  # else it is told what is wrong with the table
            value = one.value[-1] if isinstance(one.value[-1], bool) else table_value(tables[option], one.value)
            found[option] = replace(table, value={**whole, key: value}, text=False)
            origins[prefix + name] = one.origin
    return found


def _flag_value(option: str, one: Given, kind: type[BaseModel]) -> Any:
    info = kind.model_fields[option]
    if not isinstance(one.value[-1], bool):
        return from_text(info, [text for text in one.value if isinstance(text, str)])
    if is_switch(info):
        return one.value[-1]
    problem = f"needs a value: {words(info)}" if one.value[-1] else f"{option} is no switch, it wants {words(info)}"
    raise OptionError(problem, origin=one.origin)


def _explain(
    error: ValidationError, kind: type[BaseModel], given: Mapping[str, Given], key: str, what: str, at: str
) -> AsyncrlError:
    """Turn pydantic's first complaint into one line."""
    prefix = f"{key}." if key else ""
    first = error.errors(include_url=False)[0]
    reason = first.get("ctx", {}).get("error")
    if isinstance(reason, Contradiction):
        where = [given[name].origin for name in reason.options if name in given]
        return OptionError(str(reason), origin=", ".join(where), remedy=reason.remedy)
    if isinstance(reason, AsyncrlError):
        return reason
    option = str(first["loc"][0]) if first["loc"] else ""
    message = str(reason) if reason is not None else first["msg"][:1].lower() + first["msg"][1:]
    if option not in given:
        if first["type"] == "missing":
            info = kind.model_fields[option]
            remedy = f"write {option} in the file or --{prefix}{option.replace('_', '-')}; {words(info)}: {info.description}"
            return OptionError(f"{what} needs its option {option!r}", origin=at, remedy=remedy)
        named = [one.origin for name, one in given.items() if re.search(rf"\b{name}\b", message)]
        return OptionError(f"{what}: {message}", origin=", ".join(named) or at)
    info = kind.model_fields[option]
    if reason is not None:
        return OptionError(message, origin=given[option].origin)
    inside = f" at {'.'.join(str(part) for part in first['loc'][1:])}: {message}" if len(first["loc"]) > 1 else ""
    one, secret = given[option], is_secret(info.annotation)
    texts = [text for text in one.value if isinstance(text, str)] if one.text else []
    wrong = next((text for text in texts if how_to_write(info, text)), None)
    value = wrong if wrong is not None else one.value[-1] if one.text else one.value
    message = f"got {'something else' if secret else _shown(value)}, wants {words(info)}"
    if wrong is not None:
        return OptionError(message, origin=one.origin, remedy=how_to_write(info, wrong))
    return OptionError(message + inside, origin=one.origin)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def hint(name: str, options: Iterable[str], dashes: str, *, otherwise: str = "asyncrl train --help lists them") -> str:
    """Suggest the nearest option: one with the same last part, else one spelled alike, else say `otherwise`."""
    flat = {option.replace("_", "-"): option for option in options}
    wanted = name.replace("_", "-").lower()
    table, _, word = wanted.rpartition(".")
    if (
        dashes and word == "name" and (slot := table.partition(".")[0]) in SLOTS
    ):  # in a file it is the key that chooses the plugin
        return f"did you mean --{slot}?"
    last = {full.rpartition(".")[2]: full for full in reversed(flat)}
    beside = [full for full in flat if full.rpartition(".")[0] == table]  # of these the word alone says how near they are
    near = [last[word]] if word in last else []
    near = near or [f"{table}.{part}".lstrip(".") for part in _near(word, [full.rpartition(".")[2] for full in beside])]
    near = near or _near(wanted, [full for full in flat if full not in beside])
    near = near or [last[part] for part in _near(word, last)]
    if not near:
        return otherwise
    return f"did you mean {_spelled(near[0], flat[near[0]], dashes)}?"


def _near(word: str, words: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(word, list(words), n=1)


def _spelled(flag: str, key: str, dashes: str) -> str:
    if dashes:
        slot, dot, rest = key.rpartition(".")
        return f"--{slot}{dot}{rest.replace('_', '-')}"
    return key
