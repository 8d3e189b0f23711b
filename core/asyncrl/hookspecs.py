"""Every hook of asyncrl on one page.

A *slot hook* has exactly one implementation among the active plugins, checked at start-up; an exception in it ends the run.
A hook marked *many* is called on every active plugin of its slot. An *observer* hook (`on_*`) may be implemented by any plugin;
an exception in it is counted, warned about once, and costs the others nothing. No hook has default arguments; none answers None
where a value is asked for. Wrappers (`@hookimpl(wrapper=True)`) may go around synchronous slot hooks only.

Where a hook runs: *controller* is the command itself; *rollout* is the rollout actor; *engine* is the actor that owns an engine's
server; *evaluator* is the process of an eval backend that does not use the rollout engines, with the task and the producer beside it;
*trainer* is each trainer rank. `PROCESSES` says whose plugins each of them holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from asyncrl.authoring import RunFacts
    from asyncrl.evaluation.records import Checkpoint, EvalRecord, EvalResult, EvalSet, EvalSets
    from asyncrl.loggers import MetricRecord, RunHeader
    from asyncrl.rollout.engine import EngineNeeds, EnginePlace, EngineSet, FrontPlace, FrontSpec, ServerSpec
    from asyncrl.rollout.sampler import SampleDone, Sampler
    from asyncrl.rollout.schedule import LoadView
    from asyncrl.rollout.verdicts import BatchView, Deadline, Mask, PutOutcome, Restored, State, Taken, Verdict
    from asyncrl.samples import Group, Prompt, Sample, Score
    from asyncrl.training.interfaces import (
        Exported,
        StepReport,
        TrainerFacts,
        TrainerPlace,
        TrainingBatch,
        WeightGroup,
        WeightManifest,
    )

hookspec = pluggy.HookspecMarker("asyncrl")
hookimpl = pluggy.HookimplMarker("asyncrl")

HOOK_API = 1
"""Version of this page. A plugin says with `hook_api` for which version it was written (`Plugin`); another one is refused when it is
loaded, with both versions.

It goes up when a plugin that works would stop to: a hook is removed or renamed, loses an argument, gets another meaning or wants another
answer; a slot gets one more hook that its plugins must implement; a name that plugins import is removed. It stays the same when something
is added that no plugin needs: an optional hook, an observer hook, an argument (implementations leave out what they do not use), a field
with a default. A version that goes out of use is accepted beside the new one, with a warning, for at least one minor release."""
ACCEPTED_HOOK_APIS: tuple[int, ...] = (HOOK_API,)
"""The versions that this asyncrl can still call, `HOOK_API` last. All but the last are warned about."""

SLOT_HOOKS: dict[str, tuple[str, ...]] = {
    "task": ("task_model", "task_open", "train_prompt", "score_sample", "eval_sets", "task_close"),
    "producer": ("produce",),
    "scheduler": ("submission_quota",),
    "buffer": ("buffer_put", "buffer_take", "buffer_size", "buffer_state", "buffer_restore"),
    "filters": ("judge_group", "mask_batch"),
    "staleness": ("judge_staleness", "staleness_deadline"),
    "engine": ("engine_needs", "engine_server", "engine_front"),
    "trainer": (
        "trainer_open",
        "train_batch",
        "export_model",
        "weight_manifest",
        "join_weight_group",
        "broadcast_bucket",
        "leave_weight_group",
        "capture_trainer",
        "save_trainer",
        "load_trainer",
        "trainer_close",
    ),
    "eval": ("eval_engines", "evaluate_checkpoint"),
    "loggers": ("log_start", "log_metrics", "log_eval", "log_message", "log_end"),
    "observers": (),
}
"""The hooks that only the slot's own plugins may implement."""

OPTIONAL_HOOKS = frozenset(
    {
        *("check_run", "task_model", "task_close", "mask_batch", "staleness_deadline", "engine_front", "eval_engines"),
        *("log_start", "log_eval", "log_message", "log_end"),
    }
)
"""Slot hooks that a plugin of the slot may leave out. Of the hooks of a slot of several, one is enough."""

