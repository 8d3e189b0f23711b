"""Declarations as text: the options, metrics and hooks of core and plugins, for help, `plugins info` and the reference pages."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterable

from pydantic import BaseModel

from asyncrl.authoring import Plugin
from asyncrl.fields import default_text, is_switch, words
from asyncrl.metrics import Declared


def flag_of(key: str, option: str) -> str:
    """Return the flag of an option; `key` is '' for core, ``buffer``, or ``filters.reward-variance``."""
    return f"--{key}.{option.replace('_', '-')}" if key else f"--{option.replace('_', '-')}"


def option_lines(model: type[BaseModel], key: str) -> str:
    """Every option of a model: its flag, type, bounds and default on one line, its help below."""
    lines = []
    for option, info in model.model_fields.items():
        flag = flag_of(key, option)
        if is_switch(info):
            flag += f", --no-{flag[2:]}"
        default = default_text(info)
        kind = words(info)
        lines.append(f"  {flag}  {kind}; {default if default == 'required' else f'default {default}'}")
        lines.append(_wrapped(info.description or ""))
    return "\n".join(lines) or "  (none)"


def metric_lines(declared: Iterable[Declared]) -> str:
    """Every metric: name, kind, unit and axis on one line, its help below."""
    lines = []
    for metric in declared:
        name = f"{metric.name}/{metric.label.upper()}" if metric.label else metric.name
        lines.append(f"  {name}  {metric.kind} in {metric.unit}, by {metric.axis.value}")
        lines.append(_wrapped(metric.help))
    return "\n".join(lines) or "  (none)"


def hook_lines(hooks: Iterable[str]) -> str:
    """Every hook with the first sentence of its contract."""
    from asyncrl import hookspecs

    lines = []
    for hook in hooks:
        lines.append(f"  {hook}")
        lines.append(_wrapped(" ".join((inspect.getdoc(getattr(hookspecs, hook, None)) or "").split())))
    return "\n".join(lines)


def metrics_of(kind: type[Plugin]) -> list[Declared]:
    return kind.Metrics.declared(f"{kind.slot}/{kind.name}")


def _wrapped(text: str) -> str:
    width = max(60, min(shutil.get_terminal_size().columns, 110))
    return textwrap.fill(text, width, initial_indent=" " * 8, subsequent_indent=" " * 8)
