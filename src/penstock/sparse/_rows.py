"""The layout of `csr_batch`: sparse rows side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from penstock.base._errors import SpecError
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices
from penstock.plan._ragged import EndToEnd

_PAIR: Final = ("indices", "values")


@dataclass(frozen=True)
class CompressedRows(EndToEnd):
    """Sparse rows as a matrix: `indices` and `values` of all end to end, with `indptr` before them."""

    verb = "csr_batch"
    facts = "csr"
    width = 2
    values_at = 1

    def is_ragged(self, part: Any) -> bool:
        """Whether it is a sparse row."""
        if not isinstance(part, dict) or tuple(part) != _PAIR:
            return False
        leaves = [part[name] for name in _PAIR]
        are_vectors = all(isinstance(leaf, ArraySpec) and leaf.shape == (None,) for leaf in leaves)
        return are_vectors and leaves[0].dtype.kind in "iu" and leaves[1].dtype.itemsize > 0

    def _none(self, label: str, spec: Spec) -> str:
        return (
            f"{label} puts sparse rows side by side, {{'indices': (None,) int32, 'values': (None,) float32}}, "
            f"as from_csr(dense=False) has them, but here an element is {spec}. Use batch(), or padded_batch()."
        )

    def _part(self, part: Any, offsets: ArraySpec, size: int, most: int | None) -> Tree:
        indices, values = (part[name] for name in _PAIR)
        dtype = indices.dtype if indices.dtype in (np.int32, np.int64) else np.dtype(np.int64)
        starts = ArraySpec(offsets.shape, dtype, offsets.max_shape)
        return {"indptr": starts, "indices": ArraySpec((None,), dtype), "values": values}

    def require(self, label: str, counts: Indices, others: Sequence[Any], dtype: Any, number_of: Any) -> None:
        """Refuses a row with another number of columns than of values, and more than the dtype counts."""
        wrong = np.flatnonzero(counts != np.fromiter(map(len, others), np.int64, len(others)))
        if len(wrong):
            raise SpecError(
                f"{label}: element {number_of(int(wrong[0]))} has {counts[wrong[0]]} indices and "
                f"{len(others[wrong[0]])} values. A sparse row has a column for each value."
            )
        if (total := int(counts.sum())) > np.iinfo(dtype).max:
            raise SpecError(f"{label}: a batch has {total:,} values, more than {dtype} counts. Use a smaller batch.")
