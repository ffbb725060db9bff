"""Datasets of arrays that other libraries name: arrays of Zarr, variables of xarray, and volumes of NIfTI."""

import glob
import os
from collections.abc import Hashable, Iterable
from typing import Any

import numpy.typing as npt

from penstock.base import _tree
from penstock.base._arguments import needs
from penstock.base._errors import ArgumentTypeError, SourceError, no_path, type_of
from penstock.base._positions import require_order
from penstock.base._tree import Tree
from penstock.dataset import Dataset
from penstock.files._several import folder_of, one_after_another, several_of
from penstock.functions._constructors import side_by_side
from penstock.plan._source_node import SourceNode

Path = str | os.PathLike[str]


def from_zarr(
    path: Path | list[Path],
    names: str | Iterable[str] | None = None,
    *,
    storage_options: dict[str, Any] | None = None,
    file_key: str | None = None,
) -> Dataset:
    """Makes a dataset of the rows of arrays in a Zarr store, like `from_hdf5`.

    An element is a dict of a row of each array, by their paths in the store; with one name that is no list, and where
    the store is one array, the row. Numbers come as the store has them; the log names those that xarray packed, which
    `from_xarray` decodes. `patches`, directly after it, and `shuffle(window="chunks")` read chunks.

    Random access: yes. Order: that of the arrays. Memory: the rows that are read; of local arrays in compressed
    chunks up to 128 MiB of decoded ones, which worker processes share; of others the chunks that the rows touch. Each
    process opens the store for itself.

    Args:
        path: A folder, a `.zip`, a URL (`s3://`, `gs://`, `https://`); or an open group or array of zarr. A single open
            array goes to `from_arrays` as well. Several of one kind, which come one after the other: a list, or a glob
            pattern of folders of this machine, which are sorted by name.
        names: The arrays; None for all, also those in groups.
        storage_options: Options of the file system of a URL, as fsspec takes them.
        file_key: As for `from_npy`.

    Raises:
        ImportError: `zarr` is missing (extra `zarr`).
        SourceError: There is no store, it is damaged, or its chunks are pickles.
        ArgumentError: There is no such array, or arrays have different numbers of rows; all are listed.
        ArgumentTypeError: The path or names are no text, or an array has no first axis.
        SpecError: Values have no fixed size, and are no text.

    Example:
        >>> import zarr
        >>> group = zarr.open_group("pairs.zarr", mode="w")
        >>> x, y = group.create_array("x", data=np.eye(2)), group.create_array("labels/y", data=np.arange(2))
        >>> penstock.from_zarr("pairs.zarr")[1]
        {'labels/y': np.int64(1), 'x': array([0., 1.])}
        >>> penstock.from_zarr("pairs.zarr", "x")[0]
        array([1., 0.])
    """
    with needs("from_zarr", "zarr"):
        from penstock.volumes.zarr import selected
    require_order("from_zarr(names=)", names, "Give a list; for other names, rename({'a/x': 'x'}) comes after.")
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    paths: list[Path] = []
    if isinstance(path, list):
        paths += path
    else:
        is_pattern = glob.has_magic(text) and "://" not in text and not os.path.exists(text)
        paths += sorted(glob.glob(text)) if is_pattern else [path]
        if not paths:
            raise SourceError(f"from_zarr(): no folder and no file matches {text}.")
    return one_after_another("from_zarr", paths, file_key, lambda each: selected(each, names, storage_options))


