"""Places that elements are written into: one array a leaf, and which rows of it."""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import SpecError
from penstock.base._random import are_firsts
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Structure, Tree

Indices = npt.NDArray[np.int64]
Leaves = list[Any]
"""The leaves of an element, without its structure."""

_DTYPE: Final = operator.attrgetter("dtype")
CHUNK_NBYTES = 1 << 20
"""Scratch memory of a step is about this large: it stays in the core's cache, and calls are amortised."""


@final
class Rows:
    """Places for elements: one array a leaf, and which rows of it to write.

    A leaf of bounded size has an array `(count, *max_shape)`; text the same, of Python objects; a ragged
    leaf `(count,)`, of arrays. Where the first axis varies, `extents` holds how much of it is used.
    """

    __slots__ = ("_inside", "_is_plain", "_of_leaves", "arrays", "borrows", "extents", "rows")

    def __init__(
        self,
        arrays: Sequence[npt.NDArray[Any]],
        rows: Indices | slice,
        extents: Sequence[npt.NDArray[np.int64] | None],
    ) -> None:
        self.arrays: Sequence[npt.NDArray[Any]] = arrays
        self.rows: Indices | slice = rows
        self.extents: Sequence[npt.NDArray[np.int64] | None] = extents
        self.borrows = False
        """Whether arrays of any size may stay the source's own: they are only read, and before the next read."""
        self._inside: Rows | None = None
        self._of_leaves: dict[tuple[int, int], Rows] = {}
        self._is_plain: bool | None = None

    @classmethod
    def allocate(cls, spec: Spec, count: int) -> "Rows":
        """Makes new memory for `count` elements, C-contiguous and not cleared."""
        arrays = [_storage(leaf, count) for leaf in spec.leaves]
        return cls(arrays, slice(0, count), _extents(spec, count))

    @classmethod
    def imagined(cls, spec: Spec, count: int) -> "Rows":
        """Makes places without memory, to find out what a plan would write where. Only the extents are real.

        All of an array is one byte, of strides 0, so it stays a view of that through `take`, `leaves` and `unstacked`.
        The byte, `array.base`, tells which leaf it is of.
        """
        arrays = []
        for leaf in spec.leaves:
            shape = (count, *(leaf.max_shape or ()))
            arrays.append(np.ndarray(shape, np.uint8, np.empty((), np.uint8), strides=(0,) * len(shape)))
        return cls(arrays, slice(0, count), _extents(spec, count))

    def take(self, rows: Indices | slice) -> "Rows":
        """Some of these rows, numbered from the first of them."""
        taken = Rows(self.arrays, compose(self.rows, rows), self.extents)
        taken._is_plain = self._is_plain or self.is_plain
        taken.borrows = self.borrows
        return taken

    def first(self, count: int) -> "Rows":
        """The first rows of the arrays."""
        taken = Rows(self.arrays, slice(0, count), self.extents)
        taken._is_plain = self._is_plain or self.is_plain
        return taken

    def leaves(self, start: int, stop: int) -> "Rows":
        """The same rows of some leaves; made once."""
        rows = self._of_leaves.get((start, stop))
        if rows is None:
            rows = Rows(self.arrays[start:stop], self.rows, self.extents[start:stop])
            rows.borrows = self.borrows
            self._of_leaves[start, stop] = rows
        return rows

    def unstacked(self, size: int, inner: Indices | None = None) -> "Rows":
        """Rows of the elements within stacks of `size`: all, or those of `inner`, which counts over all stacks."""
        # The product and not -1, which an axis of length 0 leaves undetermined.
        arrays = [array.reshape(len(array) * size, *array.shape[2:]) for array in self.arrays]
        return Rows(arrays, self._unstacked_rows(size, inner), (None,) * len(arrays))

    def _unstacked_rows(self, size: int, inner: Indices | None) -> Indices | slice:
        if inner is None:
            if isinstance(self.rows, slice) and self.rows.step in (None, 1):
                start, stop, _ = self.rows.indices(len(self.arrays[0]))
                return slice(start * size, stop * size)
            return (positions_of(self.rows, len(self.arrays[0]))[:, None] * size + np.arange(size)).ravel()
        return positions_of(self.rows, len(self.arrays[0]))[inner // size] * size + inner % size

    def cut(self, start: int, stop: int) -> "Rows":
        """Some neighbouring rows, as places of their own."""
        arrays = [owned(array[start:stop]) for array in self.arrays]
        extents = [None if extent is None else extent[start:stop] for extent in self.extents]
        return Rows(arrays, slice(0, stop - start), extents)

    def inside(self) -> "Rows":
        """The rows of the one element that these are a place for; made once, for a slot comes again."""
        if self._inside is None:
            assert len(self.arrays[0]) == 1
            self._inside = Rows([array[0] for array in self.arrays], slice(0, None), (None,) * len(self.arrays))
        return self._inside

    def put(self, row: int, leaves: Sequence[Any], *, are_new: bool = False) -> None:
        """Writes the leaves of an element, of a spec that these places were made for, into a row of the arrays.

        Args:
            row: The row.
            leaves: The leaves.
            are_new: Whether the leaves are not used elsewhere, so that ragged arrays need no copy.
        """
        if self._is_plain or self.is_plain:
            number = 0  # counted by hand: for an element of two leaves, `zip` takes longer than writing them
            for places in self.arrays:
                places[row] = leaves[number]
                number += 1  # noqa: SIM113
            return
        for leaf, places, extent in zip(leaves, self.arrays, self.extents, strict=True):
            if extent is not None:
                extent[row] = len(leaf)
                places[row, : len(leaf)] = leaf
            elif places.dtype.hasobject and isinstance(leaf, np.ndarray) and not are_new:
                places[row] = leaf.copy()  # an array of its own: what was given may be used again
            else:
                places[row] = leaf

    def leaf_values(self, row: int) -> list[Any]:
        """The leaves of the element in a row of the arrays: views, NumPy scalars, text."""
        if self._is_plain or self.is_plain:
            return [array[row] for array in self.arrays]
        return [_value(array, row, extent) for array, extent in zip(self.arrays, self.extents, strict=True)]

    def elements(self, structure: Structure, count: int, *, is_writeable: bool) -> Iterator[Tree]:
        """Gives the elements in the first rows of the arrays one after the other, see `leaf_values`.

        Args:
            structure: The structure of an element.
            count: How many.
            is_writeable: Whether arrays in them may be written to.
        """
        if self._is_plain or self.is_plain:  # in C alone: this runs for each element
            arrays = [array[:count] for array in self.arrays]
            if not is_writeable:
                make_read_only(arrays)
            return map(structure.unflatten, zip(*arrays, strict=True))
        rows = map(self.leaf_values, range(count))
        return map(structure.unflatten, rows if is_writeable else map(make_read_only, rows))

    def columns(self, count: int) -> Iterator[list[Any]]:
        """For each leaf those of the elements in the first rows of the arrays, as `leaf_values` has them."""
        for places, extent in zip(self.arrays, self.extents, strict=True):
            if places.dtype.hasobject and places.ndim == 1:
                yield places[:count].tolist()
            else:
                yield [_value(places, row, extent) for row in range(count)]

    @property
    def is_plain(self) -> bool:
        """Whether a row of each array is a leaf as it is: none varies, is of Python objects, or of records."""
        if self._is_plain is None:
            self._is_plain = all(extent is None for extent in self.extents) and not any(
                array.dtype.hasobject or array.dtype.kind == "V" for array in self.arrays
            )
        return self._is_plain

    def set_extents(self, sizes: Indices | int) -> None:
        """Says how much of a varying first axis is used, for each of these rows."""
        for extent in self.extents:
            if extent is not None:
                extent[self.rows] = sizes

    def set_filled(self, counts: Indices | int) -> None:
        """Says how many parts of the batch in each of these rows were written, from the first on.

        A place of fixed size must be full, because it cannot say that it is not. So what was not written is never
        handed out, whatever length a step claims to have.

        Raises:
            SpecError: It is not full.
        """
        least = counts if isinstance(counts, int) else int(counts.min(initial=1 << 62))
        for array, extent in zip(self.arrays, self.extents, strict=True):
            if extent is not None:
                extent[self.rows] = counts
            elif array.ndim > 1 and least < array.shape[1]:
                raise SpecError(
                    f"{least} elements were written into a batch of {array.shape[1]}, and the others have no content. "
                    "A step of the dataset has fewer elements than its length says."
                )

    def row_numbers(self) -> list[int]:
        """These rows as numbers."""
        if isinstance(self.rows, slice):
            return list(range(*self.rows.indices(len(self.arrays[0]))))
        return self.rows.tolist()  # type: ignore[no-any-return]

    def copy_from(self, other: "Rows", count: int) -> None:
        """Copies the first `count` rows of `other` here, casting as NumPy's assignment does.

        The places of `other` may be smaller where the first axis varies. Rows beyond their extent are not read,
        because they were never written.
        """
        leaves = zip(self.arrays, self.extents, other.arrays, other.extents, strict=True)
        for ours, mine, theirs, extent in leaves:
            if mine is None and ours.ndim == theirs.ndim:
                ours[self.rows] = theirs[:count]
                continue
            for number, row in enumerate(self.row_numbers()):
                value = theirs[number] if extent is None else theirs[number, : extent[number]]
                if mine is None:
                    ours[row] = value.copy()  # a ragged leaf is an array of its own
                else:
                    mine[row] = len(value)
                    ours[row, : len(value)] = value


@final
class Window:
    """Elements of a stream that are there, in spans of `size` elements each; as one worker sees them.

    Args:
        spans: The places of the elements of each span. Span number `n` lies in place `n % len(spans)`.
        size: How many elements a span has.
        fetch: `fetch(number, start, stop)` has the Python objects of some elements of a span in their places.
    """

    __slots__ = ("_fetch", "_size", "_spans", "base")

    def __init__(self, spans: Sequence[Rows], size: int, fetch: Callable[[int, int, int], None] | None = None) -> None:
        self._spans = spans
        self._size = size
        self._fetch = fetch
        self.base: int = 0
        """What is added to the number of an element of this epoch to have its place among all spans."""

    def read(self, indices: Indices, out: Rows) -> None:
        """Copies elements into the rows of `out`."""
        places = indices + self.base
        start = 0
        while start < len(places):
            first = int(places[start])
            number, row = divmod(first, self._size)
            count = min(self._size - row, len(places) - start)
            if int(places[start + count - 1]) != first + count - 1:
                count = 1  # they do not follow each other
            if self._fetch is not None:
                self._fetch(number, row, row + count)
            span = self._spans[number % len(self._spans)]
            out.take(slice(start, start + count)).copy_from(span.cut(row, row + count), count)
            start += count

    def release(self) -> None:
        """Drops the spans. Nothing is read any more."""
        self._spans = []


def make_read_only(leaves: list[Any]) -> list[Any]:
    """Makes the arrays among some leaves read-only; returns the leaves."""
    for leaf in leaves:
        if isinstance(leaf, np.ndarray):
            leaf.flags.writeable = False
    return leaves


def copied(leaf: Any) -> Any:
    """A leaf in memory of its own; one without axes as a NumPy scalar, as everywhere."""
    if isinstance(leaf, np.void):
        return leaf.copy()  # a record is a view of the array that it was taken from, as no other scalar is
    if not isinstance(leaf, np.ndarray):
        return leaf
    return leaf.copy() if leaf.ndim else leaf.copy()[()]


def ranges_of(count: int, step: int) -> Iterator[tuple[int, int]]:
    """Cuts `range(count)` into pieces of at most `step`."""
    for start in range(0, count, step):
        yield start, min(start + step, count)


def chunk_count(spec: Spec) -> int:
    """How many elements of a spec make about `CHUNK_NBYTES`; at least one."""
    return max(1, CHUNK_NBYTES // max(spec.nbytes, 64))


def chunk_nbytes(spec: Spec) -> int:
    """Bytes of scratch memory for elements of a spec."""
    return chunk_count(spec) * spec.nbytes


def places_of(spec: Spec) -> list[tuple[tuple[int, ...] | None, bool]]:
    """The shape of the place of each leaf, and whether its first axis varies."""
    return [(leaf.max_shape, leaf.varies) for leaf in spec.leaves]


def have_dtype(arrays: Sequence[npt.NDArray[Any]], dtype: np.dtype[Any]) -> bool:
    """Whether all arrays have a dtype. The loop is in C, for this runs for each element."""
    return all(map(dtype.__eq__, map(_DTYPE, arrays)))


def _storage(leaf: ArraySpec, count: int) -> npt.NDArray[Any]:
    if leaf.max_shape is None:
        return np.empty(count, object)
    return np.empty((count, *leaf.max_shape), leaf.dtype if leaf.dtype.itemsize else object)


def _extents(spec: Spec, count: int) -> list[npt.NDArray[np.int64] | None]:
    return [np.zeros(count, np.int64) if leaf.varies else None for leaf in spec.leaves]


def owned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns ragged arrays as copies, because a function may change them; other values as they are."""
    if values.dtype != object or values.ndim != 1 or not any(isinstance(value, np.ndarray) for value in values):
        return values
    copies = np.empty_like(values)
    for number, value in enumerate(values):
        copies[number] = value.copy()
    return copies


def _value(array: npt.NDArray[Any], row: int, extent: npt.NDArray[np.int64] | None) -> Any:
    value = array[row] if extent is None else array[row, : extent[row]]
    if array.dtype.hasobject and isinstance(value, np.ndarray) and array.ndim > 1:
        return text_array(value, "S" if math.prod(value.shape) and isinstance(value.flat[0], bytes) else "U")
    return value.copy() if isinstance(value, np.void) else value


def blank(leaves: Sequence[ArraySpec]) -> Leaves:
    """The leaves of an element without content: zeros and empty text; an axis that varies is 0."""
    return [
        np.zeros([size or 0 for size in leaf.shape], leaf.dtype)
        if leaf.dtype.itemsize
        else np.full([size or 0 for size in leaf.shape], leaf.dtype.type(), object)[()]
        for leaf in leaves
    ]


def text_array(texts: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
    """Text or bytes of any size, which are Python objects, as an array of NumPy.

    Raises:
        SpecError: One ends in a zero, which such an array does not keep.
    """
    items = texts.ravel().tolist()
    found = np.array(items, kind)
    dropped = np.flatnonzero(np.strings.str_len(found) != np.fromiter(map(len, items), np.int64, len(items)))
    if len(dropped):
        name, content = ("bytes", "x") if kind == "S" else ("text", "x.encode()")
        raise SpecError(
            f"Number {dropped[0]} of a batch of {name} ends in a zero, and arrays of NumPy drop zeros at the end. "
            "Use what needs it before batch(); or make numbers of it for padded_batch(): "
            f"map(lambda x: np.frombuffer({content}, np.uint8))."
        )
    return found.reshape(texts.shape)


def positions_of(rows: Indices | slice, count: int) -> Indices:
    """Some of `count` rows as numbers."""
    return np.arange(*rows.indices(count), dtype=np.int64) if isinstance(rows, slice) else rows


def distinct(numbers: Indices) -> Indices:
    """The numbers that there are, ascending, each once. `np.unique` would import `numpy.ma` first, in 20 ms."""
    ordered = np.sort(numbers)
    return ordered[are_firsts(ordered)]


def within(sizes: Indices) -> Indices:
    """Of groups that lie end to end: the number of each item in its group."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def compose(outer: Indices | slice, inner: Indices | slice) -> Indices | slice:
    if isinstance(outer, np.ndarray):
        return outer[inner]
    start, step = outer.start, outer.step or 1
    if isinstance(inner, np.ndarray):
        return np.asarray(inner * step + start, np.int64)
    inner_step = inner.step or 1
    return slice(start + inner.start * step, start + inner.stop * step, step * inner_step)


def as_slice(rows: Indices) -> Indices | slice:
    """Evenly spaced rows as a slice, which costs nothing to read or write; others as they are."""
    if len(rows) == 0:
        return rows
    if len(rows) == 1:
        return slice(int(rows[0]), int(rows[0]) + 1)
    first, last = int(rows[0]), int(rows[-1])
    step = int(rows[1]) - first
    if step < 1 or last - first != step * (len(rows) - 1) or (len(rows) > 2 and (rows[1:] - rows[:-1] != step).any()):
        return rows
    return slice(first, last + 1, step)
