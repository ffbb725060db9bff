"""Files of lines: the places of their records, kept as an index; and text as elements.

A record has at most 256 MiB (`RECORD_NBYTES`), so that a stray quote does not take a whole file into memory.

An index is made by one pass over a file. It has the first byte of each record, and the lines that are no record of
their own: blank ones, those of a header, and those within a quoted field of CSV.
"""

import codecs
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, type_of
from penstock.base._spec import ArraySpec
from penstock.formats import _recordindex
from penstock.formats._recordindex import Compressed, RecordFiles, RecordFilesReader, compressed
from penstock.plan._source import Read
from penstock.sources._kept import Arrays
from penstock.sources._openfile import File, placed

Integers = npt.NDArray[np.int64]

_WINDOW_NBYTES: Final = 8 << 20
RECORD_NBYTES: Final = 256 << 20
"""The most bytes of a record that is not a whole file. The index holds one in memory, and so does each read of it."""
MARK: Final = b"\xef\xbb\xbf"
"""The mark at the start of some files of UTF-8, which is no text."""


class LineWindow(NamedTuple):
    """Some neighbouring records of a file."""

    at: int
    """The place of the data in the file."""
    data: bytes
    starts: Integers
    """The start of each record in the data."""
    ends: Integers
    lines: Integers
    """The number of lines before each."""


