"""What the rollout side measures: who waits for whom, how stale the data is, and what was wasted."""

from __future__ import annotations

from asyncrl.metrics import Counter, Distribution, Gauge, MetricSet


class RolloutMetrics(MetricSet):
    """Logged as ``rollout/…``."""

    # Is rollout or training the bottleneck?
    buffer_size = Gauge("Finished groups in the buffer", unit="groups")
    buffer_bytes = Gauge("Memory of the finished groups in the buffer", unit="bytes")
    groups_waiting = Gauge("Finished groups that wait at a full buffer", unit="groups")
    groups_in_flight = Gauge("Groups that are being produced", unit="groups")
    samples_in_flight = Gauge("Samples that an engine or a scorer works on", unit="samples")
    trainer_wait = Counter("Time the trainer has waited for a batch", unit="seconds")
    producer_wait = Counter("Time a finished group has waited at a full buffer, which stops submission", unit="seconds")

    # How stale is what is trained on?
    consumed_staleness = Distribution("Staleness of the groups that were trained", unit="versions")
    buffered_staleness = Distribution("Staleness that the groups in the buffer have now", unit="versions")
    age_share = Distribution("Share of a batch's trained tokens that are so many versions old", unit="ratio", label="age")
    mixed_versions = Distribution("Share of a batch's samples that span a publication", unit="ratio")

    # What was wasted?
    groups_trained = Counter("Groups that were trained", unit="groups")
    dropped = Counter("Groups that ended untrained", unit="groups", label="reason")
    issued_again = Counter("Groups thrown away whose prompt was issued again", unit="groups", label="reason")
    tokens = Counter("Generated tokens by fate: trained, or why they were not", unit="tokens", label="fate")
    tokens_unfinished = Gauge("Generated tokens whose fate is open", unit="tokens")
    length_trained = Distribution("Tokens of a sample that was trained", unit="tokens")
    length_dropped = Distribution("Tokens of a sample that was thrown away", unit="tokens")
    sample_failures = Counter("Samples that failed or were aborted, before any retry", unit="samples", label="reason")
    sample_retries = Counter("Samples generated again alone", unit="samples", label="reason")
    samples_cut = Counter("Samples that had grown beyond max_sample_tokens and were cut there", unit="samples")
    score_failures = Counter("Scorings that gave no answer and counted as reward 0", unit="samples", label="reason")

    # What is learned from?
    reward = Distribution("Reward of finished samples, before filters", unit="reward")
    reward_trained = Distribution("Reward of trained samples", unit="reward")
    truncated = Distribution("Share of a batch's samples that reached the token limit", unit="ratio")
