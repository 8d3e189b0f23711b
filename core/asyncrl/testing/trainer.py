"""The suite of trainers: a step that changes the weights, a whole export, and a restored trainer that goes on as it would have."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import pytest

from asyncrl.authoring import RunFacts
from asyncrl.cli.children import die_with_owner
from asyncrl.testing.base import BaseSuite
from asyncrl.testing.groups import small_run
from asyncrl.testing.models import default_model, vocab_size
from asyncrl.testing.rules import broken, expect
from asyncrl.testing.trained import Seen

STAGES = ("open", "train", "export", "save", "restore", "no gradient", "close", "done")
TIMEOUT = 280.0


class TrainerSuite(BaseSuite):
    """Contract of a trainer, on one rank, on the CPU, with a small model.

    One trainer's life is played in a process of its own, once a test session; the rules look at what was seen. A subclass may also set:

    Attributes:
        model: a Hugging Face directory to train instead of the default task's own.
        exact_resume: whether a restored trainer gives the very weights that an unbroken one does.
    """

    slot = "trainer"
    model: ClassVar[str | Path] = ""
    exact_resume: ClassVar[bool] = True

    @classmethod
    def facts(cls, **changes: Any) -> RunFacts:
        """A synchronous run, so that options need not say how the staleness of samples is treated."""
        return small_run(**{"synchronous": True, **changes})

    def test_it_opens(self) -> None:
        """`trainer_open` loads the model and says what it is."""
        seen = self._seen("open")
        size = vocab_size(self.model_directory())
        facts = seen.facts
        expect(
            facts["num_parameters"] > 0 and facts["model_bytes"] > 0 and facts["vocab_size"] == size and facts["digest"],
            promised="TrainerFacts holds the number of parameters, the bytes of a publication, the vocabulary and a digest",
            happened=f"it answered {facts}, and the model's config says vocab_size {size}",
            fix="fill in all four; the vocabulary is that of the embeddings",
        )

    def test_its_manifest_describes_the_weights(self) -> None:
        """Each tensor is in one bucket, sizes add up, and the digest is that of the weights it has opened."""
        seen = self._seen("open")
        names, manifest = seen.manifest["names"], seen.manifest
        expect(
            names and len(names) == len(set(names)),
            promised="a manifest names every tensor that is published, once",
            happened=f"it names {len(names)}, {len(names) - len(set(names))} of them twice",
            fix="go through named_parameters() once: tied weights appear once there",
        )
        expect(
            manifest["bytes"] == manifest["num_bytes"] == seen.facts["model_bytes"],
            promised="num_bytes is the sum over shapes and dtypes, and TrainerFacts.model_bytes is the same",
            happened=f"shapes give {manifest['bytes']}, the manifest says {manifest['num_bytes']}, the facts {seen.facts['model_bytes']}",
            fix="add up tensor.nbytes in the dtype that is published",
        )
        expect(
            seen.facts["digest"] == seen.digests["start"],
            promised="the digest of TrainerFacts and that of the manifest are of the same weights",
            happened=f"they are {seen.facts['digest']} and {seen.digests['start']}",
            fix="compute both by asyncrl.training.digest.weights_digest, in the dtype that is published",
        )

    def test_a_step_changes_the_weights(self) -> None:
        """Within a few steps the digest is another one, and `update_norm` says so, as a finite number."""
        seen = self._seen("train")
        norms = [report["update_norm"] for report in seen.reports]
        expect(
            all(math.isfinite(norm) and norm >= 0 for norm in norms),
            promised="update_norm is the L2 norm of the change of the parameters, a finite number",
            happened=f"it was {norms}",
            fix="measure the parameters before and after; refuse a gradient that is not finite with TrainerError",
        )
        changed = seen.digests["trained"] != seen.digests["start"]
        expect(
            changed,
            promised="training on samples with different rewards changes the weights",
            happened=f"after {len(norms)} steps the digest is the same",
            fix="see that the optimizer steps, and that the suite's options have a learning rate above 0",
        )
        expect(
            norms[-1] > 0,
            promised="update_norm is above 0 for a step that changed the weights: 0 skips the publication",
            happened=f"the digest changed, and update_norm was {norms[-1]}",
            fix="measure the change of the parameters themselves, over all updates of the step",
        )

    def test_its_reports_are_right(self) -> None:
        """Tokens are counted, metrics are declared ones and finite, and those by age are declared with a label."""
        seen = self._seen("train")
        declared = {one.name.strip("/"): one for one in self.ready().kind.Metrics.declared("")}
        for report in seen.reports:
            expect(
                report["num_tokens"] == report["tokens_given"],
                promised="num_tokens counts what went through the forward pass, prompts included",
                happened=f"it is {report['num_tokens']} for a batch of {report['tokens_given']} tokens",
                fix="return len(batch.token_ids)",
            )
            unknown = sorted(set(report["metrics"]) - set(declared)) + sorted(set(report["by_age"]) - set(declared))
            expect(
                not unknown,
                promised="a report's metrics are declared in the plugin's Metrics",
                happened=f"these are not: {', '.join(unknown)}",
                fix="declare them; the key is the attribute's name without a prefix",
            )
            wrong = [name for name in report["metrics"] if declared[name].label]
            wrong += [name for name in report["by_age"] if not declared[name].label]
            expect(
                not wrong,
                promised="metrics with a label go into by_age, the others into metrics",
                happened=f"these are in the wrong one: {', '.join(wrong)}",
                fix='declare what goes into by_age with label="age"',
            )
            bad = [name for name, value in report["metrics"].items() if not math.isfinite(value)]
            expect(
                not bad,
                promised="metrics of a step on good data are finite",
                happened=f"these were not: {', '.join(bad)}",
                fix="guard divisions by counts that may be 0, and exponentials of large differences",
            )

    def test_an_export_is_whole(self) -> None:
        """A Hugging Face directory: config, safetensors and tokenizer, the completion marker, the digest of the weights."""
        exported = self._seen("export").exported
        self._expect_whole(exported)
        expect(
            exported["digest"] == exported["manifest_digest"] and exported["num_bytes"] > 0,
            promised="Exported.digest is that of the weights as they are now",
            happened=f"it is {exported['digest']}, the manifest's {exported['manifest_digest']}",
            fix="compute it over what is written, by asyncrl.training.digest.weights_digest",
        )

    def test_what_was_captured_is_saved(self) -> None:
        """Training went on after `capture_trainer`, and while `save_trainer` wrote: what it wrote is what was captured."""
        seen = self._seen("save")
        self._expect_whole(seen.saved)
        expect(
            seen.saved["digest"] == seen.digests["trained"],
            promised="save_trainer writes the weights as they were when capture_trainer was called",
            happened=f"the model it wrote has the digest {seen.saved['digest']}, the captured weights {seen.digests['trained']}",
            fix="copy the weights in capture_trainer, and write the copy",
        )

    def test_a_restored_one_goes_on(self) -> None:
        """Loaded into a new object, what was saved gives the same weights, and the next step the same again."""
        seen = self._seen("restore")
        expect(
            seen.digests["restored"] == seen.digests["trained"],
            promised="load_trainer brings back the weights that capture_trainer saw and save_trainer wrote",
            happened="the digest is another one",
            fix="copy the weights as they are trained (in full precision) when they are captured, and load every one of them",
        )
        if self.exact_resume:
            expect(
                seen.digests["went_on_restored"] == seen.digests["went_on"],
                promised="a restored trainer trains the next batch as one that was never interrupted",
                happened="the step after the restore gave other weights",
                fix="save the optimizer's and the schedule's state too; or set exact_resume = False in the suite",
            )

    def test_a_batch_without_gradient_does_no_harm(self) -> None:
        """A batch whose every sample a filter has masked: no exception, a finite report."""
        seen = self._seen("no gradient")
        expect(
            math.isfinite(seen.no_gradient),
            promised="a batch in which nothing is trained leaves finite weights",
            happened=f"update_norm was {seen.no_gradient}",
            fix="divide by batch.num_response_tokens, which counts before masking, and guard other counts that may be 0",
        )

    def test_it_closes(self) -> None:
        """Leaving a weight group that was never joined, and closing twice, raise nothing."""
        self._seen("close")

    @classmethod
    def model_directory(cls) -> Path:
        """Return the model that is trained."""
        return Path(cls.model) if cls.model else default_model()

    def _expect_whole(self, exported: Mapping[str, Any]) -> None:
        files = exported["files"]
        tokenizer = sorted(path.name for path in self.model_directory().glob("tokenizer*"))
        missing = [name for name in ("config.json", *tokenizer) if name not in files]
        missing += [] if any(name.endswith(".safetensors") for name in files) else ["*.safetensors"]
        expect(
            not missing,
            promised="an export is a complete Hugging Face directory, which an engine can load alone",
            happened=f"it has {', '.join(files)}; missing are {', '.join(missing)}",
            fix="write the weights as safetensors, and copy config and tokenizer from the model that was opened",
        )
        expect(
            exported["complete"],
            promised="a complete export has the marker .complete, written last",
            happened=f"it has {', '.join(files)}",
            fix="call asyncrl.training.snapshots.mark_complete(directory) when everything else is written",
        )

    def _emitted(self, options: Mapping[str, Any]) -> set[str]:
        """Metrics of reports count, and so do those that the plugin object records itself."""
        seen = self._played(options)
        reported = {name for report in seen.reports for kind in ("metrics", "by_age") for name in report[kind]}
        return reported | set(seen.emitted)

    def _seen(self, stage: str) -> Seen:
        """What was seen, if it came past `stage`; fails when it ended in it, skips when it ended before."""
        seen = self._played(self.options)
        if seen.error and seen.stage == stage:
            broken(
                promised="each hook of a trainer does its work on one rank on the CPU",
                happened=f"at the stage {stage!r} it failed:\n{seen.error}",
                fix="see the traceback",
            )
        if STAGES.index(seen.stage) <= STAGES.index(stage):
            pytest.skip(f"it came only to the stage {seen.stage!r}: {seen.error.strip().splitlines()[-1]}")
        return seen

    def _played(self, options: Mapping[str, Any]) -> Seen:
        key = type(self), repr(sorted(options.items()))
        if key not in _SEEN:
            active, one = self.make(options), self.ready()
            with tempfile.TemporaryDirectory(prefix="asyncrl-suite-") as folder:
                job = {
                    "path": sys.path,
                    "spec": asdict(one.spec(active.plugin.options)),
                    "facts": asdict(self.facts()),
                    "model": str(self.model_directory()),
                    "folder": folder,
                }
                command = [sys.executable, "-P", "-m", "asyncrl.testing.trained"]
                done = subprocess.run(
                    command, input=json.dumps(job), capture_output=True, text=True, timeout=TIMEOUT, preexec_fn=die_with_owner
                )
            lines = done.stdout.strip().splitlines()
            said = f"the process ended with {done.returncode}: {done.stderr[-2000:]}"
            _SEEN[key] = Seen(**json.loads(lines[-1])) if lines else Seen(error=said)
        return _SEEN[key]


_SEEN: dict[tuple[type, str], Seen] = {}
