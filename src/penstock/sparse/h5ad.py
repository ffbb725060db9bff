"""Files of AnnData (`.h5ad`) and its stores of Zarr: the matrix of cells, and columns of their table."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol, final

import numpy as np
import numpy.typing as npt

from penstock.base._arguments import needs
from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, SpecError
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.files._remote import is_remote
from penstock.memory._rows import Indices
from penstock.plan._source import Source
from penstock.sparse.sparse import SparseSource, in_place, read_all

_OLD_CATEGORIES: Final = "__categories"
"""The group in which AnnData before 0.8 keeps the words of categorical columns; their numbers are the columns."""


class Store(Protocol):
    """An open file or store: groups and arrays, by their paths in it."""

    path: str

    def get(self, name: str) -> Any:
        """A group or an array; None if there is none."""

    def is_array(self, item: Any) -> bool:
        """Whether it is an array."""

    def source(self, name: str) -> Source:
        """The rows of an array."""


def opened(path: str) -> AbstractContextManager[Store]:
    """Opens a file for a look; of a folder, an archive or a URL, a store of Zarr.

    Raises:
        ImportError: Its library is missing.
        SourceError: It is missing, or none, or damaged.
    """
    if is_remote(path) or os.path.isdir(path) or path.endswith(".zip"):
        with needs("from_h5ad", "zarr"):
            from penstock.volumes.zarr import ZarrStore
        return ZarrStore.opened(path)
    with needs("from_h5ad", "h5py"):
        from penstock.sparse._hdf5store import Hdf5Store
    return Hdf5Store.opened(path)


def cells(store: Store, name: str, dense: bool) -> Any:
    """A matrix with a row for each cell: the open group of a sparse one, or the source of an array."""
    matrix = store.get(name)
    if matrix is None:
        known = {f"{each}/": list(store.get(each) or ()) for each in ("layers", "obsm")}
        if name != "X":
            raise ArgumentError(f"from_h5ad(): {store.path} has no {name}. It has {known}.")
        raise SourceError(
            f"{store.path} has no X, so it is no file of AnnData, or one without a matrix. It has {known}; "
            "from_h5ad(path, obs=[...], obsm=[...]) reads what it has besides."
        )
    if not store.is_array(matrix):
        return matrix
    if not dense:
        raise ArgumentTypeError(f"from_h5ad(dense=False): {name} of {store.path} is an array, and not sparse.")
    return store.source(name)


def columns(store: Store) -> list[str]:
    """The names of the columns of the table of cells, without its index.

    Raises:
        SourceError: There is no table.
    """
    table = store.get("obs")
    if table is None or store.is_array(table):
        raise SourceError(
            f"{store.path} has no group obs, as AnnData writes since version 0.7. Write it again: "
            "anndata.read_h5ad(path).write(path)."
        )
    order = [str(name) for name in table.attrs.get("column-order", ())]
    names = dict.fromkeys(name for name in (*order, *table) if name in table)
    return [name for name in names if name not in (table.attrs.get("_index"), _OLD_CATEGORIES)]


def column(store: Store, name: str) -> Source:
    """A column of the table of cells."""
    inside = f"obs/{name}"
    names, found = columns(store), store.get(inside) if name else None
    if found is None:
        names = [each for each in names if each != name]  # a link that leads nowhere
        raise ArgumentError(f"from_h5ad(): {store.path} has no column {name!r} in obs. It has {names}.")
    if store.is_array(found):
        values, words = store.source(inside), f"obs/{_OLD_CATEGORIES}/{name}"
        if store.get(words) is not None:
            return CategorySource(values, _required(store, words))
        return in_place(values) or values
    form = found.attrs.get("encoding-type")
    if form not in ("categorical", b"categorical"):
        values, mask = (_required(store, f"{inside}/{each}", form) for each in ("values", "mask"))
        if len(mask) == len(values) and not read_all(mask).any():
            return in_place(values) or values
        raise SpecError(
            f"{inside} in {store.path} is {form!r:.60} with missing values, which have no number here. Fill them "
            f"(adata.obs[{name!r}].fillna(...)) and write the file again."
        )
    words = f"{inside}/categories"
    kept = store.get(words)
    if kept is not None and not store.is_array(kept):  # text that could be missing, as pandas 3 has it
        words += "/values"
    codes, texts = (_required(store, each, form) for each in (f"{inside}/codes", words))
    return CategorySource(codes, texts)


def _required(store: Store, name: str, form: Any = None) -> Source:
    """An array that has to be there, in a column that is kept in a form."""
    found = store.get(name)
    if found is None or not store.is_array(found):
        what = "" if form is None else f", as a column of the kind {form!r:.60} has"
        raise SourceError(
            f"{store.path} has no array {name}{what}. It is damaged, or no column of AnnData; write it again."
        )
    return store.source(name)


class Genes(NamedTuple):
    """The columns of a file's matrix."""

    path: str
    size: int
    names: Sequence[Any] | None
    """None if the file does not name them."""


