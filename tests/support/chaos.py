"""The kill test: a run whose processes are killed with -9 at random moments, resumed whenever it ended, is checked as if it had been one.

`make chaos` is its long form, tests/e2e/test_chaos.py the short one.
"""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from live import DEMO, PATIENT, Run, begin
from whole_life import OBSERVED, check_whole, observing

VICTIMS = ("driver", "rollout actor", "trainer rank", "engine")
DELAYS = {"start-up": 6.0, "training": 3.0, "publication": 0.05, "checkpoint": 0.3, "evaluation": 1.5, "shutdown": 0.5}
"""The phases of a run, and within how many seconds after one was seen to begin it is struck."""
SAVE_INTERVAL = 2
PATIENCE = 1200.0


@dataclass(frozen=True)
class Moment:
    """A kill to come: of whom, in which phase, `delay` seconds after that was seen to begin, and not before `step` was trained."""

    victim: str
    phase: str
    delay: float
    step: int


@dataclass
class Kill:
    """A kill that was made: `at` seconds after the beginning, when `step` was the last whole one.

    Attributes:
        recovery: seconds until a later step was whole, or the run complete; negative as long as it is not.
        resumed: whether the command ended, so that `asyncrl resume` had to be called.
    """

    moment: Moment
    at: float
    step: int
    recovery: float = -1.0
    resumed: bool = False


