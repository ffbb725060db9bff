"""The contract of a source, and an adapter for objects that have its members without being one."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock.base import _tree
from penstock.base._errors import SourceError, type_of
from penstock.base._spec import Spec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices
from penstock.plan._decoded import DecodedParts
from penstock.plan._parted import PartSizes
from penstock.plan._traits import Traits


class Read(NamedTuple):
    """One request to a source: element `indices[k]` goes to row `rows[k]` of each leaf's array."""

    indices: Indices
    """The elements, shape `(n,)`, in any order, with or without repeats."""
    arrays: Sequence[npt.NDArray[Any]]
    """One array for each leaf, `(count, *shape)`, C-contiguous."""
    rows: Indices | slice
    """The `n` different rows of the arrays to write."""
    may_borrow: bool = False
    """Whether arrays of any size may stay the source's own: they are only read, and before the next read."""


class Openable:
    """What a run opens in each process that reads, and closes at its end."""

    def open(self) -> Any:
        """Returns the object that reads. Called once for each process and run. The default is the object itself."""
        return self

    def close(self) -> None:
        """Frees what `open` took. Called once on the object that `open` returned, if that is another object."""

    def advise(self, indices: Indices) -> None:
        """Announces elements that will be read soon, so that the system can fetch them. Never fails."""

    @property
    def is_advised(self) -> bool:
        """Whether a run calls `advise`, and computes what to say. The default: if the object has its own."""
        return getattr(self.advise, "__func__", None) is not Openable.advise

    @property
    def follows_order(self) -> bool:
        """Whether the open source gets `follow(order, now, ahead)` before each unit; see `plan/_order.py`."""
        return False


