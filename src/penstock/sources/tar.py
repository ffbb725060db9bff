"""Tar files of samples, WebDataset's form, as a source of random access.

A sample is the members that follow one another with one key: the path up to the first dot of its last part. What comes
after that dot is the name of a field. Where the members are is found once, from their headers, and kept (see
`_recordindex`): 16 bytes a member and its key.
"""

import os
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, type_of
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.memory._rows import Indices
from penstock.plan._source import Read
from penstock.sources import _recordindex
from penstock.sources._openfile import File, FilesSource, OpenFiles, for_each, placed

Integers = npt.NDArray[np.int64]

KEY: Final = "__key__"
"""The field that holds a sample's key, as in WebDataset."""
_MEMBER: Final = re.compile(r"((?:.*/)?[^./][^/.]*)\.([^/]+)", re.DOTALL)
_BLOCK_NBYTES: Final = 512
_PIECE_NBYTES: Final = 1 << 20
_COMPRESSED: Final = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}


class _Shard(NamedTuple):
    """Where the samples of one file are."""

    keys: npt.NDArray[np.uint8]
    """The keys in UTF-8, one after the other."""
    key_ends: Integers
    """Where each ends, shape `(samples,)`."""
    fields: list[str]
    """The fields that any sample has."""
    offsets: Integers
    """The byte at which each member's content starts, shape `(samples, fields)`; -1 where there is none."""
    sizes: Integers
    """Its bytes."""

    def key(self, sample: int) -> str:
        """The key of a sample."""
        start = int(self.key_ends[sample - 1]) if sample else 0
        return self.keys[start : self.key_ends[sample]].tobytes().decode(errors="surrogateescape")


class _Index(NamedTuple):
    shards: list[_Shard]
    bounds: Integers
    """The first sample of each file and the number of all, shape `(files + 1,)`."""


@final
@dataclass(frozen=True)
class TarSource(FilesSource):
    """Samples of tar files, one file after the other. The index is looked up or made when it is first needed."""

    files: tuple[File, ...]
    given: tuple[str, ...] | None
    """The fields that are wanted; None for those of the first sample."""
    cache_dir: str | None

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The fields of an element."""
        return self.given if self.given is not None else tuple(_first_fields(self.files))

    @cached_property
    def element_spec(self) -> Tree:
        """A dict of the fields, and the key."""
        content = ArraySpec((None,), np.dtype(np.uint8))
        return {KEY: ArraySpec((), np.dtype("U")), **dict.fromkeys(self.fields, content)}

    @cached_property
    def index(self) -> _Index:
        """Where the samples are."""
        shards = for_each(self.files, self._shard)
        counts = [len(shard.key_ends) for shard in shards]
        return _Index(shards, np.concatenate(([0], np.cumsum(counts))).astype(np.int64))

    def _shard(self, file: File) -> _Shard:
        arrays = _recordindex.kept(file, "tar", self.cache_dir, lambda: _indexed(file))
        fields = arrays["fields"].tolist()
        return _Shard(arrays["keys"], arrays["key_ends"], fields, arrays["offsets"], arrays["sizes"])

    def __len__(self) -> int:
        return int(self.index.bounds[-1])

    def __getstate__(self) -> dict[str, Any]:
        # Where it arrives the index is looked up again: it is a file, and may be large.
        return {name: value for name, value in self.__dict__.items() if name != "index"}

    def describe(self, index: int) -> str:
        """The file, and the sample's key and number."""
        number, sample = placed(self.index.bounds, index)
        return f"{self.files[number].name} sample {sample} ({self.index.shards[number].key(sample)!r})"

    def open(self) -> "OpenTarSource":
        """The form that reads; files are opened when they are first read."""
        return OpenTarSource(self)


