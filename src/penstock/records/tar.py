"""Tar files of samples in WebDataset's form, as a source with random access.

A sample is the consecutive members with one key: the path up to the first dot of its last part. The text after that
dot is the name of a field. Two members of one name in a sample are an error, as in WebDataset. Each file has samples of
its own: one key at the end of a file and at the beginning of the next is two samples, as in open_clip. The places of
the members are found once, from their headers, and kept (see `files/_kept.py`): 16 bytes a member and its key.
"""

import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, ArgumentTypeError, PenstockError, SourceError, type_of
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.files import _recordindex
from penstock.files._kept import Arrays, kept, kept_before
from penstock.files._openfile import File, FilesSource, RecordReader, bounds_of, for_each, placed
from penstock.memory._rows import Indices
from penstock.plan._source import Read

Integers = npt.NDArray[np.int64]

KEY: Final = "__key__"
"""The field with the key of a sample, as in WebDataset."""
MEMBER: Final = re.compile(r"((?:.*/)?[^./][^/.]*)\.([^/]+)", re.DOTALL)
"""The name of a member of a sample: its key and its field."""
_BLOCK_NBYTES: Final = 512
_PLACES: Final = ("offsets", "sizes")


class _MemberIndex(NamedTuple):
    """The places of the samples of all files, one file after the other."""

    bounds: Integers
    """See `bounds_of`."""
    keys: npt.NDArray[np.uint8]
    """The keys in UTF-8, one after the other."""
    key_bounds: Integers
    """The start of each key, and the end of the last."""
    offsets: Integers
    """The first byte of each field's content, shape `(samples, fields)`; -1 if it is missing."""
    sizes: Integers
    """The bytes of each field."""

    def key(self, index: int) -> str:
        start, end = self.key_bounds[index : index + 2]
        return self.keys[start:end].tobytes().decode(errors="surrogateescape")