class Source(Openable, ABC):
    """Elements by index. Subclass it, or pass `from_source` any object with the same members.

    A source is a *handle*: cheap to make, small to pickle, and without an open file. `open` returns the object that
    reads. All threads of a process share one open source.

    Example:
        >>> class Squares(penstock.Source):
        ...     element_spec = penstock.ArraySpec((), "int64")
        ...     def __len__(self): return 5
        ...     def read_into(self, indices, out): out[...] = indices**2
        >>> list(penstock.from_source(Squares()))
        [np.int64(0), np.int64(1), np.int64(4), np.int64(9), np.int64(16)]
    """

    element_spec: Tree
    """The tree of `ArraySpec` of every element. Shapes are fixed, or the leaf is ragged."""

    is_cpu_bound: bool = False
    """Whether reading an element takes computation without the GIL, such as decoding.

    Workers then share a batch in units of some milliseconds."""

    is_remote: bool = False
    """Whether reading waits for a server that can answer many requests at once.

    A worker then makes a whole small batch, and `workers="auto"` starts more threads than there are CPUs."""

    reads_ahead: bool = False
    """Whether `advise` makes the requests of a server before they are read, so that a read seldom waits.

    `workers="auto"` then starts as many threads as CPUs: more would take the GIL from each other."""

    may_hold_gil: bool = False
    """Whether reading may hold the GIL. The report then says what helps."""

    suits_one_thread: bool = False
    """Whether one thread reads as fast as several, because reads hold the GIL, or a library's lock, most of the time.

    `workers="auto"` then starts one thread, unless the plan also computes or waits for a server."""

    chunk_shape: tuple[int, ...] | None = None
    """The chunks in which an array is stored whose rows are the elements, along all of its axes; None without."""

    @property
    def part_bounds(self) -> Indices | None:
        """Of elements that are decoded many at once, such as row groups: the first of each part, and their number.

        They begin with 0 and never descend. `shuffle(window="chunks")` takes elements of a part together, also after
        steps that keep their order, such as `split`. The default is None.
        """
        return None

    @property
    def part_nbytes(self) -> Indices | None:
        """The memory of each decoded part in bytes, shape `(parts,)`, for a source with `decode`.

        The default, None, is that of its elements, which then have one size.
        """
        return None

    def decode(self, part: int) -> Tree:
        """Decodes a part, for a source that has it in place of `read_into`.

        Workers decode each part once for all of them, before it is needed, as the order of the plan and the memory say.

        Args:
            part: Its number in `part_bounds`.

        Returns:
            All its elements: the tree of `element_spec`, each leaf an array `(n, *shape)`, or a list of `n` values if
            they have any size. They are kept, and must not change afterwards.
        """
        raise NotImplementedError(f"{type(self).__name__} has no decode().")

    @property
    def parts(self) -> PartSizes | None:
        """The sizes of the parts that a run may decode ahead. `open_source` then gives an object with a `part_cache`.

        The default is made of `part_bounds` and `part_nbytes` if the source has `decode`, and else None.
        """
        return None if type(self).decode is Source.decode else _sizes_of(self, self.element_spec)

    @property
    def kept_nbytes(self) -> int:
        """Largest memory of an open source in each process that reads, such as decoded chunks. Known from headers.

        The default is that of decoded parts, and 0 without.
        """
        return 0 if self.parts is None else self.parts.room

    @property
    def local_files(self) -> Sequence[str]:
        """The files of this machine that stay open while elements are read. A run notices when they are written to."""
        return ()

    def with_cache_limit(self, nbytes: int) -> "Source":
        """Returns the same source with `kept_nbytes` of at most `nbytes`, or as small as possible.

        A loader calls it if its `memory_limit` is too small. The default is the source itself.
        """
        return self

    @abstractmethod
    def __len__(self) -> int:
        """The number of elements, read from a header and not counted."""

    def read_into(self, indices: Indices, out: Tree) -> None:
        """Writes elements into the given memory. Every source has it, or an `open` that returns another object.

        Args:
            indices: int64, shape `(n,)`, each in `[0, len)`, in any order, with or without repeats.
            out: The tree of `element_spec`, each leaf an array `(n, *shape)`. All of it must be written.
        """
        opened = open_source(self)
        if opened is self:
            raise NotImplementedError(f"{type(self).__name__} needs read_into(), or an open() that returns a reader.")
        try:
            opened.read_into(indices, out)
        finally:
            opened.close()

    def open(self) -> Any:
        """Returns the object that reads: a source, or any object with `read_into` or `gather`.

        Called once for each process and run. The default is the source itself.
        """
        return self

    def describe(self, index: int) -> str:
        """Names an element for messages in the user's terms, such as a file name and a row."""
        return f"element {index} of {type(self).__name__}"

    def loosened(self) -> "Source":
        """The same elements, with axes of any size if the spec is found on element 0."""
        return self

    def unstacked(self) -> "Source | None":
        """Returns the parts of all elements along their first axis as a source, if each can be read alone.

        `unbatch` calls it, also where steps that only move elements are between. With the default, None, an element is
        read whole and then taken apart.
        """
        return None

    def selected(self, names: Sequence[str]) -> "Source | None":
        """Returns a source of the same elements, which are dicts, with these values, in this order, and perhaps others.

        What is left out is not read. `select` asks for it. With the default, None, elements are read whole.
        """
        return None

    def patched(self, sizes: tuple[int, ...], *, keeps_first: bool) -> "Source | None":
        """Returns the patches of an array whose rows are the elements, one for each item, at which it begins.

        `patches` calls it, and asks for no patch that would leave the array. With the default, None, it is refused.

        Args:
            sizes: The sizes of a patch along all axes.
            keeps_first: Whether a patch has the first axis, else of size 1 and left out.
        """
        return None

    def arrays(self) -> Sequence[Any] | None:
        """The arrays behind the leaves, whose rows are the elements: arrays of NumPy or in files, or columns in parts.

        The copy engine then reads them without this object. The default is None: elements are not simply there.
        """
        return None

    def gather(self, reads: Sequence[Read]) -> None:
        """Executes requests that belong together. The default calls `read_into` for each.

        Override it in a source that can write scattered rows or join requests.
        """
        _, structure = _tree.flatten(self.element_spec)
        for read in reads:
            if isinstance(read.rows, slice):
                self.read_into(read.indices, structure.unflatten([array[read.rows] for array in read.arrays]))
                continue
            count = len(read.indices)
            arrays = [np.empty((count, *array.shape[1:]), array.dtype) for array in read.arrays]
            self.read_into(read.indices, structure.unflatten(arrays))
            for array, scratch in zip(read.arrays, arrays, strict=True):
                array[read.rows] = scratch


