"""Datasets of data, and of other datasets."""

import builtins
import glob
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from penstock._dataset import Dataset, caller, integer
from penstock.base import _tree
from penstock.base._arguments import as_float, as_int, items_of, needs
from penstock.base._errors import ArgumentError, ArgumentTypeError, no_path, type_of
from penstock.base._extensions import made_of
from penstock.base._positions import as_values, by_position, require_order, with_columns
from penstock.base._spec import Spec
from penstock.base._tree import Tree
from penstock.plan._cautions import caution_absent
from penstock.plan._combine import Concatenate, Interleave, Zip
from penstock.plan._mix import Mix
from penstock.plan._node import POSITION_LIMIT, Node
from penstock.plan._ragged import Ragged
from penstock.plan._source import Source, SourceAdapter
from penstock.plan._source_node import SourceNode
from penstock.plan._stream import Generate, Promised
from penstock.plan._text import length_text
from penstock.run._options import MOST_WORKERS
from penstock.sources import _openfile, arrays, files, generators, npy, remote_npy
from penstock.sources._diskcache import DiskCache
from penstock.sources._packed import log_packed
from penstock.sources._remote import is_remote
from penstock.sources.runs import RunSource, as_offsets

MOST_WEIGHT: Final = 1e300
"""Weights of `mix` are below it, so that the sum of many is finite."""


def from_npy(
    path_or_tree: Tree,
    *,
    mapped: bool | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
    file_key: str | None = None,
) -> Dataset:
    """Makes a dataset of the rows of `.npy` files: one after the other, and side by side.

    Reads headers only. C and Fortran order, every dtype of fixed size, also structured ones, format versions 1 to 3.
    Rows go from the page cache straight into the batch. A file that is shortened or replaced meanwhile is an error that
    names the row.

    An element is one row: `(3, 50, 50)` for a file of `(20000, 3, 50, 50)`, same dtype. Several files of one kind come
    one after the other, as by `concatenate`, and `file_key` gives each row the number of its file. `windows(groups=)`
    with that key makes windows none of which reaches into another file.

    Random access: yes. Rows of a Fortran-ordered file are scattered over the whole file, and slow to read.
    Memory: none of its own. The pages of a mapped file show as resident memory of the process; the kernel drops them
    when something else needs the memory.

    Args:
        path_or_tree: A path or a URL (`s3://`, `https://`), or a tree of these: `{"x": "x.npy", "y": "y.npy"}`. A
            remote file must be in C order. In place of a path a glob pattern, whose files are sorted by name, or a list
            of paths; then every leaf of the tree has as many.
        mapped: False reads with `pread`, and no page of the file shows as memory of the process. True maps the file,
            which is faster for rows below 32 KiB, and for larger ones on some processors. None maps it for rows below
            32 KiB if a plan only moves data. If the file is larger than a quarter of the memory, it does so for rows
            below 2 KiB, and gives the pages back from time to time.
        storage_options: See `from_tar`.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.
        file_key: The name under which elements, which are dicts, have the number of their file, int64, from 0 on.

    Raises:
        ArgumentTypeError: A leaf is no path, or `mapped` is no bool.
        SourceError: It is no `.npy` file, truncated, or holds Python objects (which are never unpickled).
        ArgumentError: Files side by side have different numbers of rows, all are listed; or there are not as many of
            each. Elements are no dicts, and so have no place for a `file_key`, or have it already.
        SpecError: Files one after the other have rows of other shapes or dtypes.

    Example:
        >>> np.save("frames.npy", np.zeros((20, 3, 50, 50)))
        >>> penstock.from_npy("frames.npy")
        from_npy(frames.npy): 20 elements, (3, 50, 50) float64, random
        >>> np.save("shard-0.npy", np.zeros(2)); np.save("shard-1.npy", np.ones(1))
        >>> penstock.from_npy({"x": "shard-*.npy"}, file_key="file")[2]
        {'x': np.float64(1.0), 'file': np.int64(1)}
    """
    if mapped is not None and not isinstance(mapped, bool):
        raise ArgumentTypeError(f"from_npy(mapped=) takes True, False or None, got {mapped!r}.")
    cache = DiskCache.of("from_npy", cache)
    leaves, structure = _tree.flatten(path_or_tree)
    lists = [several_of("from_npy", leaf, storage_options, cache) for leaf in leaves]
    if any(paths is not None for paths in lists):
        counts = {1 if paths is None else len(paths) for paths in lists}
        if len(counts) > 1:
            found = [1 if paths is None else len(paths) for paths in lists]
            raise ArgumentError(f"from_npy() puts files side by side, so there are as many of each, but found {found}.")
        columns = [[leaf] if paths is None else paths for leaf, paths in builtins.zip(leaves, lists, strict=True)]
        each = [structure.unflatten(paths) for paths in builtins.zip(*columns, strict=True)]
    else:
        each = [path_or_tree]
    return one_after_another(
        "from_npy", each, file_key, lambda tree: _npy_sources(tree, mapped, storage_options, cache)
    )


