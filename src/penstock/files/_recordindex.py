"""The records of files whose places are found once and kept (`files/_kept.py`), and content made of files.

Such content is kept as an index is, and has a note beside it, with its size and time, which is written after it.
"""

import bz2
import codecs
import contextlib
import hashlib
import itertools
import logging
import lzma
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from penstock.base._arguments import needs
from penstock.base._errors import ArgumentError, SourceError
from penstock.base._files import Stamp
from penstock.base._trust import require_own_file
from penstock.files._kept import VERSION, Arrays, index_bytes, kept, kept_before, problem, read_index, stems_of, write
from penstock.files._openfile import File, FilesSource, RecordReader, bounds_of, described, find, for_each
from penstock.memory._rows import Indices
from penstock.plan._source import Read

Compression = Literal["gzip", "zlib", "bz2", "xz", "zstd"]
Compressed = Literal["auto"] | Compression | None

Integers = npt.NDArray[np.int64]

_log = logging.getLogger("penstock")

# Compressed bytes that are read at once, and bytes that are decompressed at once.
_PIECE_NBYTES: Final = 64 << 10
_CONTENT_NBYTES: Final = 1 << 20
_PROGRESS_S: Final = 10.0
_MACHINES: Final[Mapping[str, Callable[[], Any]]] = {
    "gzip": partial(zlib.decompressobj, 31),  # with gzip's header
    "zlib": zlib.decompressobj,
    "bz2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
}
"""What undoes a compression. pyarrow undoes the others."""
_FORMS: Final = re.compile(
    rb"(?P<gzip>\x1f\x8b)|(?P<bz2>BZh[1-9](?:1AY&SY|\x17rE8P\x90))|(?P<xz>\xfd7zXZ\0)"
    rb"|(?P<zstd>\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)"
    rb"|(?P<LZ4>\x04\x22\x4d\x18)|(?P<ZIP>PK\x03\x04)|(?P<Snappy>\xff\x06\0\0sNaPpY)"
)
"""How compressed files begin."""


class RecordPlaces(NamedTuple):
    """The places of the records of all files, each of which begins where the one before it ends."""

    files: Sequence[File]
    """The files to read: the given ones, or their decompressed content."""
    bounds: Integers
    """See `bounds_of`."""
    offsets: Integers
    """The start of each record and the end of the last, file after file, shape `(records + files,)`."""
    found: Sequence[Arrays]
    """The index of each file."""

    def ranges(self, elements: Indices) -> tuple[Integers, Integers, Integers]:
        """Returns the file, the first byte and the bytes of each record."""
        numbers = (np.searchsorted(self.bounds, elements, "right") - 1).astype(np.int64)
        places = elements + numbers
        offsets = self.offsets[places]
        return numbers, offsets, self.offsets[places + 1] - offsets


class RecordFiles(FilesSource):
    """The records of files, one file after the other. The index is read or made when it is first needed."""

    compression: Compressed
    cache_dir: str | None

    @property
    def index_kind(self) -> str:
        """See `kept`. Empty if the index is not worth keeping."""
        raise NotImplementedError

    @property
    def recoded(self) -> str | None:
        """The encoding of text whose lines cannot be found in it, so that its content is written again in UTF-8."""
        return None

    def find_records(self, content: File) -> Arrays:
        """Finds the records of a file: `offsets`, the start of each and the end of the last, and other facts."""
        raise NotImplementedError

    @cached_property
    def index(self) -> RecordPlaces:
        """The places of the records."""
        return self.make_index()

    def make_index(self) -> RecordPlaces:
        """Finds the places of the records, for `index`."""
        contents, found = zip(*for_each(self.files, self._indexed, self._kept), strict=True)
        offsets = [each["offsets"] for each in found]
        return RecordPlaces(contents, bounds_of(len(each) - 1 for each in offsets), np.concatenate(offsets), found)

    def _kept(self, file: File) -> tuple[File, Arrays] | None:
        """Returns the index of a file that has one under its own name, so it is not compressed."""
        if self.compression not in (None, "auto") or not self.index_kind or self.recoded:
            return None
        arrays = kept_before(file, self.index_kind, self.cache_dir)
        return None if arrays is None else (file, arrays)

    def _indexed(self, file: File) -> tuple[File, Arrays]:
        compression, content = self.compression_of(file), file
        if compression is not None or self.recoded:
            content = decompressed(file, compression, self.cache_dir, self.recoded)
        if not self.index_kind:
            return content, self.find_records(content)
        return content, kept(content, self.index_kind, self.cache_dir, lambda: self.find_records(content))

    def compression_of(self, file: File) -> Compression | None:
        """How a file is compressed; see `found_compression`."""
        return found_compression(file, self.compression)

    @property
    def bounds(self) -> Integers:
        return self.index.bounds


