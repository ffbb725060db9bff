"""Where a run is, as integers: the next batch, where its epoch was cut, and how far a filter got in its input.

The loader moves it on, in the order in which batches are handed out. An adapter whose user reads ahead says what its
user worked on: `worked_at`.
"""

from functools import cached_property
from typing import Any, Final, final

from penstock.base._tree import Tree
from penstock.lower._program import Position
from penstock.plan._mixture import MIX_NBYTES, eras_of, way_to_mix
from penstock.plan._node import Node
from penstock.plan._text import IDENTITY_NBYTES, identity
from penstock.run._state import SavedPlace, place_of_state, state_of

CURSOR_COUNT: Final = 64
"""The number of positions whose cursors are kept."""


@final
class RunPosition:
    """The progress of a loader. One thread moves it; any thread may ask for the state.

    Args:
        plan: What is run, as the user wrote it.
        same_epoch: Every epoch is epoch 0 again.
    """

    def __init__(self, plan: Node, *, same_epoch: bool) -> None:
        self.plan = plan
        self.same_epoch = same_epoch
        # One attribute, so a thread that saves a state sees epoch and position of one moment.
        self.at: Position = (0, 0)
        """Epoch and position after the batches that were handed out."""
        self.worked_at: Position | None = None
        """The same for the batches that the user worked on, if an adapter draws more than these."""
        self._micro_batches: tuple[Position, list[Tree]] = (self.at, [])
        self.iteration = 0
        """How often an iteration, or `set_state`, has ended the one before."""
        self._resumes = True
        self._cut: tuple[int, int] | None = None
        """The epoch that a state cut, and the elements before the cut."""
        self._consumed: dict[Position, int] = {}
        self._eras = eras_of(way_to_mix(plan).shares)

    @cached_property
    def identity(self) -> str:
        """The plan as a line of text, see `state_of`."""
        return identity(self.plan, IDENTITY_NBYTES - (MIX_NBYTES if self._eras else 0))

    @property
    def micro_batches(self) -> list[Tree]:
        """The parts of the batch at the position that are still to be handed out, the last one first."""
        position, micro_batches = self._micro_batches  # Ctrl-C may strike between a move and what follows it
        return micro_batches if position == self.at else []

    @micro_batches.setter
    def micro_batches(self, micro_batches: list[Tree]) -> None:
        self._micro_batches = self.at, micro_batches

    # Where it goes on.

    @property
    def start(self) -> Position:
        """Where the next iteration begins."""
        if (self.at[1] or self.micro_batches) and not self._resumes:
            return self._next_epoch, 0
        return self.at

    @property
    def _next_epoch(self) -> int:
        return 0 if self.same_epoch else self.at[0] + 1

    def cut(self, epoch: int) -> int:
        """The elements before the first batch of an epoch that a state cut; 0 in others."""
        return self._cut[1] if self._cut is not None and self._cut[0] == epoch else 0

    @property
    def consumed(self) -> int:
        """The cursor at the position; -1 without one."""
        return self._consumed.get(self.at, -1)

    def place_at(self, at: Position) -> SavedPlace:
        """The place of a position."""
        return SavedPlace(*at, self.cut(at[0]), self._consumed.get(at, -1), self._eras)

    # How it moves.

    def begin(self) -> None:
        """Begins an iteration."""
        self.at = self.start
        if not (self.at[1] or self._resumes) or not self.cut(self.at[0]):
            self._cut = None  # a new epoch, which is whole
        self.micro_batches = []
        self.worked_at = None
        self.iteration += 1

    def step(self, consumed: int, *, count: int = 1, is_last: bool) -> None:
        """Moves behind the batch at the position, whose last part was handed out; or behind the batches of a step."""
        self._resumes = False
        epoch, position = self.at
        if consumed >= 0:
            self._note_consumed((epoch, position + count), consumed)
        self.at = (self._next_epoch, 0) if is_last else (epoch, position + count)
        if self._micro_batches[1]:
            self.micro_batches = []

    def hand_out(self) -> bool:
        """Counts a part of a batch as handed out, and returns whether that was the whole batch or its last part."""
        self._resumes = False
        # The last part stays until `step` drops it: before, Ctrl-C would have the batch begin again.
        if not self._micro_batches[1] or len(self.micro_batches) < 2:
            return True
        self.micro_batches.pop()  # only now: before, Ctrl-C would lose this part
        return False

    def end_epoch(self) -> None:
        """Moves to the next epoch."""
        self.at = (self._next_epoch, 0)

    def stay(self) -> None:
        """Makes the next iteration continue here. An evaluation always starts again."""
        if not self.same_epoch:
            self.at, self._resumes = self.worked_at or self.at, True

    # States.

    def state(self) -> dict[str, Any]:
        """The position after the batches that the user worked on, as JSON."""
        return state_of(self.plan, self.identity, self.place_at(self.worked_at or self.at))

    def place_of(self, state: Any, changed: str | None) -> SavedPlace:
        """The place of a state. Raises StateError as `place_of_state` does."""
        return place_of_state(state, self.plan, changed)

    def resume(self, place: SavedPlace) -> None:
        """Makes the next iteration the rest of an epoch."""
        self.iteration += 1
        self._consumed.clear()
        at = place.epoch, place.position
        if place.consumed >= 0:
            self._note_consumed(at, place.consumed)
        self._cut = (place.epoch, place.cut) if place.cut else None
        self._eras = place.eras
        self.at, self._resumes, self.micro_batches = at, True, []
        self.worked_at = None

    def _note_consumed(self, at: Position, consumed: int) -> None:
        """Keeps the cursors of the latest positions. An adapter may ask for any of them."""
        self._consumed[at] = consumed
        while len(self._consumed) > CURSOR_COUNT:
            del self._consumed[next(iter(self._consumed))]
