"""The suite of buffers: nothing is lost, the order is the promised one, full means full, and a restored buffer is the same buffer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st

from asyncrl.authoring import BufferOptions, Plugin, PluginOptions, RunFacts
from asyncrl.errors import AsyncrlError
from asyncrl.rollout.verdicts import State
from asyncrl.testing.base import BaseSuite
from asyncrl.testing.books import ORDERS, Books, Key, same_state
from asyncrl.testing.cases import for_all
from asyncrl.testing.fakes import TriesAgain
from asyncrl.testing.rules import broken, expect
from asyncrl.testing.runs import cast, simulate_with_faults, take_and_cancel, unbalanced

MOVES = st.lists(
    st.tuples(st.just("put"), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0, -2.0]))
    | st.tuples(st.just("take"), st.integers(-1, 3), st.just(0.0)),
    min_size=1,
    max_size=30,
)
"""Puts of (oldest version, score) and takes of (due, unused), in any order."""

PLENTY = 4096
"""Groups after which a buffer without a known capacity must have answered FULL, or evicted."""


class BufferSuite(BaseSuite):
    """Contract of a buffer: storage and order, and nothing else. Waiting and judging are core's.

    A subclass may also set:

    Attributes:
        order: in which groups leave that are not due: ``fifo``, ``lifo``, ``freshest``, ``oldest``, ``score``, ``any`` for no promise, or
            a function of (group, score, number of its put) whose lowest value leaves first.
        evicts: whether a full buffer takes a new group in and hands another one back, instead of answering FULL.
        capacity: groups that it holds at most; by default what its `BufferOptions` say, and for other options it need only have some bound.
    """

    slot = "buffer"
    order: ClassVar[str | Key] = "any"
    evicts: ClassVar[bool] = False

    @classmethod
    def capacity(cls, options: PluginOptions, run: RunFacts) -> int | None:
        """Return how many groups it may hold; None if that can't be known from outside."""
        return options.capacity(run.batch_size) if isinstance(options, BufferOptions) else None

    def test_no_group_is_lost_or_doubled(self) -> None:
        """Whatever is put leaves once: refused at once, taken, or handed back as evicted; and while it holds groups it gives one."""

        @for_all(self.examples, moves=MOVES)
        def rule(moves: list[tuple[str, int, float]]) -> None:
            books = Books(self.make().plugin, strict=True)
            for move in moves:
                _move(books, move)
            while books.held:
                books.take()
            books.take()
            books.restore(books.state())

        rule()

    def test_its_size_is_what_it_holds(self) -> None:
        """`buffer_size` is puts less takes, refusals and evictions, at every moment."""

        @for_all(self.examples, moves=MOVES)
        def rule(moves: list[tuple[str, int, float]]) -> None:
            books = self._books()
            for move in moves:
                _move(books, move)
                expect(
                    books.size() == len(books.held),
                    promised="buffer_size is the number of groups that were put and have not left",
                    happened=lambda: (
                        f"it says {books.size()} after {books.arrivals} puts, with {len(books.held)} groups that have not left"
                    ),
                    fix="count what is stored, evicted groups no more",
                )

        rule()

    def test_groups_leave_in_the_promised_order(self) -> None:
        """Of the groups held, none of which is due, the first in the suite's `order` leaves first."""
        order = type(self).order  # asked of the object, a function would become its method
        key = ORDERS.get(order) if isinstance(order, str) else order
        if key is None:
            pytest.skip("it promises no order")
        self._leaves_in_order(key, due=False)

    def test_what_is_due_leaves_first(self) -> None:
        """Asked for a group of version `due` or older while it holds one, it gives such a one; other groups are not held back."""
        active = self.make()
        if not self.host(active).takes("buffer_take", "due"):
            pytest.skip("its buffer_take has no parameter `due`: it can't serve a staleness policy that has the trainer wait")
        self._leaves_in_order(lambda group, score, arrival: 0, due=True)

    def test_it_holds_no_more_than_its_capacity(self) -> None:
        """A full buffer refuses, or evicts if it `evicts`; only a full one does."""
        active = self.make()
        capacity = self.capacity(active.plugin.options, active.plugin.run)
        books = Books(active.plugin)
        for put in range(capacity or PLENTY):
            outcome = books.put(oldest=put % 3, score=float(put % 5))
            if capacity is None and (not outcome.stored or outcome.evicted):
                break
            expect(
                capacity is None or (outcome.stored and not outcome.evicted),
                promised=f"a buffer that holds {put} of {capacity} groups takes one more",
                happened=f"it answered {'FULL' if not outcome.stored else 'with an eviction'}",
                fix="only a full buffer refuses or evicts; the capacity is options.capacity(run.batch_size)",
            )
        else:
            outcome = books.put()
            expect(
                outcome.evicted if self.evicts else not outcome.stored,
                promised="a full buffer evicts" if self.evicts else "a full buffer answers FULL",
                happened=f"with {capacity or PLENTY} groups it {'took one more' if outcome.stored else 'answered FULL'}"
                f"{', evicting' if outcome.evicted else ''}",
                fix="compare the size with options.capacity(run.batch_size) before storing"
                + ("" if self.evicts else "; if it shall evict instead, set evicts = True in the suite"),
            )
        expect(
            books.size() <= (capacity or PLENTY),
            promised=f"it holds at most {capacity or PLENTY} groups",
            happened=f"it holds {books.size()}",
            fix="evict, or answer FULL",
        )

    def test_full_changes_nothing(self) -> None:
        """A put that is answered FULL leaves the buffer as it was, and after a take there is room again."""
        books = self._full()
        if books is None:
            pytest.skip("it never answers FULL")
        before = books.state()
        refused = books.put()
        expect(
            not refused.stored and same_state(books.state(), before),
            promised="FULL says that nothing has changed",
            happened=lambda: f"it held {_ids(before)} before, and {_ids(books.state())} after a put that it answered FULL",
            fix="look whether there is room before touching anything",
        )
        books.take()
        expect(
            books.put().stored,
            promised="a buffer that was full takes a group again once one has been taken",
            happened="it still answered FULL",
            fix="compute from what is stored whether it is full, rather than remember it",
        )

    def test_its_state_restores_it_exactly(self) -> None:
        """A new buffer that is given a state holds the same groups, has the same state, and gives them in the same order."""

        @for_all(self.examples, moves=MOVES)
        def rule(moves: list[tuple[str, int, float]]) -> None:
            self._require_apart()
            old, new = self._moved(moves), self._books()
            new.put()  # what it held before is replaced
            state = old.state()
            left_out = new.restore(_travelled(state)).left_out
            expect(
                not left_out and same_state(new.state(), state) and new.size() == len(old.held),
                promised="restoring into a buffer of the same size brings back exactly what was saved, in place of what it held",
                happened=lambda: (
                    f"saved were {_ids(state)}, restored {_ids(new.state())}, left out {[one.prompt_id for one in left_out]}"
                ),
                fix="have buffer_restore replace the whole content by state.groups, and save in `extra` what else it needs, as JSON data",
            )
            new.held = dict(old.held)
            for _ in range(len(old.held)):
                one, other = old.take(), new.take()
                expect(
                    one is not None and other is not None and one.prompt_id == other.prompt_id,
                    promised="a restored buffer gives the groups in the order in which the saved one does",
                    happened=lambda one=one, other=other: f"the saved one gave {_id(one)}, the restored one {_id(other)}",  # type: ignore[misc]
                    fix="give state.groups an order from which the buffer's own order follows, or save in `extra` what it goes by",
                )

        rule()

    def test_reading_its_state_changes_nothing(self) -> None:
        """`buffer_state` may be called at any time, any number of times."""

        @for_all(self.examples, moves=MOVES)
        def rule(moves: list[tuple[str, int, float]]) -> None:
            self._require_apart()
            watched, left_alone = self._moved(moves), self._moved(moves)
            first, second = watched.state(), watched.state()
            expect(
                same_state(first, second) and {group.prompt_id for group in first.groups} == set(watched.held),
                promised="the state is what is held, however often it is read",
                happened=lambda: f"held are {sorted(watched.held)}; read were {_ids(first)}, then {_ids(second)}",
                fix="copy the content into State, and take nothing out",
            )
            for _ in range(len(left_alone.held)):
                one, other = watched.take(), left_alone.take()
                expect(
                    one is not None and other is not None and one.prompt_id == other.prompt_id,
                    promised="a buffer whose state was read gives the same groups as one that was left alone",
                    happened=lambda one=one, other=other: f"it gave {_id(one)}, the other one {_id(other)}",  # type: ignore[misc]
                    fix="copy the content into State, and reorder nothing",
                )

        rule()

    def test_a_smaller_buffer_hands_back_what_does_not_fit(self) -> None:
        """Restored with less capacity, it says which groups were left out, and holds the rest."""
        if "capacity_factor" not in self.ready().kind.Options.model_fields:
            pytest.skip("its options have no capacity_factor, so its size can't be changed here")
        self._require_apart()
        big = Books(self.make({**self.options, "capacity_factor": 3.0}).plugin)
        small = Books(self.make({**self.options, "capacity_factor": 1.0}).plugin)
        for put in range(3 * self.facts().batch_size):
            big.put(oldest=put % 4, score=float(put % 3))
        saved = set(big.held)
        left_out = small.restore(_travelled(big.state())).left_out
        kept = {group.prompt_id for group in small.state().groups}
        gone = {group.prompt_id for group in left_out}
        expect(
            kept | gone == saved and not kept & gone and len(kept) == small.size() == self.facts().batch_size,
            promised="a smaller buffer keeps what fits and hands the rest back as Restored(left_out)",
            happened=f"of {len(saved)} groups, with room for {self.facts().batch_size}, it kept {len(kept)} and handed {len(gone)} back",
            fix="cut state.groups at the capacity, and return what is beyond it",
        )

    def test_two_of_it_share_nothing(self) -> None:
        """What is put into one buffer is not in another one of the same class."""
        sizes = self._sizes_of_two()
        expect(
            sizes == (1, 0),
            promised="each process, and each test, makes its own buffer, which starts empty",
            happened=f"after a put into one of two buffers, they hold {sizes[0]} and {sizes[1]} groups",
            fix="make the storage in __init__, as self._groups = …, not in the class",
        )

    def test_a_cancelled_take_loses_nothing(self) -> None:
        """The trainer's wait is cancelled again and again, in the middle of a batch: every prompt still ends once."""
        run = self.facts()
        for seed in range(4):
            try:
                books = take_and_cancel(cast(self.make(run=run), run), run, seed)
            except AsyncrlError as error:
                _run_broke("a take that is cancelled loses nothing; the next one goes on where it stopped", error)
            ended = books["trained"] + sum(books["dropped"].values()) + books["unfinished"]
            expect(
                books["trained"] == run.steps * run.batch_size and ended == books["issued"] and not books["again"],
                promised="every prompt that was issued is trained once, dropped with a reason, or unfinished, however often the "
                "trainer's wait is cancelled",
                happened=f"the books say {books}",
                fix="hand out a group in the one call that removes it, and keep nothing by who asks",
            )

    def test_a_run_with_faults_balances_its_books(self) -> None:
        """A whole run under the virtual clock, with engines that die and hang, prompts that are issued again, and evaluations."""
        run = self.facts(steps=12, max_concurrent_samples=24)
        for seed in range(3):
            try:
                ended = simulate_with_faults(cast(self.make(run=run), run, beside={"staleness": TriesAgain}), run, seed)
            except AsyncrlError as error:
                _run_broke("a run with this buffer trains every step, and no group is lost or doubled in it", error)
            expect(
                not unbalanced(ended),
                promised="every prompt that was issued is trained once, dropped with a reason, or unfinished",
                happened=lambda ended=ended: unbalanced(ended),  # type: ignore[misc]
                fix="see what the buffer does with the prompts named; one that is issued again comes with the same prompt id",
            )

    # For the rules ----------------------------------------------------------------------------------------------------------

    @classmethod
    def exercise(cls, options: Mapping[str, Any]) -> list[Plugin]:
        """Fill a buffer beyond its capacity, take groups that are due and others, restore it, and run it with faults."""
        run = cls.facts()
        active = cls.make(options, run)
        books = Books(active.plugin)
        for put in range(3 * (cls.capacity(active.plugin.options, run) or 16)):
            books.put(oldest=put % 4, score=float(put % 7))
            if put % 3 == 0:
                books.take(due=put % 4)
        books.restore(_travelled(books.state()))
        other = cls.make(options, run)
        try:
            simulate_with_faults(cast(other, run), run)
        except AsyncrlError:
            pytest.skip("test_a_run_with_faults_balances_its_books fails")
        return [active.plugin, other.plugin]

    def _books(self) -> Books:
        return Books(self.make().plugin)

    def _sizes_of_two(self) -> tuple[int, int]:
        """Sizes of two buffers after a put into the first."""
        one, other = self._books(), self._books()
        one.put()
        return one.size(), other.size()

    def _require_apart(self) -> None:
        if type(self) not in _APART:
            _APART[type(self)] = self._sizes_of_two() == (1, 0)
        if not _APART[type(self)]:
            pytest.skip("test_two_of_it_share_nothing fails")

    def _moved(self, moves: list[tuple[str, int, float]]) -> Books:
        books = self._books()
        for move in moves:
            _move(books, move)
        return books

    def _full(self) -> Books | None:
        """A buffer that has answered FULL; None when it does not."""
        books = self._books()
        active = self.make()
        most = self.capacity(active.plugin.options, active.plugin.run) or PLENTY
        for put in range(most + 1):
            if not books.put(oldest=put % 3, score=float(put % 5)).stored:
                return books
        return None

    def _leaves_in_order(self, key: Key, *, due: bool) -> None:
        @for_all(self.examples, moves=MOVES)
        def rule(moves: list[tuple[str, int, float]]) -> None:
            books = self._books()
            for what, number, score in [*moves, *[("take", 1 if due else -1, 0.0)] * len(moves)]:
                if what == "put":
                    books.put(number, score)
                    continue
                number = number if due else -1
                expected = books.first(key, number)
                held = {prompt_id: group.oldest_version for prompt_id, (group, _, _) in books.held.items()}
                group = books.take(number)
                if due and expected is not None and expected.oldest_version <= number:
                    expect(
                        group is not None and group.oldest_version <= number,
                        promised="while a group is held whose oldest version is at most `due`, buffer_take gives one of those",
                        happened=f"asked with due = {number} while holding prompts of versions {held}, it gave {_id(group)}",
                        fix="look for a group with group.oldest_version <= due before anything else; -1 asks for none",
                    )
                elif not due and expected is not None:
                    expect(
                        group is not None and group.prompt_id == expected.prompt_id,
                        promised=f"groups leave in the order {type(self).order!r}",
                        happened=f"holding prompts of versions {held}, it gave {_id(group)} where {_id(expected)} was next",
                        fix='give the first in the order that the suite\'s `order` names, or promise order = "any"',
                    )

        rule()


_APART: dict[type, bool] = {}


def _move(books: Books, move: tuple[str, int, float]) -> None:
    what, number, score = move
    if what == "put":
        books.put(number, score)
    else:
        books.take(number)


def _travelled(state: State) -> State:
    """A state after a checkpoint: groups as they are, what is beside them as JSON."""
    return State(state.groups, json.loads(json.dumps(state.extra)))


def _run_broke(promised: str, error: AsyncrlError) -> None:
    broken(promised=promised, happened=f"the run ended with {type(error).__name__}: {error}", fix="see what the message names")


def _ids(state: State) -> list[int]:
    return [group.prompt_id for group in state.groups]


def _id(group: object) -> str:
    return f"prompt {getattr(group, 'prompt_id', group)}"
