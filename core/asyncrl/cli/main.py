"""The `asyncrl` command: finds the subcommand, and turns every error into one line and an exit code."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from asyncrl import __version__
from asyncrl.cli.output import guarded, silence
from asyncrl.errors import AsyncrlError, OptionError, PluginError, UserError

COMMANDS = {
    "train": "train a model: asyncrl train RUN.toml [--OPTION VALUE] [--SLOT NAME] [--SLOT.OPTION VALUE]",
    "resume": "go on with a run that has ended: asyncrl resume RUN [--from step-N] [--OPTION VALUE]",
    "eval": "evaluate a checkpoint outside a run: asyncrl eval CHECKPOINT --task NAME [--eval NAME] [--OPTION VALUE]",
    "simulate": "predict a run without its models: asyncrl simulate RUN.toml [--compare SLOT=NAME,NAME] [--sweep OPTION=VALUE,VALUE]",
    "plugins": "list the installed plugins, show one, make a new one, test one, check all",
    "completion": "print a script that makes the tab key complete all this: asyncrl completion bash",
}
"""Each is a module of this package with `run(arguments) -> exit code`."""
COMPLETE = "complete"
"""Another one, which only shells call."""
INTERRUPTED = 130
WRONG_PATH = (errno.EACCES, errno.ENAMETOOLONG)
"""Why a path that the user named can't even be looked at."""
SHOWN = 200
"""Characters of such a path that are shown."""


class Parser(argparse.ArgumentParser):
    """Reports misuse like every other error."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(message, origin=self.prog, remedy=f"see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 the run failed, 2 something written is wrong, 3 a plugin is at fault,
    130 interrupted. An exception that is no `AsyncrlError` is a bug and keeps its traceback."""
    # pydantic would read the metadata of everything that is installed, and import what offers it a plugin.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        with guarded():
            return _run(sys.argv[1:] if arguments is None else arguments)
    except AsyncrlError as error:
        report(error)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        return 1
    except OSError as error:
        if error.errno not in WRONG_PATH or not error.filename:  # such as a port that only root may have
            raise
        path = str(error.filename)
        report(UserError(str(error.strerror), origin=path if len(path) <= SHOWN else f"{path[:SHOWN]}…"))
        return UserError.exit_code


def report(error: AsyncrlError) -> None:
    """Print one line on stderr; for a plugin's fault also where in the plugin it happened."""
    lines = [f"asyncrl: error: {error}\n"]
    if isinstance(error, PluginError):
        import traceback

        cause = error.__cause__
        detail = error.detail or ("".join(traceback.format_exception(cause)) if cause else "")
        lines += [f"  {line}\n" for line in detail.splitlines()]
    try:
        print("".join(lines), end="", file=sys.stderr, flush=True)
    except OSError:  # nobody can be told; the exit code still says it
        silence(sys.stderr)


def _run(arguments: Sequence[str]) -> int:
    code: int
    if arguments[:1] == [COMPLETE]:
        code = import_module(f"asyncrl.cli.{COMPLETE}").run(arguments[1:])
        return code
    parser = Parser(
        prog="asyncrl",
        description="Fully asynchronous reinforcement learning for language models.",
        epilog="commands:\n" + "".join(f"  {name:<11} {text}\n" for name, text in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"asyncrl {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="command", help="one of those below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="asyncrl COMMAND --help lists them")
    parsed = parser.parse_args(arguments)
    code = import_module(f"asyncrl.cli.{parsed.command}").run(parsed.arguments)
    return code
