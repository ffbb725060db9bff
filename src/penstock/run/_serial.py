"""A stream without anything for workers to do side by side: one worker writes it straight into the batches.

`from_generator(...).batch(32)` needs no spans: the one place that may read the stream fills the slots of the ring
itself, and each element is copied once. What `Program` is to a plan with random access, `Serial` is to such a stream; a
unit is a whole batch, and units are done in order by an executor of one worker.

The end of an epoch is known when a unit finds less than a batch. It says so (`Outcome`), in words of the ring, which
the pipeline looks at when the unit is finished.
"""

import functools
from typing import Any, final

from penstock.base._random import seeded_globals
from penstock.lower._program import Outcome, Program, Unit
from penstock.memory._rows import Rows, Window
from penstock.plan._batch import Batch
from penstock.plan._node import Node
from penstock.plan._reader import WorkerStatus
from penstock.run._feed_program import Cursor


@final
class Serial(Program):
    """A stream as what one worker runs, in order.

    Args:
        node: The plan: a step that sees elements in order, or batches of one.
        same_epoch: Every epoch is epoch 0 again.
    """

    is_serial = True

    def __init__(self, node: Node, *, same_epoch: bool = False) -> None:
        super().__init__(node, (0, 1), same_epoch=same_epoch)
        self._batch = node if isinstance(node, Batch) else None
        self._size = node.size if isinstance(node, Batch) else 1

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(Serial, same_epoch=self.same_epoch), (self.node,)

    @property
    def stages(self) -> dict[int, Any]:
        """None: what has some is read by a feed."""
        return {}

    def first_element(self, index: int) -> int:
        """The number of the first element of a batch."""
        return index * self._size

    def row_count(self, epoch: int, index: int, length: int = -1) -> int | None:
        """A batch is not cut."""
        return None

    def describe(self, unit: Unit) -> str:
        """What a unit is of, for messages."""
        return f"batch {unit.index} of epoch {unit.epoch}, elements from {unit.index * self._size} on"

    def reader(  # type: ignore[override]
        self, isolation: type[seeded_globals] | None, trace: WorkerStatus | None = None, window: Window | None = None
    ) -> Cursor:
        """Makes what the worker reads by."""
        reader = super().reader(isolation, trace)
        return Cursor(reader if self._batch is None else reader.inputs[0])

    def run(self, cursor: Cursor, unit: Unit, out: Rows) -> None:  # type: ignore[override]
        """Fills a slot as far as there are elements, and says in `cursor.outcome` how far that is.

        Raises:
            Exception: What the stream raised. The elements before are there.
        """
        count, is_last = 0, False
        rows = out if self._batch is None else out.parts()
        out.set_extents(self._size)
        try:
            cursor.seek(unit.epoch, unit.index * self._size, unit.origin)
            while count < self._size and (leaves := cursor.next()) is not None:
                rows.put(count, leaves)
                count += 1
            is_last = count < self._size
        finally:
            if is_last and self._batch is not None and self._batch.drop_remainder:
                count = 0
            cursor.outcome = Outcome(count, is_last, cursor.consumed)
        if self._batch is not None:
            out.set_extents(count)

    @property
    def rows_per_batch(self) -> int:
        """Elements, of which a unit says how many there were."""
        return self._size

    def rows_done(self, cursor: Cursor, unit: Unit) -> int:  # type: ignore[override]
        """As many as there were; of a batch that is no `batch()`, itself."""
        return cursor.outcome.row_count
