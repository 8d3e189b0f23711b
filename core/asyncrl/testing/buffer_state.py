"""Rules on what a buffer holds: its state can be read at any time, and restores it, into a smaller one too."""

from __future__ import annotations

import json

import pytest
from hypothesis import strategies as st

from asyncrl.rollout.verdicts import State
from asyncrl.testing.base import BaseSuite
from asyncrl.testing.books import Books, same_state
from asyncrl.testing.cases import for_all
from asyncrl.testing.rules import expect

MOVES = st.lists(
    st.tuples(st.just("put"), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0, -2.0]))
    | st.tuples(st.just("take"), st.integers(-1, 3), st.just(0.0)),
    min_size=1,
    max_size=30,
)
"""Puts of (oldest version, score) and takes of (due, unused), in any order."""

_APART: dict[type, bool] = {}
"""Whether two objects of a suite's plugin hold groups of their own."""


class StateRules(BaseSuite):
    slot = "buffer"

    def test_its_state_restores_it_exactly(self) -> None:
        """A new buffer that is given a state holds the same groups, has the same state, and gives them in the same order."""

        @for_all(self.examples, moves=MOVES)
        def rule(moves: list[tuple[str, int, float]]) -> None:
            self._require_apart()
            old, new = self._moved(moves), self._books()
            new.put()  # what it held before is replaced
            state = old.state()
            left_out = new.restore(travelled(state)).left_out
            expect(
                not left_out and same_state(new.state(), state) and new.size() == len(old.held),
                promised="restoring into a buffer of the same size brings back exactly what was saved, in place of what it held",
                happened=lambda: (
                    f"saved were {ids_of(state)}, restored {ids_of(new.state())}, left out {[one.prompt_id for one in left_out]}"
                ),
                fix="have buffer_restore replace the whole content by state.groups, and save in `extra` what else it needs, as JSON data",
            )
            new.held = dict(old.held)
            for _ in range(len(old.held)):
                one, other = old.take(), new.take()
                expect(
                    one is not None and other is not None and one.prompt_id == other.prompt_id,
                    promised="a restored buffer gives the groups in the order in which the saved one does",
                    happened=lambda one=one, other=other: f"the saved one gave {named(one)}, the restored one {named(other)}",  # type: ignore[misc]
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
                happened=lambda: f"held are {sorted(watched.held)}; read were {ids_of(first)}, then {ids_of(second)}",
                fix="copy the content into State, and take nothing out",
            )
            for _ in range(len(left_alone.held)):
                one, other = watched.take(), left_alone.take()
                expect(
                    one is not None and other is not None and one.prompt_id == other.prompt_id,
                    promised="a buffer whose state was read gives the same groups as one that was left alone",
                    happened=lambda one=one, other=other: f"it gave {named(one)}, the other one {named(other)}",  # type: ignore[misc]
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
        left_out = small.restore(travelled(big.state())).left_out
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

    # For the rules ----------------------------------------------------------------------------------------------------------

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
        for each in moves:
            move(books, each)
        return books


def move(books: Books, one: tuple[str, int, float]) -> None:
    """Make one of `MOVES`."""
    what, number, score = one
    if what == "put":
        books.put(number, score)
    else:
        books.take(number)


def travelled(state: State) -> State:
    """A state after a checkpoint: groups as they are, what is beside them as JSON."""
    return State(state.groups, json.loads(json.dumps(state.extra)))


def ids_of(state: State) -> list[int]:
    """Return the prompt ids of a state's groups."""
    return [group.prompt_id for group in state.groups]


def named(group: object) -> str:
    """Return what a message calls a group, or None."""
    return f"prompt {getattr(group, 'prompt_id', group)}"
