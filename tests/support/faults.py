"""The fault matrix: what fails in a real run, and what becomes of it. tests/e2e/test_fault_matrix.py runs it, docs/faults.md shows it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Fault:
    """One kind of fault: a row of the table.

    Attributes:
        report: number of the field report whose kind it is.
        fails: what is made to happen.
        happens: what the run makes of it.
        deadline: the option, or the constant of core, that bounds how long that takes.
    """

    report: int
    fails: str
    happens: str
    deadline: str


@dataclass(frozen=True)
class Case:
    """A run that meets some faults.

    Attributes:
        flags: added to those of a small run.
        exit_code: of the command.
        says: each is in what the command prints.
        counts: metrics that must have counted something, by full name with label.
        interrupted: when Ctrl-C is sent: ``while starting``, or ``while training``, after the first step.
    """

    name: str
    faults: tuple[Fault, ...]
    flags: tuple[str, ...]
    exit_code: int = 0
    says: tuple[str, ...] = ()
    counts: tuple[str, ...] = field(default=())
    interrupted: Literal["", "while starting", "while training"] = ""


def proxied(*faults: str) -> tuple[str, ...]:
    """Flags that put a proxy with these faults in front of the engine."""
    return ("--engine", "proxied", "--engine.faults", json.dumps(faults))


TRACEBACK = "faulty_plugins.py"
"""A traceback leads there."""

CASES = (
    Case(
        "troubled",
        (
            Fault(10, "scoring one sample raises", "the sample fails with that reason, and is generated again alone", "at once"),
            Fault(11, "one request is never answered", "given up, and tried again", "`request_timeout`"),
            Fault(12, "an engine answers 500", "the request is tried again", "at once, up to 4 times"),
            Fault(12, "an engine closes the connection in the middle of an answer", "the same", "at once, up to 4 times"),
        ),
        (*proxied("500:7", "half:11", "hang:40"), "--task", "judged", "--task.raises-every", "25", "--request-timeout", "10"),
        counts=("rollout/sample_retries/",),
    ),
    Case(
        "straggler",
        (
            Fault(
                14,
                "the last sample of a batch is never generated",
                "given up and generated again; the batch waits",
                "`request_timeout`",
            ),
        ),
        (*proxied("hang:24"), "--scheduler", "lockstep", "--staleness", "none", "--request-timeout", "10"),
    ),
    Case(
        "no-answer",
        (Fault(11, "no request is ever answered", "ends, with the reason of the last ones", "`request_timeout`"),),
        (*proxied("hang:1"), "--request-timeout", "1", "--max-retries", "0"),
        exit_code=1,
        says=("groups all failed", "got no answer within 1 s"),
    ),
    Case(
        "errors",
        (Fault(12, "an engine answers every request with 500", "ends, with the reason of the last ones", "`max_retries`"),),
        (*proxied("500:1"),),
        exit_code=1,
        says=("groups all failed", "engine-0", "500"),
    ),
    Case(
        "one-short",
        (Fault(13, "a producer returns a sample too few", "ends, naming the plugin and both numbers", "at once"),),
        ("--producer", "one-short"),
        exit_code=3,
        says=("producer plugin 'one-short'", "made 3 samples where group_size is 4"),
    ),
    Case(
        "broken",
        (Fault(10, "a plugin's own bug", "ends, with the original traceback", "at once"),),
        ("--buffer", "broken"),
        exit_code=3,
        says=("buffer plugin 'broken' (faulty 1.0) failed in buffer_put: ValueError: the shelf fell down", TRACEBACK),
    ),
    Case(
        "trainer-fails",
        (
            Fault(
                15,
                "the trainer fails while finished groups wait at a full buffer",
                "ends, with the original traceback",
                "at once",
            ),
        ),
        ("--trainer", "fails-late", "--trainer.old-policy", "engine"),
        exit_code=3,
        says=("trainer plugin 'fails-late'", "ArithmeticError: the loss is not a number", TRACEBACK),
    ),
    Case(
        "producer-fails",
        (
            Fault(
                16,
                "the producer fails while the trainer waits at an empty buffer",
                "ends, with the original traceback",
                "at once",
            ),
        ),
        ("--producer", "gives-up"),
        exit_code=3,
        says=("producer plugin 'gives-up'", "MemoryError: no room for a group", TRACEBACK),
    ),
    Case(
        "update-refused",
        (
            Fault(
                17,
                "an engine refuses an update over HTTP while the trainer's side of the broadcast waits for it",
                "tried 3 times, then ends, naming engine and cause",
                "`publish_timeout`",
            ),
        ),
        (*proxied("update-500:1"), "--publish-method", "broadcast", "--publish-timeout", "20"),
        exit_code=1,
        says=("engine-0", "500"),
    ),
    Case(
        "update-hangs",
        (Fault(17, "it never answers that", "the same", "`publish_timeout`"),),
        (*proxied("update-hang:1"), "--publish-method", "broadcast", "--publish-timeout", "10"),
        exit_code=1,
        says=("engine-0",),
    ),
    Case(
        "slow-judge",
        (Fault(18, "a judge is still at work when the run is interrupted", "it is cancelled", "at once"),),
        ("--steps", "1000", "--task", "judged", "--task.slow-prompt", "3"),
        exit_code=130,
        interrupted="while training",
    ),
    Case(
        "stubborn-judge",
        (Fault(18, "it ignores that", "ends, naming the prompt", "10 s"),),
        ("--steps", "1000", "--task", "judged", "--task.slow-prompt", "3", "--task.stubborn"),
        exit_code=1,
        says=("did not let go within 10 s", "of prompts 3"),
        interrupted="while training",
    ),
    Case(
        "interrupted-start",
        (Fault(19, "Ctrl-C while an engine's server does not get ready", "everything that was started ends", "at once"),),
        (*proxied("sick:1"),),
        exit_code=130,
        interrupted="while starting",
    ),
    Case(
        "never-ready",
        (Fault(19, "an engine's server never gets ready", "ends, with the server's last words", "`start_timeout`"),),
        (*proxied("sick:1"), "--engine.start-timeout", "20"),
        exit_code=1,
        says=("was not healthy within 20 s, at last: it answers with status 500",),
    ),
)
