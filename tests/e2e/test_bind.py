"""Where a run listens: on loopback, and elsewhere only if it was told so; then nobody is served who has not the run's key."""

from __future__ import annotations

from typing import Any

import pytest
from listeners import is_local, listeners

SMALL = ("--steps", "3", "--batch-size", "4", "--group-size", "4", "--eval-interval", "2", "--task.num-eval", "4")
OF_TORCH = "asyncrl_torch.server"

pytestmark = [pytest.mark.slow, pytest.mark.minutes]


def watched(run: Any) -> dict[tuple[str, int], str]:
    """Everything the run listened on before its last step."""
    seen: dict[tuple[str, int], str] = {}

    def trained() -> bool:
        seen.update(listeners(run.process.pid))
        return bool(run.metrics("eval_step"))

    run.wait_until(trained, "an evaluation")
    return seen


@pytest.mark.long
def test_a_run_listens_on_loopback_alone(start: Any) -> None:
    """Two ranks, broadcast, engines of two kinds: Ray, gloo, the ranks' stores and the servers all have their ports."""
    run = start(*SMALL, "--trainer-ranks", "2", "--publish-method", "broadcast", "--eval", "fleet")
    seen = watched(run)
    assert run.wait() == 0, run.output
    titles = " ".join(seen.values())
    for part in ("gcs_server", "raylet", "ray::RuntimeEnv", "ray::TrainerActor", "ray::RolloutActor", "ray::EvalActor", OF_TORCH):
        assert part in titles, f"{part} was not seen to listen: {seen}"
    assert {where: title for where, title in seen.items() if not is_local(where[0])} == {}