def _npy_sources(tree: Tree, mapped: bool | None, storage_options: Any, cache: DiskCache | None) -> Tree:
    """The sources of `.npy` files side by side."""
    leaves, structure = _tree.flatten(tree)
    found: list[Source] = []
    for leaf, place in _pairs(leaves, structure):
        if not isinstance(leaf, (str, os.PathLike)):
            raise ArgumentTypeError(f"from_npy() needs a path{place and ' at '}{place}, got {no_path(leaf)}")
        made: Source
        if isinstance(leaf, str) and is_remote(leaf):
            made = remote_npy.source(leaf, storage_options, cache)
        else:
            made = files.FileSource(replace(npy.describe(leaf), mapped=mapped))
        found.append(made)
    return structure.unflatten(found)


def several_of(verb: str, paths: Any, storage_options: Any = None, cache: Any = None) -> list[Any] | None:
    """The paths of a list, or the files that a pattern matches; None for a path."""
    if isinstance(paths, list):
        return [each for path in paths for each in several_of(verb, path, storage_options, cache) or [path]]
    path = os.fspath(paths) if isinstance(paths, (str, os.PathLike)) else ""
    if not isinstance(path, str) or not glob.has_magic(path) or os.path.exists(path):
        return None
    return [file.url for file in _openfile.find(verb, path, storage_options, cache)]


def one_after_another(verb: str, items: Sequence[Any], file_key: str | None, sources: Callable[[Any], Tree]) -> Dataset:
    """Makes a dataset of the elements of several files, one file after the other, with the number of each.

    Args:
        verb: The constructor.
        items: The files.
        file_key: The name of the number; None for elements without.
        sources: Makes the tree of the sources of one file.

    Raises:
        ArgumentError: There is no file; or elements are no dicts, or have the name already.
    """
    if not items:
        raise ArgumentError(f"{verb}() got no files.")
    parts = []
    for number, item in enumerate(items):
        tree = sources(item)
        leaves, structure = _tree.flatten(tree)
        if file_key is not None:
            if not isinstance(tree, dict) or file_key in tree:
                raise ArgumentError(
                    f"{verb}(file_key={file_key!r:.80}) adds a value to elements that are dicts without it, but here "
                    f"they are {structure.unflatten([each.element_spec for each in leaves])!r:.200}. Give arrays by "
                    "name, a single one in a list or a dict; or take another key."
                )
            count = len(leaves[0]) if leaves else 0
            leaves, structure = _tree.flatten({**tree, file_key: arrays.NumberSource(number, count)})
        parts.append(side_by_side(verb, [SourceNode(each, verb) for each in leaves], structure))
    return parts[0] if len(parts) == 1 else concatenate(parts)


