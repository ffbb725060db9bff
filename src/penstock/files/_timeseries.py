"""Windows of a time series, with the signature of Keras."""

import os
from typing import Any

import numpy as np

from penstock.base._errors import ArgumentError
from penstock.base._positions import is_table
from penstock.dataset import Dataset
from penstock.files._npy import from_npy
from penstock.functions._constructors import from_arrays, zip as zip_datasets
from penstock.verbs._asked import integer


def timeseries_dataset_from_array(
    data: Any,
    targets: Any,
    sequence_length: int,
    sequence_stride: int = 1,
    sampling_rate: int = 1,
    batch_size: int | None = 128,
    shuffle: bool = False,
    seed: int | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
) -> Dataset:
    """Makes a dataset of sliding windows over a time series: Keras's function of this name, also for data on disk.

    An element is a batch `(windows, targets)`, windows `(batch_size, sequence_length, *row)`. If `targets` is None, it
    is a batch of windows. With `batch_size=None` it is one window. Window `i` is the rows `start_index +
    i * sequence_stride + k * sampling_rate` of the data. Its target is row `start_index + i * sequence_stride` of the
    targets. Dtypes do not change. The same as `from_arrays(data)[start:end].windows(...)`.

    Random access: yes. Order: with `shuffle`, by `ds.shuffle(seed)`, new in each epoch; else that of time.
    Memory: none: rows are read in place.

    Args:
        data: An argument of `from_arrays` (an array, a memmap, an HDF5 dataset, a Zarr array), the path of a `.npy`
            file, or a dataset.
        targets: The same, or None.
        sequence_length: Rows in a window.
        sequence_stride: The distance between the starts of two windows.
        sampling_rate: The distance between two rows of a window.
        batch_size: Windows in a batch, or None.
        shuffle: Whether windows come in random order.
        seed: Any integer; None is 0: the same order in every run. Keras draws a seed.
        start_index: The first row to use.
        end_index: The row after the last to use, below the length of the data.

    Raises:
        ArgumentError: A number is out of range, no window fits, or there are too few targets.
        ArgumentTypeError: The data have no rows.

    Example:
        >>> hours = np.arange(10.0)
        >>> ds = penstock.timeseries_dataset_from_array(hours, hours[3:], sequence_length=3, batch_size=2)
        >>> [(window.tolist(), target.tolist()) for window, target in ds][0]
        ([[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]], [3.0, 4.0])
    """
    verb = "timeseries_dataset_from_array"
    length = integer(verb, "sequence_length", sequence_length, least=1)
    shift = integer(verb, "sequence_stride", sequence_stride, least=1)
    rate = integer(verb, "sampling_rate", sampling_rate, least=1)
    rows = _rows(data)
    for name, value in (("sequence_stride", shift), ("sampling_rate", rate)):
        if value >= len(rows):
            raise ArgumentError(f"{verb}({name}={value}): it must be below the {len(rows):,} rows of the data.")
    first = integer(verb, "start_index", 0 if start_index is None else start_index, least=0)
    last = len(rows)
    if end_index is not None:
        last = integer(verb, "end_index", end_index, least=1)
    if first >= len(rows) or (end_index is not None and not first < last < len(rows)):
        raise ArgumentError(
            f"{verb}(start_index={start_index}, end_index={end_index}): the first is below the second, and both are "
            f"below the {len(rows):,} rows of the data."
        )
    windows = rows[first:last].windows(length, shift=shift, stride=rate)
    if targets is not None:
        # As in Keras, no more windows than targets, for any `start_index`.
        goals = _rows(targets)
        windows = windows.take(min(len(windows), -(-len(goals) // shift)))
        ahead = goals[first:last][::shift]
        if len(ahead) < len(windows):
            raise ArgumentError(
                f"{verb}() has {len(windows):,} windows from row {first:,} on, but targets for {len(ahead):,} of them. "
                "Target i is that of the window that starts at row i: give as many as windows, or a lower end_index."
            )
        windows = zip_datasets((windows, ahead.take(len(windows))))
    if not len(windows):
        span = (length - 1) * rate + 1
        raise ArgumentError(
            f"{verb}(): a window spans {span:,} rows, but there are {last - first:,} of them"
            f"{'' if targets is None else f' and {len(_rows(targets)):,} targets'}."
        )
    if shuffle:
        windows = windows.shuffle(seed=integer(verb, "seed", 0 if seed is None else seed))
    return windows if batch_size is None else windows.batch(integer(verb, "batch_size", batch_size, least=1))


def _rows(data: Any) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if isinstance(data, (str, os.PathLike)):
        return from_npy(data)
    # A tuple would be a tree of arrays, and a table one of its columns.
    return from_arrays(np.asarray(data) if isinstance(data, (tuple, list)) or is_table(data) else data)