@final
class SourceAdapter(Source):
    """Gives any object with `read_into` or `gather` the whole interface of a source.

    Args:
        inner: The object that reads. Its members replace the defaults.
        handle: The source whose `open` returned it. Supplies the spec, the length and names.

    Raises:
        SourceError: The object does not read, for example because `open` has no `return`.
    """

    def __init__(self, inner: Any, handle: Source | None = None) -> None:
        if not any(hasattr(inner, name) for name in ("read_into", "gather", "decode")):
            raise SourceError(
                f"open() of {type(handle).__name__} returned {type_of(inner)}, which has no read_into(). Return self, "
                "or another object that has this method."
            )
        self._inner = inner
        self._handle = handle
        self.element_spec: Tree = (inner if handle is None else handle).element_spec
        if handle is not None:
            self.describe = handle.describe  # type: ignore[method-assign]
        for name in ("read_into", "gather", "decode", "advise", "follow", "close", "describe"):
            if hasattr(inner, name):  # bound here, so that a read takes no extra call
                setattr(self, name, getattr(inner, name))

    def __reduce__(self) -> Any:
        return SourceAdapter, (self._inner, self._handle)

    @property
    def inner(self) -> Any:
        """The object that reads."""
        return self._inner

    @property
    def is_advised(self) -> bool:
        return bool(getattr(self._inner, "is_advised", hasattr(self._inner, "advise")))

    @property
    def follows_order(self) -> bool:
        return bool(getattr(self._inner, "follows_order", False))

    def __len__(self) -> int:
        return len(self._inner if self._handle is None else self._handle)

    @property
    def part_bounds(self) -> Indices | None:
        bounds: Indices | None = getattr(self._inner, "part_bounds", None)
        return bounds

    @property
    def parts(self) -> PartSizes | None:
        found: PartSizes | None = getattr(self._inner, "parts", None)
        if found is None and hasattr(self._inner, "decode") and hasattr(self._inner, "part_bounds"):
            found = _sizes_of(self._inner, self.element_spec)
        return found if isinstance(found, PartSizes) else None

    @property
    def kept_nbytes(self) -> int:
        return int(getattr(self._inner, "kept_nbytes", 0 if self.parts is None else self.parts.room))

    def _made(self, name: str, *arguments: Any) -> Source | None:
        """The source that a method of the inner object returns; None if it has none, or returns none."""
        made = getattr(self._inner, name)(*arguments) if hasattr(self._inner, name) else None
        return self if made is self._inner else None if made is None else _as_source(made)

    def with_cache_limit(self, nbytes: int) -> Source:
        return self._made("with_cache_limit", nbytes) or self

    def read_into(self, indices: Indices, out: Tree) -> None:
        leaves, _ = _tree.flatten(out)
        # `gather` takes C-contiguous arrays.
        places = [leaf if leaf.flags.c_contiguous else np.empty(leaf.shape, leaf.dtype) for leaf in leaves]
        self.gather([Read(indices, places, slice(0, len(indices)))])
        for leaf, place in zip(leaves, places, strict=True):
            if place is not leaf:
                leaf[...] = place

    def open(self) -> Source:
        if not hasattr(self._inner, "open"):
            return self
        opened = self._inner.open()
        return self if opened is self._inner else _as_source(opened, self)

    def selected(self, names: Sequence[str]) -> Source | None:
        return self._made("selected", names)

    def unstacked(self) -> Source | None:
        return self._made("unstacked")


def _as_source(value: Any, handle: Source | None = None) -> Source:
    return value if isinstance(value, Source) else SourceAdapter(value, handle)


def open_source(source: Source, *, in_parts: bool = True) -> Source:
    """Opens a source. `open` may return any object that reads, or decodes parts.

    Args:
        source: The source.
        in_parts: Whether decoded parts are kept, and may be decoded by others, if the source has parts.

    Raises:
        SourceError: The object has no `read_into`.
    """
    opened, sizes = source.open(), source.parts if in_parts else None
    if sizes is not None and not hasattr(inner_of(opened), "part_cache"):
        close = None if opened is source else opened.close
        opened = DecodedParts(opened.decode, close, sizes, source.element_spec, type(source).__name__)
    return _as_source(opened, source)


def inner_of(opened: Any) -> Any:
    """What a source opened, without the adapter that gives it the whole interface."""
    return opened.inner if isinstance(opened, SourceAdapter) else opened


def limited(source: Source, share: float) -> Source:
    """The same source, that keeps only a share of its memory if it can."""
    return source if share >= 1 else source.with_cache_limit(int(share * source.kept_nbytes))


def limited_nbytes(source: Source, share: float) -> int:
    """The memory of an open source that keeps only a share of it."""
    return limited(source, share).kept_nbytes if source.parts is None else source.parts.room_of(share)


def _sizes_of(source: Any, element_spec: Tree) -> PartSizes:
    """The sizes of the parts of a source with `decode`."""
    bounds, nbytes = np.asarray(source.part_bounds, np.int64), getattr(source, "part_nbytes", None)
    if nbytes is None:
        spec = Spec.of(element_spec)
        if not spec.is_bounded:
            raise SourceError(
                f"{type(source).__name__} has decode(), and its elements have any size. Say how much memory each part "
                "takes when it is decoded: part_nbytes, an array with the bytes of each."
            )
        nbytes = spec.nbytes * np.diff(bounds)
    nbytes = np.asarray(nbytes, np.int64)
    return PartSizes.of(bounds, nbytes, nbytes)


_SAID = [name for name in Traits._fields if hasattr(Source, name)]


def traits_of(source: Source) -> Traits:
    """What a source says about reading it; an object with the members of a source says what it likes of that."""
    said = source.inner if isinstance(source, SourceAdapter) else source
    return Traits(**{name: bool(getattr(said, name, False)) for name in _SAID})


def key_of(openable: Openable | None) -> Hashable:
    """Identifies a source: equal sources count once. A source without a hash, such as a dataclass, is its own."""
    try:
        hash(openable)
    except TypeError:
        return id(openable)
    return openable