def from_arrays(tree: Tree) -> Dataset:
    """Makes a dataset of the rows of arrays, side by side in the given tree.

    A leaf may be a NumPy array, a memmap or a view of one (read from its file, as in `from_npy`), an `h5py.Dataset` or
    a `zarr.Array` (reopened in each process), or a list of numbers. Nothing is copied.

    A leaf may also be a column or a table of pandas, Polars or Arrow. A table is a dict of its columns, as its elements
    are; for rows that are arrays give `table.to_numpy()`. Rows are taken by position, whatever their labels, and the
    index of pandas is left out. Text is copied into an array of text, and categories become their values.

    Elements of several lengths lie end to end: of `Ragged(values, offsets)`, element `i` is rows `[offsets[i],
    offsets[i + 1])` of `values`, `(None, ...)`. `values` are what a leaf may be, so also a memmap that is larger than
    memory. `ragged_batch`, `padded_batch` and `pack` take them; lengths for the latter are `np.diff(offsets)`.

    After the first read an HDF5 file stays open for reading while the dataset or a loader of it lives, and h5py refuses
    to write to it from the same process.

    Random access: yes. Memory: none besides your arrays.

    Args:
        tree: A tree of arrays with first axes of the same length.

    Raises:
        ArgumentTypeError: A leaf is no array, has no first axis, has masked items, lacks values, holds Python objects,
            or is a group of named arrays, such as a group of HDF5 or an archive from `np.load`.
        SpecError: Values of an HDF5 or Zarr array have no fixed size, and are no text.
        ArgumentError: Leaves have different lengths; all are listed. Or offsets descend, or end behind the last row.

    Example:
        >>> ds = penstock.from_arrays({"x": np.eye(3), "y": np.arange(3)})
        >>> ds[1]
        {'x': array([0., 1., 0.]), 'y': np.int64(1)}
        >>> [part.tolist() for part in penstock.from_arrays(penstock.Ragged([7, 8, 9], [0, 2, 2, 3]))]
        [[7, 8], [], [9]]
    """
    leaves, structure = _tree.flatten_until(with_columns(tree), lambda part: isinstance(part, (list, Ragged)))
    nodes: list[Node] = [
        SourceNode(_array_source(leaf, place), "from_arrays") for leaf, place in _pairs(leaves, structure)
    ]
    return side_by_side("from_arrays", nodes, structure)


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
        from penstock.sources import hdf5

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


def folder_of(verb: str, files_in: Any) -> str | None:
    if files_in is None or isinstance(files_in, (str, os.PathLike)):
        return None if files_in is None else os.path.abspath(files_in)
    raise ArgumentTypeError(f"{verb}(files_in=) is the path of a folder, got {no_path(files_in)}")


def _array_source(leaf: Any, place: str) -> Source:
    if isinstance(leaf, Ragged):
        inner = _array_source(leaf.values, f"{place}.values")
        return RunSource(inner, as_offsets(leaf.offsets, len(inner), f"from_arrays() at {place or 'the top'}"))
    # A leaf can only be of an optional library if that library is imported.
    if "h5py" in sys.modules:
        from penstock.sources import hdf5

        if hdf5.is_dataset(leaf):
            arrays.require_rows(leaf, leaf, place, is_text=hdf5.is_text(leaf))
            log_packed("from_arrays()", {f"{leaf.name} in {leaf.file.filename}": leaf.attrs})
            return hdf5.from_dataset(leaf)
    if "zarr" in sys.modules:
        from penstock.sources import zarr

        if zarr.is_array(leaf):
            arrays.require_rows(leaf, leaf, place, is_text=zarr.is_text(leaf))
            log_packed("from_arrays()", {f"{leaf.path} in {leaf.store}": zarr.attributes_of(leaf)})
            return zarr.ZarrSource(leaf)
    array = arrays.as_array(as_values(leaf, f"from_arrays() at {place or 'the top'}"), place)
    return files.from_memmap(array) or arrays.ArraySource(array)


