"""What a run goes on from: its checkpoint, and whether what is asked for now fits what was trained until then."""

from __future__ import annotations

import logging
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from asyncrl.errors import OptionError, RunDirectoryError
from asyncrl.options import RunConfig
from asyncrl.plugins import normalized
from asyncrl.runtime.directory import CONFIG, RunDirectory
from asyncrl.runtime.summary import Totals
from asyncrl.training.interfaces import StepReport
from asyncrl.training.loop import StepTimes, Trained
from asyncrl.training.stored import Stored, choose, remove_partial, steps_in

log = logging.getLogger("asyncrl")

FIXED = (
    "model",
    "seed",
    "batch_size",
    "group_size",
    "temperature",
    "top_p",
    "top_k",
    "max_new_tokens",
    "max_sample_tokens",
    "dtype",
)
"""Core's options that say what is trained on what. All others may change."""
FIXED_SLOTS = ("task", "producer")
"""Slots whose options say the same."""
STATEFUL_SLOTS = ("task", "producer", "scheduler", "buffer", "filters", "staleness", "trainer")
"""Slots whose plugins made what a checkpoint holds; the others may be filled otherwise."""


@dataclass(frozen=True)
class Resumption:
    """A run that goes on from a checkpoint, its directory locked."""

    directory: RunDirectory
    stored: Stored

    @property
    def step(self) -> int:
        return self.stored.step

    @cached_property
    def trained(self) -> Trained:
        """The checkpoint's step, which may not have been reported when it was written."""
        saved = self.stored.run["trained"]
        report = dict(saved["report"])
        report["by_age"] = {name: {int(age): value for age, value in ages.items()} for name, ages in report["by_age"].items()}
        times = StepTimes(**saved["times"])
        if line := self._line:
            saving, evaluation = line["checkpoint"], line["evaluation"]
            times = replace(times, checkpoint=saving, evaluation=evaluation, total=times.total + saving + evaluation)
        return Trained(saved["step"], StepReport(**report), times, saved["published"])

    @property
    def version(self) -> int:
        """Weight version of the checkpoint's weights: where they were not published, going on with them is a publication."""
        return int(self.stored.run["version"]) + (self.trained.published != self.step)

    @property
    def report(self) -> dict[str, Any]:
        """Totals and metrics, as the checkpoint has them."""
        report: dict[str, Any] = self.stored.run["report"]
        return report

    @property
    def totals(self) -> Totals:
        """What they were with the checkpoint's step, which was not among them yet when it was written."""
        totals = Totals(**self.report["totals"])
        totals.add_step(self.trained.times, self.trained.report.busy_seconds)
        return totals

    @property
    def seconds(self) -> float:
        """For which the run had run."""
        return float(self.report["seconds"]) + self.trained.times.checkpoint + self.trained.times.evaluation

    @property
    def reported(self) -> bool:
        """Whether the checkpoint's step was reported before the run ended."""
        return bool(self._line)

    @cached_property
    def _line(self) -> dict[str, Any]:
        """The line that says so, of which the files are cut later."""
        return next((line for line in self.directory.lines("steps.jsonl") if line["step"] == self.step), {})

    @property
    def kept_step(self) -> int:
        """Last step of which loggers keep what they have."""
        return self.step if self.reported else self.step - 1

    def trace(self) -> list[dict[str, Any]]:
        """Return the lines of `trace.jsonl` that were written when the checkpoint was."""
        return self.directory.lines("trace.jsonl")[: self.stored.run["rollout"]["recorded"]]

    def rollout(self) -> dict[str, Any]:
        """Return the rollout side's state with the version that is served now."""
        saved = dict(self.stored.run["rollout"])
        return saved | {"ledger": saved["ledger"] | {"version": self.version}}

    def check(self, config: RunConfig) -> None:
        """Refuse what does not fit.

        Raises:
            RunDirectoryError: the checkpoint was made by other plugins, or other versions of them.
            OptionError: an option would change what the run means; both values are named.
        """
        _same_plugins(self.stored, config)
        _same_meaning(self.stored.run["options"], config)
        if config.core.steps == self.step and self.directory.completed(self.step):
            raise OptionError(
                f"the run has trained all its {self.step} steps",
                origin=config.origins.get("steps", "steps"),
                remedy=f"to train it further, ask for more: --steps {2 * self.step}",
            )
        if config.core.steps < self.step:
            raise OptionError(
                f"steps = {config.core.steps}, but the checkpoint has {self.step} already",
                origin=config.origins.get("steps", "steps"),
                remedy="ask for more, or for an earlier checkpoint with --from",
            )

    def clear(self) -> None:
        """Take back what the run did after the checkpoint: later checkpoints, and lines of its files."""
        _remove_later(self.directory, self.step)
        self.directory.cut(self.kept_step, self.stored.run["rollout"]["recorded"])


