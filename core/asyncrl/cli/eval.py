"""`asyncrl eval`: evaluates a checkpoint outside a run, with any eval backend."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.errors import OptionError, UserError
from asyncrl.flags import CommandLine, is_on, scan
from asyncrl.plugins import discover

if TYPE_CHECKING:
    from asyncrl.evaluation.records import EvalRecord
    from asyncrl.evaluation.subject import Subject
    from asyncrl.options import RunConfig

USAGE = "usage: asyncrl eval CHECKPOINT [RUN.toml] [--task NAME] [--eval NAME] [--OPTION VALUE] [--SLOT.OPTION VALUE]"
OWN = """\
CHECKPOINT is a Hugging Face directory, or checkpoints/step-N of a run: then the options are those of the run's config.toml, unless
RUN.toml is named, and flags change them. Of the options, those count that evaluating needs; of the slots task, producer, engine and eval.
The record goes to a directory of its own, eval-NAME-TIME, as evals.jsonl. The exit code is 0 with a result, and 1 for a skip.
options of the command:
  --json, --no-json
        Print the record as JSON instead of a table."""
OWN_FLAGS = ("json",)
USES = ("task", "producer", "engine", "eval")
"""The slots that an evaluation fills."""
INTERRUPTED = 130


def run(arguments: Sequence[str]) -> int:
    """Evaluate and print. Returns 0 with a result, 1 for a skip, 130 when interrupted; raises `AsyncrlError` for whatever stops it."""
    from asyncrl.options import SWITCHES

    line = replace(scan(arguments, SWITCHES | {"json"}), command="eval", own=OWN_FLAGS)
    own = [flag for flag in line.flags if flag.name in OWN_FLAGS]
    line = replace(line, flags=tuple(flag for flag in line.flags if flag.name not in OWN_FLAGS))
    if line.help:
        print(_help(line))
        return 0
    as_json = is_on(own)
    if not line.positionals:
        raise OptionError("which checkpoint?", origin="asyncrl eval", remedy=USAGE.removeprefix("usage: "))
    from asyncrl.evaluation.subject import find_subject

    subject = find_subject(Path(line.positionals[0]))
    config = _resolve(replace(line, positionals=line.positionals[1:]), subject)
    from asyncrl.runtime.evaluate import CheckpointEvaluation

    try:
        evaluation = CheckpointEvaluation(config, subject)
        with _told(), contextlib.redirect_stdout(sys.stderr):  # Ray prints, for example when a process of its dies
            for note in config.notes:
                logging.getLogger("asyncrl").info("%s", note)
            finished = evaluation.run()
    except UserError as error:
        raise config.located(error) from error.__cause__
    if evaluation.record is None:
        return INTERRUPTED
    _print(evaluation.record, subject, evaluation.directory.path, as_json=as_json)
    return INTERRUPTED if not finished else int(bool(evaluation.record.skipped))


def _resolve(line: CommandLine, subject: Subject) -> RunConfig:
    from asyncrl.options import resolve_line

    if not line.positionals and subject.file is not None:
        line = replace(line, positionals=(str(subject.file),))
    return resolve_line(line, slots=USES)


def _help(line: CommandLine) -> str:
    from asyncrl.cli.train import help_text

    # The checkpoint is no run's file, and a checkpoint's own options are not looked for to give help.
    files = tuple(path for path in line.positionals if path.endswith(".toml"))
    return help_text(
        replace(line, positionals=files), discover(), command="eval", head=(USAGE, OWN), slots=USES, example="--eval fleet"
    )


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Print what asyncrl logs on stderr: stdout is for the result."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("asyncrl: %(levelname)s: %(message)s"))
    handler.addFilter(_lower)
    logger = logging.getLogger("asyncrl")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _lower(record: logging.LogRecord) -> bool:
    record.levelname = record.levelname.lower()
    return True


def _print(record: EvalRecord, subject: Subject, directory: Path, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"checkpoint": str(subject.model), "directory": str(directory), **asdict(record)}))
        return
    if record.skipped:
        print(f"skipped: {record.skipped}: {record.detail.get('why', '')}".rstrip(": "))
    else:
        print(f"{subject.name}: step {record.step}, version {record.version}; {record.duration_seconds:.1f} s\n{_table(record)}")
    print(f"{directory / 'evals.jsonl'}")


def _table(record: EvalRecord) -> str:
    """One row a set; pass@k for every k that some set has."""
    ks = sorted({k for one in record.sets.values() for k in one.pass_at})
    rows = [["set", "reward", *(f"pass@{k}" for k in ks), "failed", "truncated", "length", "prompts", "samples"]]
    for name, one in record.sets.items():
        passes = [f"{one.pass_at[k]:.1%}" if k in one.pass_at else "-" for k in ks]
        shares = [f"{one.failed:.1%}", f"{one.truncated:.1%}"]
        rows.append([name, f"{one.mean_reward:.3f}", *passes, *shares, f"{one.mean_length:.1f}", str(one.num_prompts)])
        rows[-1].append(str(one.num_samples))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))]
        lines.append("  " + "  ".join(cells))
    return "\n".join(lines)
