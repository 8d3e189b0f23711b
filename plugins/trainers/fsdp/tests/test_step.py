"""A training step: the loss is the formula's, and how the batch is cut makes no difference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from asyncrl import TrainerError, TrainingBatch
from asyncrl_fsdp import FsdpMetrics, FsdpTrainer, policy
from transformers import Qwen3ForCausalLM

Open = Callable[..., FsdpTrainer]
Make = Callable[..., TrainingBatch]


def reference(model_dir: Path, batch: TrainingBatch) -> tuple[float, float, float, float]:
    """Return (loss, gradient norm, KL k1, entropy) of GRPO + PPO clip to the engine + token mean, in float64, sample by sample."""
    model = Qwen3ForCausalLM.from_pretrained(model_dir, dtype=torch.float64, attn_implementation="eager").eval()
    total, k1, entropies, count = 0.0, 0.0, 0.0, 0
    for i in range(batch.num_samples):
        peers = batch.rewards[batch.groups == batch.groups[i]].astype(np.float64)
        advantage = (batch.rewards[i] - peers.mean()) / (peers.std(ddof=1) + 1e-6)
        ids = torch.from_numpy(batch.token_ids[batch.starts[i] : batch.starts[i + 1]].astype(np.int64))
        engine = torch.from_numpy(batch.logprobs[batch.starts[i] : batch.starts[i + 1]].astype(np.float64))
        scores = torch.log_softmax(model(ids[None]).logits[0] / batch.temperature, -1)
        for t in range(int(batch.prompt_lengths[i]), len(ids)):
            logp = scores[t - 1, ids[t]]
            rho = torch.exp(logp - engine[t])
            total = total - torch.minimum(rho * advantage, rho.clamp(0.8, 1.28) * advantage)
            k1 += float(engine[t] - logp.detach())
            entropies -= float((scores[t - 1].exp() * scores[t - 1]).sum().detach())
            count += 1
    (total / count).backward()
    norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
    return float(total.detach()) / count, float(norm), k1 / count, entropies / count


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_step_computes_the_published_objective(
    open_trainer: Open, make_batch: Make, tiny_model: Path, temperature: float
) -> None:
    batch = dataclasses.replace(make_batch(), temperature=temperature)
    loss, norm, k1, entropy = reference(tiny_model, batch)
    metrics = open_trainer(old_policy="engine").train_batch(batch).metrics
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["kl_k1"] == pytest.approx(k1, abs=1e-5)
    assert metrics["entropy"] == pytest.approx(entropy, rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"reduction": "sequence-mean"}, {"reduction": "constant"}, {"correction": "tis"}])
def test_micro_batch_size_changes_nothing(open_trainer: Open, make_batch: Make, options: dict[str, str]) -> None:
    batch = make_batch(noise=0.5)
    whole = open_trainer(**options).train_batch(batch)
    for budget in (1, 40):
        cut = open_trainer(tokens_per_micro_batch=budget, **options).train_batch(batch)
        for name in whole.metrics:
            assert cut.metrics[name] == pytest.approx(whole.metrics[name], rel=2e-4, abs=2e-6), name
        for name, series in whole.by_age.items():
            assert cut.by_age[name] == pytest.approx(series, rel=2e-4, abs=2e-6), name


@pytest.mark.parametrize(
    "options", [{"shard": "always"}, {"activation_checkpointing": True}, {"shard": "always", "activation_checkpointing": True}]
)
def test_memory_options_change_nothing(open_trainer: Open, make_batch: Make, options: dict[str, object]) -> None:
    batch = make_batch()
    plain = open_trainer().train_batch(batch)
    other = open_trainer(**options).train_batch(batch)
    for name in ("loss", "grad_norm", "entropy", "update_norm"):
        assert other.metrics[name] == pytest.approx(plain.metrics[name], rel=1e-4, abs=1e-6), name


def test_chunked_logits_change_nothing(open_trainer: Open, make_batch: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch()
    plain = open_trainer().train_batch(batch)
    monkeypatch.setattr(policy, "LOGITS_AT_ONCE", 64 * 7)
    chunked = open_trainer().train_batch(batch)
    for name in ("loss", "grad_norm", "entropy"):
        assert chunked.metrics[name] == pytest.approx(plain.metrics[name], rel=1e-4, abs=1e-6), name


def test_bf16_keeps_float32_weights_and_comes_close(open_trainer: Open, make_batch: Make) -> None:
    batch = make_batch()
    plain = open_trainer().train_batch(batch)
    trainer = open_trainer(dtype="bf16")
    half = trainer.train_batch(batch)
    assert half.metrics["grad_norm"] == pytest.approx(plain.metrics["grad_norm"], rel=0.2)
    assert all(parameter.dtype is torch.float32 for parameter in trainer._trainer._model.parameters())


def test_on_policy_ratio_is_one_at_age_zero(open_trainer: Open, make_batch: Make) -> None:
    """Field report 5."""
    report = open_trainer().train_batch(make_batch(noise=0.0, ages=1))
    assert report.by_age["ratio_by_age"] == {0: pytest.approx(1.0, abs=1e-4)}
    assert 0 < report.by_age["logprob_difference_by_age"][0] < report.by_age["largest_logprob_difference_by_age"][0] < 1e-4
    assert report.metrics["effective_sample_size"] == pytest.approx(1.0, abs=1e-4)
    assert report.metrics["clip_fraction"] == 0


def test_metrics_are_the_declared_ones(open_trainer: Open, make_batch: Make) -> None:
    report = open_trainer().train_batch(make_batch())
    declared = {metric.name.removeprefix("x/"): metric for metric in FsdpMetrics.declared("x")}
    assert set(report.metrics) == {name for name, metric in declared.items() if not metric.label}
    assert set(report.by_age) == {name for name, metric in declared.items() if metric.label}
    assert all(set(series) == {0, 1, 2} for series in report.by_age.values())


def test_recomputed_old_policy_is_that_of_the_start_of_the_step(open_trainer: Open, make_batch: Make) -> None:
    batch = make_batch(noise=1.0)
    once = open_trainer(old_policy="recomputed", correction="none").train_batch(batch)
    assert once.metrics["clip_fraction"] == 0  # its ratio is 1 everywhere
    # The KL to the engine is that of the start of the step, also when later updates see other weights.
    twice = open_trainer(old_policy="recomputed", correction="none", updates_per_step=2).train_batch(batch)
    assert twice.metrics["kl_k1"] == pytest.approx(once.metrics["kl_k1"], rel=1e-4)
    assert open_trainer(updates_per_step=2).train_batch(batch).metrics["kl_k1"] != pytest.approx(once.metrics["kl_k1"], rel=1e-4)


def test_tis_weighs_stale_tokens(open_trainer: Open, make_batch: Make) -> None:
    batch = make_batch(noise=1.0)
    plain = open_trainer(policy_loss="policy-gradient", correction="none").train_batch(batch)
    weighed = open_trainer(policy_loss="policy-gradient", correction="tis").train_batch(batch)
    assert weighed.metrics["loss"] != pytest.approx(plain.metrics["loss"], rel=1e-2)


def test_learning_rate_zero_changes_no_weight(open_trainer: Open, make_batch: Make) -> None:
    """Field report 22: the report tells a step that changed nothing."""
    trainer = open_trainer(learning_rate=0.0)
    before = trainer.weight_manifest().digest
    assert trainer.train_batch(make_batch()).update_norm == 0
    assert trainer.weight_manifest().digest == before


def test_update_norm_is_the_distance_moved(open_trainer: Open, make_batch: Make) -> None:
    trainer = open_trainer(updates_per_step=2)
    before = [parameter.detach().clone() for parameter in trainer._trainer._model.parameters()]
    report = trainer.train_batch(make_batch())
    moved = sum(
        (p.detach() - old).double().square().sum() for p, old in zip(trainer._trainer._model.parameters(), before, strict=True)
    )
    assert report.update_norm == pytest.approx(float(moved) ** 0.5, rel=1e-5)


def test_denominator_counts_masked_tokens(open_trainer: Open, make_batch: Make) -> None:
    batch = make_batch(noise=0.0)
    keep = batch.loss_mask.copy()
    keep[batch.starts[3] : batch.starts[5]] = False  # a batch filter left two samples out
    masked = dataclasses.replace(batch, loss_mask=keep)
    report = open_trainer(policy_loss="policy-gradient", correction="none", advantage="none").train_batch(masked)
    share = 1 - keep.sum() / batch.num_response_tokens
    assert report.metrics["masked_fraction"] == pytest.approx(share)
    kept = keep & np.repeat(batch.rewards, np.diff(batch.starts)).astype(bool)
    assert report.metrics["loss"] == pytest.approx(-batch.logprobs[kept].sum() / batch.num_response_tokens, rel=1e-4)


def test_fully_masked_batch_moves_nothing(open_trainer: Open, make_batch: Make) -> None:
    batch = make_batch()
    report = open_trainer().train_batch(dataclasses.replace(batch, loss_mask=np.zeros_like(batch.loss_mask)))
    assert (report.update_norm, report.metrics["loss"], report.metrics["masked_fraction"]) == (0, 0, 1)


def test_infinite_gradient_is_refused_before_it_reaches_the_weights(open_trainer: Open, make_batch: Make) -> None:
    trainer = open_trainer(advantage="none")
    before = trainer.weight_manifest().digest
    batch = make_batch()
    with pytest.raises(TrainerError, match="gradient's norm is nan"):
        trainer.train_batch(dataclasses.replace(batch, rewards=np.full_like(batch.rewards, np.nan)))
    assert trainer.weight_manifest().digest == before


def test_rewarded_samples_become_likelier(open_trainer: Open, make_batch: Make) -> None:
    batch = make_batch(noise=0.0, ages=1)
    trainer = open_trainer(policy_loss="policy-gradient", correction="none", advantage="r-mean", learning_rate=3e-3)
    losses = [trainer.train_batch(batch).metrics["loss"] for _ in range(10)]
    assert losses[-1] < losses[0] - 0.1
