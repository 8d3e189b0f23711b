"""The suite of buffers: nothing is lost, the order is the promised one, full means full, and a restored buffer is the same buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from asyncrl.authoring import BufferOptions, Plugin, PluginOptions, RunFacts
from asyncrl.errors import AsyncrlError
from asyncrl.testing.books import ORDERS, Books, Key, same_state
from asyncrl.testing.buffer_state import MOVES, StateRules, ids_of, move, named, travelled
from asyncrl.testing.cases import for_all
from asyncrl.testing.fakes import TriesAgain
from asyncrl.testing.rules import broken, expect
from asyncrl.testing.runs import cast, require_every_step, simulate_with_faults, take_and_cancel

PLENTY = 4096
"""Groups after which a buffer without a known capacity must have answered FULL, or evicted."""


class BufferSuite(StateRules):
    """Contract of a buffer: storage and order, and nothing else. Waiting and judging are core's.

    A subclass may also set:

    Attributes:
        order: in which groups leave that are not due: ``fifo``, ``lifo``, ``freshest``, ``oldest``, ``score``, ``any`` for no promise, or
            a function of (group, score, number of its put) whose lowest value leaves first.
        evicts: whether a full buffer takes a new group in and hands another one back, instead of answering FULL.
        capacity: groups that it holds at most; by default what its `BufferOptions` say, and for other options it need only have some bound.
    """

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
            for each in moves:
                move(books, each)
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
            for each in moves:
                move(books, each)
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
        expect(
            not isinstance(order, str) or order in (*ORDERS, "any"),
            promised=f"the suite's `order` is one of {', '.join((*ORDERS, 'any'))}, or a function",
            happened=f"it is {order!r}",
            fix="name one of them",
        )
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
                + (
                    "" if self.evicts else "; if it shall evict instead, set evicts = True in the suite, or --declare evicts=true"
                ),
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
            happened=lambda: f"it held {ids_of(before)} before, and {ids_of(books.state())} after a put that it answered FULL",
            fix="look whether there is room before touching anything",
        )
        books.take()
        expect(
            books.put().stored,
            promised="a buffer that was full takes a group again once one has been taken",
            happened="it still answered FULL",
            fix="compute from what is stored whether it is full, rather than remember it",
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
        require_every_step(
            lambda: cast(self.make(run=run), run, beside={"staleness": TriesAgain}),
            run,
            seeds=3,
            promised="a run with this buffer trains every step, and no group is lost or doubled in it",
            fix="see what the message names",
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
        books.restore(travelled(books.state()))
        other = cls.make(options, run)
        try:
            simulate_with_faults(cast(other, run), run)
        except AsyncrlError:
            pytest.skip("test_a_run_with_faults_balances_its_books fails")
        return [active.plugin, other.plugin]

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
                        happened=f"asked with due = {number} while holding prompts of versions {held}, it gave {named(group)}",
                        fix="look for a group with group.oldest_version <= due before anything else; -1 asks for none",
                    )
                elif not due and expected is not None:
                    expect(
                        group is not None and group.prompt_id == expected.prompt_id,
                        promised=f"groups leave in the order {type(self).order!r}",
                        happened=f"holding prompts of versions {held}, it gave {named(group)} where {named(expected)} was next",
                        fix='give the first in the order that the suite\'s `order` names, or promise order = "any"',
                    )

        rule()


def _run_broke(promised: str, error: AsyncrlError) -> None:
    broken(promised=promised, happened=f"the run ended with {type(error).__name__}: {error}", fix="see what the message names")