@final
@dataclass(frozen=True)
class Rules:
    """What a record of a file is."""

    is_whole: bool = False
    """The whole file."""
    has_blanks: bool = True
    """A blank line is a record too."""
    delimiter: str = ""
    """What is between the fields of a record."""
    quote: str = ""
    """Surrounds fields that may have ends of lines; empty if none may."""
    has_header: bool = False
    """The first record is no element."""
    ends_by_return: bool = False
    """A carriage return alone ends a line too."""

    def places(self, content: File, see: Callable[[bytes, "LineWindow"], None] = lambda *_: None) -> Arrays:
        """Finds the records of a file.

        Args:
            content: The file.
            see: Called with the header and the records, window by window.

        Returns:
            `offsets`: the start of each record, and the end of the last. `jumps`: the records before which there is a
            line that is none, once for each such line. `header`: the bytes of the header.
        """
        starts, lines = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        header: bytes | None = None if self.has_header else b""
        for window in self._windows(content):
            if header is None and len(window.starts):
                header = window.data[window.starts[0] : window.ends[0]]
                window = window._replace(**{name: getattr(window, name)[1:] for name in ("starts", "ends", "lines")})
            starts.append(window.starts + window.at)
            lines.append(window.lines)
            see(header or b"", window)
        numbers = np.concatenate(lines)
        extra = np.diff(numbers - np.arange(len(numbers)), prepend=0)
        return {
            "offsets": np.append(np.concatenate(starts), content.nbytes),
            "jumps": np.repeat(np.arange(len(numbers)), extra),
            "header": np.frombuffer(header or b"", np.uint8),
        }

    def _windows(self, content: File) -> Iterator["LineWindow"]:
        """Yields the records of a file."""
        tell = _recordindex.progress(f"Looking for the lines of {content.url}", content.nbytes)
        with content.stream() as stream:
            data = stream.read(len(MARK))
            at, line = (len(data), 0) if data == MARK else (0, 0)
            data = data[at:]
            if self.is_whole:
                yield LineWindow(at, b"", np.array([0]), np.array([0]), np.array([0]))
                return
            is_last = False
            while not is_last:
                # More and more for a record that does not end, but little more than it may have.
                block = stream.read(max(_WINDOW_NBYTES, min(len(data), RECORD_NBYTES - len(data) + 1)))
                tell(at + len(data))
                is_last, data = not block, data + block
                line_ends, ends = self.ends(data, is_last=is_last)
                if is_last and self.quote:
                    self._require_closed(content, data, line, line_ends)
                if is_last and data and (not len(ends) or ends[-1] < len(data)):
                    ends = np.append(ends, len(data))
                self._require_size(content, data, line, line_ends, ends)
                if not len(ends):
                    continue
                firsts = np.append(0, ends[:-1])
                before = np.searchsorted(line_ends, firsts, "right") + line
                last, next_line = int(ends[-1]), line + int(np.searchsorted(line_ends, ends[-1], "right"))
                if not self.has_blanks:
                    begins = np.frombuffer(data, np.uint8)[firsts]
                    blank = (begins == ord("\n")) | ((begins == ord("\r")) & (ends - firsts <= 2))
                    firsts, before, ends = firsts[~blank], before[~blank], ends[~blank]
                yield LineWindow(at, data, firsts, ends, before)
                at, line, data = at + last, next_line, data[last:]

    def ends(self, data: bytes, *, is_last: bool = True) -> tuple[Integers, Integers]:
        """Returns the ends of lines, and of records, in data that begin with a record."""
        line_ends = self._line_ends(data, is_last)
        if not self.quote or self.quote.encode() not in data:
            return line_ends, line_ends
        return line_ends, self._line_ends(self._quoted.sub(lambda found: bytes(len(found[0])), data), is_last)

    def _line_ends(self, data: bytes, is_last: bool) -> Integers:
        """The ends of lines; where a carriage return is one, not the last byte of data that go on."""
        values = np.frombuffer(data, np.uint8)
        if not self.ends_by_return or b"\r" not in data:
            return np.flatnonzero(values == ord("\n")) + 1
        is_return = values == ord("\r")
        is_return[:-1] &= values[1:] != ord("\n")
        is_return[-1] &= is_last
        return np.flatnonzero((values == ord("\n")) | is_return) + 1

    def _require_size(self, content: File, data: bytes, line: int, line_ends: Integers, ends: Integers) -> None:
        """Refuses a record of more than `RECORD_NBYTES`, also one whose end is not in the data."""
        firsts = np.append(0, ends)
        sizes = np.diff(firsts, append=len(data))
        if sizes.max() <= RECORD_NBYTES:
            return
        number = int(np.argmax(sizes > RECORD_NBYTES))
        first, size = int(firsts[number]), int(sizes[number])
        cure = "Write shorter lines" + (", or read whole files: by='file'." if self.has_blanks else ".")
        if self.quote and self.quote.encode() in data[first : first + size]:
            cure = "A quote in it may lack its end: close it, or say that quotes have no meaning there: quote=''."
        raise SourceError(
            f"{content.url} line {line + 1 + int(np.searchsorted(line_ends, first, 'right'))} begins a record of "
            f"{size:,} bytes or more, and a record has at most {RECORD_NBYTES:,}. {cure}"
        )

    def _require_closed(self, content: File, data: bytes, line: int, line_ends: Integers) -> None:
        """Refuses a quote that is not closed: all the rest of the file would be in one field."""
        for found in self._quoted.finditer(data):
            if not found[1]:
                number = line + 1 + int(np.searchsorted(line_ends, found.start(), "right"))
                raise SourceError(
                    f"{content.url} line {number} opens a quote that is not closed until the end of the file. Close "
                    "it, or say that quotes have no meaning there: quote=''."
                )

    @cached_property
    def _quoted(self) -> re.Pattern[bytes]:
        """A field in quotes, of which two stand for one. Elsewhere in a field a quote is a character like others."""
        quote, delimiter = re.escape(self.quote).encode(), re.escape(self.delimiter).encode()
        inner = b"[^" + quote + b"]*+"
        parts = (b"(?<![^", delimiter, rb"\n\r])", quote, inner, b"(?:", quote * 2, inner, b")*+(", quote, rb"|\Z)")
        return re.compile(b"".join(parts))


