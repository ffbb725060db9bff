"""Sparse matrices in compressed rows: of SciPy, and of files as SciPy and AnnData write them."""

import os
import struct
import sys
import zipfile
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, Final

import numpy as np

from penstock.base._errors import (
    ArgumentError,
    ArgumentTypeError,
    PenstockError,
    SourceError,
    SpecError,
    home_cure,
    no_path,
    type_of,
)
from penstock.base._files import open_file
from penstock.base._positions import require_order
from penstock.base._spec import ArraySpec
from penstock.dataset import Dataset
from penstock.functions._constructors import _array_source as source_of_array, concatenate, zip as zip_of
from penstock.plan._source import Source
from penstock.plan._source_node import SourceNode
from penstock.sources.arrays import ArraySource
from penstock.sources.files import FileSource
from penstock.sources.npy import described
from penstock.sparse import h5ad
from penstock.sparse.sparse import Numbers, SparseSource

_PARTS: Final = ("indptr", "indices", "data")


def from_csr(matrix: Any, *, dense: bool = True) -> Dataset:
    """Makes a dataset of the rows of a sparse matrix in compressed rows (CSR).

    An element is a row with its zeros, `(columns,)`, of the dtype of the values. A batch is filled by the copy engine:
    it clears the row, and puts each value in its column. So no other matrix is made, and files are larger than memory.

    With `dense=False` an element is `{"indices": ..., "values": ...}`, both `(None,)`: the columns that have values,
    and these. `csr_batch` makes matrices in compressed rows of them, and `padded_batch` pads them to one length.

    | matrix | read |
    |---|---|
    | a CSR matrix or array of SciPy | from its three arrays, which are not copied |
    | a `.npz` by `scipy.sparse.save_npz(path, matrix, compressed=False)` | from the file, in place |
    | an open group of HDF5, `file["X"]`, as AnnData writes it | in place; by h5py where chunks are compressed |
    | such a group of Zarr | by zarr |

    A group has `indptr`, `indices` and `data`, and an attribute `shape`.

    Columns may stand in any order within a row. The call reads headers; where rows begin is read before the first
    element.

    Random access: yes. Where chunks are compressed, a read decodes all chunks that its rows touch.
    Order: that of the matrix. Memory: 16 bytes a row in each process.

    Args:
        matrix: The matrix, the path of a `.npz`, or an open group.
        dense: Whether elements have their zeros.

    Raises:
        ArgumentTypeError: It is none of these, such as a matrix in compressed columns (CSC).
        SourceError: A file is missing, damaged, compressed (`.npz`), or has another format. While reading: a row has a
            column outside of the matrix, or one twice; the message has the row.
        SpecError: Values are no numbers, or columns no integers.

    Example:
        >>> import scipy.sparse
        >>> matrix = scipy.sparse.csr_array(np.array([[0, 2, 0], [1, 0, 3]], "float32"))
        >>> ds = penstock.from_csr(matrix)
        >>> ds[1]
        array([1., 0., 3.], dtype=float32)
        >>> penstock.from_csr(matrix, dense=False)[1]
        {'indices': array([0, 2], dtype=int32), 'values': array([1., 3.], dtype=float32)}
    """
    if not isinstance(dense, bool):
        raise ArgumentTypeError(f"from_csr(dense=) takes True or False, got {dense!r:.80}.")
    return Dataset(SourceNode(_source(matrix, dense), "from_csr"))


def _source(matrix: Any, dense: bool) -> SparseSource:
    if isinstance(matrix, (str, os.PathLike)):
        return _of_npz(os.fspath(matrix), dense)
    if hasattr(matrix, "indptr") and hasattr(matrix, "indices") and hasattr(matrix, "data"):
        if getattr(matrix, "format", "csr") != "csr":
            raise ArgumentTypeError(
                f"from_csr() got a matrix in the format {matrix.format!r}, in which the values of a row are not "
                "neighbours. Convert it: from_csr(matrix.tocsr())."
            )
        if len(matrix.shape) != 2:
            raise ArgumentTypeError(
                f"from_csr() got an array of shape {matrix.shape}, and a matrix has rows and columns. Make it one row: "
                "from_csr(array.reshape(1, -1).tocsr())."
            )
        parts = [ArraySource(np.asarray(getattr(matrix, name))) for name in _PARTS]
        rows, columns = matrix.shape
        return _checked(f"a matrix of {rows} x {columns}", parts, (rows, columns), dense)
    if hasattr(matrix, "keys") and hasattr(matrix, "attrs"):
        return of_group(matrix, dense)
    cure = (
        "Convert it: from_csr(matrix.tocsr())." if hasattr(matrix, "tocsr") else "Rows of an array: from_arrays(array)."
    )
    raise ArgumentTypeError(
        f"from_csr() takes a CSR matrix of SciPy, the path of a .npz, or an open group of HDF5 or Zarr, got "
        f"{type_of(matrix)}. {cure}"
    )


