"""Columns that are decoded part by part, such as the row groups of a table."""

from collections.abc import Sequence
from typing import Protocol, final, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock import native
from penstock.base._errors import SourceError
from penstock.base._spec import ArraySpec
from penstock.plan._source import Source

Integers = npt.NDArray[np.int64]


@final
class PartedArray:
    """Stands for a column in `Source.arrays`, with one row for each element.

    Args:
        source: The table; what it opens is a `PartReader`.
        number: The number of the column among the leaves.
        spec: The spec of a value, which has one size.
    """

    def __init__(self, source: Source, number: int, spec: ArraySpec) -> None:
        self.source = source
        self.number = number
        self.shape = (len(source), *spec.shape)
        self.dtype = spec.dtype


@runtime_checkable
class PartReader(Protocol):
    """An open table. All methods may be called by any thread."""

    bounds: Integers
    """The first row of each part, and the number of all rows."""
    nbytes: Integers
    """The memory of each part."""
    work_nbytes: Integers
    """The additional memory of its decoding."""
    room: int
    """The most memory for parts and decoding."""
    is_mapped: bool
    """Whether parts lie in mapped files, so that `require_same` has to be called after they were read."""

    def read_part(self, part: int) -> Sequence[native.Source]:
        """Decodes the columns of a part."""

    def require_same(self, part: int) -> None:
        """Refuses a file that has changed."""

    def read_error(self, error: native.CopyError) -> SourceError:
        """The error of a row that could not be copied."""

    def request(self, row_count: int) -> None:
        """Notes how many rows will be read, for a warning about parts of which few are."""
