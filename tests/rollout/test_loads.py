"""What servers say of their load becomes metrics, per engine and together."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from asyncrl.errors import EngineFault
from asyncrl.rollout.loads import EngineLoads, Load, Usage, read_load


@dataclass
class Server:
    """An engine whose answers are given."""

    name: str
    says: Load | Exception | None
    alive: bool = True
    usage: Usage = field(default_factory=Usage)

    async def load(self) -> Load | None:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


async def values(loads: EngineLoads) -> dict[str, dict[str, float]]:
    await loads.look()
    return {name.removeprefix("engines/"): state for name, state in loads.metrics.drain().items()}


async def test_each_engine_and_their_sum():
    one, two = Server("engine-0", Load(3, 1, 200.0)), Server("engine-1", Load(5, 0, 300.0))
    told = await values(EngineLoads([one, two]))
    assert told["running"] == {"engine-0": 3, "engine-1": 5, "all": 8}
    assert told["waiting"] == {"engine-0": 1, "engine-1": 0, "all": 1}
    assert told["tokens_per_second"] == {"engine-0": 200.0, "engine-1": 300.0, "all": 500.0}


async def test_engines_that_are_dead_fail_or_say_nothing_are_left_out():
    silent, failing = Server("engine-1", None), Server("engine-2", EngineFault("gone"))
    told = await values(
        EngineLoads([Server("engine-0", Load(3, 1)), silent, failing, Server("engine-3", Load(9, 9), alive=False)])
    )
    assert told == {"running": {"engine-0": 3, "all": 3}, "waiting": {"engine-0": 1, "all": 1}}
    assert await values(EngineLoads([silent])) == {}


async def test_a_count_of_tokens_becomes_a_rate():
    server = Server("engine-0", Load(1, 0, generated_tokens=1000))
    loads = EngineLoads([server])
    assert "tokens_per_second" not in await values(loads)
    server.says = Load(1, 0, generated_tokens=3000)
    assert (await values(loads))["tokens_per_second"]["all"] > 0
    server.says = Load(1, 0, generated_tokens=10)  # it was restarted
    assert (await values(loads))["tokens_per_second"]["all"] == 0


async def test_the_cache_hit_rate_is_that_of_the_answers_since_the_last_look():
    one, two = Server("engine-0", None, usage=Usage(100, 50)), Server("engine-1", None)
    loads = EngineLoads([one, two])
    assert (await values(loads))["cache_hit_rate"] == {"engine-0": 0.5, "all": 0.5}
    one.usage, two.usage = Usage(200, 150), Usage(100, 0)
    assert (await values(loads))["cache_hit_rate"] == {"engine-0": 1.0, "engine-1": 0.0, "all": 0.5}
    assert await values(loads) == {}


def test_the_load_of_all_data_parallel_ranks_is_added():
    ranks = [
        {"num_running_reqs": 2, "num_waiting_reqs": 1, "gen_throughput": 10.5},
        {"num_running_reqs": 3, "num_waiting_reqs": 0},
    ]
    assert read_load({"loads": ranks}) == Load(5, 1, 10.5, None)
    with pytest.raises(KeyError):
        read_load({"detail": "not found"})
