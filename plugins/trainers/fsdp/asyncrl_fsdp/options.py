"""What a user may choose about training, and which choices contradict each other or the run."""

from __future__ import annotations

from typing import Literal

from asyncrl import OptionError, PluginOptions, RunFacts
from pydantic import Field


class FsdpOptions(PluginOptions):
    """Options of the `fsdp` trainer."""

    # The objective.
    advantage: Literal["grpo", "r-mean", "none"] = Field(
        "grpo",
        description="From rewards to advantages: (r - mean) / std in the group, r - mean (Dr. GRPO), or the reward itself.",
    )
    policy_loss: Literal["ppo-clip", "policy-gradient"] = Field(
        "ppo-clip", description="Loss of one token: clipped ratio to the old policy, or plain -A log p."
    )
    clip_low: float = Field(0.2, gt=0, lt=1, description="ppo-clip: how far the ratio may fall below 1.")
    clip_high: float = Field(0.28, gt=0, description="ppo-clip: how far the ratio may rise above 1.")
    dual_clip: float = Field(
        0.0, ge=0, description="ppo-clip: for negative advantages, bound the loss by this times |A|; 0 is off."
    )
    old_policy: Literal["unset", "engine", "recomputed"] = Field(
        "unset",
        description="Which policy the ratio of ppo-clip is to: the one that generated (engine), or the trainer's at the start of the "
        "step (recomputed). Unset means engine in a synchronous run; an asynchronous one must choose this or a correction.",
    )
    correction: Literal["unset", "none", "tis"] = Field(
        "unset",
        description="What to do about the recomputed old policy not being the one that generated: nothing (none), or weigh each "
        "token by their ratio, truncated (tis).",
    )
    tis_cap: float = Field(2.0, gt=0, description="tis: the largest weight a token can have.")
    reduction: Literal["token-mean", "sequence-mean", "constant"] = Field(
        "token-mean",
        description="From token losses to the loss: mean over all generated tokens of the batch, mean over samples of their means, or "
        "sum divided by (max_new_tokens x samples).",
    )

    # The optimizer.
    updates_per_step: int = Field(1, ge=1, description="Optimizer updates a step: the batch is cut into this many mini-batches.")
    learning_rate: float = Field(1e-6, ge=0, description="Peak learning rate of AdamW.")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW: decay of the mean of gradients.")
    beta2: float = Field(0.95, ge=0, lt=1, description="AdamW: decay of the mean of squared gradients.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW: decoupled weight decay.")
    warmup_steps: int = Field(10, ge=0, description="Steps over which the learning rate rises linearly to its peak.")
    lr_schedule: Literal["constant", "cosine", "linear"] = Field(
        "constant", description="Course of the learning rate after the warm-up: constant, or down to 0 at the last step."
    )
    max_grad_norm: float = Field(1.0, ge=0, description="Gradients are scaled down to this L2 norm; 0 is off.")

    # Memory and speed.
    dtype: Literal["fp32", "bf16"] = Field(
        "fp32", description="Precision of forward and backward; weights and AdamW stay in float32."
    )
    tokens_per_micro_batch: int = Field(
        8192, ge=1, description="Most tokens, padding included, that go through the model at once on one rank."
    )
    activation_checkpointing: bool = Field(
        False, description="Recompute each block's activations in the backward pass to save memory."
    )
    shard: Literal["auto", "always"] = Field(
        "auto",
        description="Whether a single rank also runs under FSDP2 (always); auto does so only where sharding or bf16 needs it.",
    )
    threads: int = Field(1, ge=1, description="CPU threads of each rank.")
    bucket_mb: int | None = Field(
        None, ge=1, description="Size of the buckets in which a broadcast sends the weights; none is 512 on a GPU, 24 on a CPU."
    )


def old_policy_of(options: FsdpOptions) -> Literal["engine", "recomputed"]:
    """Resolve `old_policy`: a correction is about the recomputed one, so naming it implies that; else it is the engine's."""
    if options.old_policy != "unset":
        return options.old_policy
    return "engine" if options.correction == "unset" else "recomputed"


def check_options(options: FsdpOptions, run: RunFacts) -> None:
    """Refuse what cannot work, or what would train on stale samples without having said how. Raises `OptionError`."""
    _check_behaviour_policy(options, run)
    if run.temperature <= 0:
        raise OptionError(
            f"temperature is {run.temperature}, but log-probabilities of greedy samples carry no gradient",
            origin="temperature",
            remedy="write a temperature above 0",
        )
    restricted = run.top_p < 1 or run.top_k > 0
    if restricted and (old_policy_of(options) == "engine" or options.correction == "tis"):
        raise OptionError(
            f"top_p = {run.top_p} and top_k = {run.top_k} restrict the engine's distribution, which the trainer's does not follow, so "
            'a ratio to the engine\'s log-probabilities (trainer.old_policy = "engine", trainer.correction = "tis") would be wrong',
            origin="top_p, top_k",
            remedy='write top_p = 1.0 and top_k = -1, or trainer.old_policy = "recomputed" with trainer.correction = "none"',
        )
    if options.updates_per_step > run.batch_size:
        raise OptionError(
            f"trainer.updates_per_step = {options.updates_per_step} is more than batch_size = {run.batch_size} groups",
            origin="trainer.updates_per_step",
            remedy="an update needs at least one group",
        )
    if 0 < options.dual_clip <= 1:
        raise OptionError(
            f"dual_clip = {options.dual_clip} would bound losses that are not clipped yet",
            origin="trainer.dual_clip",
            remedy="write a number above 1, such as 3, or 0 for off",
        )


def _check_behaviour_policy(options: FsdpOptions, run: RunFacts) -> None:
    named = options.old_policy == "engine" or options.correction != "unset"
    if not run.synchronous and not named:
        raise OptionError(
            "an asynchronous run trains on samples of older weights and must say how it treats the policy that generated them; neither "
            'trainer.old_policy = "engine" nor trainer.correction is written',
            origin="trainer.old_policy, trainer.correction",
            remedy='write trainer.old_policy = "engine" (the clip then bounds the distance to the policy that generated), or '
            'trainer.correction = "tis" (or "none", to correct nothing)',
        )
    if options.old_policy == "engine" and options.correction == "tis":
        raise OptionError(
            'trainer.correction = "tis" weighs by old policy / engine, which is 1 everywhere with trainer.old_policy = "engine"',
            origin="trainer.old_policy, trainer.correction",
            remedy='write trainer.old_policy = "recomputed", or leave the correction out',
        )
    if options.policy_loss == "policy-gradient" and not run.synchronous and options.correction == "unset":
        raise OptionError(
            'trainer.policy_loss = "policy-gradient" has no ratio, so trainer.old_policy = "engine" would change nothing',
            origin="trainer.policy_loss, trainer.old_policy",
            remedy='write trainer.correction = "tis" or "none"',
        )
