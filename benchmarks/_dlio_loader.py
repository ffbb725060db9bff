"""A loader for DLIO: the samples of its own readers, read by penstock.

DLIO's readers read a sample, and hand out an image of fixed size in its place. So does this one.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from _harness import Array
from dlio_benchmark.common.enumerations import DatasetType, FormatType  # type: ignore[import-not-found, unused-ignore]
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader  # type: ignore[import-not-found, unused-ignore]

import penstock as ps


class PenstockLoader(BaseDataLoader):  # type: ignore[misc, unused-ignore]
    """What `reader.data_loader_classname` names. DLIO makes one for training and one for evaluation."""

    def __init__(self, format_type: Any, dataset_type: Any, epoch: int) -> None:
        super().__init__(format_type, dataset_type, epoch, "penstock")
        self._loader: ps.Loader | None = None

    def read(self) -> None:
        args = self._args
        if self._loader is not None or self.dataset_type is not DatasetType.TRAIN:
            return
        samples = _records(args) if self.format_type == FormatType.TFRECORD else _npz(args)
        self._loader = samples.batch(self.batch_size, drop_remainder=True).loader(workers=2)

    def next(self) -> Iterator[Array]:
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


def _records(args: Any) -> ps.Dataset:
    image, paths = args.resized_image, [path for path in args.file_list_train if path.endswith(".tfrecord")]
    records = ps.from_tfrecord(paths, features={"image": ps.ArraySpec((None,), "uint8")})
    return records.shuffle(seed=args.seed).map(lambda _: image)
