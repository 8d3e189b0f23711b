"""What the display shows, read from metrics by name; a metric that has not come yet is left out."""

from __future__ import annotations

from collections.abc import Mapping

from asyncrl import Axis, EvalRecord, MetricRecord, SetResult

REWARD = "rollout/reward/mean"
STALENESS_MEAN = "rollout/consumed_staleness/mean"
STALENESS_MAX = "rollout/consumed_staleness/max"
BUFFER = "rollout/buffer_size"
PRODUCER_WAIT = "rollout/producer_wait"
STEP_SECONDS = "run/step_seconds"
TRAINER_WAIT = "run/wait_seconds"
ENGINE_RATE = "run/engine_tokens_per_second"
TRAINER_RATE = "run/trainer_tokens_per_second"
NAMES = (
    REWARD,
    STALENESS_MEAN,
    STALENESS_MAX,
    BUFFER,
    PRODUCER_WAIT,
    STEP_SECONDS,
    TRAINER_WAIT,
    ENGINE_RATE,
    TRAINER_RATE,
)
"""Every core metric that is read."""
WORTH_SAYING = 0.02
"""Share of a step below which a wait is not mentioned."""


class Progress:
    """The state of a run as records tell it.

    Args:
        steps: steps of the whole run.
        capacity: groups the buffer may hold; 0 when unknown.
    """

    def __init__(self, steps: int, capacity: int = 0) -> None:
        self.steps = steps
        self.step = 0
        self._capacity = capacity
        self._values: Mapping[str, float] = {}
        self._producer_waited = 0.0
        self._producer_wait = 0.0
        self._first: tuple[float, float] | None = None
        self._now = 0.0
        self._evals: dict[str, str] = {}

    def add(self, record: MetricRecord) -> bool:
        """Take a record in; returns whether a step is done."""
        if record.axis is not Axis.TRAIN_STEP:
            return False
        self.step, self._now, self._values = int(record.step), record.time, record.values
        waited = record.values.get(PRODUCER_WAIT, self._producer_waited)  # a running sum
        self._producer_wait, self._producer_waited = waited - self._producer_waited, waited
        if self._first is None:
            self._first = (record.step, record.time)
        return True

    def add_eval(self, record: EvalRecord) -> str:
        """Take an eval point in that has a result; returns a line about it."""
        self._evals |= {name: f"{one.mean_reward:.1%} at {record.step}" for name, one in record.sets.items()}
        late = f", {record.lag_steps} steps late" if record.lag_steps else ""
        return f"eval at step {record.step}: " + ", ".join(f"{name} {_result(one)}" for name, one in record.sets.items()) + late

    def fields(self) -> dict[str, str]:
        """Return what there is to show by its name, in order."""
        get = self._values.get
        mean, most, held = get(STALENESS_MEAN), get(STALENESS_MAX), get(BUFFER)
        full = f" of {self._capacity}" if self._capacity else ""
        shown = {
            "reward": None if (reward := get(REWARD)) is None else f"{reward:.3f}",
            "eval": ", ".join(f"{name} {text}" for name, text in self._evals.items()) or None,
            "staleness": None if mean is None or most is None else f"{mean:.1f}, max {most:.0f}",
            "buffer": None if held is None else f"{held:.0f}{full}",
            "engines": _rate(get(ENGINE_RATE)),
            "trainer": _rate(get(TRAINER_RATE)),
            "waiting": self._waiting(),
            "left": self._left(),
        }
        return {name: text for name, text in shown.items() if text is not None}

    def line(self) -> str:
        """Return everything on one line."""
        texts = [text if name == "waiting" else f"{name} {text}" for name, text in self.fields().items()]
        return " · ".join([f"step {self.step}/{self.steps}", *texts])

    def _waiting(self) -> str | None:
        seconds, trainer = self._values.get(STEP_SECONDS), self._values.get(TRAINER_WAIT)
        if not seconds or trainer is None:
            return None
        # Seconds of single groups: several may wait at once.
        shares = {"trainer waits": trainer / seconds, "engines wait": min(1.0, self._producer_wait / seconds)}
        who = max(shares, key=lambda name: shares[name])
        return f"{who} {shares[who]:.0%}" if shares[who] >= WORTH_SAYING else "nobody waits"

    def _left(self) -> str | None:
        if self._first is None or self.step <= self._first[0]:
            return None
        seconds = (self._now - self._first[1]) / (self.step - self._first[0]) * (self.steps - self.step)
        minutes, rest = divmod(round(max(0.0, seconds)), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _result(one: SetResult) -> str:
    more = []
    if (most := max(one.pass_at, default=1)) > 1:
        more.append(f"pass@{most} {one.pass_at[most]:.1%}")
    if one.failed:
        more.append(f"{one.failed:.1%} failed")
    return f"{one.mean_reward:.1%}" + (f" ({', '.join(more)})" if more else "")


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f} tok/s"