def _checked(name: str, parts: Sequence[Source], shape: Any, dense: bool) -> SparseSource:
    """Makes the source of three vectors.

    Raises:
        SourceError: Their lengths do not match.
        SpecError: They have other types or axes.
    """
    specs = [part.element_spec for part in parts]
    for part, spec in zip(_PARTS, specs, strict=True):
        assert isinstance(spec, ArraySpec)
        kinds, what = ("biufc", "numbers") if part == "data" else ("iu", "integers")
        if spec.shape or spec.dtype.kind not in kinds or spec.dtype.itemsize not in (1, 2, 4, 8, 16):
            raise SpecError(
                f"{name} has {part} of {spec}, and {part} is a vector of {what}. It is no matrix in compressed rows, "
                "or it is damaged."
            )
    rows, columns = shape
    counts = [len(part) for part in parts]
    if counts[0] != rows + 1 or counts[1] != counts[2] or columns < 0:
        raise SourceError(
            f"{name} has {rows} rows, {counts[0]} entries in indptr, {counts[1]} column numbers and {counts[2]} "
            "values. There is one entry more than rows, and a column number for each value. It is damaged, or was not "
            "written to its end; write it again."
        )
    starts, indices, numbers = map(Numbers, parts)
    return SparseSource(name, starts, indices, numbers, (rows, columns), dense)