def from_generator(
    fn: Any, *args: Any, element_spec: Tree = None, length: int | float | None = None, shards: int = 1
) -> Dataset:
    """Makes a stream of the elements of a generator, which starts again for each epoch.

    The generator runs in one place, beside your program. `map` after it runs on all workers, and keeps the order. So
    yield objects that are quick to get (indices, lines, paths, records), and leave the heavy part to `map`.

    Arguments are passed as they are: a memmap is not read, and an array is not copied. Elements are copied once, into
    the batch. They are trees of arrays, numbers and text, and may share one buffer.

    The generator is not passed the epoch, so it yields the same elements in each. `iter(ds)` of a dataset is epoch 0.
    `shuffle(window=)` after it has another order in each epoch. The global `np.random` and `random` are not seeded for
    it.

    Random access: none; a step that needs it reports that. Order: the generator's; with `shards`, one element of each
    in turn, for any number of workers. Memory: some batches of elements wait for the workers, counted in
    `loader.projected_nbytes`. Resuming starts the epoch again and skips the delivered elements: the generator runs for
    them, `map` does not.

    Args:
        fn: A generator function, or a function that returns an iterable (a file of lines, a database cursor); or an
            iterable that can be iterated again. With 2 `shards` or more, `fn(shard_index, shard_count, *args)`.
        args: Its arguments.
        element_spec: The spec of the elements, a tree of `ArraySpec`, with None for axes that differ. Without it the
            generator runs to its first element when the spec is first needed. An empty shard takes the spec of another.
        length: The number of elements of an epoch; `math.inf` for an endless one. Without it the length is unknown.
        shards: The number of generators that run at once, each in a worker process of its own, whose start takes
            about a second. If there are more of them than CPUs, `executor="auto"` takes threads. Generators that wait
            (for a disk, a server) are best run so: `loader(executor="threads")`.

    Raises:
        ArgumentTypeError: `fn` is an iterator, which cannot start again, or cannot be iterated.
        ArgumentError: `length` is negative, or `shards` is below 1 or above 4,096.
        ElementError: While reading: it raised an exception. The message has the number of the element.
        SpecError: While reading: an element differs from the first, or from the declared spec, or the number of
            elements differs from `length`.

    Example:
        >>> def count(start, stop):
        ...     yield from np.arange(start, stop)
        >>> [batch.tolist() for batch in penstock.from_generator(count, 3, 8).batch(2)]
        [[3, 4], [5, 6], [7]]
    """
    generators.require_again(fn)
    if length is not None and length != math.inf:
        length = integer("from_generator", "length", length, 0, most=None)
    where = caller()
    shards = integer("from_generator", "shards", shards, 1)
    if shards > MOST_WORKERS:
        raise ArgumentError(f"from_generator(shards={shards}): at most {MOST_WORKERS:,}, for each has a process.")
    if shards > 1 and not callable(fn):
        raise ArgumentTypeError(f"from_generator(shards={shards}) needs a function, got {type_of(fn)}.")
    arguments = [args] if shards == 1 else [(number, shards, *args) for number in builtins.range(shards)]
    nodes: list[Node] = [
        Generate(generators.GeneratorSource(fn, each, element_spec, arguments), "from_generator", where)
        for each in arguments
    ]
    node = nodes[0] if shards == 1 else Interleave(tuple(nodes), reads_ahead=True)
    return Dataset(node if length is None else Promised(node, length, where))


def from_tf(dataset: Any) -> Dataset:
    """Makes a stream of the elements of a `tf.data.Dataset`, which is iterated again for each epoch.

    An element is one of TensorFlow's: a batch, if the dataset is batched. TensorFlow gives shapes, dtypes and the
    length; `tf.string` is bytes. The dataset runs in this process. `map` after it runs on all workers, and keeps the
    order.

    Random access: none; a step that needs it reports that. Order: TensorFlow's. An epoch repeats, also when it is
    resumed by skipping, only if TensorFlow's order does. So shuffle with `shuffle(seed, window=)`, and not there.
    Memory: TensorFlow's, and some batches of elements that wait for the workers.

    Args:
        dataset: Its elements are tensors, or tuples, named tuples and dicts of tensors.

    Raises:
        ArgumentTypeError: It is no `tf.data.Dataset`.
        ArgumentError: It is part of a graph, such as that of a `tf.function`.
        SpecError: An element holds another object than a tensor with a known number of axes, such as a ragged one.
        ElementError: While reading: TensorFlow raised an exception. The message has the number of the element.
    """
    with needs("from_tf", "tensorflow"):
        from penstock.sources.tf import TfSource

    return Dataset(Generate(TfSource(dataset), "from_tf", caller()))