def newest(directory: RunDirectory) -> Resumption | None:
    """Return what a run goes on from when it has lost a part that can't go on; None is its beginning."""
    if not steps_in(directory.checkpoints):
        return None
    try:
        return Resumption(directory, choose(directory.checkpoints))
    except RunDirectoryError as error:
        log.warning("%s", error.message)
        return None


def check_beginning(directory: RunDirectory, config: RunConfig) -> None:
    """Refuse what would make a run that has no checkpoint yet another one: its initial weights may have been evaluated.

    Raises:
        OptionError: an option would change what the run means; both values are named.
    """
    _same_meaning(_meaning(tomllib.loads((directory.path / CONFIG).read_text())), config)


def begin_again(directory: RunDirectory) -> None:
    """Take back everything that the run did. A point of the initial weights is kept."""
    _remove_later(directory, 0)
    directory.cut(0, 0)


def _remove_later(directory: RunDirectory, kept: int) -> None:
    """Remove later checkpoints, before files are cut: a later one that was left, by kill -9, would not find what it needs in them."""
    checkpoints = directory.checkpoints
    for step in steps_in(checkpoints):
        if step > kept:
            log.info("checkpoint step-%d is removed: the run goes on from step %d", step, kept)
            shutil.rmtree(checkpoints / f"step-{step}")
    remove_partial(checkpoints)


def saved_identity(config: RunConfig) -> dict[str, Any]:
    """Return what a checkpoint says of the run that made it: the plugins that shaped it, and the options that must stay."""
    plugins = [
        {"slot": spec.slot, "name": spec.name, "distribution": spec.distribution, "version": spec.version}
        for spec in config.specs
        if spec.slot in STATEFUL_SLOTS
    ]
    return {"plugins": plugins, "options": _meaning(config.to_dict())}


def saved_step(trained: Trained) -> dict[str, Any]:
    """Return a step as JSON."""
    report = asdict(trained.report)
    return {"step": trained.step, "published": trained.published, "report": report, "times": asdict(trained.times)}


def _meaning(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return, of the options as in a file, those that must stay as they are, by their names in file and flags."""
    fixed = {name: options[name] for name in FIXED if name in options}
    for slot in FIXED_SLOTS:
        plugin = options.get(slot, {})
        fixed |= {slot if option == "name" else f"{slot}.{option}": value for option, value in plugin.items()}
    return fixed


def _same_plugins(stored: Stored, config: RunConfig) -> None:
    then = {_named(plugin) for plugin in stored.run["plugins"]}
    now = {_named(vars(spec)) for spec in config.specs if spec.slot in STATEFUL_SLOTS}
    if then != now:
        raise RunDirectoryError(
            f"the checkpoint {stored.directory.name} was made with {_listed(then - now)}, and this run has {_listed(now - then)}",
            origin=str(stored.directory),
            remedy="select and install what made it",
        )


def _same_meaning(then: Mapping[str, Any], config: RunConfig) -> None:
    for option, value in _meaning(config.to_dict()).items():
        if option in then and then[option] != value:
            raise OptionError(
                f"the run was started with {option} = {then[option]!r}, and {value!r} would make it another run",
                origin=config.origins.get(option, option),
                remedy="leave it out, or start a new run",
            )


def _named(plugin: Mapping[str, str]) -> str:
    return f"{plugin['slot']} plugin {plugin['name']!r} ({normalized(plugin['distribution'])} {plugin['version']})"


def _listed(plugins: set[str]) -> str:
    return ", ".join(sorted(plugins)) or "none in its place"
