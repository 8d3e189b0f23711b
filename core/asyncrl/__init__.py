"""asyncrl: fully asynchronous reinforcement learning for language models. The names a plugin author needs, loaded when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "BufferOptions": "authoring",
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
    "ServerSpec": "rollout.engine",
    "WeightBucket": "rollout.engine",
    "Checkpoint": "evaluation.records",
    "EvalRecord": "evaluation.records",
    "EvalResult": "evaluation.records",
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


if TYPE_CHECKING:
    pass
