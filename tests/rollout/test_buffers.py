"""Whatever is put into a first-party buffer leaves it once, in its order, what is due first; and it never holds more than fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from asyncrl import Group, Plugin, Prompt, RunFacts, Sample, State, Status, full_mask
from asyncrl.host import Active, Host
from asyncrl_fifo import Fifo
from asyncrl_priority import Priority
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

TOKENS, LOGPROBS = np.zeros(1, np.int32), np.zeros(1, np.float32)
BATCH_SIZE = 2
VERSIONS = st.integers(0, 3)
SCORES = st.sampled_from([-1.5, 0.0, 0.25, 7.0]) | st.floats(-10, 10)
Key = Callable[[int, int, float], tuple[float, int]]
ORDERS: dict[str, Key] = {
    "fifo": lambda arrival, version, score: (0.0, arrival),
    "freshest": lambda arrival, version, score: (-version, arrival),
    "oldest": lambda arrival, version, score: (version, arrival),
    "score": lambda arrival, version, score: (-score, arrival),
}


def group(prompt_id: int, version: int) -> Group:
    sample = Sample(TOKENS, LOGPROBS, full_mask(1), ((version, 1),), Status.COMPLETED)
    return Group(Prompt(prompt_id, TOKENS), (sample,))


class Beside(RuleBasedStateMachine):
    """A buffer beside a model of it: a plain list of what is held, searched from end to end."""

    order = ""

    @initialize(when_full=st.sampled_from(["wait", "evict"]), capacity=st.sampled_from([2, 3, 8]))
    def choose(self, when_full: str, capacity: int) -> None:
        self.when_full = "wait" if self.order == "fifo" else when_full
        self.held: list[int] = []  # prompt ids by arrival; a prompt's id is the number of its put
        self.facts: dict[int, tuple[int, int, float]] = {}
        self.groups: dict[int, Group] = {}
        self.fates: dict[int, str] = {}
        self.make(capacity)

    def make(self, capacity: int) -> None:
        options: dict[str, Any] = {"capacity_factor": capacity / BATCH_SIZE}
        kind: type[Plugin] = Fifo
        if self.order != "fifo":
            kind, options = Priority, options | {"order": self.order, "when_full": self.when_full}
        run = RunFacts(batch_size=BATCH_SIZE, group_size=1, max_concurrent_samples=2, steps=1)
        self.capacity = capacity
        self.host = Host([Active("buffer", self.order, self.order, "0.1.0", kind(kind.Options(**options), run))])

    def call(self, hook: str, **arguments: Any) -> Any:
        return self.host.one(hook)(**arguments)

    def first_to_last(self) -> list[int]:
        return sorted(self.held, key=lambda prompt_id: ORDERS[self.order](*self.facts[prompt_id]))

    def leaves(self, prompt_id: int, fate: str) -> None:
        assert prompt_id not in self.fates, f"{prompt_id} was {self.fates[prompt_id]} and is {fate} now"
        self.fates[prompt_id] = fate
        self.held.remove(prompt_id)

    @rule(arrivals=st.lists(st.tuples(VERSIONS, SCORES), min_size=1, max_size=4))
    def put_some(self, arrivals: list[tuple[int, float]]) -> None:
        for version, score in arrivals:
            self.put(version, score)

    def put(self, version: int, score: float) -> None:
        prompt_id = len(self.facts)
        full = len(self.held) >= self.capacity
        new = self.groups[prompt_id] = group(prompt_id, version)
        outcome = self.call("buffer_put", group=new, score=score)
        assert outcome.stored == (not full or self.when_full == "evict")
        self.facts[prompt_id] = (prompt_id, version, score)
        if not outcome.stored:
            self.fates[prompt_id] = "refused"
            assert outcome.evicted == ()
            return
        self.held.append(prompt_id)
        assert [each.prompt_id for each in outcome.evicted] == (self.first_to_last()[-1:] if full else [])
        for evicted in outcome.evicted:
            self.leaves(evicted.prompt_id, "evicted")

    @rule(dues=st.lists(st.integers(-1, 3), min_size=1, max_size=4))
    def take_some(self, dues: list[int]) -> None:
        for due in dues:
            self.take(due)

    def take(self, due: int) -> None:
        answer = self.call("buffer_take", version=9, due=due)
        in_order = self.first_to_last()
        due_now = [prompt_id for prompt_id in in_order if self.facts[prompt_id][1] <= due]
        expected = (due_now or in_order)[:1]
        assert [each.prompt_id for each in answer.groups] == expected
        for each in answer.groups:
            assert each is self.groups[each.prompt_id]
            self.leaves(each.prompt_id, "taken")

    @precondition(lambda self: self.held)
    @rule(capacity=st.sampled_from([2, 3, 8]))
    def save_and_restore(self, capacity: int) -> None:
        """Into a new buffer of any size; what is beside the groups travels as JSON."""
        state = self.call("buffer_state")
        self.make(capacity)
        restored = self.call("buffer_restore", state=State(state.groups, json.loads(json.dumps(state.extra))))
        assert {each.prompt_id for each in restored.left_out} == set(self.first_to_last()[capacity:])
        for left_out in restored.left_out:
            self.leaves(left_out.prompt_id, "left out")
        if not restored.left_out:
            assert self.call("buffer_state") == state

    @invariant()
    def what_is_held_is_known_and_fits(self) -> None:
        if hasattr(self, "held"):
            assert self.call("buffer_size") == len(self.held) <= self.capacity
            assert [each.prompt_id for each in self.call("buffer_state").groups] == self.held

    def teardown(self) -> None:
        """Every group that was put left by one way."""
        if hasattr(self, "held"):
            while self.held:
                self.take(due=-1)
            assert self.fates.keys() == self.facts.keys()


SETTINGS = settings(max_examples=60, stateful_step_count=30, derandomize=True, deadline=None)


@pytest.mark.parametrize("order", ORDERS)
def test_a_buffer_does_what_its_model_does(order: str) -> None:
    run_state_machine_as_test(type(f"Beside{order.title()}", (Beside,), {"order": order}), settings=SETTINGS)
