"""Folding elements into one value: `reduce` with `combine=`."""

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from penstock.base._errors import ElementError, is_untouched, words_of
from penstock.base._spec import ArraySpec, Spec
from penstock.memory._rows import Indices, Leaves, Rows, chunk_count, ranges_of
from penstock.plan._batch import Batching
from penstock.plan._map import Learned, OnWorkers
from penstock.plan._reader import Gather, Reader
from penstock.plan._text import origins


@dataclass(frozen=True, eq=False)
class Fold(OnWorkers, Batching):
    """Element `i` is what `function(state, element)` makes of some neighbours, one after the other, as a pickle.

    Neighbours are the input's elements `[i * size, (i + 1) * size)`. A worker folds those of one element, from the
    initial state on.
    """

    initial: bytes = b""
    """The state before the first element, as a pickle. So a function may change its state in place."""
    combine: tuple[Callable[..., Any] | None] = (None,)
    """What makes one state of two. It runs elsewhere, and is part of the plan's fingerprint."""

    verb = "reduce"
    known_spec = spec = Spec.of(ArraySpec((), "S"))

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return f"reduce({self.function_name})"

    def loosened(self) -> "Fold":
        """A state has no size."""
        return self

    is_learnt = True
    notes_inputs = True

    def learn_by(self, firsts: dict[int, Leaves], *, takes_any: bool = False) -> Learned:
        """Nothing: a state is a pickle, whatever the function returns."""
        return self.memo.learned

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Reads elements into scratch memory, some at a time, and folds them."""
        source, words, times = reader.inputs[0], reader.status.words, reader.status.times
        for row, index in zip(out.row_numbers(), indices.tolist(), strict=True):
            state = pickle.loads(self.initial)
            members, _ = self.members(np.array([index], np.int64))
            for start, stop in ranges_of(len(members), chunk_count(source.spec)):
                box, chunk = source.scratch(stop - start), members[start:stop]
                words[0] = 0  # while its input is read, no element of it runs
                source.read(epoch, chunk, box)
                words[0], words[1], started = reader.number + 1, epoch, time.perf_counter()
                elements = box.elements(source.spec.structure, len(chunk), is_writeable=True)
                for number, element in zip(chunk.tolist(), elements, strict=True):
                    words[2] = number
                    state = self.step(state, element, epoch, number)
                    del element  # or it looks as if the function had kept the scratch memory
                if times is not None:
                    times.note(reader.number, len(chunk), time.perf_counter() - started)
            out.put(row, [dumped(state)])

    def stack(self, columns: Sequence[Sequence[Any]], number_of: Callable[[int], int]) -> Leaves:
        """Folds elements of a stream."""
        state, structure = pickle.loads(self.initial), self.source.spec.structure
        for row, leaves in enumerate(zip(*columns, strict=True)):
            state = self.step(state, structure.unflatten(leaves), 0, number_of(row))
        return [dumped(state)]

    def step(self, state: Any, element: Any, epoch: int, number: int) -> Any:
        """Calls the function.

        Raises:
            ElementError: It failed; names the element.
        """
        try:
            return self.function(state, element)
        except BaseException as error:
            if is_untouched(error):
                raise
            has_forgotten = state is None and pickle.loads(self.initial) is not None
            why = ". It had returned None for the element before: return the state" if has_forgotten else ""
            raise ElementError(
                f"{self.label} at {self.where} failed on element {number} of epoch {epoch}"
                f"{origins(self.source, epoch, number)}: {words_of(error)}{why}"
            ) from error


def dumped(state: Any) -> bytes:
    """A state as a pickle; classes of the user's program travel by value."""
    return cloudpickle.dumps(state)  # type: ignore[no-any-return]
