"""asyncrl: fully asynchronous reinforcement learning for language models. The names a plugin author needs, loaded when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "BufferOptions": "authoring",
    "EnginePlugin": "authoring",
    "EvalPlugin": "authoring",
    "Plugin": "authoring",
    "PluginOptions": "authoring",
    "RunFacts": "authoring",
    "SchedulerPlugin": "authoring",
    "hookimpl": "hookspecs",
    "Axis": "metrics",
    "Counter": "metrics",
    "Distribution": "metrics",
    "Gauge": "metrics",
    "MetricSet": "metrics",
    "Completion": "samples",
    "Group": "samples",
    "Prompt": "samples",
    "Sample": "samples",
    "SamplingParams": "samples",
    "Score": "samples",
    "Status": "samples",
    "full_mask": "samples",
    "merge_spans": "samples",
    "ScoringPool": "rollout.scoring",
    "Sampler": "rollout.sampler",
    "SampleDone": "rollout.sampler",
    "LoadView": "rollout.schedule",
    "ACCEPTED": "rollout.verdicts",
    "FULL": "rollout.verdicts",
    "KEEP": "rollout.verdicts",
    "NOTHING": "rollout.verdicts",
    "BatchView": "rollout.verdicts",
    "Deadline": "rollout.verdicts",
    "Mask": "rollout.verdicts",
    "PutOutcome": "rollout.verdicts",
    "Restored": "rollout.verdicts",
    "State": "rollout.verdicts",
    "Taken": "rollout.verdicts",
    "Verdict": "rollout.verdicts",
    "accepted": "rollout.verdicts",
    "drop": "rollout.verdicts",
    "retry": "rollout.verdicts",
    "taken": "rollout.verdicts",
    "EngineNeeds": "rollout.engine",
    "EnginePlace": "rollout.engine",
    "EngineSet": "rollout.engine",
    "FrontPlace": "rollout.engine",
    "FrontSpec": "rollout.engine",
    "Launch": "rollout.engine",
    "NO_FRONT": "rollout.engine",
    "ServerSpec": "rollout.engine",
    "WeightBucket": "rollout.engine",
    "Checkpoint": "evaluation.records",
    "EvalRecord": "evaluation.records",
    "EvalResult": "evaluation.records",
    "EvalSample": "evaluation.records",
    "EvalSet": "evaluation.records",
    "EvalSets": "evaluation.records",
    "SetResult": "evaluation.records",
    "MetricRecord": "loggers",
    "RunHeader": "loggers",
    "Exported": "training.interfaces",
    "StepReport": "training.interfaces",
    "TrainerFacts": "training.interfaces",
    "TrainerPlace": "training.interfaces",
    "TrainingBatch": "training.interfaces",
    "WeightGroup": "training.interfaces",
    "WeightManifest": "training.interfaces",
    "AsyncrlError": "errors",
    "checked_url": "network",
    "DataError": "errors",
    "EvalSkip": "errors",
    "OptionError": "errors",
    "ResourceError": "errors",
    "TrainerError": "errors",
    "UserError": "errors",
}

__version__ = "0.1.0"
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'asyncrl' has no attribute {name!r}")
    return getattr(import_module(f"asyncrl.{module}"), name)


if TYPE_CHECKING:  # the same names for type checkers, which don't run `__getattr__`
    from asyncrl.authoring import BufferOptions as BufferOptions
    from asyncrl.authoring import EnginePlugin as EnginePlugin
    from asyncrl.authoring import EvalPlugin as EvalPlugin
    from asyncrl.authoring import Plugin as Plugin
    from asyncrl.authoring import PluginOptions as PluginOptions
    from asyncrl.authoring import RunFacts as RunFacts
    from asyncrl.authoring import SchedulerPlugin as SchedulerPlugin
    from asyncrl.errors import AsyncrlError as AsyncrlError
    from asyncrl.errors import DataError as DataError
    from asyncrl.errors import EvalSkip as EvalSkip
    from asyncrl.errors import OptionError as OptionError
    from asyncrl.errors import ResourceError as ResourceError
    from asyncrl.errors import TrainerError as TrainerError
    from asyncrl.errors import UserError as UserError
    from asyncrl.evaluation.records import Checkpoint as Checkpoint
    from asyncrl.evaluation.records import EvalRecord as EvalRecord
    from asyncrl.evaluation.records import EvalResult as EvalResult
    from asyncrl.evaluation.records import EvalSample as EvalSample
    from asyncrl.evaluation.records import EvalSet as EvalSet
    from asyncrl.evaluation.records import EvalSets as EvalSets
    from asyncrl.evaluation.records import SetResult as SetResult
    from asyncrl.hookspecs import hookimpl as hookimpl
    from asyncrl.loggers import MetricRecord as MetricRecord
    from asyncrl.loggers import RunHeader as RunHeader
    from asyncrl.metrics import Axis as Axis
    from asyncrl.metrics import Counter as Counter
    from asyncrl.metrics import Distribution as Distribution
    from asyncrl.metrics import Gauge as Gauge
    from asyncrl.metrics import MetricSet as MetricSet
    from asyncrl.network import checked_url as checked_url
    from asyncrl.rollout.engine import NO_FRONT as NO_FRONT
    from asyncrl.rollout.engine import EngineNeeds as EngineNeeds
    from asyncrl.rollout.engine import EnginePlace as EnginePlace
    from asyncrl.rollout.engine import EngineSet as EngineSet
    from asyncrl.rollout.engine import FrontPlace as FrontPlace
    from asyncrl.rollout.engine import FrontSpec as FrontSpec
    from asyncrl.rollout.engine import Launch as Launch
    from asyncrl.rollout.engine import ServerSpec as ServerSpec
    from asyncrl.rollout.engine import WeightBucket as WeightBucket
    from asyncrl.rollout.sampler import SampleDone as SampleDone
    from asyncrl.rollout.sampler import Sampler as Sampler
    from asyncrl.rollout.schedule import LoadView as LoadView
    from asyncrl.rollout.scoring import ScoringPool as ScoringPool
    from asyncrl.rollout.verdicts import ACCEPTED as ACCEPTED
    from asyncrl.rollout.verdicts import FULL as FULL
    from asyncrl.rollout.verdicts import KEEP as KEEP
    from asyncrl.rollout.verdicts import NOTHING as NOTHING
    from asyncrl.rollout.verdicts import BatchView as BatchView
    from asyncrl.rollout.verdicts import Deadline as Deadline
    from asyncrl.rollout.verdicts import Mask as Mask
    from asyncrl.rollout.verdicts import PutOutcome as PutOutcome
    from asyncrl.rollout.verdicts import Restored as Restored
    from asyncrl.rollout.verdicts import State as State
    from asyncrl.rollout.verdicts import Taken as Taken
    from asyncrl.rollout.verdicts import Verdict as Verdict
    from asyncrl.rollout.verdicts import accepted as accepted
    from asyncrl.rollout.verdicts import drop as drop
    from asyncrl.rollout.verdicts import retry as retry
    from asyncrl.rollout.verdicts import taken as taken
    from asyncrl.samples import Completion as Completion
    from asyncrl.samples import Group as Group
    from asyncrl.samples import Prompt as Prompt
    from asyncrl.samples import Sample as Sample
    from asyncrl.samples import SamplingParams as SamplingParams
    from asyncrl.samples import Score as Score
    from asyncrl.samples import Status as Status
    from asyncrl.samples import full_mask as full_mask
    from asyncrl.samples import merge_spans as merge_spans
    from asyncrl.training.interfaces import Exported as Exported
    from asyncrl.training.interfaces import StepReport as StepReport
    from asyncrl.training.interfaces import TrainerFacts as TrainerFacts
    from asyncrl.training.interfaces import TrainerPlace as TrainerPlace
    from asyncrl.training.interfaces import TrainingBatch as TrainingBatch
    from asyncrl.training.interfaces import WeightGroup as WeightGroup
    from asyncrl.training.interfaces import WeightManifest as WeightManifest