@final
class OpenTarSource:
    """A `TarSource` that reads."""

    def __init__(self, source: TarSource) -> None:
        self._source = source
        self._index = source.index
        self._files = OpenFiles(source.files)
        self._columns = [
            np.array([shard.fields.index(field) if field in shard.fields else -1 for field in source.fields], np.int64)
            for shard in self._index.shards
        ]

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests at once: members that are neighbours in a file come in one call.

        Raises:
            SourceError: A sample lacks a field, or the file was changed or its device fails.
        """
        for read in reads:
            if not len(read.indices):
                continue
            rows = np.arange(len(read.arrays[0]))[read.rows]
            keys, *contents = read.arrays
            for row, index in zip(rows.tolist(), read.indices.tolist(), strict=True):
                number, sample = placed(self._index.bounds, index)
                keys[row] = self._index.shards[number].key(sample)
            if not contents:
                continue
            numbers, offsets, sizes = self._ranges(read.indices)
            for members, data, starts in self._files.chunks(numbers, offsets, sizes):
                places = zip(members.tolist(), starts.tolist(), strict=True)
                for member, start in places:
                    element, field = divmod(member, len(contents))
                    contents[field][rows[element]] = data[start : start + int(sizes[member])].copy()

    def _ranges(self, indices: Indices) -> tuple[Integers, Integers, Integers]:
        """File, first byte and bytes of each field of each sample, shape `(samples * fields,)`."""
        width = len(self._source.fields)
        numbers = np.searchsorted(self._index.bounds, indices, "right") - 1
        offsets, sizes = np.empty((2, len(indices), width), np.int64)
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == number)
            samples = (indices[mine] - self._index.bounds[number])[:, None]
            shard, columns = self._index.shards[number], self._columns[number]
            offsets[mine] = np.where(columns < 0, -1, shard.offsets[samples, columns])
            sizes[mine] = shard.sizes[samples, columns]
        if bool((offsets < 0).any()):
            row, field = np.argwhere(offsets < 0)[0].tolist()
            number, sample = placed(self._index.bounds, int(indices[row]))
            shard = self._index.shards[number]
            found = [name for name, at in zip(shard.fields, shard.offsets[sample].tolist(), strict=True) if at >= 0]
            raise SourceError(
                f"{self._source.describe(int(indices[row]))} has no {self._source.fields[field]!r}; it has {found}. "
                "Every sample needs all fields: name those that all have with fields=[...], or write the file again."
            )
        return np.repeat(numbers, width), offsets.ravel(), sizes.ravel()

    def advise(self, indices: Indices) -> None:
        """Has the kernel fetch the members, unless they are in memory already."""
        if len(self._source.fields):
            try:
                ranges = self._ranges(indices)
            except SourceError:
                return  # which is said when it is read
            self._files.advise(*ranges)

    def close(self) -> None:
        """Closes the files."""
        self._files.close()


def source(files: tuple[File, ...], fields: Any, cache_dir: str | os.PathLike[str] | None) -> TarSource:
    """Makes a source of what a user asked for; see `penstock.from_tar`."""
    if fields is not None:
        if isinstance(fields, str) or not isinstance(fields, Sequence):
            raise ArgumentTypeError(f"from_tar(fields=) is a list of names such as 'jpg', got {type_of(fields)}.")
        if KEY in fields or len(set(fields)) < len(fields):
            raise ArgumentError(f"from_tar(fields={list(fields)}): each once, and {KEY} comes of itself.")
        fields = tuple(fields)
    return TarSource(files, fields, None if cache_dir is None else os.path.abspath(cache_dir))


class _Members:
    """The samples' members in a tar file, in order: `(key, field, offset, bytes)`, with what can be wrong told."""

    def __init__(self, file: File) -> None:
        self._file = file
        head = file.head(2)
        if head in _COMPRESSED:
            raise SourceError(
                f"{file.url} is compressed ({_COMPRESSED[head]}), and there is no random access within it. Decompress "
                "it once; images and sound are compressed anyway."
            )

    def __iter__(self) -> Any:
        file = self._file
        tell = _recordindex.progress(f"Looking for the members of {file.url}", file.nbytes)
        with file.stream(buffer_nbytes=16 << 10) as stream:
            try:
                with tarfile.open(fileobj=stream, mode="r:") as tar:
                    while (member := tar.next()) is not None:
                        tar.members = []  # type: ignore[attr-defined]  # or it would keep them all, 1 kB each
                        tell(member.offset)
                        found = _MEMBER.fullmatch(member.name)
                        if found and (member.islnk() or member.issym() or member.issparse()):
                            link = f"a {'hard' if member.islnk() else 'symbolic'} link to {member.linkname!r}"
                            raise SourceError(
                                f"{file.url} has a member {member.name!r} that is "
                                f"{'sparse' if member.issparse() else link}, so its content is not there in one piece. "
                                "Write the file again: tar --dereference --hard-dereference, and without --sparse."
                            )
                        if found and member.isreg():
                            yield found[1], found[2].lower(), member.offset_data, member.size
                    at = tar.offset
                    stream.seek(at)
                    end = stream.read(_BLOCK_NBYTES)
                    more_at = _after_zeros(stream) if not end.strip(b"\0") else None
            except tarfile.TarError as error:
                raise SourceError(f"{file.url} is damaged or cut off, or no tar file: {error}.") from error
        # At a header that is damaged tarfile stops as if the file ended there.
        if 0 < len(end) < _BLOCK_NBYTES:
            raise SourceError(f"{file.url} is cut off in the middle of a header, at byte {file.nbytes:,}.")
        if end.strip(b"\0"):
            raise SourceError(
                f"{file.url} is damaged: at byte {at:,} of {file.nbytes:,} there is no header of a member."
            )
        if more_at is not None:
            raise SourceError(
                f"{file.url} ends at byte {at:,} as a tar file does, and something follows at byte {more_at:,} of "
                f"{file.nbytes:,}, which would be left out. Several tar files were put together to one: give them as "
                "they were, in a list, or join them with tar --concatenate."
            )


