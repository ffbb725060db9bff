"""A dataset of Ray Data whose read tasks are ranges of positions.

Each task gets the plan from the object store, and reads its elements by index. Functions run in the tasks, by value.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final, final

import numpy as np
import ray
import ray.data
from ray.data.block import BlockAccessor, BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from penstock.base import _tree
from penstock.base._errors import UnknownLengthError
from penstock.lower._rewrite import reader_of
from penstock.plan._node import Node
from penstock.plan._text import length_words
from penstock.run.pool._payload import pack, unpack

BLOCK_NBYTES: Final = 32 << 20
"""A task hands its elements on in blocks of about this size."""


def to_ray(node: Node, block_count: int | None) -> Any:
    """Makes the dataset of Ray; see `Dataset.to_ray`."""
    if node.access != "random" or not isinstance(node.length, int):
        raise UnknownLengthError(
            f"to_ray() reads ranges of positions, and this dataset is {length_words(node.length)}"
            f"{', a stream' * (node.access != 'random')}. Use take(n), or keep its elements: materialize(path)."
        )
    dataset = ray.data.read_datasource(_Positions(node, node.length), override_num_blocks=block_count)
    dataset.context.execution_options.preserve_order = True
    return dataset


@final
class _Positions(Datasource):
    """The elements of a plan by position, for Ray Data."""

    def __init__(self, node: Node, length: int) -> None:
        super().__init__()
        payload = pack(node, node, leaves_machine=True)
        self._plan = ray.put((payload.data, payload.arrays))
        self._length = length
        self._element_nbytes = node.spec.nbytes

    def estimate_inmemory_data_size(self) -> int:
        """The bytes of all elements; those of any size count as nothing."""
        return self._length * self._element_nbytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[Any]:
        """Returns a task for each range."""
        count = max(1, min(parallelism, self._length))
        bounds = [self._length * number // count for number in range(count + 1)]
        return [self._task(start, stop, per_task_row_limit) for start, stop in itertools.pairwise(bounds)]

    def _task(self, start: int, stop: int, row_limit: int | None) -> Any:
        plan, element_nbytes = self._plan, max(1, self._element_nbytes)
        rows = stop - start
        metadata = BlockMetadata(
            num_rows=rows, size_bytes=rows * self._element_nbytes, input_files=None, exec_stats=None
        )
        return ReadTask(
            lambda: _blocks(plan, start, stop, max(1, BLOCK_NBYTES // element_nbytes)),
            metadata,
            per_task_row_limit=row_limit,
        )


def _blocks(plan: Any, start: int, stop: int, block_rows: int) -> Iterator[Any]:
    """Reads elements in a task, and yields them as blocks of columns."""
    data, arrays = ray.get(plan)
    node = unpack(data, [np.array(array) for array in arrays])  # their own, for functions may write to them
    reader, names = reader_of(node), column_names(node)
    for first in range(start, stop, block_rows):
        rows = [_tree.flatten(reader.element(0, index))[0] for index in range(first, min(stop, first + block_rows))]
        columns = (_column(values) for values in zip(*rows, strict=True))
        yield BlockAccessor.batch_to_block(dict(zip(names, columns, strict=True)))


def column_names(node: Node) -> list[str]:
    """Returns a name for each leaf: its keys, joined by dots; `item` for a lone array, as Ray has it."""
    return [".".join(map(str, path)) or "item" for path in node.spec.structure.paths()]


def _column(values: Iterable[Any]) -> Any:
    arrays = [np.asarray(value) for value in values]
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    column = np.empty(len(arrays), object)
    column[:] = arrays
    return column