@final
@dataclass(frozen=True)
class TarSource(FilesSource):
    """The samples of tar files, one file after the other. The index is read or made when it is first needed."""

    files: tuple[File, ...]
    given: tuple[tuple[str, tuple[str, ...]], ...] | None
    """The requested fields, and their names in files, in lower case, the first of which counts; None for those of the
    first sample."""
    cache_dir: str | None
    defaults: tuple[tuple[str, bytes], ...] = ()
    """What stands in for fields that samples lack."""

    @cached_property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """The names in files of each field of an element."""
        if self.given is not None:
            return dict(self.given)
        return {name: (name.lower(),) for name in (*self._first_fields(), *dict(self.defaults))}

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of an element."""
        return tuple(self.names)

    def _first_fields(self) -> list[str]:
        for file in self.files:
            if (index := self._kept(file)) is not None:
                if len(index["offsets"]):
                    return [str(field) for field in index["fields"][index["offsets"][0] >= 0]]
                continue
            for _, members in itertools.groupby(_members(file), key=lambda member: member[0]):
                return [field for _, field, _, _ in members]
        more = " and the others" * (len(self.files) > 1)
        raise SourceError(
            f"There are no samples in {self.files[0].url}{more}: no files with an ending in their names, as in 7.jpg."
        )

    @cached_property
    def element_spec(self) -> Tree:
        content = ArraySpec((None,), np.dtype(np.uint8))
        return {KEY: ArraySpec((), np.dtype("U")), **dict.fromkeys(self.fields, content)}

    @cached_property
    def index(self) -> _MemberIndex:
        """The places of the samples."""
        shards = for_each(self.files, self.shard, self._kept)
        bounds = bounds_of(len(shard["key_ends"]) for shard in shards)
        key_bounds = bounds_of(len(shard["keys"]) for shard in shards)
        ends = [shard["key_ends"] + start for shard, start in zip(shards, key_bounds.tolist(), strict=False)]
        keys = np.concatenate([shard["keys"] for shard in shards])
        offsets, sizes = (np.concatenate([self._columns(shard, name) for shard in shards]) for name in _PLACES)
        return _MemberIndex(bounds, keys, np.concatenate([[0], *ends]), offsets, sizes)

    def shard(self, file: File) -> Arrays:
        """The places of the samples of one file; see `_indexed`."""
        return kept(file, "tar", self.cache_dir, lambda: _indexed(file))

    def _kept(self, file: File) -> Arrays | None:
        return kept_before(file, "tar", self.cache_dir)

    def _columns(self, shard: Arrays, name: str) -> Integers:
        """Returns the columns of the fields of an element; -1 for those that a file lacks."""
        found: list[str] = shard["fields"].tolist()
        columns = np.full((len(shard[name]), len(self.names)), -1, np.int64)
        for number, names in enumerate(self.names.values()):
            for place in (found.index(each) for each in reversed(names) if each in found):
                columns[:, number] = np.where(shard["offsets"][:, place] < 0, columns[:, number], shard[name][:, place])
        return columns

    @property
    def bounds(self) -> Integers:
        return self.index.bounds

    def describe(self, index: int) -> str:
        number, sample = placed(self.index.bounds, index)
        return f"{self.files[number]} sample {sample} ({self.index.key(index)!r})"

    def open(self) -> "OpenTarSource":
        return OpenTarSource(self)


@final
class OpenTarSource(RecordReader):
    """Reads samples; files are opened at their first read."""

    def __init__(self, source: TarSource) -> None:
        super().__init__(source.files, source.ahead_nbytes)
        self._source = source
        self._index = source.index
        self._defaults = [np.frombuffer(dict(source.defaults).get(name, b""), np.uint8) for name in source.fields]
        self._is_optional = np.array([name in dict(source.defaults) for name in source.fields], np.bool_)
        self._shared: dict[int, dict[str, list[int]]] = {}

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests. Members that are neighbours in a file are one read.

        Raises:
            SourceError: A sample lacks a field, or the file has changed or its device fails.
        """
        for read in reads:
            rows = np.arange(len(read.arrays[0]))[read.rows]
            for row, index in zip(rows.tolist(), read.indices.tolist(), strict=True):
                read.arrays[0][row] = self._index.key(index)
        width = len(self._source.fields)
        for read, (members, data, starts), sizes in self.requests(reads) if width else ():
            rows = np.arange(len(read.arrays[0]))[read.rows]
            for member, start, size in zip(members.tolist(), starts.tolist(), sizes.tolist(), strict=True):
                element, field = divmod(member, width)
                content = data[start : start + size]
                if not size and self._index.offsets[read.indices[element], field] < 0:
                    content = self._defaults[field]
                read.arrays[1 + field][rows[element]] = content.copy()

    def ranges(self, elements: Indices) -> tuple[Integers, Integers, Integers]:
        offsets, sizes = self._index.offsets[elements], self._index.sizes[elements]
        numbers = np.searchsorted(self._index.bounds, elements, "right") - 1
        is_missing = offsets < 0
        for row, field in np.argwhere(is_missing).tolist():
            element = int(elements[row])
            # What stands in must not take the place of a member that is there, in another part of the file.
            twins = self._twins(int(numbers[row])).get(self._index.key(element), [])
            is_elsewhere = any(self._index.offsets[twin, field] >= 0 for twin in twins)
            if self._is_optional[field] and not is_elsewhere:
                continue
            number, sample = placed(self._index.bounds, element)
            shard = self._source.shard(self._source.files[number])
            found = shard["fields"][shard["offsets"][sample] >= 0].tolist()
            cure = (
                "Every sample needs all fields: name those that all have with fields=[...], several of which one is "
                "there with fields={'image': 'jpg;png'}, or what stands in for it with defaults={'txt': b''}."
            )
            if is_elsewhere:
                cure = (
                    "Members of a sample stand side by side, and in this file some do not: write it again, as "
                    "tar --sort=name does."
                )
            name = self._source.fields[field]
            raise SourceError(f"{self._source.describe(element)} has no {name!r}; it has {found}. {cure}")
        offsets, sizes = np.where(is_missing, 0, offsets), np.where(is_missing, 0, sizes)
        return np.repeat(numbers, offsets.shape[1]), offsets.ravel(), sizes.ravel()

    def _twins(self, number: int) -> dict[str, list[int]]:
        """The samples of a file that share their key with others; for members that stand apart make several."""
        if number not in self._shared:
            found: dict[str, list[int]] = {}
            for sample in range(*self._index.bounds[number : number + 2].tolist()):
                found.setdefault(self._index.key(sample), []).append(sample)
            self._shared[number] = {key: samples for key, samples in found.items() if len(samples) > 1}
        return self._shared[number]