ANY_PLUGIN_HOOKS = ("check_run", "score_group", "plugin_state", "plugin_restore")
"""Hooks beside the observers' that a plugin of any slot may implement."""

PROCESSES: dict[str, frozenset[str]] = {
    "controller": frozenset(SLOT_HOOKS),
    "rollout": frozenset({"task", "producer", "scheduler", "buffer", "filters", "staleness", "engine", "eval", "observers"}),
    "engine": frozenset({"engine", "observers"}),
    "evaluator": frozenset({"task", "producer", "eval", "observers"}),
    "trainer": frozenset({"trainer", "observers"}),
}
"""The processes of a run, and the slots whose plugins each of them builds."""

CALLED_IN: dict[str, tuple[str, ...]] = {
    "controller": (
        *("check_run", "task_model", "engine_needs", "engine_server", "eval_engines", *SLOT_HOOKS["loggers"]),
        *("on_run_start", "on_step", "on_weights_published", "on_checkpoint", "on_eval", "on_metrics", "on_error", "on_run_end"),
    ),
    "rollout": (
        *(hook for hook in SLOT_HOOKS["task"] if hook != "task_model"),
        *(hook for slot in ("producer", "scheduler", "buffer", "filters", "staleness") for hook in SLOT_HOOKS[slot]),
        *("engine_front", "evaluate_checkpoint"),
        *("score_group", "plugin_state", "plugin_restore"),
        *("on_run_start", "on_group_finished", "on_group_ended", "on_batch", "on_weights_published", "on_run_end"),
    ),
    "engine": ("engine_server",),
    "evaluator": ("task_open", "eval_sets", "score_sample", "produce", "evaluate_checkpoint", "task_close"),
    "trainer": SLOT_HOOKS["trainer"],
}
"""The hooks that each process calls. A plugin that is in none of a hook's processes would never be asked, so it is refused."""


# Any plugin ---------------------------------------------------------------------------------------------------------


@hookspec
def check_run(run: RunFacts) -> None:
    """Many; controller, before anything starts. Refuse what cannot work: raise a `UserError` naming the options."""


@hookspec
def plugin_state() -> dict[str, Any]:
    """Many; rollout, at each checkpoint, between two groups. Return what the plugin has learnt and a resumed run must not forget, such
    as a scheduler's estimate; JSON. A buffer's groups are kept without it."""


@hookspec
def plugin_restore(state: dict[str, Any]) -> None:
    """Many; rollout, before anything is generated in a run that goes on, or by a rollout actor that was made anew. Continue from what the
    same plugin's `plugin_state` returned for the last checkpoint; not called where that has nothing of it."""


# Task: `asyncrl.tasks` ------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def task_model(cache_dir: Path) -> Path:
    """Controller; asked only when `model` is unset. Return the Hugging Face directory to train, making it below `cache_dir`
    if it is not there yet. A task that has no model of its own raises `OptionError`."""


@hookspec(firstresult=True)
def task_open(model: Path) -> None:
    """Rollout and evaluator, once, before any other task hook: load data and tokenizer. `model` is a Hugging Face directory."""


@hookspec(firstresult=True)
def train_prompt(position: int) -> Prompt:
    """Rollout. Return the prompt at `position` (0, 1, 2, …) of the endless training stream, with `prompt_id == position`.
    A pure function of options and position: the same after a restart."""


@hookspec(firstresult=True)
async def score_sample(prompt: Prompt, sample: Sample) -> Score:
    """Rollout and evaluator. Return the reward of one finished sample. An exception marks the sample failed, with its reason."""


@hookspec(firstresult=True)
def eval_sets() -> tuple[EvalSet, ...]:
    """Rollout and evaluator. Return the held-out sets, possibly none."""


@hookspec
async def task_close() -> None:
    """Rollout and evaluator, at the end: stop whatever `task_open` started, such as scoring processes."""


# Producer: `asyncrl.producers` ----------------------------------------------------------------------------------------


@hookspec(firstresult=True)
async def produce(prompt: Prompt, sampler: Sampler, done: SampleDone) -> Group:
    """Rollout and evaluator. Turn a prompt into a group of `sampler.group_size` scored samples, calling `done(sample)` as each one ends.
    Many calls run at once, on one event loop: never block it."""


