"""Where elements come from: the contract of a source, and the node that stands for one."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, final

import numpy as np
import numpy.typing as npt

from penstock.base import _tree
from penstock.base._errors import SourceError, type_of
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices
from penstock.plan._node import Demand, Node

if TYPE_CHECKING:
    from penstock.memory._rows import Rows
    from penstock.plan._reader import Gather, Reader


class Read(NamedTuple):
    """One request to a source: element `indices[k]` belongs into row `rows[k]` of each leaf's array."""

    indices: Indices
    """The elements, shape `(n,)`, in any order, repeated or not."""
    arrays: Sequence[npt.NDArray[Any]]
    """An array a leaf, `(count, *shape)`, C-contiguous."""
    rows: Indices | slice
    """Which `n` rows of the arrays to write; each once."""


class Openable:
    """What a run opens in each process that reads, and closes in the end."""

    def open(self) -> Any:
        """Returns the form that reads, once a process and run. By default the thing itself."""
        return self

    def close(self) -> None:
        """Frees what `open` took. Called once on what `open` returned, if that is another object."""

    def advise(self, indices: Indices) -> None:
        """Is told which elements will be read soon, so that the system can fetch them. Never fails."""


class Source(Openable, ABC):
    """Where elements come from, by index. Subclass it, or give `from_source` anything that looks like it.

    A source is a *handle*: cheap to make, small to pickle, and without an open file. `open` gives the form
    that reads. One open source serves all threads of a process at once.

    Example:
        >>> class Squares(penstock.Source):
        ...     element_spec = penstock.ArraySpec((), "int64")
        ...     def __len__(self): return 5
        ...     def read_into(self, indices, out): out[...] = indices**2
        >>> list(penstock.from_source(Squares()))
        [np.int64(0), np.int64(1), np.int64(4), np.int64(9), np.int64(16)]
    """

    element_spec: Tree
    """The tree of `ArraySpec` that every element has; shapes are fixed, or the leaf is ragged."""

    computes: bool = False
    """Whether an element takes computation, such as decoding, that lets go of the GIL. Workers then share a batch by
    some milliseconds' work each."""

    is_remote: bool = False
    """Whether it waits for a server, which takes long and can be asked for many things at once. A worker then makes a
    whole batch where that is small, and `workers="auto"` are more threads than there are CPUs."""

    is_in_memory: bool = False
    """Whether its elements are copied from memory, by code that cannot hang. A consumer in a hurry may then read them
    itself."""

    may_hold_gil: bool = False
    """Whether it may hold the GIL while it reads, for all that anybody knows: a report then says what helps if so."""

    @property
    def kept_nbytes(self) -> int:
        """How much memory what `open` gives takes at most, in each process that reads; known from headers.

        Such as what is decoded at one time, and what stays decoded. The default is 0.
        """
        return 0

    def keeping(self, nbytes: int) -> "Source":
        """The same source with a `kept_nbytes` of no more than that, or as little as it can do with.

        A loader asks for it whose `memory_limit` is too small. The default is the source itself.
        """
        return self

    @abstractmethod
    def __len__(self) -> int:
        """The number of elements; read from a header, never by counting them."""

    @abstractmethod
    def read_into(self, indices: Indices, out: Tree) -> None:
        """Writes elements into memory that is given.

        Args:
            indices: int64, shape `(n,)`, each in `[0, len)`, in any order, repeated or not.
            out: The tree of `element_spec`, each leaf an array `(n, *shape)`. All of it must be written.
        """

    def open(self) -> Any:
        """Returns the form that reads, once a process and run: a source, or any object with `read_into`.

        By default the source itself.
        """
        return self

    def describe(self, index: int) -> str:
        """An element in the user's terms, such as a file's name and a row. For messages."""
        return f"element {index} of {type(self).__name__}"

    def unstacked(self) -> "Source | None":
        """The parts of all elements along their first axis, as a source of its own, if they can be read alone.

        `unbatch` asks for it. The default is None: an element is read whole, and then taken apart.
        """
        return None

    def arrays(self) -> Sequence[Any] | None:
        """The arrays behind the leaves, whose rows are the elements: NumPy arrays, or arrays in files.

        The copy engine then reads them without this object. The default is None: elements are not simply there.
        """
        return None

    def gather(self, reads: Sequence[Read]) -> None:
        """Executes requests that belong together. The default calls `read_into` for each.

        A source that can scatter (write rows that are not neighbours) or join requests overrides it.
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
class Lookalike(Source):
    """An object that has what a source needs, without being one.

    Args:
        inner: What reads.
        handle: The source whose `open` gave it, which knows what it does not say itself.
    """

    def __init__(self, inner: Any, handle: Source | None = None) -> None:
        self._inner = inner
        self._handle = handle
        self.element_spec: Tree = (inner if handle is None else handle).element_spec
        for flag in ("computes", "is_remote", "is_in_memory", "may_hold_gil"):
            setattr(self, flag, bool(getattr(inner, flag, getattr(handle, flag, False))))

    @property
    def kept_nbytes(self) -> int:
        """As the object says, if it does."""
        return int(getattr(self._inner, "kept_nbytes", 0))

    def keeping(self, nbytes: int) -> Source:
        """As the object does, if it has this method."""
        made = self._inner.keeping(nbytes) if hasattr(self._inner, "keeping") else self._inner
        return self if made is self._inner else made if isinstance(made, Source) else Lookalike(made)

    def __len__(self) -> int:
        return len(self._inner if self._handle is None else self._handle)

    def read_into(self, indices: Indices, out: Tree) -> None:
        """As the object does."""
        self._inner.read_into(indices, out)

    def gather(self, reads: Sequence[Read]) -> None:
        """As the object does, if it has this method."""
        if hasattr(self._inner, "gather"):
            self._inner.gather(reads)
        else:
            super().gather(reads)

    def advise(self, indices: Indices) -> None:
        """Tells the object, if it has this method."""
        if hasattr(self._inner, "advise"):
            self._inner.advise(indices)

    def open(self) -> Source:
        """What the object opens, if it has this method."""
        if not hasattr(self._inner, "open"):
            return self
        opened = self._inner.open()
        return self if opened is self._inner else opened_by(self, opened)

    def close(self) -> None:
        """As the object does, if it has this method."""
        if hasattr(self._inner, "close"):
            self._inner.close()

    def describe(self, index: int) -> str:
        """As the object or its handle does; otherwise by the object's type."""
        if hasattr(self._inner, "describe"):
            return str(self._inner.describe(index))
        return (
            f"element {index} of {type(self._inner).__name__}" if self._handle is None else self._handle.describe(index)
        )

    def unstacked(self) -> Source | None:
        """As the object does, if it has this method."""
        parts = self._inner.unstacked() if hasattr(self._inner, "unstacked") else None
        return parts if parts is None or isinstance(parts, Source) else Lookalike(parts)