def source(files: tuple[File, ...], fields: Any, defaults: Any, cache_dir: str | None) -> TarSource:
    """Makes a source from the arguments of `penstock.from_tar`."""
    if not isinstance(defaults, Mapping | None):
        raise ArgumentTypeError(f"from_tar(defaults=) is a dict such as {{'txt': b''}}, got {type_of(defaults)}.")
    wrong = ArgumentTypeError(
        "from_tar(fields=) is a list of names such as 'jpg', or a dict such as {'image': 'jpg;png'}, got "
        f"{type_of(fields)}: {fields!r:.80}."
    )
    if isinstance(fields, str) or not isinstance(fields, Mapping | Sequence | None):
        raise wrong
    named = dict(fields) if isinstance(fields, Mapping) else {name: name for name in fields or ()}
    if not all(isinstance(each, str) for pair in named.items() for each in pair):
        raise wrong
    filled = {name: each.encode() if isinstance(each, str) else each for name, each in dict(defaults or {}).items()}
    for name, each in filled.items():
        if not isinstance(each, bytes):
            raise ArgumentTypeError(
                f"from_tar(defaults={{{name!r}: ...}}) is what the field has where it is missing, bytes or text, got "
                f"{type_of(each)}."
            )
        if fields is not None and name not in named:
            raise ArgumentError(f"from_tar(defaults={{{name!r}: ...}}) is no field: fields={list(named)}.")
    if KEY in named or KEY in filled or len(named) < len(fields or ()):
        raise ArgumentError(
            f"from_tar(fields={fields!r}, defaults={defaults!r}): each once, and {KEY} comes of itself."
        )
    given = tuple((name, tuple(each.strip().lower() for each in names.split(";"))) for name, names in named.items())
    return TarSource(files, None if fields is None else given, cache_dir, tuple(filled.items()))


def _members(file: File) -> Iterator[tuple[str, str, int, int]]:
    """Yields the members of samples in order: key, field, offset and bytes.

    Raises:
        SourceError: The file is compressed, damaged or cut off, or has links or sparse members.
    """
    import tarfile

    if form := _recordindex.form_of(file):
        raise SourceError(
            f"{file.url} is compressed by {form}, and there is no random access within it. Decompress it once; images "
            "and sound are compressed anyway."
        )
    tell = _recordindex.progress(f"Looking for the members of {file.url}", file.nbytes)
    with file.scan() as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r:") as tar:
                while (member := tar.next()) is not None:
                    tar.members = []  # type: ignore[attr-defined]  # it would keep them all, 1 kB each
                    tell(member.offset)
                    if member.size < 0:  # the next member would be this one again
                        raise ValueError(f"member {member.name!r} says that it has {member.size:,} bytes")
                    if not (found := MEMBER.fullmatch(member.name)):
                        continue
                    if member.islnk() or member.issym() or member.issparse():
                        raise SourceError(
                            f"{file.url} has a member {member.name!r} that is a link or sparse, so its content is not "
                            "there in one piece. Write the file again: tar --dereference --hard-dereference, and "
                            "without --sparse."
                        )
                    if member.isreg():
                        yield found[1], found[2].lower(), member.offset_data, member.size
                at = tar.offset
        except PenstockError:
            raise
        except Exception as error:  # tarfile raises ValueError, struct.error, RecursionError and others for damage
            raise SourceError(f"{file.url} is damaged or cut off, or no tar file: {error!r}.") from error
        _require_end(file, stream, at)


def _require_end(file: File, stream: io.BufferedIOBase, at: int) -> None:
    """Refuses a file that goes on after what `tarfile` takes for its end. Other bytes than members are passed over.

    Raises:
        SourceError: There is a damaged header, or another tar file.
    """
    stream.seek(at)
    if stream.read(_BLOCK_NBYTES).strip(b"\0"):
        raise SourceError(
            f"{file.url} is damaged or cut off: at byte {at:,} of {file.nbytes:,} there is no whole header of a member."
        )
    while block := stream.read(_BLOCK_NBYTES):
        if block[257:262] == b"ustar":
            raise SourceError(
                f"{file.url} ends at byte {at:,} as a tar file does, and another tar file follows, which would be left "
                "out. Several tar files were joined to one: give them as they were, in a list, or join them with "
                "tar --concatenate."
            )


def _indexed(file: File) -> Arrays:
    keys: list[str] = []
    fields: dict[str, int] = {}
    places: list[tuple[int, int, int, int]] = []
    seen: set[str] = set()
    for key, field, offset, size in _members(file):
        if not keys or key != keys[-1]:
            keys.append(key)
            seen = set()
        if field in seen:
            raise SourceError(
                f"{file.url} has two members {key}.{field} in one sample. One of them would be left out, so write the "
                "file again with a key of its own for each sample."
            )
        seen.add(field)
        places.append((len(keys) - 1, fields.setdefault(field, len(fields)), offset, size))
    offsets = np.full((len(keys), len(fields)), -1, np.int64)
    sizes = np.zeros((len(keys), len(fields)), np.int64)
    if places:
        samples, columns, starts, lengths = np.array(places, np.int64).T
        offsets[samples, columns], sizes[samples, columns] = starts, lengths
    encoded = [key.encode(errors="surrogateescape") for key in keys]  # a name may have any bytes
    return {
        "keys": np.frombuffer(b"".join(encoded), np.uint8),
        "key_ends": np.cumsum([len(each) for each in encoded], dtype=np.int64),
        "fields": np.array(list(fields), np.str_),
        "offsets": offsets,
        "sizes": sizes,
    }
