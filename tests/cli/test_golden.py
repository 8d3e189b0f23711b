"""Every error that a plugin, or the choice of plugins, can cause stands in one of the golden texts, for a person to read through."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import asyncrl
import pytest

CORE = Path(asyncrl.__file__).parent
GOLDEN = "\n".join(file.read_text() for file in sorted((Path(__file__).parent / "golden").glob("*.txt")))
MODULES = [
    *("plugins", "host", "hook_checks", "option_checks", "checking", "selection", "flags", "run_file"),
    *("cli/new", "cli/check", "cli/check_metadata"),
]
ANSWERS = ("hook_checks", "option_checks", "cli/check_metadata")
"""Modules whose functions give what is wrong as text, rather than raise it."""
NO_ERRORS = {"; asyncrl plugins info NAME shows the traceback"}
NAMES = ("message", "remedy", "text", "fault", "problem", "hint")
WORDS = 3
"""Of a message that is put together, parts with at least so many words are looked for."""


def messages(module: str) -> Iterator[tuple[int, str]]:
    """Line and text of each part of a message."""
    for node in ast.walk(ast.parse((CORE / f"{module}.py").read_text())):
        named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in NAMES
        answered = isinstance(node, ast.Yield | ast.Return) and module in ANSWERS
        said = node.exc if isinstance(node, ast.Raise) else node.value if named or answered else None
        for part in ast.walk(said) if said else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and len(part.value.split()) >= WORDS:
                yield part.lineno, part.value


@pytest.mark.parametrize("module", MODULES)
def test_every_message_is_in_a_golden_text(module: str) -> None:
    missing = [
        f"{module}.py:{line}: {text!r}" for line, text in messages(module) if text not in NO_ERRORS and text.strip() not in GOLDEN
    ]
    assert missing == [], "add what causes it to tests/cli/test_errors.py, test_plugin_errors.py or one of their neighbours"