def from_xarray(data: Any, dim: Hashable, *, coords: Iterable[Hashable] = ()) -> Dataset:
    """Makes a dataset of a `Dataset` or a `DataArray` of xarray, whose elements are the positions along a dimension.

    An element of a `DataArray` is its values at one position, and of a `Dataset` a dict of these, by the names of the
    variables that have the dimension. `coords` adds coordinates to the dict, in which a `DataArray` has its name, or
    else `"data"`. The dimension comes first whatever the order of the others, which stays.

    Values in memory are read where they are. Those of files, and of dask, stay lazy: each worker reads what it needs,
    by xarray. What xarray decodes (scales, fill values, times) is decoded there.

    Random access: yes. Order: positions, whatever the labels. `patches` reads boxes directly after it; with chunks of
    dask or of files, `shuffle(window="chunks")` works too. Memory: the elements that are read, and the chunks that
    they touch. `cache` asks for a `key`, unless the values are of dask. In worker processes xarray opens the files
    again by their names, so what it opened from memory or from open file objects is for threads.

    Args:
        data: The data.
        dim: The name of the dimension.
        coords: Names of coordinates along the dimension.

    Raises:
        ImportError: `xarray` is missing (extra `xarray`).
        ArgumentError: No variable has the dimension, or there is no such coordinate, or it has not the dimension.
        ArgumentTypeError: It is no object of xarray.
        SpecError: Values are Python objects.
        SourceError: While reading: values cannot be read. The message has the variable and the position.

    Example:
        >>> import xarray
        >>> grid = xarray.Dataset({"t": (("y", "time"), np.eye(2)), "station": ("y", [7, 8])}, {"time": [10, 20]})
        >>> penstock.from_xarray(grid, "time", coords=["time"])[1]
        {'t': array([0., 1.]), 'time': np.int64(20)}
        >>> penstock.from_xarray(grid["t"], "time")[0]
        array([1., 0.])
    """
    with needs("from_xarray", "xarray"):
        from penstock.volumes.xarray import selected
    if not isinstance(coords, Iterable):
        raise ArgumentTypeError(f"from_xarray(coords=) is a list of names, such as ['time'], got {type_of(coords)}.")
    wanted = [coords] if isinstance(coords, str) else list(coords)
    leaves, structure = _tree.flatten(selected(data, dim, wanted))
    return side_by_side("from_xarray", [SourceNode(each, "from_xarray") for each in leaves], structure)


def from_nifti(
    paths: Path | Iterable[Path],
    *,
    dtype: "npt.DTypeLike | None" = "float32",
    affine: bool = False,
    header: bool = False,
) -> Dataset:
    """Makes a dataset of the volumes in NIfTI files (`.nii`, `.nii.gz`, pairs of `.hdr` and `.img`).

    An element is a volume, with the axes of the file and the values of nibabel's `get_fdata(dtype=...)`: scaled as the
    header says. Where shapes differ, their axes are None in `element_spec`. With `affine` or `header` it is a dict of
    `"volume"` and these. The log has one line if the axes of files point to several sides of the body.

    A value beyond the range of `dtype` is an error. Fractions are rounded; a volume of whole numbers, such as labels
    above 2**24 in float32, is an error if one would change. `dtype=None` reads it, and `"float64"` most.

    Reads the headers of all files, in about a millisecond each. Random access: yes. Order: that of the given paths;
    the files of a pattern by name. `patches` directly after it, with the axis of files as the first, reads no more
    than the planes of a patch; the files are then of one shape, not compressed, and elements have nothing besides.
    Memory: the volume of each worker, twice where it is scaled or of another dtype. A `memory_limit` refuses a larger
    one before it is read.

    Args:
        paths: A path, a pattern (`"scans/*.nii.gz"`), or any iterable of paths.
        dtype: The dtype of volumes. None takes that of nibabel's `dataobj`: that of the file, such as int16 of label
            maps, and float64 where values are scaled.
        affine: Whether elements have `"affine"`, `(4, 4)` float64, from voxels to millimetres.
        header: Whether elements have `"header"`, the fields of nibabel's `header.structarr` as a record: `pixdim`,
            `dim`, and others.

    Raises:
        ImportError: `nibabel` is missing (extra `nifti`).
        ArgumentError: There are no paths, or URLs.
        ArgumentTypeError: An item is no path, `dtype` is none, or `affine` or `header` is no bool.
        SourceError: A file is missing, or no NIfTI file. While reading: it is damaged, shorter than its header says, or
            has another shape than before. The message has the file.
        SpecError: Volumes have different numbers of axes, or values do not fit `dtype`, such as colours, or, while
            reading, large labels.

    Example:
        >>> import nibabel
        >>> nibabel.save(nibabel.Nifti1Image(np.ones((4, 3, 2), "int16"), np.eye(4)), "scan.nii")
        >>> penstock.from_nifti("scan.nii")[0].sum()
        np.float32(24.0)
        >>> penstock.from_nifti("scan.nii", affine=True)
        from_nifti(scan.nii): 1 element, {'volume': (4, 3, 2) float32, 'affine': (4, 4) float64}, random
    """
    with needs("from_nifti", "nibabel"):
        from penstock.volumes.nifti import source
    if not isinstance(paths, (str, os.PathLike)) and not isinstance(paths, Iterable):
        raise ArgumentTypeError(f"from_nifti() needs paths, got {no_path(paths)}")
    return Dataset(SourceNode(source(paths, dtype, affine, header), "from_nifti"))


