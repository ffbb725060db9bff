"""Elements of several lengths that lie end to end in one array: `from_arrays(Ragged(values, offsets))`."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, ArgumentTypeError
from penstock.base._spec import ArraySpec
from penstock.memory._rows import Indices, within
from penstock.plan._source import Read, Source, open_source


@final
class RunSource(Source):
    """Element `i` is rows `[offsets[i], offsets[i + 1])` of another source."""

    def __init__(self, inner: Source, offsets: Indices) -> None:
        self.inner, self.offsets = inner, offsets
        spec = inner.element_spec
        assert isinstance(spec, ArraySpec)
        self.element_spec = ArraySpec((None, *spec.shape), spec.dtype)
        held = inner.arrays() or (None,)
        self._array = held[0] if isinstance(held[0], np.ndarray) else None
        """The array, if it is in memory."""

    def __reduce__(self) -> Any:
        return RunSource, (self.inner, self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __str__(self) -> str:
        return f"runs of {self.inner}"

    def describe(self, index: int) -> str:
        """Names the rows."""
        return f"rows {self.offsets[index]} to {self.offsets[index + 1]} of {self.inner}"

    def fingerprint_parts(self) -> dict[str, Any]:
        """The array and the offsets."""
        return {"the array": self.inner, "the offsets": self.offsets}

    @property
    def local_files(self) -> Sequence[str]:
        """Those of the array."""
        return self.inner.local_files

    @property
    def kept_nbytes(self) -> int:
        """That of the array."""
        return self.inner.kept_nbytes

    def open(self) -> "RunSource":
        opened = open_source(self.inner)
        return self if opened is self.inner else RunSource(opened, self.offsets)

    def close(self) -> None:
        self.inner.close()

    def gather(self, reads: Sequence[Read]) -> None:
        """Views of an array in memory, as far as these will do; of another source, all rows of a read at once."""
        for read in reads:
            (out,) = read.arrays
            starts, stops = self.offsets[read.indices], self.offsets[read.indices + 1]
            values, is_own = self._array, read.may_borrow
            if values is None:
                sizes = stops - starts
                values = np.empty((int(sizes.sum()), *self.element_spec.shape[1:]), self.element_spec.dtype)
                wanted = np.repeat(starts, sizes) + within(sizes)
                self.inner.gather([Read(wanted, [values], slice(0, len(values)))])
                stops = np.cumsum(sizes)
                starts, is_own = stops - sizes, True
            rows = range(*read.rows.indices(len(out))) if isinstance(read.rows, slice) else read.rows.tolist()
            for row, start, stop in zip(rows, starts.tolist(), stops.tolist(), strict=True):
                out[row] = values[start:stop] if is_own else values[start:stop].copy()

    def advise(self, indices: Indices) -> None:
        """Announces the rows."""
        sizes = self.offsets[indices + 1] - self.offsets[indices]
        self.inner.advise(np.repeat(self.offsets[indices], sizes) + within(sizes))

    @property
    def is_advised(self) -> bool:
        return self.inner.is_advised


def as_offsets(offsets: npt.ArrayLike, count: int, call: str) -> Indices:
    """Offsets of runs of `count` rows, checked.

    Raises:
        ArgumentTypeError: They are no integers, or have no single axis.
        ArgumentError: They begin before 0, descend, or end behind the last row.
    """
    found = np.asarray(offsets)
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iu":
        raise ArgumentTypeError(
            f"{call}: offsets are integers, shape (n + 1,), such as np.cumsum([0, *lengths]); got {found.shape} "
            f"{found.dtype}."
        )
    found = np.ascontiguousarray(found, np.int64)
    steps = np.diff(found)
    if found[0] < 0 or found[-1] > count or (steps < 0).any():
        where = f" They descend after number {int(np.argmin(steps))}." if (steps < 0).any() else ""
        raise ArgumentError(
            f"{call}: offsets ascend from 0 on to at most the number of rows, {count}, and these go from {found[0]} to "
            f"{found[-1]}.{where}"
        )
    return found