def from_ray(dataset: Any, *, element_spec: Tree = None) -> Dataset:
    """Makes a stream of the rows of a `ray.data.Dataset`, which is executed again for each epoch.

    An element is a row: a dict of arrays, numbers and text by column. The rows come to this process; `map` after it
    runs on worker processes here, and keeps the order.

    Random access: none. Order: Ray's, which is another one in each run unless `preserve_order` is set and nothing is
    shuffled. So a run cannot be resumed exactly: the rows that were delivered are counted and skipped, whichever come.
    Memory: Ray's, and some batches of elements that wait for the workers.

    Args:
        dataset: The dataset.
        element_spec: The spec of a row, a dict of `ArraySpec`, with None for axes that differ. Without it the dataset
            runs to its first row when the spec is first needed.

    Raises:
        ArgumentTypeError: It is no dataset of Ray.
        SpecError: While reading: a row differs from the first, or from the declared spec.
    """
    if not hasattr(dataset, "iter_rows"):
        raise ArgumentTypeError(f"from_ray() needs a ray.data.Dataset, got {type_of(dataset)}.")
    source = generators.GeneratorSource(dataset.iter_rows, (), element_spec)
    source.travels = False  # a worker process is not connected to the cluster
    return Dataset(Generate(source, "from_ray", caller()))


def from_source(source: Any, *, element_spec: Tree = None, files_in: str | os.PathLike[str] | None = None) -> Dataset:
    """Makes a dataset of any object with a length and elements by index.

    Args:
        source: A `penstock.Source`; an object with its members (`element_spec`, `__len__`, `read_into` or `decode`, and
            any other); a `datasets.Dataset` of Hugging Face, which is read from its Arrow files; or any object with
            `__len__` and `__getitem__`, such as a list or a map-style torch dataset, which several threads read at
            once. A list of dicts in an element becomes a dict of arrays, as from JSON Lines. A column or a table of
            pandas, Polars or Arrow is read by position; a row of a table is a dict.
        element_spec: For an object with `__getitem__`: the spec of its elements, a tree of `ArraySpec`, with None for
            axes that differ. Without it element 0 is read once, when the spec is first needed.
        files_in: For a dataset of Hugging Face whose images or sounds are files beside it: the folder that has them.
            None for the folders of its Arrow files.

    Raises:
        ArgumentTypeError: It has no length, or no elements by index, or the index is a key, as of a dict.
        ArgumentError: `element_spec` is given for a source, which has its own.

    Example:
        >>> penstock.from_source([10, 20, 30])[1]
        np.int64(20)
        >>> sentences = [np.array([7, 8, 9]), np.array([7])]
        >>> ragged = penstock.from_source(sentences, element_spec=penstock.ArraySpec((None,), "int64"))
        >>> ragged.padded_batch(2)[0]
        array([[7, 8, 9],
               [7, 0, 0]])
    """
    if isinstance(source, Source) and files_in is None:
        return _own_spec(source, element_spec)
    if not isinstance(source, Source) and (made := made_of(source, files_in=files_in)) is not None:
        return _own_spec(made, element_spec)
    if files_in is not None:
        raise ArgumentError("from_source(files_in=) is for datasets of Hugging Face whose rows name files.")
    try:
        len(source)
    except TypeError as error:
        fact = f"from_source() needs an object with a length, got {type_of(source)}"
        if hasattr(source, "__len__"):
            fact += f", whose len() fails: {error}"
        elif hasattr(source, "__iter__"):
            fact += ". An iterable is a stream: from_generator(fn, *args)"
        if hasattr(source, "tocsr"):
            fact += ". Rows of a sparse matrix: from_csr(matrix.tocsr())"
        raise ArgumentTypeError(f"{fact}.") from error
    if hasattr(source, "element_spec") and (hasattr(source, "read_into") or hasattr(source, "decode")):
        return _own_spec(SourceAdapter(source), element_spec)
    if not hasattr(source, "__getitem__"):
        raise ArgumentTypeError(f"from_source() needs an object with read_into() or [i], got {type_of(source)}.")
    items = by_position(source)
    # A mapping, or a table of a library with the interface of pandas or Arrow.
    is_table = hasattr(items, "columns") and (hasattr(items, "iloc") or hasattr(items, "__arrow_c_stream__"))
    if is_table or callable(getattr(items, "keys", None)):
        raise ArgumentTypeError(
            f"from_source() asks for source[0], source[1], ..., and {type_of(source)} takes the index for a name. "
            "Its values one after the other are list(source.values()). Its values side by side, columns, go to "
            "from_arrays({'x': source['x'], 'y': source['y']}). If its [i] is a position after all: "
            "penstock.range(len(source)).map(lambda i: source[int(i)])."
        )
    declared = None if element_spec is None else Spec.of(element_spec)
    return Dataset(SourceNode(arrays.SequenceSource(items, declared), "from_source"))


