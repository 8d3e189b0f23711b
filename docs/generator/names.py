"""`names.md`: what `import asyncrl` offers to a plugin, as it stands in the source."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from importlib import import_module

import asyncrl
from asyncrl.errors import AsyncrlError

from generator.markdown import code, page, prose

HEAD = """\
Everything here is imported as `asyncrl.NAME`, and loaded when it is used. What is promised about these
names: [Compatibility](../plugins/compatibility.md)."""
TITLES = {
    "authoring": "What a plugin derives from",
    "hookspecs": "Hooks",
    "metrics": "Metrics",
    "samples": "Prompts, samples and groups",
    "rollout.scoring": "Scoring in worker processes",
    "rollout.sampler": "Producers",
    "rollout.schedule": "Schedulers",
    "rollout.verdicts": "Answers of filters, buffers and staleness policies",
    "rollout.engine": "Engines",
    "evaluation.records": "Evaluation",
    "loggers": "Loggers",
    "training.interfaces": "Trainers",
}
WITHOUT_DOCSTRING = {
    "hookimpl": "Marks a method as the implementation of the hook of its name; with `wrapper=True`, as a wrapper of it."
}
INTERNAL = {"kind", "lasting", "merge", "values", "drain", "model_config"}
"""Members that only core uses."""


def names_page() -> str:
    lines = ["", HEAD]
    modules: dict[str, list[str]] = {}
    for name in asyncrl.__all__:
        if name != "__version__" and not _is_error(name):
            modules.setdefault(asyncrl._PUBLIC[name], []).append(name)
    for module, names in modules.items():
        lines += ["", f"## {TITLES.get(module, module)}"]
        for name in names:
            lines += ["", f"### `{name}`", *_described(module, name)]
    errors = ", ".join(f"`{name}`" for name in asyncrl.__all__ if _is_error(name))
    lines += ["", "## Errors", "", f"{errors}: see [Errors](errors.md)."]
    return page("Names", lines)


def _is_error(name: str) -> bool:
    value = getattr(asyncrl, name)
    return inspect.isclass(value) and issubclass(value, AsyncrlError)


@cache
def _source(module: str) -> str:
    return inspect.getsource(import_module(f"asyncrl.{module}"))


def _text(node: ast.AST, source: str) -> str:
    return " ".join((ast.get_source_segment(source, node) or "").split())


def _described(module: str, name: str) -> Iterator[str]:
    body = ast.parse(_source(module)).body
    for index, node in enumerate(body):
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield from _class(node, _source(module))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            yield from code(_header(node, _source(module)))
            yield from prose(ast.get_docstring(node))
        elif name in _targets(node):
            yield from code(_text(node, _source(module)))
            yield from prose(WITHOUT_DOCSTRING.get(name) or _string_below(body, index))


def _class(node: ast.ClassDef, source: str) -> Iterator[str]:
    bases = ", ".join(_text(base, source) for base in node.bases)
    lines = [*(f"@{_text(mark, source)}" for mark in node.decorator_list), f"class {node.name}{f'({bases})' if bases else ''}:"]
    head, notes = len(lines), []
    for index, part in enumerate(node.body):
        if (names := _targets(part)) and _is_public(names[0]):
            lines.append(f"    {_text(part, source)}")
            if text := _string_below(node.body, index):
                notes.append(f"- `{names[0]}`: {' '.join(text.split())}")
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and (_is_public(part.name) or part.name == "__init__"):
            marks = [f"    @{_text(mark, source)}" for mark in part.decorator_list]
            lines += [*([""] if len(lines) > head else []), *marks, f"    {_header(part, source)}: ..."]
            if text := ast.get_docstring(part):
                notes.append(f"- `{part.name}`: {' '.join(text.split())}")
    if len(lines) == head:
        lines[-1] += " ..."
    yield from code("\n".join(lines))
    yield from prose(ast.get_docstring(node))
    if notes:
        yield from ["", "*Members:*", "", *notes]


def _is_public(name: str) -> bool:
    return not name.startswith("_") and name not in INTERNAL


def _header(function: ast.FunctionDef | ast.AsyncFunctionDef, source: str) -> str:
    """Return the signature, from ``def`` to the result, on one line."""
    lines = source.splitlines()[function.lineno - 1 : function.body[0].lineno]
    text = " ".join(" ".join(lines).split())
    end = text.index(f"-> {_text(function.returns, source)}") + len(f"-> {_text(function.returns, source)}")
    return text[:end].replace("( ", "(").replace(", )", ")")


def _targets(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _string_below(body: list[ast.stmt], index: int) -> str:
    """Return the docstring that follows an assignment, or ''."""
    below = body[index + 1] if index + 1 < len(body) else None
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
        return inspect.cleandoc(below.value.value)
    return ""