def genes(store: Store, cells: Source) -> Genes:
    """The columns of the matrix in an open file."""
    (count,) = cells.shape[1:] if isinstance(cells, SparseSource) else Spec.of(cells.element_spec).leaves[0].shape
    table = store.get("var")
    index = None if table is None or store.is_array(table) else table.attrs.get("_index")
    kept = store.get(f"var/{index}") if isinstance(index, str) else None
    if kept is None:
        return Genes(store.path, count or 0, None)
    inside = f"var/{index}" if store.is_array(kept) else f"var/{index}/values"
    return Genes(store.path, count or 0, read_all(_required(store, inside)).tolist())


def same_genes(ours: Genes, first: Genes | None) -> Genes:
    """Returns the first of several files.

    Raises:
        ArgumentError: One has other columns.
    """
    if first is None:
        return ours
    if ours.size != first.size or (ours.names is not None and first.names is not None and ours.names != first.names):
        fact = f"{ours.path} has {ours.size:,} genes, and {first.path} has {first.size:,}"
        if ours.size == first.size:
            pairs = enumerate(zip(ours.names or (), first.names or (), strict=False))
            place, (mine, other) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
            fact = f"gene {place} of {ours.path} is {mine!r:.60}, and that of {first.path} is {other!r:.60}"
        raise ArgumentError(
            f"from_h5ad(): {fact}. Files of one dataset have the same genes in the same order. Write them as one: "
            "anndata.experimental.concat_on_disk(paths, path, join='inner')."
        )
    return first


def of_one_list(parts: Sequence[Source]) -> Sequence[Source]:
    """The same column of several files. Categorical ones get the categories of all."""
    own = [each for each in parts if isinstance(each, CategorySource)]
    if len(own) < len(parts) or all(each.class_names == own[0].class_names for each in own):
        return parts
    words = list(dict.fromkeys(word for each in own for word in each.class_names))
    return [CategorySource(each.codes, each.words, words) for each in own]


@final
class CategorySource(Source):
    """A categorical column: numbers that are places in a list of words. They are read and checked once in a process.

    Args:
        codes: Reads the numbers.
        words: Reads the words.
        names: The words that elements count in, if these are more than its own.
    """

    element_spec: Tree = ArraySpec((), np.dtype(np.int32))

    def __init__(self, codes: Source, words: Source, names: list[str] | None = None) -> None:
        self.codes, self.words, self._names = codes, words, names
        spec = codes.element_spec
        if not isinstance(spec, ArraySpec) or spec.shape or spec.dtype.kind not in "iu":
            raise SpecError(f"{codes} has codes of {spec}, and codes are integers. The file is damaged.")

    def __reduce__(self) -> Any:
        return CategorySource, (self.codes, self.words, self._names)

    def __len__(self) -> int:
        return len(self.codes)

    def __str__(self) -> str:
        return str(self.codes)

    def describe(self, index: int) -> str:
        return self.codes.describe(index)

    def fingerprint_parts(self) -> dict[str, Any]:
        """The numbers and the words."""
        return {"codes": self.codes, "categories": self.words, "names": self._names}

    @cached_property
    def class_names(self) -> list[str]:
        """The words."""
        return self._own_names if self._names is None else self._names

    @cached_property
    def _own_names(self) -> list[str]:
        return [str(each) for each in read_all(self.words).tolist()]

    @property
    def kept_nbytes(self) -> int:
        """The numbers, and a chunk of those that are read."""
        return 4 * len(self) + max(self.codes.kept_nbytes, self.words.kept_nbytes)

    @cached_property
    def _numbers(self) -> npt.NDArray[np.int32]:
        """All numbers.

        Raises:
            SourceError: One has no word. Names the row.
        """
        codes, count = read_all(self.codes).astype(np.int64), len(self.words)
        wrong = np.flatnonzero((codes < -1) | (codes >= count))
        if len(wrong):
            raise SourceError(
                f"{self.describe(int(wrong[0]))} is {codes[wrong[0]]}, and there are {count} categories. The file is "
                "damaged; write it again."
            )
        if self._names is not None:
            place = {name: number for number, name in enumerate(self._names)}
            codes = np.array([place[name] for name in self._own_names] + [-1], np.int64)[codes]
        return codes.astype(np.int32)

    def arrays(self) -> Sequence[npt.NDArray[np.int32]]:
        """The numbers, for the copy engine."""
        return (self._numbers,)

    def read_into(self, indices: Indices, out: npt.NDArray[np.int32]) -> None:
        """Copies numbers."""
        out[...] = self._numbers[indices]