class LineFiles(RecordFiles):
    """The records of files of text."""

    encoding: str

    @property
    def rules(self) -> Rules:
        """What a record is."""
        raise NotImplementedError

    @property
    def index_kind(self) -> str:
        return "" if self.rules.is_whole else f"{self.rules}"

    @property
    def recoded(self) -> str | None:
        return None if self.rules.is_whole or has_ascii(self.encoding) else self.encoding

    @property
    def content_encoding(self) -> str:
        """The encoding of what is read."""
        return "utf-8" if self.recoded else self.encoding

    def find_records(self, content: File) -> Arrays:
        return self.rules.places(content)

    def describe(self, index: int) -> str:
        number, record = placed(self.bounds, index)
        if self.rules.is_whole:
            return str(self.files[number])
        line = record + 1 + int(np.searchsorted(self.index.found[number]["jumps"], record, "right"))
        return f"{self.files[number]} line {line}"

    def text(self, index: int, data: bytes | memoryview) -> str:
        """The text of an element.

        Raises:
            SourceError: Bytes are no text in this encoding. The message has the file, the line and the column.
        """
        try:
            return str(data, self.content_encoding)
        except UnicodeDecodeError as error:
            raise not_text(self.describe(index), bytes(data), error) from error


def not_text(where: str, data: bytes, error: UnicodeDecodeError) -> SourceError:
    """The error of bytes that are no text, which lie at a place."""
    before = str(data[: error.start], error.encoding, "replace")
    line = f" (its line {before.count(chr(10)) + 1})" if "\n" in before else ""
    column = len(before) - before.rfind("\n")
    cure = "utf-16" if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "latin-1"
    return SourceError(
        f"{where} is no text in {error.encoding}: {error.reason} in column {column}{line}, at its byte {error.start}. "
        f"Name the encoding with encoding=, such as {cure!r}."
    )


def encoding_of(verb: str, encoding: object) -> str:
    """Checks the argument of this name, and returns Python's own name of the encoding.

    Raises:
        ArgumentTypeError: It is no name.
        ArgumentError: Python knows no such encoding.
    """
    if not isinstance(encoding, str):
        raise ArgumentTypeError(f"{verb}(encoding=) is the name of an encoding, got {type_of(encoding)}.")
    try:
        "".encode(encoding)  # refuses codecs of bytes, such as zlib
        name = codecs.lookup(encoding).name
    except (LookupError, ValueError):
        raise ArgumentError(f"{verb}(encoding={encoding!r}): Python knows no such encoding.") from None
    return "utf-8" if name == "utf-8-sig" else name  # a mark is left out anyway


@functools.cache
def has_ascii(encoding: str) -> bool:
    """Whether ends of lines and quotes can be found in the bytes of an encoding.

    Its bytes of ASCII mean the same, and no other character has a byte of theirs, as those of ISO-2022-JP do.
    """
    ascii_text, others = "".join(map(chr, range(128))), "".join(map(chr, range(128, 1 << 16, 7)))
    try:
        is_same = ascii_text.encode(encoding) == ascii_text.encode()
    except UnicodeEncodeError:
        return False
    return is_same and not set(others.encode(encoding, "ignore")) & set(b'\n\r"')


@final
@dataclass(frozen=True)
class TextSource(LineFiles):
    """The lines of files, or the files, as text."""

    files: tuple[File, ...]
    by: Literal["line", "file"]
    encoding: str
    compression: Compressed
    cache_dir: str | None

    element_spec = ArraySpec((), np.dtype("U"))

    @property
    def rules(self) -> Rules:
        return Rules(is_whole=self.by == "file")

    def open(self) -> "OpenTextSource":
        return OpenTextSource(self)


@final
class OpenTextSource(RecordFilesReader):
    """Reads text."""

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests. Raises as `LineFiles.text`."""
        source, is_line = self._source, self._source.by == "line"
        for read, row, element, record in self.records(reads):
            text = source.text(element, record.data)
            read.arrays[0][row] = text.removesuffix("\n").removesuffix("\r") if is_line else text


def text_source(
    files: tuple[File, ...], by: str, encoding: str, compression: Compressed, cache_dir: str | None
) -> TextSource:
    """Makes a source from the arguments of `penstock.from_text`."""
    if by not in ("line", "file"):
        raise ArgumentError(f"from_text(by={by!r}): it is 'line' or 'file'.")
    encoding = encoding_of("from_text", encoding)
    return TextSource(files, by, encoding, compressed("from_text", compression), cache_dir)  # type: ignore[arg-type]  # checked above