class RecordFilesReader(RecordReader):
    """The open form of `RecordFiles`; files are opened at their first read."""

    def __init__(self, source: RecordFiles) -> None:
        super().__init__(source.index.files, source.ahead_nbytes)
        self._source: Any = source
        self._index = source.index

    def ranges(self, elements: Indices) -> tuple[Integers, Integers, Integers]:
        return self._index.ranges(elements)

    def records(self, reads: Sequence[Read]) -> Iterator[tuple[Read, int, int, npt.NDArray[np.uint8]]]:
        """Yields each record of all requests: its request, its row there, its element, and its bytes.

        Records that are neighbours in a file are one read. The bytes are there until the next record is asked for.
        """
        for read, (members, data, starts), sizes in self.requests(reads):
            rows = np.arange(len(read.arrays[0]))[read.rows][members]
            facts = (each.tolist() for each in (rows, read.indices[members], starts, sizes))
            for row, element, start, size in zip(*facts, strict=True):
                yield read, row, element, data[start : start + size]


def form_of(file: File) -> str | None:
    """How a file is compressed, by its first bytes, or its name for Brotli; None if it is not."""
    found = _FORMS.match(file.head(10))
    return found.lastgroup if found else "Brotli" if file.name.endswith(".br") else None


def compressed(verb: str, compression: Any) -> Compressed:
    """Checks the argument of this name.

    Raises:
        ArgumentError: It is none of those known.
    """
    known = "auto", None, *get_args(Compression)
    if compression not in known:
        raise ArgumentError(f"{verb}(compression={compression!r}): it is one of {', '.join(map(repr, known))}.")
    return compression  # type: ignore[no-any-return]


def found_compression(file: File, said: Compressed) -> Compression | None:
    """How a file is compressed, by its first bytes unless the user says it. Text may begin as data of zlib do.

    Raises:
        SourceError: It is compressed in a way that is not read.
    """
    if said != "auto":
        return said
    form = form_of(file)
    if form not in (None, *get_args(Compression)):
        raise SourceError(
            f"{file.url} is compressed by {form}, which is not read here. Decompress it, or compress it by "
            "Zstandard, gzip, bzip2 or xz."
        )
    return form  # type: ignore[return-value]  # checked above


def require_local(what: str, path: str | os.PathLike[str]) -> None:
    """Refuses a URL, which would create a directory `s3:` here."""
    if isinstance(path, str) and "://" in path:
        raise ArgumentError(f"{what}: {path!r} is an URL, and files are written on this machine. Copy them there then.")