def _own_spec(source: Source, element_spec: Tree) -> Dataset:
    if element_spec is not None:
        raise ArgumentError(
            f"from_source(element_spec=...) is for objects with [i]; {source} has its own spec: "
            f"{source.element_spec}. Leave it out; cast() and map() make others."
        )
    return Dataset(SourceNode(source, "from_source"))


def range(n: int) -> Dataset:
    """Makes a dataset of the integers `0 ... n - 1`, int64 scalars.

    Random access: yes. Memory: none.

    Raises:
        ArgumentError: `n` is negative, or not below 2**62.

    Example:
        >>> penstock.range(3)[-1]
        np.int64(2)
    """
    count = as_int(n)
    if count is None:
        raise ArgumentTypeError(f"range({n!r:.80}): an integer is needed, not {type_of(n)}.")
    if not 0 <= count < POSITION_LIMIT:
        raise ArgumentError(f"range({count}): from 0 up to 2**62 - 1 elements are possible.")
    return Dataset(SourceNode(arrays.RangeSource(count), "range"))


def zip(tree: Tree) -> Dataset:
    """Puts datasets side by side: element `i` is the tree of their elements `i`.

    Random access, order: kept. Memory: none. An endless dataset takes the length of the others. With a dataset of
    unknown length the result has unknown length, and ends with the shortest.

    Batches of several sizes may stand side by side, as `(unlabelled.batch(56), labelled.batch(8))`. A rank then gets
    its share of each, with `on_error` an element that fails is replaced or left out in its own batch, and one worker
    fills a batch.

    Args:
        tree: A tree of datasets: `(x, y)`, `{"image": images, "label": labels}`.

    Raises:
        ArgumentTypeError: A leaf is not a dataset.
        ArgumentError: Known lengths differ; all are listed.

    Example:
        >>> frames = penstock.range(4)
        >>> penstock.zip((frames[:-1], frames[1:]))[0]
        (np.int64(0), np.int64(1))
    """
    leaves, structure = _tree.flatten(tree)
    if not leaves:
        raise ArgumentError("zip() got no datasets.")
    return side_by_side("zip", _nodes("zip", leaves), structure)


def concatenate(datasets: Iterable[Dataset]) -> Dataset:
    """Puts datasets end to end. Parts that are concatenations themselves become one step.

    Random access, order: kept. Memory: none.

    Args:
        datasets: Datasets with elements of the same spec; only the last may be endless.

    Raises:
        ArgumentTypeError: An item is no dataset.
        ArgumentError: There is no dataset, or one before the last is endless.
        SpecError: When the spec is first needed: they differ.

    Example:
        >>> [int(x) for x in penstock.concatenate([penstock.range(2), penstock.range(3)])]
        [0, 1, 0, 1, 2]
    """
    nodes = _nodes("concatenate", datasets)
    for number, node in enumerate(nodes[:-1]):
        if node.length == math.inf:
            raise ArgumentError(
                f"concatenate(): dataset {number} is endless, so the next one is never reached. Cut it with take(n)."
            )
    # One step, also for repeated `ds = concatenate([ds, more])`.
    parts = ((node.inputs if node.verb == "concatenate" else (node,)) for node in nodes)
    return Dataset(Concatenate(tuple(itertools.chain.from_iterable(parts))))


def interleave(datasets: Iterable[Dataset], *, cycle_length: int | None = None, block_length: int = 1) -> Dataset:
    """Takes one element of each dataset in turn, until all are exhausted. Skips datasets that ended.

    `interleave([ds, ds.random_map(distort)]).batch(256)` makes batches half as they are, half distorted. With
    `cycle_length` and `block_length`, many files are read a few at a time.

    Random access: kept; lost with a `cycle_length` or a `block_length`, because the place of an element then depends on
    all lengths. Order: kept within each dataset. Memory: none.

    Args:
        datasets: Datasets with elements of the same spec.
        cycle_length: The number of datasets at a time. The next replaces one that ended. None for all.
        block_length: The number of elements of each turn.

    Raises:
        ArgumentTypeError: An item is no dataset.
        ArgumentError: There is no dataset, or a number is below 1.
        SpecError: When the spec is first needed: they differ.

    Example:
        >>> [int(x) for x in penstock.interleave([penstock.range(2), penstock.range(4)])]
        [0, 0, 1, 1, 2, 3]
    """
    if cycle_length is not None:
        cycle_length = integer("interleave", "cycle_length", cycle_length, 1)
    block_length = integer("interleave", "block_length", block_length, 1)
    return Dataset(Interleave(tuple(_nodes("interleave", datasets)), cycle_length, block_length))


