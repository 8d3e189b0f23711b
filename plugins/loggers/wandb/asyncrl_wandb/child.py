"""The process that talks to W&B: `python -m asyncrl_wandb.child`, JSON lines on stdin, reports on stdout.

W&B's own calls may block for minutes, also at interpreter exit, when its server does not answer. Here they block nobody: when stdin
has closed, whoever closed it, this process and what W&B started in it are gone within a deadline.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from asyncrl.runtime.janitor import VARIABLE, processes_of

from asyncrl_wandb.series import SAMPLE_COLUMNS, SAMPLES

ORPHAN_SECONDS = 8.0
"""What W&B gets to upload the last records when the controller was killed."""
SPARE_SECONDS = 5.0
"""The controller is to be the first to lose its patience: it says so."""
READ_AHEAD = 100


def main() -> int:
    """Return the exit code: 0 unless W&B could not start."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever W&B prints is no report
    lines: queue.Queue[bytes] = queue.Queue(READ_AHEAD)
    threading.Thread(target=_read, args=(lines,), daemon=True).start()

    def report(**message: Any) -> None:
        channel.write(json.dumps(message) + "\n")

    (start,) = json.loads(lines.get()).values()
    try:
        run = _begin(start)
    except BaseException as error:
        report(failed=f"{type(error).__name__}: {str(error).strip() or 'no reason given'}")
        return 1
    report(started=run.url if start["mode"] == "online" else "", directory=str(run.settings.sync_dir))
    code = 1  # the controller was killed, unless it says how the run ended
    for kind, content in _messages(lines):
        try:
            if kind == "end":
                code = 0 if content.get("outcome") in ("completed", "interrupted") else 1
                run.summary.update({"run_summary": content})
            else:
                run.log(_row(kind, content))
        except Exception as error:
            report(rejected=f"{type(error).__name__}: {error}")
    run.finish(exit_code=code)
    return 0


def _begin(start: dict[str, Any]) -> Any:
    """Start a W&B run in which every metric has its own axis."""
    import wandb

    settings = wandb.Settings(
        console="off",
        silent=True,
        # The command line, the repository's address and the environment may hold secrets.
        disable_code=True,
        disable_git=True,
        save_code=False,
        x_disable_meta=True,
        x_save_requirements=False,
        x_stats_pid=start["controller"],
    )
    names = ("project", "entity", "group", "tags", "name", "id", "dir", "config", "mode")
    resume = "allow" if start["resume"] and start["mode"] == "online" else None
    run = wandb.init(**{name: start[name] for name in names}, resume=resume, settings=settings)
    for axis in start["axes"]:
        run.define_metric(axis, hidden=True)
    for name, axis in start["definitions"]:
        run.define_metric(name, step_metric=axis)
    return run


def _row(kind: str, content: list[Any]) -> dict[str, Any]:
    if kind == "log":
        axis, step, seconds, values = content
        return {**values, axis: step, "_timestamp": seconds}
    import wandb

    return {SAMPLES: wandb.Table(columns=list(SAMPLE_COLUMNS), data=content), SAMPLE_COLUMNS[0]: content[0][0]}


def _messages(lines: queue.Queue[bytes]) -> Iterator[tuple[str, Any]]:
    while line := lines.get():
        ((kind, content),) = json.loads(line).items()
        yield kind, content


def _read(lines: queue.Queue[bytes]) -> None:
    """Queue each line, b"" at the end; then see to it that this process ends in time."""
    patience, line = ORPHAN_SECONDS, b""
    for line in sys.stdin.buffer:
        if line.startswith(b'{"start"'):
            finish_seconds = json.loads(line)["start"]["finish_seconds"]
        if line.startswith(b'{"end"'):
            patience = finish_seconds + SPARE_SECONDS
        lines.put(line)
    threading.Thread(target=lines.put, args=(b"",), daemon=True).start()  # it may be full for good
    time.sleep(patience)
    for process in processes_of(os.environ[VARIABLE], [], frozenset({os.getpid()})):
        os.kill(process, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
