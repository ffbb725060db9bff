"""A loader for DLIO: the samples of its workloads, read by penstock; and DLIO's own reader of Parquet that decodes.

DLIO's readers of files with one sample hand out an image of fixed size in its place. So does this one. Batches of
Parquet are the decoded columns.
"""

import io
import logging
import os
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from _harness import Array
from dlio_benchmark.common.enumerations import DatasetType, FormatType  # type: ignore[import-not-found, unused-ignore]
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader  # type: ignore[import-not-found, unused-ignore]
from dlio_benchmark.reader import reader_factory  # type: ignore[import-not-found, unused-ignore]
from dlio_benchmark.reader.parquet_reader import ParquetReader  # type: ignore[import-not-found, unused-ignore]

import penstock as ps

# A static method of DLIO 3.0.2 logs by `self` where a reader is named, which is a NameError without this.
reader_factory.self = SimpleNamespace(logger=logging.getLogger("dlio"))


_TABLE_OPTIONS: dict[int, dict[str, Any]] = {
    5: {"memory_limit": 100 << 20},
    200: {"memory_limit": 190 << 20, "executor": "processes"},
}
"""By the number of columns. The limits leave room for two decodings at once, and next to none for row groups of the
epoch before, as in data that are large. Of the 40 columns of dlrm, 25 kB each in a row group, Python's work is half, so
worker processes are faster than threads: 98 % of the rate in place of 85."""

READ_NPZ_BY = "PENSTOCK_DLIO_NPZ"
"""The variable of the environment that says by what `.npz` are read: `numpy` or `isal`."""


class DecodingReader(ParquetReader):  # type: ignore[misc, unused-ignore]
    """DLIO's `ParquetReader`, as its data loader calls it today: `open` returns three things.

    It has a name in this module so that the line above runs in DLIO's workers too.
    """

    def open(self, filename: str) -> Any:
        opened = super().open(filename)
        return opened[0], None, opened[1]

    def get_sample(self, filename: str, sample_index: int) -> None:
        file, _, offsets = self.open_file_map[filename]
        self.open_file_map[filename] = (file, offsets)
        super().get_sample(filename, sample_index)
        self.open_file_map[filename] = (file, None, offsets)


class PenstockLoader(BaseDataLoader):  # type: ignore[misc, unused-ignore]
    """What `reader.data_loader_classname` names. DLIO makes one for training and one for evaluation."""

    def __init__(self, format_type: Any, dataset_type: Any, epoch: int) -> None:
        super().__init__(format_type, dataset_type, epoch, "penstock")
        self._loader: ps.Loader | None = None

    def read(self) -> None:
        args = self._args
        if self._loader is not None or self.dataset_type is not DatasetType.TRAIN:
            return
        npz = _npz if os.environ.get(READ_NPZ_BY, "numpy") == "numpy" else _stored_npz
        make = {FormatType.NPZ: npz, FormatType.JPEG: _files, FormatType.PARQUET: _rows}[self.format_type]
        samples = make(args).batch(self.batch_size, drop_remainder=True)
        options = _TABLE_OPTIONS[len(args.parquet_columns)] if self.format_type == FormatType.PARQUET else {}
        self._loader = samples.loader(workers=2, **options)

    def next(self) -> Iterator[Any]:
        assert self._loader is not None
        yield from self._loader

    def finalize(self) -> None:
        pass


def _npz(args: Any) -> ps.Dataset:
    image = args.resized_image

    def read(path: Any) -> Array:
        np.load(str(path))["x"]
        return image  # type: ignore[no-any-return]

    return ps.from_source(args.file_list_train).shuffle(seed=args.seed).map(read)


def _stored_npz(args: Any) -> ps.Dataset:
    """Reads a member that is not compressed into memory of its thread, and checks it, as `np.load` does in many pieces.

    ISA-L computes the CRC-32 at about 50 GB/s, zlib at 4.
    """
    from isal import isal_zlib  # type: ignore[import-not-found, unused-ignore]

    image, own = args.resized_image, threading.local()

    def read(path: Any) -> Array:
        with open(str(path), "rb", buffering=0) as file:
            member = zipfile.ZipFile(file).getinfo("x.npy")
            assert member.compress_type == zipfile.ZIP_STORED
            file.seek(member.header_offset + 26)  # the lengths of a name and of an extra field, which follow
            lengths = np.frombuffer(file.read(4), "<u2")
            file.seek(int(lengths.sum()), os.SEEK_CUR)
            if len(getattr(own, "memory", b"")) < member.file_size:
                own.memory = np.empty(member.file_size, np.uint8)
            data = own.memory[: member.file_size]
            if file.readinto(data) != len(data) or isal_zlib.crc32(data) != member.CRC:
                raise ValueError(f"{path} is damaged.")
        header = io.BytesIO(data[:1024].tobytes())
        assert np.lib.format.read_magic(header) == (1, 0)
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(header)
        data[header.tell() :].view(dtype).reshape(shape, order="F" if is_fortran else "C")
        return image  # type: ignore[no-any-return]

    return ps.from_source(args.file_list_train).shuffle(seed=args.seed).map(read)


def _files(args: Any) -> ps.Dataset:
    image = args.resized_image

    def read(path: Any) -> Array:
        Path(str(path)).read_bytes()
        return image  # type: ignore[no-any-return]

    return ps.from_source(args.file_list_train).shuffle(seed=args.seed).map(read)


def _rows(args: Any) -> ps.Dataset:
    """The rows of files in a random order."""
    paths = np.random.default_rng(args.seed).permutation(args.file_list_train).tolist()
    names = [column["name"] for column in args.parquet_columns if not column["name"].startswith("other")]
    return ps.from_parquet(paths, columns=names)