# Scheduler: `asyncrl.schedulers` ----------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def submission_quota(load: LoadView) -> int:
    """Rollout. Return how many new groups may start now; 0 is an answer. Core never exceeds `max_concurrent_samples`
    samples in flight, whatever the answer. Asked whenever `load` may have changed."""


# Buffer: `asyncrl.buffers` ----------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def buffer_put(group: Group, score: float) -> PutOutcome:
    """Rollout. Store a group: `accepted(evicted)` with the groups that had to leave for it, or `FULL`. `score` is the answer of
    `score_group`, 0 where no plugin gives one."""


@hookspec(firstresult=True)
def buffer_take(version: int, due: int) -> Taken:
    """Rollout. Remove and return the next group for the trainer that is about to improve `version`, or `NOTHING`. While a group
    with an `oldest_version` of at most `due` is held, return one of those; which one, and which of the others, is the buffer's own
    affair. -1 asks for none in particular."""


@hookspec(firstresult=True)
def buffer_size() -> int:
    """Rollout. Return how many groups are held."""


@hookspec(firstresult=True)
def buffer_state() -> State:
    """Rollout. Return the groups held, in an order from which `buffer_restore` rebuilds the buffer."""


@hookspec(firstresult=True)
def buffer_restore(state: State) -> Restored:
    """Rollout. Replace the content by a former `buffer_state`; return what did not fit."""


@hookspec(firstresult=True)
def score_group(group: Group) -> float:
    """Rollout; any plugin, at most one: what a finished group is worth, for a buffer that orders by it. Higher is better."""


# Filters (many): `asyncrl.filters` --------------------------------------------------------------------------------------


@hookspec
def judge_group(group: Group) -> Verdict:
    """Many; rollout, at put. Keep or drop(reason) a finished group. The first refusal counts."""


@hookspec
def mask_batch(batch: BatchView) -> Mask:
    """Many; rollout. Leave single samples of an assembled batch out of the loss; optional."""


# Staleness: `asyncrl.staleness` -----------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def judge_staleness(group: Group, version: int) -> Verdict:
    """Rollout, at take and again when the batch is complete. Keep, drop(reason) or retry(reason) a group for the trainer that is
    about to improve `version`."""


@hookspec(firstresult=True)
def staleness_deadline(oldest: int) -> Deadline:
    """Rollout; optional. Say up to which version a group may be trained whose oldest token comes from version `oldest`, and whether
    the trainer waits for one in flight rather than pass its deadline. Never decreases with `oldest`, waits for
    all groups or for none, and agrees with `judge_staleness`."""


# Engine: `asyncrl.engines` ----------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def engine_needs() -> EngineNeeds:
    """Controller. Return what one engine occupies: GPUs and CPUs, for its placement."""


@hookspec(firstresult=True)
def engine_server(place: EnginePlace) -> ServerSpec:
    """Engine actor; controller, which asks for the addresses of servers that run already before anything starts. Return the command that
    serves `place.model` at `place.host:place.port`, and what the server can do."""


@hookspec(firstresult=True)
def engine_front(place: FrontPlace) -> FrontSpec:
    """Rollout; optional. Return the command of a router at `place.host:place.port`, in front of the run's own engines, or `NO_FRONT`."""


# Trainer: `asyncrl.trainers` --------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def trainer_open(place: TrainerPlace) -> TrainerFacts:
    """Trainer, every rank. Join the process group, load `place.model`, make the optimizer."""


@hookspec(firstresult=True)
def train_batch(batch: TrainingBatch) -> StepReport:
    """Trainer, every rank with the whole batch: one training step."""


@hookspec(firstresult=True)
def export_model(directory: Path) -> Exported:
    """Trainer, every rank. Write a complete Hugging Face directory, its completion marker last; return size and digest."""


@hookspec(firstresult=True)
def weight_manifest() -> WeightManifest:
    """Trainer, every rank. Return names, dtypes and shapes that a broadcast will send, in buckets, and their digest."""


@hookspec(firstresult=True)
def join_weight_group(group: WeightGroup) -> None:
    """Trainer rank 0. Join the process group that spans this rank and the engines; blocks until all have, or its timeout."""


