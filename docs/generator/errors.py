"""`errors.md`: the tree of exceptions, their exit codes and what they carry."""

from __future__ import annotations

import inspect

import asyncrl
from asyncrl import errors
from asyncrl.errors import AsyncrlError

from generator.markdown import code, page, prose

HEAD = """\
An error names what was wrong, where it came from, and what would be right. The class decides the exit code of the command. An
exception that is none of these is a bug in asyncrl and keeps its traceback."""
CODES = """\
| exit code | meaning |
|---|---|
| 0 | completed |
| 1 | the run could not go on: engine, trainer, publication, books |
| 2 | something that the user wrote or chose; nothing was started |
| 3 | a selected plugin is at fault; where in it follows on the lines below |
| 130 | interrupted |"""


def errors_page() -> str:
    tree = inspect.cleandoc(errors.__doc__ or "").partition("\n\n")[2]
    public = ", ".join(f"`{name}`" for name in asyncrl.__all__ if name in vars(errors))
    lines = ["", HEAD, "", CODES, "", "## The tree", *code(tree, "text")]
    lines += ["", f"A plugin may raise those that `import asyncrl` offers: {public}. The others are core's, in `asyncrl.errors`."]
    lines += ["", "## What an error carries"]
    for kind in (AsyncrlError, errors.PluginError, errors.EngineFault, errors.EvalSkip):
        lines += ["", f"### `{kind.__name__}`", *prose(kind.__doc__)]
    return page("Errors", lines)
