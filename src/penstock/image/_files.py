"""Image files as a source: read, decoded and resized straight into the batch, with or without labels.

Threads. Any number of threads may use an open source. Each has its own memory for the bytes of a file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from penstock.base._errors import SourceError
from penstock.base._tree import Tree
from penstock.files._listing import FileList
from penstock.files._store import StorageOptions
from penstock.files._wholefiles import Labels, Objects, OpenWholeFiles, WholeFiles
from penstock.image._codecs import ImageError
from penstock.image._decode import Decoding
from penstock.plan._source import Read


@final
@dataclass(frozen=True, eq=False)
class ImageSource(WholeFiles):
    """The images of files, with labels if there are any. Reads a file when its element is requested."""

    is_cpu_bound = True

    files: FileList
    decoding: Decoding
    labels: Labels | None = None
    classes: tuple[str, ...] | None = None
    options: StorageOptions | None = None
    """Those of the client of remote files."""
    objects: Objects | None = None
    """The states of remote files, if a listing told them."""

    def fingerprint_parts(self) -> dict[str, Any]:
        return {**super().fingerprint_parts(), "the decoding": self.decoding}

    @property
    def element_spec(self) -> Tree:
        image = self.decoding.element_spec
        return image if self.labels is None else (image, self.labels.element_spec)

    def open(self) -> "OpenImageSource":
        return OpenImageSource(self)


@final
class OpenImageSource(OpenWholeFiles):
    """Reads image files; each is open only during its read.

    Memory: for each thread that reads, the largest file (of remote files the largest `_FETCHED_COUNT`), and what its
    decoding takes.
    """

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests, one file after the other.

        Raises:
            SourceError: A file is missing, unreadable, or no image that can be decoded. The message names it.
        """
        decoding, labels = self._source.decoding, self._source.labels
        for read in reads:
            images = read.arrays[0]
            rows = np.arange(len(images))[read.rows]
            if labels is not None:
                labels.read_into(read.indices, read.arrays[1], rows)
            contents = self.contents(read.indices)
            for row, index, data in zip(rows.tolist(), read.indices.tolist(), contents, strict=True):
                try:
                    if decoding.size is None:
                        images[row] = decoding(data)
                    else:
                        decoding.into(data, images[row])
                except ImageError as error:
                    # Without the cause, which says the same without the file and would be printed last.
                    raise SourceError(f"{self._named(index)}: {error}") from None