def mix(
    datasets: Iterable[Dataset],
    weights: "Iterable[float] | Mapping[int, Iterable[float]]",
    seed: int = 0,
    *,
    temperature: float = 1.0,
) -> Dataset:
    """Mixes datasets in given proportions, until the turn of an exhausted one.

    In each block of 1,024 elements the share of each dataset is exact (rounded by largest remainder). The seed
    determines their order, which is the same in every epoch. Use `repeat()` to make a dataset last longer. A dataset
    whose weight is too small for one element of a block never has its turn, and the log says so.

    Weights may change: `{0: [9, 1], 100_000: [1, 1]}` has other weights from element 100,000 of an epoch on. In batches
    of 32 that is step 3,125. The last block before a change is shorter, and its shares are exact too.

    Random access, order within each dataset: kept; element `i` is found by arithmetic. Memory: none.

    Args:
        datasets: Datasets with elements of the same spec.
        weights: A number above zero for each dataset; the sum is free. Or such lists by the element from which they
            hold, the first by 0; there a dataset may have weight 0, but not in all.
        seed: Any integer.
        temperature: Weights are raised to `1 / temperature`: above 1, small datasets come more often than their weights
            say, up to equal parts (Arivazhagan and others, "Massively Multilingual Neural Machine Translation in the
            Wild", 2019). The sizes of corpora are such weights.

    Raises:
        ArgumentTypeError: An item is no dataset, or weights are no list of numbers.
        ArgumentError: The numbers of weights and datasets differ, a weight or the temperature is not above zero;
            or weights by element do not begin with 0.
        SpecError: A dataset without elements has a turn; where that shows only while iterating, then. Or, when the spec
            is first needed: they differ.

    Example:
        >>> mixed = penstock.mix([penstock.range(900), penstock.range(900)], [3, 1])
        >>> sorted(int(x) for x in mixed.take(1024)) == sorted([*np.arange(768), *np.arange(256)])
        True
        >>> parts = [penstock.range(1).map(lambda _, k=k: k).repeat() for k in (0, 1)]
        >>> later = penstock.mix(parts, {0: [1, 0], 500: [1, 1]})
        >>> [sum(int(x) for x in later[a:b]) for a, b in ((0, 500), (500, 1524))]
        [0, 512]
    """
    nodes, seed = tuple(_nodes("mix", datasets)), integer("mix", "seed", seed)
    power = as_float(temperature)
    if power is None or not 0 < power < math.inf:
        raise ArgumentError(f"mix(temperature={temperature!r:.80}): it is a number above zero; 1 keeps the weights.")
    text = "" if power == 1 else f", temperature={power:g}"
    # A dict of numbers is refused, for it has no order.
    if not isinstance(weights, Mapping) or not all(isinstance(each, Iterable) for each in weights.values()):
        shares = _shares(weights, nodes)
        return _mixed(Mix(nodes, ((0, _tempered(shares, power)),), seed, f"{list(shares)}{text}"))
    stages: dict[int, tuple[float, ...]] = {}
    for start, each in weights.items():
        stages[integer("mix", "weights", start)] = _shares(each, nodes, least=0)
    if 0 not in stages:
        raise ArgumentError(
            f"mix(weights={{...}}): lists of weights are by the element from which they hold, and element 0 has none; "
            f"there are {sorted(stages)!r:.80}."
        )
    if unused := [
        number for number, column in enumerate(builtins.zip(*stages.values(), strict=True)) if not any(column)
    ]:
        raise ArgumentError(f"mix(weights={{...}}): dataset {unused[0]} has weight 0 in all of them. Leave it out.")
    ordered = sorted(stages.items())
    shown = f"{', '.join(f'{start}: {list(each)}' for start, each in ordered[:9])}{', ...' * (len(ordered) > 9)}"
    tempered = tuple((start, _tempered(each, power)) for start, each in ordered)
    return _mixed(Mix(nodes, tempered, seed, f"{{{shown}}}{text}"))


