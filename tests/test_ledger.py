"""Each prompt is in one place, each transition is legal or refused, and the books balance."""

from __future__ import annotations

import json

import pytest
from asyncrl.errors import BooksError
from asyncrl.ledger import Ledger, Place, reason_word
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule


def test_prompts_are_issued_in_the_order_of_the_stream() -> None:
    ledger = Ledger()
    assert [ledger.issue() for _ in range(3)] == [0, 1, 2]
    assert ledger.count(Place.IN_FLIGHT) == 3


def test_a_trained_prompt_passes_through_every_place() -> None:
    ledger = Ledger()
    prompt_id = ledger.issue()
    ledger.generated(prompt_id, 10)
    ledger.buffered(prompt_id)
    ledger.batched(prompt_id)
    assert ledger.train(prompt_id) == 10
    assert ledger.books() == {
        "issued": 1,
        "trained": 1,
        "dropped": {},
        "unfinished": 0,
        "tokens": {"trained": 10, "dropped": 0, "unfinished": 0},
    }


def test_training_a_prompt_twice_is_refused() -> None:
    """Field report 21."""
    ledger = Ledger()
    prompt_id = ledger.issue()
    ledger.buffered(prompt_id)
    ledger.batched(prompt_id)
    ledger.train(prompt_id)
    with pytest.raises(BooksError, match="prompt 0 cannot be trained: it has ended"):
        ledger.train(prompt_id)


def test_a_prompt_cannot_skip_a_place() -> None:
    ledger = Ledger()
    with pytest.raises(BooksError, match="never issued"):
        ledger.buffered(0)
    prompt_id = ledger.issue()
    with pytest.raises(BooksError, match="prompt 0 cannot be moved from buffered to in batch: it is in flight"):
        ledger.batched(prompt_id)
    with pytest.raises(BooksError):
        ledger.train(prompt_id)


def test_a_queued_prompt_is_issued_before_new_ones_and_its_tokens_are_wasted() -> None:
    ledger = Ledger()
    first = ledger.issue()
    ledger.generated(first, 7)
    ledger.issue()
    assert ledger.issue_again(first, "stale") == 7
    assert [ledger.issue(), ledger.issue()] == [first, 2]
    assert ledger.retries(first) == 1
    assert ledger.dropped_tokens == {"stale": 7}
    assert ledger.dropped == {}
    ledger.check()


def test_masked_tokens_are_not_counted_as_trained() -> None:
    ledger = Ledger()
    prompt_id = ledger.issue()
    ledger.generated(prompt_id, 10)
    ledger.buffered(prompt_id)
    ledger.batched(prompt_id)
    assert ledger.train(prompt_id, masked_tokens=4) == 6
    assert ledger.books()["tokens"] == {"trained": 6, "dropped": 4, "unfinished": 0}


def test_an_imbalance_is_an_error() -> None:
    ledger = Ledger()
    ledger.issue()
    ledger.trained = 1
    with pytest.raises(BooksError, match="do not balance"):
        ledger.check()


def test_a_restored_ledger_queues_what_did_not_outlive_the_process() -> None:
    """Field report 20."""
    ledger = Ledger()
    for _ in range(4):
        ledger.issue()
    ledger.generated(1, 5)
    ledger.buffered(1)
    ledger.issue_again(2, "aborted")
    ledger.drop(3, "stale")
    state = json.loads(json.dumps(ledger.state()))
    other = Ledger()
    other.restore(state, [(1, 5, Place.BUFFERED)])
    assert [other.issue() for _ in range(3)] == [0, 2, 4]
    assert other.retries(2) == 1 and other.retries(0) == 0
    assert other.books()["dropped"] == {"stale": 1}
    assert other.books()["tokens"]["unfinished"] == 5
    other.check()


def test_a_group_that_the_ledger_does_not_know_is_not_restored() -> None:
    state = Ledger().state()
    with pytest.raises(BooksError):
        Ledger().restore(state, [(0, 5, Place.BUFFERED)])


def test_a_reason_is_filed_under_its_first_word() -> None:
    assert reason_word("reward_error: ZeroDivisionError: division by zero") == "reward_error"
    assert reason_word("no / slash") == "no_slash"
    assert reason_word("") == "unknown"


class LedgerMachine(RuleBasedStateMachine):
    """Random legal transitions against a plain model: a dictionary of places."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.places: dict[int, str] = {}

    def pick(self, place: str) -> int:
        return next(prompt_id for prompt_id, where in self.places.items() if where == place)

    def has(self, *places: str) -> bool:
        return any(where in places for where in self.places.values())

    @rule()
    def issue(self) -> None:
        self.places[self.ledger.issue()] = "in flight"

    @precondition(lambda self: self.has("in flight"))
    @rule()
    def buffer(self) -> None:
        prompt_id = self.pick("in flight")
        self.ledger.generated(prompt_id, prompt_id % 5)
        self.ledger.buffered(prompt_id)
        self.places[prompt_id] = "buffered"

    @precondition(lambda self: self.has("buffered"))
    @rule()
    def batch(self) -> None:
        prompt_id = self.pick("buffered")
        self.ledger.batched(prompt_id)
        self.places[prompt_id] = "in batch"

    @precondition(lambda self: self.has("in batch"))
    @rule()
    def train(self) -> None:
        prompt_id = self.pick("in batch")
        self.ledger.train(prompt_id)
        self.places[prompt_id] = "ended"

    @precondition(lambda self: self.has("buffered"))
    @rule()
    def drop(self) -> None:
        prompt_id = self.pick("buffered")
        self.ledger.drop(prompt_id, "stale")
        self.places[prompt_id] = "ended"

    @precondition(lambda self: self.has("in batch"))
    @rule()
    def issue_again(self) -> None:
        prompt_id = self.pick("in batch")
        self.ledger.issue_again(prompt_id, "stale")
        self.places[prompt_id] = "queued"

    @rule()
    def crash_and_resume(self) -> None:
        kept = [(prompt_id, 3, Place.BUFFERED) for prompt_id, where in self.places.items() if where == "buffered"]
        state = self.ledger.state()
        self.ledger = Ledger()
        self.ledger.restore(state, kept)
        self.places = {p: "queued" if where in ("in flight", "in batch") else where for p, where in self.places.items()}

    @invariant()
    def places_agree(self) -> None:
        self.ledger.check()
        for place in Place:
            assert self.ledger.count(place) == sum(where == str(place) for where in self.places.values())
        assert self.ledger.unfinished == sum(where != "ended" for where in self.places.values())


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=50, stateful_step_count=40, derandomize=True, deadline=None)
