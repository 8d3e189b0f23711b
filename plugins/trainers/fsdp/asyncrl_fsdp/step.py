"""One training step, read top to bottom: plan, score, lose, update, report."""

from __future__ import annotations

import math
import time

import torch
import torch.distributed as dist
from asyncrl import StepReport, TrainerError, TrainingBatch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from asyncrl_fsdp import losses
from asyncrl_fsdp.distributed import local, whole
from asyncrl_fsdp.options import FsdpOptions, old_policy_of
from asyncrl_fsdp.packing import MicroBatch, Rows, generated_counts, mini_batches, plan, trained_rows
from asyncrl_fsdp.policy import Policy
from asyncrl_fsdp.schedule import learning_rate
from asyncrl_fsdp.statistics import Statistics


class Stepper:
    """Holds policy and optimizer and takes training steps with them.

    Args:
        policy: sharded when there is more than one rank.
        device: where it lives.
        steps: length of the run, for the learning rate's course.
    """

    def __init__(self, policy: Policy, options: FsdpOptions, device: torch.device, *, steps: int) -> None:
        self.policy = policy
        self.options = options
        self.device = device
        self.steps = steps
        self.updates = 0
        """Optimizer updates so far."""
        self.optimizer = torch.optim.AdamW(
            policy.parameters(),
            lr=options.learning_rate,
            betas=(options.beta1, options.beta2),
            weight_decay=options.weight_decay,
            fused=True,
        )
        self._limits = losses.Limits(options.clip_low, options.clip_high, options.dual_clip, options.tis_cap)
        self._loss = losses.POLICY_LOSSES[options.policy_loss]
        self._correct = losses.CORRECTIONS["none" if options.correction == "unset" else options.correction]
        self._recompute = old_policy_of(options) == "recomputed"

    def step(self, batch: TrainingBatch) -> StepReport:
        """Train on one batch. Raises `TrainerError` when loss or gradient are not finite; the weights are then unchanged by it."""
        began = time.perf_counter()
        state = _Step(batch, self.options, self.device)
        parts = mini_batches(batch, self.options.updates_per_step)
        plans = [self._plan(batch, rows) for rows in parts]
        # With a single update, the policy at the start of the step is the one being trained: no pass of its own is needed.
        old = [self._score_all(state, own) if self._recompute and len(parts) > 1 else None for own in plans]
        before = [local(parameter).clone() for parameter in self.policy.parameters()]

        total_loss, total_norm = 0.0, 0.0
        for rows, micro_batches, old_logprobs in zip(parts, plans, old, strict=True):
            state.weigh(rows)
            loss = torch.zeros((), dtype=torch.float64, device=self.device)
            for index, micro in enumerate(micro_batches):
                loss += self._backward(state, micro, None if old_logprobs is None else old_logprobs[index])
            total_norm += self._update(batch.step) if micro_batches else 0.0
            total_loss = total_loss + loss
        changed = self._changed(before)

        loss_value, update_norm = self._reduce(state.statistics, total_loss, changed)
        tokens = sum(int((batch.starts[kept + 1] - batch.starts[kept]).sum()) for kept in (trained_rows(batch, r) for r in parts))
        return StepReport(
            metrics={
                "loss": loss_value / len(parts),
                "grad_norm": total_norm / len(parts),
                "learning_rate": self.optimizer.param_groups[0]["lr"],
                "update_norm": update_norm,
                **state.statistics.metrics(batch.num_response_tokens),
            },
            by_age=state.statistics.by_age(),
            update_norm=update_norm,
            num_tokens=tokens,
            busy_seconds=time.perf_counter() - began,
        )

    def _plan(self, batch: TrainingBatch, rows: Rows) -> list[MicroBatch]:
        return plan(batch, rows, rank=dist.get_rank(), ranks=dist.get_world_size(), budget=self.options.tokens_per_micro_batch)

    def _score(self, state: _Step, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        to = self.device
        return self.policy(
            torch.from_numpy(micro.input_ids).to(to),
            torch.from_numpy(micro.positions).to(to),
            state.token_ids[micro.tokens],
            state.batch.temperature,
        )

    def _score_all(self, state: _Step, micro_batches: list[MicroBatch]) -> list[Tensor]:
        with torch.no_grad():
            scores = [self._score(state, micro)[0] for micro in micro_batches]
        if isinstance(self.policy, FSDPModule):
            self.policy.reshard()  # a forward pass leaves the root whole for a backward pass, which does not follow
        return scores

    def _backward(self, state: _Step, micro: MicroBatch, old: Tensor | None) -> Tensor:
        """Add the gradient of a micro-batch, count its tokens, and return its part of the loss."""
        logprobs, entropy = self._score(state, micro)
        if not micro.counted:
            (logprobs.sum() * 0.0).backward()
            return torch.zeros((), dtype=torch.float64, device=self.device)
        current = logprobs.detach()
        engine = state.engine_logprobs[micro.tokens]
        tokens = losses.Tokens(
            logprobs=logprobs,
            old_logprobs=(current if old is None else old) if self._recompute else engine,
            engine_logprobs=engine,
            advantages=state.advantages[micro.samples],
            samples=torch.from_numpy(micro.samples).to(self.device),
        )
        token_losses, clipped = self._loss(tokens, self._limits)
        correction = self._correct(tokens, self._limits)
        loss = (token_losses * correction * state.weights[micro.samples]).sum()
        # FSDP averages gradients over ranks; the loss is a sum over them.
        (loss * dist.get_world_size()).backward()
        ages = state.batch.version - state.batch.versions[micro.tokens]
        state.statistics.add(ages, current if old is None else old, engine, entropy, clipped, correction != 0)
        return loss.detach().double()

    def _update(self, step: int) -> float:
        """Clip, update, and return the gradient's norm."""
        limit = self.options.max_grad_norm or math.inf
        norm = float(whole(torch.nn.utils.clip_grad_norm_(self.policy.parameters(), limit)))
        if not math.isfinite(norm):
            self.optimizer.zero_grad()
            raise TrainerError(f"step {step}: the gradient's norm is {norm}; the weights were not updated")
        self.optimizer.param_groups[0]["lr"] = learning_rate(self.options, self.updates, self.steps)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1
        return norm

    def _changed(self, before: list[Tensor]) -> Tensor:
        """Return the squared L2 norm of the change since `before`, of this rank's part; consumes `before`."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for old, parameter in zip(before, self.policy.parameters(), strict=True):
            total += old.sub_(local(parameter)).square_().sum().double()
        return total

    def _reduce(self, statistics: Statistics, loss: Tensor, changed: Tensor) -> tuple[float, float]:
        """Sum over ranks; return (loss, norm of the change)."""
        if dist.get_world_size() > 1:
            flat = torch.cat([statistics.sums.flatten(), loss[None], changed[None]])
            dist.all_reduce(flat)
            statistics.sums.copy_(flat[:-2].view_as(statistics.sums))
            loss, changed = flat[-2], flat[-1]
            dist.all_reduce(statistics.largest, dist.ReduceOp.MAX)
        return float(loss), math.sqrt(float(changed))


class _Step:
    """The batch's arrays on the device, and the sums of the step."""

    def __init__(self, batch: TrainingBatch, options: FsdpOptions, device: torch.device) -> None:
        self.batch = batch
        self.statistics = Statistics.of(batch, device)
        self.token_ids = torch.from_numpy(batch.token_ids).to(device, torch.int64)
        self.engine_logprobs = torch.from_numpy(batch.logprobs).to(device)
        advantages = losses.ADVANTAGES[options.advantage](
            torch.from_numpy(batch.rewards), torch.from_numpy(batch.groups).to(torch.int64)
        )
        self.advantages = advantages.to(device, torch.float32)
        self.weights = torch.zeros(batch.num_samples, device=device)
        self._counts = torch.from_numpy(generated_counts(batch))
        self._reduction = losses.REDUCTIONS[options.reduction]

    def weigh(self, rows: Rows) -> None:
        """Set the weight of each of a mini-batch's samples; its denominators count masked tokens too."""
        weights = self._reduction(self._counts[rows], self.batch.max_new_tokens)
        self.weights[rows] = weights.to(self.weights)