def draw(kills: int, steps: int, seed: int) -> list[Moment]:
    """Draw so many moments, all victims in turn and all phases alike: start-ups where one follows, shutdowns at last."""
    rng = random.Random(seed)
    victims = [victim for _ in range(math.ceil(kills / len(VICTIMS))) for victim in rng.sample(VICTIMS, len(VICTIMS))][:kills]
    late = max(1, kills // 15)
    victims[kills - late : kills - 1] = ["driver"] * (late - 1)  # else the run is complete before the last moment
    after = sorted(rng.randrange(SAVE_INTERVAL, steps) for _ in range(kills))
    phases = list(_phases(rng, victims[: kills - late])) + ["shutdown"] * late
    return [
        Moment(victim, phase, rng.uniform(0.0, DELAYS[phase]), steps if phase == "shutdown" else step)
        for victim, phase, step in zip(victims, phases, after, strict=True)
    ]


def _phases(rng: random.Random, victims: list[str]) -> Iterator[str]:
    bag: list[str] = []
    for index in range(len(victims)):
        starting = index > 0 and victims[index - 1] == "driver"
        while not (fitting := [phase for phase in bag if phase != "start-up" or starting]):
            bag += [phase for phase in DELAYS if phase != "shutdown"]
        phase = rng.choice(fitting)
        bag.remove(phase)
        yield phase


@dataclass
class Chaos:
    """One run of the demo in `folder`, killed at these moments.

    Attributes:
        kills: those that were made.
        lives: every command of the run, the last one last.
    """

    folder: Path
    cache_dir: Path
    moments: list[Moment]
    steps: int
    eval_interval: int
    flags: tuple[str, ...] = ()
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        self.kills: list[Kill] = []
        self.lives: list[Run] = []
        self._env = observing(self.folder / "site")
        self._began = time.monotonic()
        self._looked = 0.0

    def execute(self) -> None:
        """Start it, kill it at each moment, and bring it to its end.

        Raises:
            AssertionError: it ended although nothing was killed, could not be resumed, or stands still.
        """
        self._start()
        for number, moment in enumerate(self.moments):
            following = self.moments[number + 1 :][:1]
            if self._reach(moment) and self._strike(moment):
                self.say(f"kill {len(self.kills)}: {moment.victim} at step {self.kills[-1].step}, {moment.phase}")
                self._recover(moment, following)
        self._until(lambda: False, "the end of the run")

    def check(self) -> None:
        """See that all lives together are one whole run, and that nothing of any of them is left."""
        points = sorted({*range(0, self.steps + 1, self.eval_interval), self.steps})
        gone_back = sum(kill.moment.victim == "trainer rank" for kill in self.kills)
        check_whole(self.run, self.steps, evals=points, lives=len(self.lives) + gone_back)
        assert [life.left_behind() for life in self.lives] == [[]] * len(self.lives)
        assert all(kill.recovery >= 0 for kill in self.kills)

    @property
    def run(self) -> Run:
        return self.lives[-1]

    @property
    def accuracy(self) -> float:
        """Of the last eval point that has a result: one whose evaluation was killed is skipped."""
        (one,) = [record["sets"] for record in self.run.evals() if record["sets"]][-1].values()
        return float(one["mean_reward"])

    def table(self) -> list[tuple[str, ...]]:
        """The kills as rows, the first one their titles."""
        rows = [("kill", "second", "step", "phase", "victim", "what happened", "back after")]
        for number, kill in enumerate(self.kills, 1):
            happened = "the command ended, resumed" if kill.resumed else "went on"
            row = (number, f"{kill.at:.0f}", kill.step, kill.moment.phase, kill.moment.victim, happened, f"{kill.recovery:.1f} s")
            rows.append(tuple(map(str, row)))
        return rows

    def clear(self) -> None:
        """End what still runs."""
        for life in self.lives:
            life.clear()

    # How it goes on ---------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        flags = ["--max-engine-restarts", "1000", "--max-restarts", "1000"]
        flags += ["--steps", str(self.steps), "--eval-interval", str(self.eval_interval), "--save-interval", str(SAVE_INTERVAL)]
        where = ("--name", "run", "--runs-dir", str(self.folder / "runs"), "--cache-dir", str(self.cache_dir))
        self._begin("train", str(DEMO), *where, *flags, *PATIENT, *OBSERVED, *self.flags)

    def _begin(self, *arguments: str) -> None:
        run = begin(*arguments, directory=self.folder / "runs" / "run", cwd=self.folder, env=self._env, patience=PATIENCE)
        self.lives.append(run)

    def _go_on(self, code: int) -> None:
        """Resume the run, which has ended with this code."""
        output = self.run.process.communicate()[0]
        last = self.kills[-1] if self.kills else None
        assert last and last.recovery < 0, f"it ended with {code} although nothing was killed:\n{output}"
        assert not last.resumed, f"it could not be resumed, and ended with {code}:\n{output}"
        last.resumed = True
        self._begin("resume", str(self.run.directory))

    def _reach(self, moment: Moment) -> bool:
        """Wait for a moment; False if the run is complete before."""
        if moment.phase != "start-up" and not self._until(lambda: self.run.last_step() >= moment.step, f"step {moment.step}"):
            return False
        if not self._until(self._begun(moment.phase), moment.phase, every=0.005):
            return False
        time.sleep(moment.delay)
        return True

    def _begun(self, phase: str) -> Callable[[], Any]:
        """Return what tells whether a phase has begun."""
        checkpoints = self.run.directory / "checkpoints"
        if phase == "publication":
            return lambda: any(self.run.publish_dir.glob("asyncrl-*/*"))
        if phase == "checkpoint":
            return lambda: any(checkpoints.glob(".step-*.partial"))
        if phase == "evaluation":  # which begins when the checkpoint of its step does, or soon after
            due = min(self.steps, (self.run.last_step() // self.eval_interval + 1) * self.eval_interval)
            return lambda: any(checkpoints.glob(f"*step-{due}*")) or self.run.last_step() >= due
        return lambda: True

    def _strike(self, moment: Moment) -> bool:
        """Kill the victim as soon as it is there; False if the run is complete before."""

        def victims() -> list[int]:
            return [self.run.process.pid] if moment.victim == "driver" else self.run.processes(moment.victim)

        while self._until(victims, f"the {moment.victim} to be there"):
            try:
                os.kill(victims()[0], signal.SIGKILL)
            except (IndexError, ProcessLookupError):  # it has just ended
                continue
            self.kills.append(Kill(moment, time.monotonic() - self._began, self.run.last_step()))
            return True
        return False

    def _recover(self, moment: Moment, following: list[Moment]) -> None:
        """Wait until the run has got over a kill; if the next one is of the start-up or shutdown that follows, until that begins."""
        lives = len(self.lives)
        at_once = following and (following[0].phase == "start-up" or moment.phase == "shutdown")
        if at_once:
            self._until(lambda: len(self.lives) > lives, "the run to end")
        else:
            self._until(lambda: all(kill.recovery >= 0 for kill in self.kills), "the run to go on")

    def _until(self, condition: Callable[[], Any], what: str, every: float = 0.1) -> bool:
        """Wait, resuming the run if it ends; False as soon as it is complete."""
        deadline = time.monotonic() + PATIENCE
        while True:
            if (code := self.run.process.poll()) is not None:
                if self._complete():
                    self._recovered(math.inf)
                    return False
                self._go_on(code)
                deadline = time.monotonic() + PATIENCE
            if time.monotonic() > self._looked + 0.2:
                self._recovered(self.run.last_step())
                self._looked = time.monotonic()
            if condition():
                return True
            assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}; step {self.run.last_step()} is the last"
            time.sleep(every)

    def _recovered(self, step: float) -> None:
        for kill in self.kills:
            if kill.recovery < 0 and step > kill.step + 1:  # the line of the one under way may still be written
                kill.recovery = time.monotonic() - self._began - kill.at

    def _complete(self) -> bool:
        try:
            return bool(self.run.summary["outcome"] == "completed")
        except (OSError, ValueError):
            return False