def decompressed(file: File, compression: str | None, cache_dir: str | None, encoding: str | None = None) -> File:
    """Returns a file with the content of a compressed one, kept from before or written now.

    Compressed data have no random access. The copy takes as much disk as the content; the log says how much.

    Args:
        file: The file.
        compression: How it is compressed; None if it is not.
        cache_dir: See `kept`.
        encoding: The encoding of text, which is then written in UTF-8.

    Raises:
        SourceError: The file is damaged or truncated, or the copy cannot be written.
    """
    kind = f"{compression}{' ' + encoding if encoding else ''}"
    if (copy := kept_content((file,), kind, cache_dir)) is not None:
        return copy

    def content() -> Iterator[bytes]:
        return pieces(file, compression) if encoding is None else in_utf_8(file, compression, encoding)

    form = "compressed" if compression else f"in {encoding}"
    try:
        copy = keep_content((file,), kind, cache_dir, content)
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(
            f"{file.url} is {form}, so there is no random access to its records, and its content cannot be written "
            f"beside it ({error}). Give a cache_dir with room for it, or write the file as it is there."
        ) from error
    _log.info("%s is %s, and was written into %s, %d MiB.", file.url, form, copy.url, copy.nbytes >> 20)
    return copy


def kept_content(files: Sequence[File], kind: str, cache_dir: str | None, ending: str = "content") -> File | None:
    """Returns what `keep_content` kept; None if it is not there, not whole, or may be a stranger's."""
    for path in _paths_of(files, kind, cache_dir, ending):
        if (copy := _kept_copy(files, path)) is not None:
            return copy
    return None


def keep_content(
    files: Sequence[File],
    kind: str,
    cache_dir: str | None,
    content: Callable[[], Iterator[bytes]],
    ending: str = "content",
) -> File:
    """Writes what is made of files into a file that is kept, beside the first of them or as `kept` does.

    Args:
        files: The files. Only those who can read all of them can read what is made.
        kind: What is made. Another kind is another file.
        cache_dir: See `kept`.
        content: Yields it.
        ending: The ending of the file's name.

    Raises:
        OSError: It cannot be written anywhere. The message has the folders.
    """
    problems = []
    for path in _paths_of(files, kind, cache_dir, ending):
        try:
            return _copied(files, path, content())
        except SourceError:
            raise
        except OSError as error:
            problems.append(problem(path, error))
    raise OSError("; ".join(problems) or "and this user has no home")


def _paths_of(files: Sequence[File], kind: str, cache_dir: str | None, ending: str) -> list[Path]:
    """The places where what is made of files may be. What is made of another state of them has the same name."""
    what = _short_hash(f"{VERSION} {kind}", *(file.url for file in files[1:]))
    return [stem.with_name(f"{stem.name}.{what}.{ending}") for stem in stems_of(files[0], cache_dir)]


def _short_hash(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]


def _copied(files: Sequence[File], path: Path, content: Iterator[bytes]) -> File:
    """Writes the content of a file, and notes its size.

    All copies of a state have the same time of the last change. So processes that start together and each make one
    take it for the same file, whichever is the last to replace it.

    Raises:
        SourceError: A file is damaged or truncated.
        OSError: The copy cannot be written.
    """
    file, *others = files
    changed_s = int(_short_hash(_state_of(files)), 16) & 0x7FFFFFFF
    write(file, path, content, changed_s * 10**9, others)
    copy = described(str(path))
    facts = {"facts": np.array([copy.nbytes, Stamp.of(path).modified_ns])}
    write(file, _note_of(path), index_bytes(_state_of(files), facts), others=others)
    return copy.by_time()


def _kept_copy(files: Sequence[File], path: Path) -> File | None:
    """Returns the content that was kept in a file; None if it is not there, not whole, or may be a stranger's."""
    with contextlib.suppress(Exception):  # damage has many forms
        require_own_file(path)
        require_own_file(_note_of(path))
        facts, copy = read_index(_state_of(files), _note_of(path).read_bytes()), described(str(path))
        if facts is not None and facts["facts"].tolist() == [copy.nbytes, Stamp.of(path).modified_ns]:
            return copy.by_time()
    return None


def _state_of(files: Sequence[File]) -> str:
    return f"content {' '.join(file.state for file in files)}"


def _note_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sum")


