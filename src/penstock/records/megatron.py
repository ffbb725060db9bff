"""Megatron-LM's corpora: `corpus.bin` has the tokens of sequences, one after the other, and `corpus.idx` their places.

An index has, in little-endian numbers: a mark, the version (8 bytes), a code of the dtype (1), the numbers of sequences
and of documents (8 each); the tokens of each sequence (int32), its first byte (int64), the first sequence of each
document (int64), and sometimes a mode for each sequence (int8). Documents and modes are not used.
"""

import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from penstock.base._errors import SourceError
from penstock.base._spec import ArraySpec
from penstock.dataset import Dataset
from penstock.files import _openfile
from penstock.files._diskcache import DiskCache
from penstock.files._kept import Arrays
from penstock.files._openfile import File, for_each
from penstock.files._recordindex import RecordFiles, RecordFilesReader
from penstock.plan._source import Read
from penstock.plan._source_node import SourceNode

_HEAD_FORM: Final = struct.Struct("<9sQBQQ")
_MARK: Final = b"MMIDIDX\0\0"
_DTYPES: Final = dict(enumerate(("u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"), start=1))
_SEQUENCE_NBYTES: Final = 12

Path = str | os.PathLike[str]


def from_megatron(
    paths: Path | Iterable[Path], *, storage_options: dict[str, Any] | None = None, cache: DiskCache | None = None
) -> Dataset:
    """Makes a dataset of the sequences of Megatron-LM's corpora, one file after the other. Megatron is not needed.

    An element is the tokens of a sequence, which usually is a document: shape `(None,)`, with the dtype of the corpus.
    `windows`, `pack` and `batch(max_tokens=)` make rows of one length of them.

    The call reads the first 34 bytes of each index. All of an index is read when the length is first needed.

    Random access: yes. Order: that of the given paths; the files of a pattern by name.
    Memory: 8 bytes a sequence in each process; 2 MiB and the longest sequence for each worker.

    Args:
        paths: The path of a corpus (`"corpus.bin"`, beside which there is `corpus.idx`; or `"corpus"` alone), a pattern
            (`"part-*.bin"`), a URL, or a list of these.
        storage_options: See `from_tar`.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.

    Raises:
        SourceError: A file is missing, is no such index, or differs from its index in size; or corpora have tokens of
            several dtypes. The message has the file.

    Example:
        >>> head = struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, 2, 3)  # two sequences of uint16, and two documents
        >>> places = np.array([3, 2], "<i4").tobytes() + np.array([0, 6, 0, 1, 2], "<i8").tobytes()
        >>> with open("corpus.idx", "wb") as file: _ = file.write(head + places)
        >>> np.array([5, 6, 7, 8, 9], "<u2").tofile("corpus.bin")
        >>> penstock.from_megatron("corpus")[1]
        array([8, 9], dtype=uint16)
    """
    asked = [_ending(each, ".bin") for each in _openfile.asked("from_megatron", paths)]
    files = _openfile.find("from_megatron", asked, storage_options, cache)
    indexes = _openfile.find("from_megatron", [_ending(file.url, ".idx") for file in files], storage_options)
    dtypes = [dtype for dtype, _ in for_each(indexes, _head)]
    for file, dtype in zip(indexes, dtypes, strict=True):
        if dtype != dtypes[0]:
            raise SourceError(
                f"{file.url} has tokens of {dtype}, and {indexes[0].url} of {dtypes[0]}. Make a dataset of each, "
                "cast() one, and concatenate([...]) them."
            )
    return Dataset(SourceNode(MegatronSource(files, indexes, dtypes[0]), "from_megatron"))


def _ending(path: str, ending: str) -> str:
    """Returns the path of a file of a corpus."""
    return path.removesuffix(".bin").removesuffix(".idx") + ending


def _head(index: File) -> tuple[np.dtype[Any], int]:
    """Reads the head of an index: the dtype of tokens, and the number of sequences.

    Raises:
        SourceError: It is no index, or of another version.
    """
    head = index.head(_HEAD_FORM.size)
    mark, version, code, sequence_count, _ = _HEAD_FORM.unpack(head.ljust(_HEAD_FORM.size, b"\0"))
    if mark != _MARK or version != 1 or code not in _DTYPES:
        raise SourceError(
            f"{index.url} is no index of Megatron, or damaged: it begins with {head[:18]!r}, where there is {_MARK!r}, "
            "the version 1, and a dtype from 1 to 8. Write the corpus again with preprocess_data.py."
        )
    return np.dtype(_DTYPES[code]), sequence_count


@final
@dataclass(frozen=True)
class MegatronSource(RecordFiles):
    """The sequences of corpora, one file after the other."""

    files: tuple[File, ...]
    """Those of tokens."""
    indexes: tuple[File, ...]
    dtype: np.dtype[Any]

    compression = None
    cache_dir = None
    index_kind = ""

    @property
    def element_spec(self) -> ArraySpec:
        return ArraySpec((None,), self.dtype)

    def find_records(self, content: File) -> Arrays:
        """Reads an index. The bytes of its sequences follow one another, and are all of the file.

        Raises:
            SourceError: They do not.
        """
        index = self.indexes[self.files.index(content)]
        dtype, count = _head(index)
        data = index.head(_HEAD_FORM.size + _SEQUENCE_NBYTES * count)[_HEAD_FORM.size :]
        is_whole = len(data) == _SEQUENCE_NBYTES * count
        lengths, offsets = np.split(np.frombuffer(data if is_whole else b"", "<i4"), [count])
        found = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64) * dtype.itemsize])
        is_rising = bool((lengths >= 0).all() and (found[:-1] == offsets.view("<i8")).all())
        if not is_whole or not is_rising or found[-1] != content.nbytes:
            raise SourceError(
                f"{index.url} does not describe {content.url}: its {count:,} sequences do not lie one after the other "
                f"up to byte {content.nbytes:,}. One is cut off, damaged or of another corpus: write both again."
            )
        return {"offsets": found}

    def open(self) -> "OpenMegatronSource":
        return OpenMegatronSource(self)


@final
class OpenMegatronSource(RecordFilesReader):
    """Reads sequences."""

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests. Sequences that are neighbours in a file are one read."""
        for read, row, _, record in self.records(reads):
            read.arrays[0][row] = record.copy().view(self._source.dtype)
