"""Steps that convert elements without Python per element; `cast` is one."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from penstock.base._errors import ElementError, SpecError
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Structure, values_like
from penstock.memory._rows import Indices, Rows, chunk_count, chunk_nbytes, ranges_of
from penstock.plan._node import Elements, InPlaceOf, Memory, Node, OneInput, OneToOne, Traits, working_memory
from penstock.plan._reader import Gather, Reader


@dataclass(frozen=True, eq=False)
class ByChunk(OneToOne, OneInput):
    """A step that reads elements of one input into scratch memory, some at a time, and writes them from there.

    The memory stays in the core's cache. Batches are read in parts if the input has parts.
    """

    traits = Traits(is_parallel=True)
    takes_any_shape = True
    is_pointwise = True
    takes_each_once = True

    @abstractmethod
    def convert(self, box: Rows, out: Rows, count: int) -> None:
        """Writes elements of the input, or parts of them, into rows."""

    def over_pairs(self, pairs: Node) -> "OfPairs":
        """Converts the elements alone."""
        return OfPairs(pairs, self)

    @property
    def memory(self) -> Memory:
        """Input elements, read some at a time."""
        return working_memory(chunk_nbytes(self.source.spec))

    def fill(self, reader: Reader, epoch: int, indices: Indices, out: Rows, gather: Gather) -> None:
        """Converts elements."""
        for chunk, rows, box in reader.inputs[0].chunks(epoch, indices, out):
            self.convert(box, rows, len(chunk))

    def row_count(self, epoch: int, index: int) -> int | None:
        """That of the input."""
        return self.source.row_count(epoch, index)

    def fill_rows(self, reader: Reader, epoch: int, index: int, rows: Indices, out: Rows, gather: Gather) -> None:
        """Converts rows of one element."""
        source = reader.inputs[0]
        for start, stop in ranges_of(len(rows), chunk_count(source.spec.unstacked())):
            box, reads = source.row_scratch(stop - start), Gather()
            source.fill_rows(epoch, index, rows[start:stop], box, reads)
            reads.run()
            self.convert(box, out.take(slice(start, stop)), stop - start)


@dataclass(frozen=True, eq=False)
class OfPairs(InPlaceOf, ByChunk):
    """What a step makes of elements, over pairs of an element and whether it is there."""

    whole: ByChunk
    """The step over elements, as the user wrote it."""

    @cached_property
    def spec(self) -> Spec:
        """Pairs."""
        return Spec.of((self.whole.spec.tree, ArraySpec((), np.dtype(bool))))

    def convert(self, box: Rows, out: Rows, count: int) -> None:
        """Converts the elements, also those without content."""
        self.whole.convert(box.leaves(0, len(box.arrays) - 1), out.leaves(0, len(out.arrays) - 1), count)
        out.arrays[-1][out.rows] = box.arrays[-1][:count]

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """The same for each element of a stream."""
        box, out = Rows.allocate(self.source.spec, 1), Rows.allocate(self.spec, 1)
        for leaves in reader.inputs[0].sequence(epoch):
            box.put(0, leaves)
            self.convert(box, out, 1)
            yield out.leaf_values(0)


@dataclass(frozen=True, eq=False)
class Cast(ByChunk):
    """The same elements with other dtypes."""

    dtypes: tuple[np.dtype[Any] | None, ...]
    """A dtype for each leaf, None for one to keep; or a single one for all."""
    structure: Structure | None
    """The structure of the dtypes, which must equal that of elements; None for a single dtype."""

    verb = "cast"
    moves = True
    converts = True
    keeps_neighbours = True

    @property
    def label(self) -> str:
        """As the user wrote it."""
        return f"cast({self._text})"

    @property
    def _text(self) -> str:
        names = [None if dtype is None else str(dtype) for dtype in self.dtypes]
        return str(names[0] if self.structure is None else self.structure.unflatten(names))

    def settings(self) -> dict[str, Any]:
        """The dtypes as written."""
        return {"dtypes": self._text}

    @cached_property
    def spec(self) -> Spec:
        """The input's, with other dtypes."""
        spec = self.source.spec
        dtypes = [*self.dtypes] * (len(spec.leaves) if self.structure is None else 1)
        if self.structure is not None:
            try:
                dtypes = values_like(spec.structure, dtypes, self.structure)
            except ValueError:
                raise SpecError(
                    f"{self.label} names dtypes by another structure than that of the element, {spec}. Name every "
                    "leaf, with None for one to keep, or give one dtype for all."
                ) from None
        for leaf, dtype in zip(spec.leaves, dtypes, strict=True):
            if dtype is not None and dtype != leaf.dtype and 0 in (dtype.itemsize, leaf.dtype.itemsize):
                raise SpecError(
                    f"{self.label} cannot make {dtype} of {leaf}: text and bytes of any size have no place in a slot. "
                    'Name a size, such as "U20", or convert with map().'
                )
        leaves = zip(spec.leaves, dtypes, strict=True)
        return Spec(tuple(replace(leaf, dtype=dtype or leaf.dtype) for leaf, dtype in leaves), spec.structure)

    def convert(self, box: Rows, out: Rows, count: int) -> None:
        """Changes dtypes."""
        try:
            with np.errstate(over="ignore"):  # the copy engine does not warn either
                out.copy_from(box, count)
                for leaf, places in zip(self.spec.leaves, out.arrays, strict=True):
                    if leaf.max_shape is None and leaf.dtype.itemsize:  # ragged: each has an array of its own
                        for row in out.row_numbers():
                            places[row] = places[row].astype(leaf.dtype)
        except (ValueError, TypeError, OverflowError) as error:
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> ElementError:
        return ElementError(
            f"{self.label} cannot convert {self.source.spec}: {error}. Bring the values into a form that "
            "NumPy converts, with map() before cast()."
        )

    def sequence(self, reader: Reader, epoch: int) -> Elements:
        """Converts each element of a stream."""
        dtypes = [leaf.dtype for leaf in self.spec.leaves]
        for leaves in reader.inputs[0].sequence(epoch):
            try:
                yield [_converted(leaf, dtype) for leaf, dtype in zip(leaves, dtypes, strict=True)]
            except (ValueError, TypeError, OverflowError) as error:
                raise self._refusal(error) from error


def _converted(leaf: Any, dtype: np.dtype[Any]) -> Any:
    return np.asarray(leaf).astype(dtype) if dtype.itemsize else leaf