def _mixed(mix: Mix) -> Dataset:
    mix.length  # noqa: B018  # refuses a dataset without elements
    caution_absent(mix)
    return Dataset(mix)


def _tempered(shares: tuple[float, ...], temperature: float) -> tuple[float, ...]:
    return shares if temperature == 1 else tuple((each / max(shares)) ** (1 / temperature) for each in shares)


def _shares(weights: Any, nodes: tuple[Node, ...], least: float | None = None) -> tuple[float, ...]:
    """The weights of a mix, checked: above zero, or from `least` on and not all zero."""
    require_order("mix(weights=)", weights, "Give a list: one number for each dataset, in their order.")
    items = items_of(weights)
    if items is None:
        raise ArgumentTypeError(
            f"mix(weights={weights!r:.80}): a list of numbers is needed, one for each of the {len(nodes)} datasets; "
            f"for equal parts, {[1] * len(nodes)!r:.80}."
        )
    shares = tuple(map(_plain, items))
    if len(shares) != len(nodes):
        raise ArgumentError(f"mix() got {len(nodes)} datasets and {len(shares)} weights.")
    for share in shares:
        is_number = isinstance(share, (int, float)) and not isinstance(share, bool)
        if not is_number or not (0 < share < MOST_WEIGHT or share == least):
            fault = "too large" if isinstance(share, (int, float)) and share > 0 else "not a number above zero"
            raise ArgumentError(f"mix(weights={list(shares)!r:.200}): {share!r:.80} is {fault}.")
    if not any(shares):
        raise ArgumentError(f"mix(weights={list(shares)!r:.200}): one of them is above zero.")
    return shares


def _plain(number: Any) -> Any:
    """Converts a NumPy number to a Python number."""
    return number.item() if isinstance(number, (np.generic, np.ndarray)) and number.shape == () else number


def _nodes(verb: str, datasets: Iterable[Any]) -> list[Node]:
    require_order(f"{verb}()", datasets, "Give the datasets in a list.")
    given = None if isinstance(datasets, Dataset) else items_of(datasets)
    if given is None:
        what = "one dataset" if isinstance(datasets, Dataset) else type_of(datasets)
        raise ArgumentTypeError(f"{verb}() needs several datasets in a list or tuple, got {what}.")
    if not given:
        raise ArgumentError(f"{verb}() got no datasets.")
    for each in given:
        if not isinstance(each, Dataset):
            cure = "Make one of it first: from_arrays(...)."
            if verb == "zip" and isinstance(each, list):
                cure = "A list is a leaf here, as everywhere in an element; write a tuple: zip((x, y))."
            raise ArgumentTypeError(f"{verb}() needs datasets, got {type_of(each)}. {cure}")
    return [each._node for each in given]


def side_by_side(verb: str, nodes: Sequence[Node], structure: _tree.Structure) -> Dataset:
    """Makes a dataset of trees, of one node for each leaf.

    Raises:
        ArgumentError: There are none, or lengths differ; all are listed.
    """
    if not nodes:
        raise ArgumentError(f"{verb}() got an empty tree, so there are no elements.")
    lengths = [node.length for node in nodes]
    if len({length for length in lengths if length not in (None, math.inf)}) > 1:
        pairs = _pairs([length_text(length) for length in lengths], structure)
        listed = ", ".join(f"{place or 'the whole'}: {length}" for length, place in pairs)
        repeated = ", or repeat() the shorter" if verb == "zip" else ""
        raise ArgumentError(
            f"{verb}() puts elements side by side, so lengths must be equal, but they are {listed}. Cut them to one "
            f"length with take(n) or a slice{repeated}."
        )
    if structure.is_leaf():
        return Dataset(nodes[0])
    return Dataset(Zip(tuple(nodes), structure))


def _pairs(leaves: list[Any], structure: _tree.Structure) -> list[tuple[Any, str]]:
    places = _tree.paths(structure)
    return [(leaf, places[number]) for number, leaf in enumerate(leaves)]