@hookspec(firstresult=True)
def broadcast_bucket(index: int) -> int:
    """Trainer, every rank. Send bucket `index` of the last manifest to the weight group; return bytes sent. Rank 0 sends, the
    others help to gather."""


@hookspec(firstresult=True)
def leave_weight_group() -> None:
    """Trainer rank 0. Leave the weight group, also while a send is stuck in it (called from another thread)."""


@hookspec(firstresult=True)
def capture_trainer() -> None:
    """Trainer, every rank, between two steps; training waits for it. Copy what `save_trainer` is going to write to where no later step
    changes it. Never called while `save_trainer` runs."""


@hookspec(firstresult=True)
def save_trainer(directory: Path, model: Path) -> Exported:
    """Trainer, every rank, in a thread of its own while training goes on. Write what was captured last: model, optimizer and schedule
    state, sharded, to `directory`, and a complete Hugging Face directory to `model`, of which size and digest are returned. What the
    ranks have to tell each other goes over a process group of its own."""


@hookspec(firstresult=True)
def load_trainer(directory: Path) -> None:
    """Trainer, every rank. Read what `save_trainer` wrote, at any number of ranks."""


@hookspec(firstresult=True)
def trainer_close() -> None:
    """Trainer, every rank, at the end. Leave the process groups."""


# Eval: `asyncrl.evals` --------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def eval_engines(rollout: EngineSet) -> EngineSet:
    """Controller, before anything starts; optional. Return the engines of its own on which the backend evaluates, made of the
    rollout's (`EngineSet.derive`, `launched`, `attached`). Core starts them, revives them before a point, and ends them with the run."""


@hookspec(firstresult=True)
async def evaluate_checkpoint(checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
    """Rollout or evaluator: the former for a backend that uses the rollout engines. Evaluate one version on every set. Raise
    `EvalSkip(reason)` when the point can't be had; the reason is a word, or a word followed by ``: `` and more."""


# Loggers (many): `asyncrl.loggers` ---------------------------------------------------------------------------------------


@hookspec
def log_start(header: RunHeader) -> None:
    """Many; controller. The run begins: its name, directory, options and every declared metric."""


@hookspec
def log_metrics(record: MetricRecord) -> None:
    """Many; controller. Values of one axis at one of its steps."""


@hookspec
def log_eval(record: EvalRecord) -> None:
    """Many; controller. An eval point was settled: a result or a skip."""


@hookspec
def log_message(level: str, message: str) -> None:
    """Many; controller. A line for people; `level` is ``info``, ``warning`` or ``error``."""


@hookspec
def log_end(summary: dict[str, Any]) -> None:
    """Many; controller. The run has ended; flush and close."""


# Observers: any plugin may implement these ------------------------------------------------------------------------------


@hookspec
def on_run_start(run: RunFacts) -> None:
    """Controller and rollout. Everything has started."""


@hookspec
def on_group_finished(group: Group) -> None:
    """Rollout. A producer returned a group; the gate has not judged it yet."""


@hookspec
def on_group_ended(prompt_id: int, fate: str, tokens: int) -> None:
    """Rollout. A prompt's story ended: `fate` is ``trained`` or the reason for which it was dropped."""


@hookspec
def on_batch(batch: TrainingBatch) -> None:
    """Rollout. A batch was assembled and goes to the trainer."""


@hookspec
def on_step(step: int, report: StepReport) -> None:
    """Controller. A training step is done."""


@hookspec
def on_weights_published(version: int) -> None:
    """Controller and rollout. Every engine has confirmed `version`."""


@hookspec
def on_checkpoint(step: int, directory: Path) -> None:
    """Controller. A checkpoint is complete."""


@hookspec
def on_eval(record: EvalRecord) -> None:
    """Controller. An eval point was settled."""


@hookspec
def on_metrics(record: MetricRecord) -> None:
    """Controller. Values were logged."""


@hookspec
def on_error(error: str) -> None:
    """Controller. The run is about to end with this error."""


@hookspec
def on_run_end(outcome: str) -> None:
    """Controller and rollout. The run is over: ``completed``, ``interrupted`` or ``failed``."""
