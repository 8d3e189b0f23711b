"""What the trainer reports of every step; the attribute names are the keys of `StepReport.metrics` and `StepReport.by_age`."""

from __future__ import annotations

from asyncrl import Gauge, MetricSet


class FsdpMetrics(MetricSet):
    """Metrics of one training step. *Age* is how many versions before the one being improved a token was generated."""

    loss = Gauge("Policy loss, mean over the step's updates", unit="nats")
    grad_norm = Gauge("L2 norm of the gradient before clipping, mean over the step's updates", unit="norm")
    learning_rate = Gauge("Learning rate of the last update", unit="ratio")
    update_norm = Gauge("L2 norm of the change of the parameters", unit="norm")
    entropy = Gauge("Entropy of the policy at trained tokens", unit="nats")
    clip_fraction = Gauge("Trained tokens whose gradient the clip removed", unit="ratio")
    masked_fraction = Gauge("Generated tokens that a filter or a correction left out of the loss", unit="ratio")
    effective_sample_size = Gauge("(sum w)^2 / (n sum w^2) with w = trainer / engine probability of a token", unit="ratio")
    ratio = Gauge("Mean of trainer / engine probability over trained tokens", unit="ratio")
    kl_k1 = Gauge("KL(engine || trainer), estimator k1 = log(engine / trainer)", unit="nats")
    kl_k3 = Gauge("KL(engine || trainer), estimator k3 = w - 1 - log w with w = trainer / engine", unit="nats")
    logprob_difference = Gauge("Mean absolute difference between the trainer's and the engine's log-probability", unit="nats")
    effective_sample_size_by_age = Gauge("Effective sample size among the tokens of one age", unit="ratio", label="age")
    ratio_by_age = Gauge("Mean of trainer / engine probability by age; 1 up to numerics at age 0", unit="ratio", label="age")
    kl_k1_by_age = Gauge("KL(engine || trainer) by age, estimator k1", unit="nats", label="age")
    kl_k3_by_age = Gauge("KL(engine || trainer) by age, estimator k3", unit="nats", label="age")
    logprob_difference_by_age = Gauge("That difference by age; at age 0 it is numerics alone", unit="nats", label="age")
    largest_logprob_difference_by_age = Gauge("The largest such difference by age", unit="nats", label="age")
    clip_fraction_by_age = Gauge("Trained tokens whose gradient the clip removed, by age", unit="ratio", label="age")
    tokens_by_age = Gauge("Trained tokens by age", unit="tokens", label="age")
