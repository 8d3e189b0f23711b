"""`commands.md`: the help of every command, as the command prints it."""

from __future__ import annotations

import contextlib
import io
import os
import pkgutil
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from unittest.mock import patch

import asyncrl.cli
from asyncrl.cli.main import COMMANDS, main
from asyncrl.fields import default_text

from generator.markdown import code, page
from generator.plugins import catalog

HEAD = """\
`asyncrl COMMAND --help` prints this, with the plugins that are installed where it runs. Here those of this repository are."""
TITLES = {"train": "asyncrl train", "simulate": "asyncrl simulate", "plugins": "asyncrl plugins"}


def commands_page() -> str:
    with _same_everywhere():
        lines = ["", HEAD, "", "## asyncrl", *_help()]
        for command in COMMANDS:
            lines += ["", f"## asyncrl {command}", *_help(command)]
            for below in _subcommands(command):
                lines += ["", f"### asyncrl {command} {below}", *_help(command, below)]
    return page("Commands", lines)


def _help(*command: str) -> list[str]:
    return code(_printed(*command, "--help"), "text")


def _printed(*arguments: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main(arguments)
    return "\n".join(line.rstrip() for line in printed.getvalue().rstrip().splitlines())


def _subcommands(command: str) -> list[str]:
    """Return what `asyncrl COMMAND` lists below ``command``, if its help has such a list."""
    _, found, listed = _printed(command, "--help").partition("positional arguments:\n  command\n")
    indent = "    "
    lines = [line for line in listed.partition("\n\n")[0].splitlines() if line.startswith(indent)]
    return [line.split()[0] for line in lines if found and line[len(indent) : len(indent) + 1].strip()]


@contextlib.contextmanager
def _same_everywhere() -> Iterator[None]:
    """Neither the machine, nor the terminal, nor the user's folders, nor what else is installed shows."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, COLUMNS="110", NO_COLOR="1"))
        stack.enter_context(patch.object(os, "cpu_count", lambda: 64))
        for info in pkgutil.iter_modules(asyncrl.cli.__path__, "asyncrl.cli."):
            module = import_module(info.name)
            if hasattr(module, "discover"):
                stack.enter_context(patch.object(module, "discover", catalog))
            if hasattr(module, "default_text"):
                stack.enter_context(patch.object(module, "default_text", partial(default_text, portable=True)))
        yield
