"""Runs in a fresh process, as a script: opens a trainer on a small model, trains, exports, saves and restores, and writes down what it saw.

In a process of its own, because a trainer joins process groups, and may leave threads of them behind. Reads from standard input
`{"path", "spec", "facts", "model", "folder"}`; answers with `Seen` as JSON.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.training.snapshots import is_complete

FEW = 4
"""Steps within which weights must have changed: the first ones may be a warm-up from 0."""


@dataclass
class Seen:
    """What a trainer did. Each field is filled in as far as it came.

    Attributes:
        stage: what was being done last: ``open``, ``train``, ``export``, ``save``, ``restore``, ``no gradient``, ``close``, ``done``.
        error: traceback of what was raised in it.
        facts: of `trainer_open`.
        digests: of the weights: ``start``, ``trained`` (after the first steps), ``went_on`` (one step later), ``restored``,
            ``went_on_restored``, ``no_gradient``.
        reports: of the first steps: ``update_norm``, ``num_tokens``, ``tokens_given``, ``metrics``, ``by_age``.
        manifest: ``names``, ``bytes`` (by shapes and dtypes), ``num_bytes``.
        exported: ``files``, ``complete``, ``digest``, ``num_bytes``, ``manifest_digest``.
        saved: of the model beside the state that was captured steps before: ``files``, ``complete``, ``digest``, ``num_bytes``.
        no_gradient: ``update_norm`` of a step whose every sample is masked.
        emitted: metrics that the plugin object recorded.
    """

    stage: str = "open"
    error: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)
    exported: dict[str, Any] = field(default_factory=dict)
    saved: dict[str, Any] = field(default_factory=dict)
    no_gradient: float = 0.0
    emitted: list[str] = field(default_factory=list)


def main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    job = json.load(sys.stdin)
    sys.path[:] = job["path"]
    seen = Seen()
    try:
        _use(job, seen)
        seen.stage = "done"
    except Exception:
        seen.error = traceback.format_exc()
    print(json.dumps(asdict(seen)), file=out, flush=True)


def _use(job: dict[str, Any], seen: Seen) -> None:
    from asyncrl.authoring import RunFacts
    from asyncrl.plugins import PluginSpec
    from asyncrl.testing.models import vocab_size
    from asyncrl.testing.training import make_batch

    run, spec, model, folder = RunFacts(**job["facts"]), PluginSpec(**job["spec"]), Path(job["model"]), Path(job["folder"])
    vocabulary = vocab_size(model)
    first = _Opened(spec, run, model)
    seen.facts = asdict(first.facts)
    manifest = first.call("weight_manifest")
    seen.digests["start"] = manifest.digest
    seen.manifest = _describe(manifest)

    seen.stage = "train"
    step = 0
    while step < FEW and seen.digests.get("trained") in (None, manifest.digest):
        step += 1
        batch = make_batch(run, vocabulary, step)
        seen.reports.append(_report(first.call("train_batch", batch=batch), batch))
        seen.digests["trained"] = first.call("weight_manifest").digest

    seen.stage = "export"
    exported = first.call("export_model", directory=folder / "export")
    seen.exported = _written(exported, folder / "export") | {"manifest_digest": first.call("weight_manifest").digest}

    seen.stage = "save"
    after = make_batch(run, vocabulary, step + 1)
    first.call("capture_trainer")
    first.call("train_batch", batch=after)
    seen.digests["went_on"] = first.call("weight_manifest").digest
    with ThreadPoolExecutor(1) as thread:  # as in a run, where training goes on meanwhile
        saving = thread.submit(first.call, "save_trainer", directory=folder / "saved", model=folder / "model")
        first.call("train_batch", batch=make_batch(run, vocabulary, step + 2))
    seen.saved = _written(saving.result(), folder / "model")
    seen.emitted += first.emitted()
    first.close()

    seen.stage = "restore"
    second = _Opened(spec, run, model)
    second.call("load_trainer", directory=folder / "saved")
    seen.digests["restored"] = second.call("weight_manifest").digest
    second.call("train_batch", batch=after)
    seen.digests["went_on_restored"] = second.call("weight_manifest").digest

    seen.stage = "no gradient"
    report = second.call("train_batch", batch=make_batch(run, vocabulary, step + 2, masked=True))
    seen.no_gradient = float(report.update_norm)
    seen.digests["no_gradient"] = second.call("weight_manifest").digest

    seen.stage = "close"
    seen.emitted += second.emitted()
    second.call("leave_weight_group")  # none was joined
    second.close()
    second.close()


class _Opened:
    """One trainer of one rank."""

    def __init__(self, spec: Any, run: Any, model: Path) -> None:
        from asyncrl.plugins import build_host
        from asyncrl.training.interfaces import TrainerPlace
        from asyncrl.training.publication import free_port

        self._host = build_host([spec], run)
        place = TrainerPlace(
            rank=0,
            world_size=1,
            local_rank=0,
            master_address="127.0.0.1",
            master_port=free_port("127.0.0.1"),
            device=run.device,
            model=model,
            publish_dtype="float32",
            steps=run.steps,
            seed=run.seed,
            timeout=60.0,
        )
        self.facts: Any = self.call("trainer_open", place=place)

    def call(self, hook: str, **arguments: Any) -> Any:
        return self._host.one(hook)(**arguments)

    def emitted(self) -> list[str]:
        return [name.rpartition("/")[2] for active in self._host.actives for name in active.plugin.metrics.drain()]

    def close(self) -> None:
        self.call("trainer_close")


def _written(exported: Any, directory: Path) -> dict[str, Any]:
    return {
        "files": sorted(path.name for path in directory.iterdir()),
        "complete": is_complete(directory),
        "digest": exported.digest,
        "num_bytes": exported.num_bytes,
    }


def _report(report: Any, batch: Any) -> dict[str, Any]:
    return {
        "update_norm": float(report.update_norm),
        "num_tokens": int(report.num_tokens),
        "tokens_given": len(batch.token_ids),
        "metrics": {name: float(value) for name, value in report.metrics.items()},
        "by_age": {name: {str(age): float(value) for age, value in ages.items()} for name, ages in report.by_age.items()},
    }


def _describe(manifest: Any) -> dict[str, Any]:
    sizes = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
    names, total = [], 0
    for bucket in manifest.buckets:
        names += bucket.names
        total += sum(sizes.get(dtype, 1) * math.prod(shape) for dtype, shape in zip(bucket.dtypes, bucket.shapes, strict=True))
    return {"names": names, "bytes": total, "num_bytes": manifest.num_bytes}


if __name__ == "__main__":
    main()