def from_hdf5(
    path: str | os.PathLike[str] | list[str],
    names: str | Iterable[str] | None = None,
    *,
    files_in: str | os.PathLike[str] | None = None,
    file_key: str | None = None,
) -> Dataset:
    """Makes a dataset of the rows of arrays in HDF5 files.

    An element is a dict of a row of each array, by their paths in the file; with one name that is no list, the row.
    Several files of one kind come one after the other, see `from_npy`; each is opened now, and each process holds a
    descriptor for each.
    Numbers come as the file has them; the log names those that netCDF packed (`scale_factor`, `_FillValue` and others),
    which `from_xarray` decodes.
    Chunks with Blosc, Zstd and other filters that HDF5 lacks need the package `hdf5plugin`, which is then imported.

    Random access: yes. Order: that of the file. Memory: the rows that are read; of arrays in compressed chunks up to
    128 MiB of decoded ones, which worker processes share. Each process opens the file for itself.

    Virtual datasets and external storage have values in other files. HDF5 gives fill values where these are missing or
    too small; here that is an error, at the start and at each read. A process holds these files open, with a descriptor
    each. Chunks that were never written, and parts of a virtual dataset that name no file, have the fill value of the
    array: its writer chose that.

    Args:
        path: A path on this machine, a glob pattern, whose files are sorted by name, or a list of paths.
        names: The arrays; None for all, also those in groups.
        file_key: As for `from_npy`.
        files_in: A folder that may have the values of arrays: external links and storage, and virtual datasets, name
            other files. None for the folder of the file.

    Raises:
        ImportError: `h5py` is missing (extra `hdf5`).
        SourceError: The file is missing, no HDF5 file, or damaged; or values are missing, outside of `files_in`, or
            compressed by a filter that is not there.
        ArgumentError: There is no such array, or arrays have different numbers of rows; all are listed.
        ArgumentTypeError: The path or names are no text.
        SpecError: An array has no first axis, or values of no fixed size. Text of any size is read.

    Example:
        >>> import h5py
        >>> with h5py.File("pairs.h5", "w") as file:
        ...     file["x"], file["labels/y"] = np.eye(2), np.arange(2)
        >>> penstock.from_hdf5("pairs.h5")[1]
        {'labels/y': np.int64(1), 'x': array([0., 1.])}
        >>> penstock.from_hdf5("pairs.h5", "x")[0]
        array([1., 0.])
    """
    with needs("from_hdf5", "h5py"):
        from penstock.volumes import hdf5

    def sources_of(path: Any) -> Tree:
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentTypeError(f"from_hdf5() needs a path, got {no_path(path)}{_of_open_file(path)}")
        with hdf5.opened(path) as file:
            require_order("from_hdf5(names=)", names, "Give a list; for other names, rename({'a/x': 'x'}) comes after.")
            sources = hdf5.selected(file, os.fspath(path), names, folder_of("from_hdf5", files_in))
        return sources[names] if isinstance(names, str) else sources

    paths = several_of("from_hdf5", path)
    return one_after_another("from_hdf5", [path] if paths is None else paths, file_key, sources_of)


def _of_open_file(value: object) -> str:
    """The remedy for an open HDF5 file, or an array of one, in place of a path."""
    return " Of an open file: from_arrays({'x': file['x']})." if type_of(value) in ("a File", "a Dataset") else ""