def opened_by(handle: Source, opened: Any) -> Source:
    """What `open` gave, as a source: it may be any object that reads.

    Raises:
        SourceError: It has no `read_into`; `open` has no `return`, for one.
    """
    if isinstance(opened, Source):
        return opened
    if not hasattr(opened, "read_into"):
        raise SourceError(
            f"open() of {type(handle).__name__} returned {type_of(opened)}, which has no read_into(). It returns what "
            "reads: another object with that method, or self."
        )
    return Lookalike(opened, handle)


def key_of(openable: Openable | None) -> Hashable:
    """What tells sources apart: equal ones are one; those without a hash, as most dataclasses are, each its own."""
    try:
        hash(openable)
    except TypeError:
        return id(openable)
    return openable


class Handle(Source):
    """A source whose `open` gives another object, which is what reads."""

    @abstractmethod
    def open(self) -> Source:
        """Returns the form that reads."""

    def read_into(self, indices: Indices, out: Tree) -> None:
        """Opens, reads and closes."""
        opened = self.open()
        try:
            opened.read_into(indices, out)
        finally:
            opened.close()


H = TypeVar("H", bound=Handle)


class Opened(Source, Generic[H]):
    """What a `Handle` opens: it has length, spec and names from the handle."""

    def __init__(self, source: H) -> None:
        self._source = source
        self.element_spec: Tree = source.element_spec

    def __len__(self) -> int:
        return len(self._source)

    def describe(self, index: int) -> str:
        """As the handle does."""
        return self._source.describe(index)


class Gathering(Opened[H]):
    """One that reads many requests at once."""

    def read_into(self, indices: Indices, out: Tree) -> None:
        """Reads into consecutive rows, as a single request."""
        self.gather([Read(indices, _tree.flatten(out)[0], slice(0, len(indices)))])

    @abstractmethod
    def gather(self, reads: Sequence[Read]) -> None:
        """Executes requests that belong together."""


@final
@dataclass(frozen=True, eq=False)
class SourceNode(Node):
    """The step at the bottom of a plan: elements of a source."""

    data: Source
    name: str
    """The user's verb: `from_npy`."""

    @property
    def verb(self) -> str:
        """The constructor that the user called."""
        return self.name

    def _find_length(self) -> int:
        return len(self.data)

    @property
    def may_hold_gil(self) -> bool:
        """As the source says."""
        return self.data.may_hold_gil

    @property
    def computes(self) -> bool:
        """What the source says of itself."""
        return self.data.computes

    @property
    def is_remote(self) -> bool:
        """As the source says."""
        return self.data.is_remote

    @property
    def known_spec(self) -> Spec:
        """Always known: a source knows its own."""
        return self.spec

    def _find_spec(self) -> Spec:
        spec = Spec.of(self.data.element_spec)
        # A source does not say how much of a place it used: what varies is ragged, also where the largest is known.
        leaves = (ArraySpec(leaf.shape, leaf.dtype) if leaf.varies else leaf for leaf in spec.leaves)
        return Spec(tuple(leaves), spec.structure)

    @property
    def opens(self) -> Source:
        """The source."""
        return self.data

    def fingerprint_parts(self) -> dict[str, Any]:
        """The source: from where it was made changes nothing."""
        return {"data": self.data}

    @property
    def label(self) -> str:
        """The verb and what the source says of itself."""
        return f"{self.name}({self.data})" if type(self.data).__str__ is not object.__str__ else self.name

    def settings(self) -> dict[str, Any]:
        """Data are identified by how they look and how many they are: a file may move."""
        return {"length": self.length, "spec": str(self.spec)}

    def demand(self, epoch: int, indices: Indices) -> Iterable[Demand]:
        """Nothing: there are no inputs."""
        return ()

    def fill(self, reader: "Reader", epoch: int, indices: Indices, out: "Rows", gather: "Gather") -> None:
        """Notes the read; the source does all of its reads at once."""
        gather.add(reader, indices, out)
