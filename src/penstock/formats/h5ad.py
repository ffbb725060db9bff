"""Files of AnnData (`.h5ad`): the matrix of cells, and columns of their table."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, SpecError
from penstock.base._spec import ArraySpec, Spec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices
from penstock.plan._source import Source
from penstock.sources import hdf5
from penstock.sources._hdf5files import require_inside
from penstock.sources.hdf5 import opened as opened
from penstock.sources.sparse import SparseSource, in_place, read_all


def require_own(group: Any, names: Sequence[str]) -> None:
    """Refuses parts of an open group whose values are in a file outside of the folder of its file.

    Raises:
        SourceError: They are.
    """
    for name in names:
        require_inside(group.file, f"{group.name}/{name}", None)


def cells(file: Any, path: str, name: str, dense: bool) -> Any:
    """The matrix: the open group of a sparse one, or the source of an array."""
    require_inside(file, name, None)
    if name not in file:
        layers = list(file["layers"]) if "layers" in file else []
        if name != "X":
            raise ArgumentError(f"from_h5ad(): {path} has no {name}. It has the layers {layers}.")
        raise SourceError(f"{path} has no X, so it is no file of AnnData, or one without a matrix. Layers: {layers}.")
    matrix = file[name]
    if not hdf5.is_dataset(matrix):
        return matrix
    if not dense:
        raise ArgumentTypeError(f"from_h5ad(dense=False): {name} of {path} is an array, and not sparse.")
    return hdf5.selected(file, path, name)[name]


def column(file: Any, path: str, name: str) -> Source:
    """A column of the table of cells."""
    require_inside(file, f"obs/{name}", None)
    table = file.get("obs")
    if table is None or hdf5.is_dataset(table):
        raise SourceError(
            f"{path} has no group obs, as AnnData writes since version 0.7. Write it again: "
            "anndata.read_h5ad(path).write(path)."
        )
    if name not in table:
        raise ArgumentError(f"from_h5ad(): {path} has no column {name!r} in obs. It has {list(table)}.")
    column, inside = table[name], f"obs/{name}"
    if hdf5.is_dataset(column):
        found = hdf5.selected(file, path, inside)[inside]
        return in_place(found) or found
    form = column.attrs.get("encoding-type")
    if form not in ("categorical", b"categorical"):
        own = [f"{inside}/{each}" for each in ("values", "mask")]
        for each in own:
            require_inside(file, each, None)
        if all(each in file and hdf5.is_dataset(file[each]) for each in own):
            values, mask = (hdf5.selected(file, path, each)[each] for each in own)
            if len(mask) == len(values) and not read_all(mask).any():
                return in_place(values) or values
        filled = ".fillna('').astype(object)" if "string" in str(form) else ".fillna(0).astype('int64')"
        raise SpecError(
            f"{inside} in {path} is {form!r:.60} with missing values, which have no number here. Fill them and write "
            f"the file again: adata.obs[{name!r}] = adata.obs[{name!r}]{filled}."
        )
    words = f"{inside}/categories"
    require_inside(file, words, None)
    if words in file and not hdf5.is_dataset(file[words]):  # text that could be missing, as pandas 3 has it
        words += "/values"
    found, names = (hdf5.selected(file, path, each)[each] for each in (f"{inside}/codes", words))
    return CategorySource(found, names)


class Genes(NamedTuple):
    """The columns of a file's matrix."""

    path: str
    size: int
    names: Sequence[Any] | None
    """None if the file does not name them."""


def genes(file: Any, path: str, cells: Source) -> Genes:
    """The columns of the matrix in an open file."""
    (count,) = cells.shape[1:] if isinstance(cells, SparseSource) else Spec.of(cells.element_spec).leaves[0].shape
    require_inside(file, "var", None)
    table = file.get("var")
    index = None if table is None or hdf5.is_dataset(table) else table.attrs.get("_index")
    if not isinstance(index, str) or index not in table:
        return Genes(path, count or 0, None)
    require_inside(file, f"var/{index}", None)
    inside = f"var/{index}" if hdf5.is_dataset(table[index]) else f"var/{index}/values"
    return Genes(path, count or 0, read_all(hdf5.selected(file, path, inside)[inside]).tolist())


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
        """The numbers."""
        return 4 * len(self)

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
