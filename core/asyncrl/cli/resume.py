"""`asyncrl resume`: a run goes on in its own directory, from its newest complete checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from asyncrl.errors import OptionError, RunDirectoryError, UserError
from asyncrl.flags import CommandLine, scan
from asyncrl.plugins import discover

USAGE = "usage: asyncrl resume RUN [--from step-N] [--OPTION VALUE] [--SLOT NAME] [--SLOT.OPTION VALUE]"
OWN = """\
RUN is the run's directory, or its name below runs/. It goes on with the options of its config.toml; flags change those that do not make
it another run: processes, devices, intervals, steps, patience, loggers, evals.
options of the command:
  --from step-N
        Checkpoint to go on from; without it the newest complete one, or the beginning if there is none yet. What the run did after
        it is taken back."""
OWN_FLAGS = ("from",)
TAKEN = ("name", "runs-dir")


def run(arguments: Sequence[str]) -> int:
    """Resume. Returns the exit code of the run; raises `AsyncrlError` for whatever stops it."""
    from asyncrl.options import SWITCHES

    line = replace(scan(arguments, SWITCHES), command="resume", own=OWN_FLAGS)
    wanted = [flag for flag in line.flags if flag.name == "from"]
    flags = tuple(flag for flag in line.flags if flag.name != "from")
    if line.help:
        print(_help(replace(line, flags=flags, positionals=())))
        return 0
    if len(line.positionals) != 1:
        raise OptionError("wants one run", origin="asyncrl resume", remedy=USAGE.removeprefix("usage: "))
    for flag in [flag for flag in flags if flag.name in TAKEN]:
        raise OptionError("a run that goes on keeps its directory", origin=flag.shown, remedy="leave it out")
    if wanted and not wanted[-1].value:
        raise OptionError("needs a checkpoint, such as step-20", origin=wanted[-1].shown)
    return _resume(_directory(line.positionals[0]), (wanted[-1].value if wanted else "") or "", replace(line, flags=flags))


def _resume(directory: Path, wanted: str, line: CommandLine) -> int:
    from asyncrl.options import resolve_line
    from asyncrl.runtime.directory import RunDirectory
    from asyncrl.runtime.resume import Resumption, check_beginning
    from asyncrl.training.stored import choose, steps_in

    opened = RunDirectory(directory.parent, directory.name, resumed=True)
    opened.lock.take()
    try:
        config = resolve_line(replace(line, positionals=(str(directory / "config.toml"),)))
        config = replace(config, core=config.core.model_copy(update={"name": directory.name, "runs_dir": directory.parent}))
        logging.getLogger("asyncrl").setLevel(logging.INFO)
        resumption = Resumption(opened, choose(opened.checkpoints, wanted)) if wanted or steps_in(opened.checkpoints) else None
        from asyncrl.runtime.run import run_training

        try:
            if resumption:
                resumption.check(config)
            else:
                check_beginning(opened, config)
            return run_training(config, opened, resumption)
        except UserError as error:
            raise config.located(error) from error.__cause__
    finally:
        opened.lock.release()


def _directory(run: str) -> Path:
    """Return the directory of a run, which is named by its path or below `runs/`."""
    for place in (Path(run), Path("runs") / run):
        if (place / "config.toml").is_file():
            return place.resolve()
    place = Path(run)
    if place.is_file():
        raise RunDirectoryError("is a file, and a run is a directory", origin=run, remedy="asyncrl train takes a run's file")
    if place.is_dir() or (Path("runs") / run).is_dir():
        raise RunDirectoryError("is no run: it has no config.toml", origin=run)
    raise RunDirectoryError("there is no such run", origin=run, remedy="name its directory, such as runs/NAME")


def _help(line: CommandLine) -> str:
    from asyncrl.cli.train import help_text

    return help_text(line, discover(), command="resume", head=(USAGE, OWN))
