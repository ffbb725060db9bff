"""Columns that are decoded part by part, such as the row groups of a table."""

from typing import Protocol, final

from penstock import native
from penstock.base._errors import SourceError
from penstock.base._spec import ArraySpec
from penstock.plan._parted import PartCache
from penstock.plan._source import Source


@final
class PartedArray:
    """Stands for a column in `Source.arrays`, with one row for each element.

    Args:
        source: The table; what it opens is `OpenParts`.
        number: The number of the column among the leaves.
        spec: The spec of a value, which has one size.
    """

    def __init__(self, source: Source, number: int, spec: ArraySpec) -> None:
        self.source = source
        self.number = number
        self.shape = (len(source), *spec.shape)
        self.dtype = spec.dtype


class OpenParts(Protocol):
    """An open table. A decoded part is a list of columns, each with a `source`. Any thread may call the methods."""

    part_cache: PartCache
    is_mapped: bool
    """Whether parts lie in mapped files, so that `require_same` has to be called after they were read."""

    def require_same(self, part: int) -> None:
        """Refuses a file that has changed."""

    def read_error(self, error: native.CopyError) -> SourceError:
        """The error of a row that could not be copied."""