def progress(what: str, total_nbytes: int) -> Callable[[int], None]:
    """Returns a function that takes the bytes done and logs the progress of a long task."""
    began_s = said_s = time.monotonic()

    def tell(done_nbytes: int) -> None:
        nonlocal said_s
        now_s = time.monotonic()
        if now_s - said_s >= _PROGRESS_S:
            said_s = now_s
            part = 100 * done_nbytes / max(total_nbytes, 1)
            _log.info("%s: %.0f %% of %d MiB after %.0f s.", what, part, total_nbytes >> 20, now_s - began_s)

    return tell


def pieces(file: File, compression: str | None) -> Iterator[bytes]:
    """Yields the content of a file in pieces, decompressed.

    Raises:
        SourceError: The file is damaged or truncated.
    """
    if compression is None:
        with file.stream() as stream:
            while piece := stream.read(_PIECE_NBYTES):
                yield piece
        return
    tell, at = progress(f"Decompressing {file.url}", file.nbytes), 0
    with file.stream() as stream:
        try:
            unpacked = _by_machine if compression in _MACHINES else _by_pyarrow
            for piece in unpacked(stream, compression):
                at = stream.tell()
                tell(at)
                yield piece
        except SourceError:
            raise
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            if isinstance(error, EOFError) or "Truncated" in str(error):
                raise SourceError(
                    f"{file.url} is truncated: its {compression} data do not end within {file.nbytes:,} bytes."
                ) from error
            raise SourceError(
                f"{file.url} is damaged: it cannot be decompressed ({error}), around byte {at:,} of {file.nbytes:,}."
            ) from error


def _by_machine(stream: BinaryIO, compression: str) -> Iterator[bytes]:
    """Yields what one of `_MACHINES` makes. Raises EOFError if the data do not end."""
    machine = _MACHINES[compression]()
    while data := stream.read(_PIECE_NBYTES):
        while True:
            if machine.eof:  # a file may have several members, and zeros behind them
                data = data.lstrip(b"\0")
                if not data:
                    break
                machine = _MACHINES[compression]()
            found = machine.decompress(data, _CONTENT_NBYTES)
            yield found
            # Those of bzip2 and xz keep what they have not used yet.
            data = machine.unused_data if machine.eof else getattr(machine, "unconsumed_tail", b"")
            if not data and len(found) < _CONTENT_NBYTES:
                break
    if not machine.eof:
        raise EOFError


def _by_pyarrow(stream: BinaryIO, compression: str) -> Iterator[bytes]:
    """Yields what pyarrow makes. Raises OSError if the data are damaged, or do not end."""
    with needs(f"Reading a file that is compressed by {compression}", "pyarrow"):
        import pyarrow as pa

    with pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), compression) as content:
        while piece := content.read(_CONTENT_NBYTES):
            yield piece


def in_utf_8(file: File, compression: str | None, encoding: str) -> Iterator[bytes]:
    """Yields the text of a file, in UTF-8.

    Raises:
        SourceError: Bytes are no text in its encoding. The message has the file, the line and the column.
    """
    decoder, line = codecs.getincrementaldecoder(encoding)(), 1
    for piece in itertools.chain(pieces(file, compression), (b"",)):
        try:
            text = decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            line += str(error.object[: error.start], encoding, "replace").count("\n")
            raise SourceError(
                f"{file.url} line {line} is no text in {encoding}: {error.reason}. Name the encoding with encoding=, "
                "or mend the line."
            ) from error
        line += text.count("\n")
        yield text.encode("utf-8", "surrogatepass")


def files_and_folder(
    verb: str, paths: Any, storage_options: Any, cache: Any, cache_dir: str | os.PathLike[str] | None
) -> tuple[tuple[File, ...], str | None]:
    """Returns the files, and the folder for their indexes as an absolute path."""
    if cache_dir is not None:
        require_local(f"{verb}(cache_dir)", cache_dir)
        cache_dir = os.path.abspath(cache_dir)
    return find(verb, paths, storage_options, cache), cache_dir