def _after_zeros(stream: Any) -> int | None:
    """Where a stream holds something else than zeros from here on; None if nowhere."""
    while piece := stream.read(_PIECE_NBYTES):
        if piece.strip(b"\0"):
            return int(stream.tell()) - len(piece.lstrip(b"\0"))
    return None


def _first_fields(files: Sequence[File]) -> list[str]:
    for file in files:
        first, fields = None, []
        for key, field, _, _ in _Members(file):
            if key != (first := key if first is None else first):
                break
            fields.append(field)
        if fields:
            return fields
    raise SourceError(f"There are no samples in {files[0].url}{' and the others' * (len(files) > 1)}.")


def _indexed(file: File) -> _recordindex.Arrays:
    keys: list[str] = []
    fields: dict[str, int] = {}
    places: list[tuple[int, int, int, int]] = []
    seen: set[str] = set()
    for key, field, offset, size in _Members(file):
        if not keys or key != keys[-1]:
            keys.append(key)
            seen = set()
        if field in seen:
            raise SourceError(f"{file.url} has two members {key}.{field} in one sample.")
        seen.add(field)
        places.append((len(keys) - 1, fields.setdefault(field, len(fields)), offset, size))
    offsets = np.full((len(keys), len(fields)), -1, np.int64)
    sizes = np.zeros((len(keys), len(fields)), np.int64)
    if places:
        samples, columns, starts, lengths = np.array(places, np.int64).T
        offsets[samples, columns], sizes[samples, columns] = starts, lengths
    encoded = [key.encode(errors="surrogateescape") for key in keys]  # a name may be of any bytes
    return {
        "keys": np.frombuffer(b"".join(encoded), np.uint8),
        "key_ends": np.cumsum([len(each) for each in encoded], dtype=np.int64),
        "fields": np.array(list(fields), np.str_),
        "offsets": offsets,
        "sizes": sizes,
    }
