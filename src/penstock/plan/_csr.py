"""Batches of sparse rows: a matrix in compressed rows for each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from penstock.base import _tree
from penstock.base._errors import SpecError
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.memory._rows import Leaves
from penstock.plan._batch import Batching, require_one_shape, stacked
from penstock.plan._node import Memory, working_memory

_PAIR: Final = ("indices", "values")


@dataclass(frozen=True, eq=False)
class CsrBatch(Batching):
    """Element `i` is the input's elements `[i * size, (i + 1) * size)`: sparse rows side by side, the rest stacked.

    Each dict of `indices` and `values` becomes one of three vectors, with `indptr` before them.
    """

    verb = "csr_batch"
    takes_any_shape = True

    @cached_property
    def _pairs(self) -> tuple[int, ...]:
        """The places of the `indices` of sparse rows among the leaves of an element; `values` stand behind each."""
        spec = self.source.spec
        parts, structure = _tree.flatten_until(spec.tree, _is_row)
        places, at = [], 0
        for part in parts:
            if _is_row(part):
                places.append(at)
                at += 1
            at += 1
        if not places:
            raise SpecError(
                f"{self.label} puts sparse rows side by side, {{'indices': (None,) int32, 'values': (None,) float32}}, "
                f"as from_csr(dense=False) has them, but here an element is {spec}. Use batch(), or padded_batch()."
            )
        rest = [ArraySpec((), np.int64) if _is_row(part) else part for part in parts]
        require_one_shape(self.label, Spec.of(structure.unflatten(rest)))
        return tuple(places)

    @cached_property
    def spec(self) -> Spec:
        """Three vectors for a sparse row; other leaves stacked."""
        assert self._pairs
        return Spec.of(self._packed(self.source.spec.tree))

    def _packed(self, tree: Tree) -> Tree:
        parts, structure = _tree.flatten_until(tree, _is_row)
        return structure.unflatten([self._part(part) for part in parts])

    def _part(self, part: Any) -> Tree:
        if not _is_row(part):
            return part.stacked(self.size, exact=self.is_exact)
        indices, values = (part[name] for name in _PAIR)
        dtype = indices.dtype if indices.dtype in (np.int32, np.int64) else np.dtype(np.int64)
        starts = ArraySpec((self.size + 1 if self.is_exact else None,), dtype, (self.size + 1,))
        return {"indptr": starts, "indices": ArraySpec((None,), dtype), "values": values}

    def stack(self, columns: Sequence[Sequence[Any]], number_of: Callable[[int], int]) -> Leaves:
        """Puts them side by side."""
        leaves, number, specs = [], 0, self.source.spec.leaves
        while number < len(columns):
            if number not in self._pairs:
                one = Spec((specs[number],), self.source.spec.structure)
                leaves += stacked(one, columns[number : number + 1])
                number += 1
                continue
            rows, values = columns[number : number + 2]
            counts = np.fromiter(map(len, rows), np.int64, len(rows))
            wrong = np.flatnonzero(counts != np.fromiter(map(len, values), np.int64, len(values)))
            if len(wrong):
                raise SpecError(
                    f"{self.label}: element {number_of(int(wrong[0]))} has {counts[wrong[0]]} indices and "
                    f"{len(values[wrong[0]])} values. A sparse row has a column for each value."
                )
            dtype = self.spec.leaves[len(leaves)].dtype
            ends = np.concatenate(([0], np.cumsum(counts)))
            if ends[-1] > np.iinfo(dtype).max:
                raise SpecError(
                    f"{self.label}: a batch has {ends[-1]:,} values, more than {dtype} counts. Use a smaller batch."
                )
            leaves += [ends.astype(dtype), np.concatenate(rows, dtype=dtype), np.concatenate(values)]
            number += 2
        return leaves

    @property
    def memory(self) -> Memory:
        """Sparse rows have no size that is known ahead; of the rest, the elements of a batch, and the batch."""
        return working_memory(2 * self.size * self.source.spec.nbytes)


def _is_row(part: Any) -> bool:
    """Whether a part of a spec is a sparse row."""
    if not isinstance(part, dict) or tuple(part) != _PAIR:
        return False
    leaves = [part[name] for name in _PAIR]
    are_vectors = all(isinstance(leaf, ArraySpec) and leaf.shape == (None,) for leaf in leaves)
    return are_vectors and leaves[0].dtype.kind in "iu" and leaves[1].dtype.itemsize > 0