def _shape_of(name: str, shape: Any) -> tuple[int, int]:
    try:
        rows, columns = (int(each) for each in shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise SourceError(f"{name} has the shape {shape!r:.80}, and a matrix has two sizes. It is damaged.") from error
    return rows, columns


# ---------------------------------------------------------------------------------------------- .npz


def _of_npz(path: str, dense: bool) -> SparseSource:
    absolute = os.path.abspath(path)
    try:
        with open_file(absolute) as file, np.lib.npyio.NpzFile(file) as archive:
            assert archive.zip is not None
            form: Any = archive["format"][()] if "format" in archive else "csr"
            form = form.decode(errors="replace") if isinstance(form, bytes) else str(form)
            if form != "csr":
                raise SourceError(
                    f"{absolute} has a matrix in the format {form!r:.40}, in which the values of a row are not "
                    "neighbours. Write it again: scipy.sparse.save_npz(path, matrix.tocsr(), compressed=False)."
                )
            missing = [each for each in (*_PARTS, "shape", "format") if each not in archive]
            if missing:
                raise SourceError(
                    f"{absolute} has no {', '.join(missing)}, so it is no sparse matrix of SciPy. It has "
                    f"{', '.join(sorted(archive))[:200]}. Write it by "
                    "scipy.sparse.save_npz(path, matrix, compressed=False)."
                )
            shape = _shape_of(absolute, archive["shape"])
            parts: list[Source] = []
            for part in _PARTS:
                member = archive.zip.getinfo(f"{part}.npy")
                if member.compress_type != zipfile.ZIP_STORED:
                    raise SourceError(
                        f"{absolute} is compressed, so its rows cannot be read alone. Write it again: "
                        "scipy.sparse.save_npz(path, matrix, compressed=False). If it fits into memory: "
                        "from_csr(scipy.sparse.load_npz(path))."
                    )
                parts.append(_stored(file, member, f"{absolute}/{part}.npy", absolute))
    except PenstockError:
        raise
    except OSError as error:
        raise SourceError(f"{absolute} cannot be read: {error.strerror or error}.{home_cure(path)}") from error
    except Exception as error:  # what zipfile raises for damage has many types
        raise SourceError(
            f"{absolute} is no .npz, or is damaged: {type(error).__name__}: {error}. Write it again: "
            "scipy.sparse.save_npz(path, matrix, compressed=False)."
        ) from error
    return _checked(absolute, parts, shape, dense)


def _stored(file: BinaryIO, member: zipfile.ZipInfo, name: str, path: str) -> FileSource:
    """The vector in a member that is not compressed.

    Raises:
        SourceError: It is no vector, or is cut off.
    """
    file.seek(member.header_offset + 26)  # the end of its header: the sizes of the name and of a field behind it
    begin = member.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
    status = os.fstat(file.fileno())
    state = status.st_dev, status.st_ino, status.st_size
    file.seek(begin)
    found = described(file, name, path, state)
    nbytes = found.extent[1] - begin
    if nbytes > member.file_size:
        raise SourceError(
            f"{name} takes {nbytes:,} bytes, and {member.file_size:,} are there. {path} is damaged, or was not written "
            "to its end; write it again."
        )
    return FileSource(found)


# ---------------------------------------------------------------------------------------------- groups


def of_group(group: Any, dense: bool) -> SparseSource:
    """The matrix in an open group of HDF5 or Zarr."""
    place = getattr(group, "name", None) or getattr(group, "path", "")
    file = getattr(getattr(group, "file", None), "filename", None) or str(getattr(group, "store", ""))
    name = f"{file}/{str(place).strip('/')}".rstrip("/")
    form = group.attrs.get("encoding-type", group.attrs.get("h5sparse_format", "csr_matrix"))
    if form not in ("csr_matrix", "csr", b"csr_matrix", b"csr"):  # other writers than AnnData use bytes
        raise SourceError(
            f"{name} is {form!r:.40}, and rows are read of csr_matrix. Write it again as an array, or in compressed "
            "rows: adata.X = scipy.sparse.csr_matrix(adata.X); adata.write(path)."
        )
    if "h5py" in sys.modules and hasattr(group, "file"):
        from penstock.sparse import _hdf5store

        _hdf5store.require_own(group, _PARTS)  # before they are opened
    missing = [part for part in _PARTS if part not in group]
    shape = group.attrs.get("shape", group.attrs.get("h5sparse_shape"))
    if missing or shape is None:
        raise SourceError(
            f"{name} has no {', '.join([*missing, *(['attribute shape'] if shape is None else [])])}, so it is no "
            f"sparse matrix as AnnData writes it. It has {', '.join(map(str, group))[:200]}."
        )
    parts = [_vector(group[part], f"{name}/{part}") for part in _PARTS]
    return _checked(name, parts, _shape_of(name, shape), dense)


def _vector(leaf: Any, name: str) -> Source:
    if len(getattr(leaf, "shape", None) or ()) == 1 and not leaf.dtype.hasobject:
        return source_of_array(leaf, name)
    raise SpecError(f"{name} is {leaf!r:.100}, and the parts of a sparse matrix are vectors of numbers.")


# ---------------------------------------------------------------------------------------------- AnnData


def from_h5ad(
    path: "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Any",
    obs: str | Iterable[str] | None = None,
    *,
    layer: str | None = None,
    obsm: str | Iterable[str] | None = None,
    dense: bool = True,
) -> Dataset:
    """Makes a dataset of the cells in files of AnnData: `.h5ad`, or stores of Zarr. AnnData is not needed.

    An element is the row of a cell in `X`, as by `from_csr`; where `X` is an array, its row. With `obs` it is a dict:
    the row is `"X"`, and each column of `obs` has its name. A categorical column is a number, int32, a place in
    `class_names` of the dataset, or -1 where it is missing. Other columns are numbers or text. `obsm` gives a dict,
    too, with a row of each matrix of `obsm` that it names, such as `"X_pca"`. A file without `X` has no `"X"` there.

    Several files are one dataset, one after the other. They have the same genes in the same order. Categories are those
    of all files, each once, in the order in which files name them.

    Random access, order, memory: as `from_csr`. AnnData writes `.h5ad` without compression, so the copy engine reads
    rows from the file in place. Its chunks in Zarr are compressed. Each process opens the file for itself.

    Args:
        path: A path on this machine, or several; of Zarr, a folder, a `.zip` or a URL; or a backed AnnData,
            `anndata.read_h5ad(path, backed="r")`, whose file is read, with the columns that it has there.
        obs: The columns of `obs` to read, as a list; None for no dict.
        layer: A layer in place of `X`.
        obsm: The matrices of `obsm` to read, as a list.
        dense: As for `from_csr`, of `X` or the layer.

    Raises:
        ImportError: `h5py` or `zarr` is missing (extras `hdf5`, `zarr`).
        ArgumentError: There is no such column, layer or matrix, or two have one name; or files have other genes, or
            only some have `X`; or an AnnData is in memory, or a part of its file.
        ArgumentTypeError: The path or names are no text, or `dense=False` and the matrix is an array.
        SourceError: The file is missing, damaged, or no file of AnnData; or its matrix is in compressed columns. While
            reading: as `from_csr`.
        SpecError: Numbers or text of a column are missing, and have no value of their own.

    Example:
        >>> import h5py
        >>> with h5py.File("cells.h5ad", "w") as file:
        ...     file["X/data"], file["X/indices"], file["X/indptr"] = np.float32([5, 6]), [2, 0], [0, 1, 2]
        ...     file["X"].attrs["encoding-type"], file["X"].attrs["shape"] = "csr_matrix", (2, 3)
        ...     file["obs/count"] = [10, 20]
        >>> penstock.from_h5ad("cells.h5ad", ["count"])[1]
        {'X': array([6., 0., 0.], dtype=float32), 'count': np.int64(20)}
    """
    paths = _paths_of(path)
    if layer is not None and not isinstance(layer, str):
        raise ArgumentTypeError(f"from_h5ad(layer=) is the name of a layer, got {layer!r:.80}.")
    columns, matrices = _names("obs", obs), _names("obsm", obsm)
    if "X" in (*columns, *matrices):
        raise ArgumentError("from_h5ad(): 'X' is the name of the cell's row. Read the other by from_hdf5().")
    if both := {*columns} & {*matrices}:
        raise ArgumentError(f"from_h5ad(): {min(both)!r} is asked for from obs and obsm. Read one by from_hdf5().")
    files: list[dict[str, Source]] = []
    first = None
    for each in paths:
        with h5ad.opened(each) as store:
            file: dict[str, Source] = {}
            if layer is not None or not (columns or matrices) or store.get("X") is not None:
                file["X"] = _rows(store, "X" if layer is None else f"layers/{layer}", dense)
                if len(paths) > 1:
                    first = h5ad.same_genes(h5ad.genes(store, file["X"]), first)
            file |= {name: h5ad.column(store, name) for name in columns}
            file |= {name: _rows(store, f"obsm/{name}", True) for name in matrices}
            if files and file.keys() != files[0].keys():
                raise ArgumentError(f"from_h5ad(): one of {paths[0]} and {each} has X, and the other has none.")
            files.append(file)
    whole = {}
    for name in files[0]:
        parts = h5ad.of_one_list([each[name] for each in files])
        nodes = [Dataset(SourceNode(each, "from_h5ad")) for each in parts]
        whole[name] = nodes[0] if len(nodes) == 1 else concatenate(nodes)
    return whole["X"] if obs is None and obsm is None else zip_of(whole)


def _names(argument: str, value: Any) -> list[str]:
    require_order(f"from_h5ad({argument}=)", value, "Give a list.")
    names = [] if value is None else [value] if isinstance(value, str) else value
    names = [*names] if isinstance(names, Iterable) else names
    if not (isinstance(names, list) and all(isinstance(each, str) for each in names)):
        what = "columns" if argument == "obs" else "matrices"
        raise ArgumentTypeError(f"from_h5ad({argument}=) has the names of {what}, as text, got {names!r:.200}.")
    return names


def _rows(store: h5ad.Store, name: str, dense: bool) -> Source:
    matrix = h5ad.cells(store, name, dense)
    return matrix if isinstance(matrix, Source) else of_group(matrix, dense)


def _paths_of(value: Any) -> list[str]:
    """The paths of files, or that of an object of AnnData which reads its matrix from one.

    Raises:
        ArgumentError: There is none; or the object is a part of the file, or does not read from one.
        ArgumentTypeError: It is something else.
    """
    if isinstance(value, (str, os.PathLike)):
        return [os.fspath(value)]
    if hasattr(value, "isbacked") and hasattr(value, "filename"):
        if not value.isbacked:
            raise ArgumentError(
                "from_h5ad() got an AnnData that is in memory. Its rows: from_csr(adata.X). Or read it from its file: "
                "from_h5ad(path)."
            )
        path = os.fspath(value.filename)
        if value.is_view:
            raise ArgumentError(
                f"from_h5ad() got a part of the AnnData in {path}. Take the part of the dataset: "
                "from_h5ad(path)[positions], with a mask, or a list of positions."
            )
        return [path]
    require_order("from_h5ad()", value, "Give a list of paths.")
    paths = list(value) if isinstance(value, Iterable) and not isinstance(value, bytes) else [value]
    wrong = next((each for each in paths if not isinstance(each, (str, os.PathLike))), None)
    if wrong is not None or not isinstance(value, Iterable):
        raise ArgumentTypeError(f"from_h5ad() needs a path, or a list of them, got {no_path(wrong)}")
    if not paths:
        raise ArgumentError("from_h5ad() got an empty list of paths.")
    return [os.fspath(each) for each in paths]
