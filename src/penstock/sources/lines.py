"""Files of lines: the places of their records, kept as an index; and text as elements.

An index is made by one pass over a file. It has the first byte of each record, and the lines that are no record of
their own: blank ones, those of a header, and those within a quoted field of CSV.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, SourceError
from penstock.base._spec import ArraySpec
from penstock.plan._source import Read
from penstock.sources import _recordindex
from penstock.sources._example import row_numbers
from penstock.sources._openfile import File, placed, rows_of
from penstock.sources._recordindex import Arrays, Compressed, RecordFiles, RecordFilesReader, compressed

Integers = npt.NDArray[np.int64]

_WINDOW_NBYTES: Final = 8 << 20
MARK: Final = b"\xef\xbb\xbf"
"""The mark at the start of some files of UTF-8, which is no text."""


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

    def places(self, content: File) -> Arrays:
        """Finds the records of a file.

        Returns:
            `offsets`: the start of each record, and the end of the last. `jumps`: the records before which there is a
            line that is none, once for each such line. `header`: the bytes of the header.
        """
        starts, lines = self._scan(content)
        header = b""
        if self.has_header and len(starts):
            first, end = [*starts[:2].tolist(), content.nbytes][:2]
            with content.stream() as stream:
                stream.seek(first)
                header = stream.read(end - first)
            starts, lines = starts[1:], lines[1:]
        extra = np.diff(lines - np.arange(len(lines)), prepend=0)
        return {
            "offsets": np.append(starts, content.nbytes),
            "jumps": np.repeat(np.arange(len(lines)), extra),
            "header": np.frombuffer(header, np.uint8),
        }

    def _scan(self, content: File) -> tuple[Integers, Integers]:
        """Returns the start of each record, and the number of lines before it."""
        tell = _recordindex.progress(f"Looking for the lines of {content.url}", content.nbytes)
        starts, lines = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        with content.stream() as stream:
            data = stream.read(len(MARK))
            at, line = (len(data), 0) if data == MARK else (0, 0)
            data = data[at:]
            if self.is_whole:
                return np.array([at]), np.array([0])
            is_last = False
            while not is_last:
                block = stream.read(max(_WINDOW_NBYTES, len(data)))  # more and more for a record that does not end
                tell(at + len(data))
                is_last, data = not block, data + block
                line_ends, ends = self.ends(data)
                if is_last and self.quote:
                    self._require_closed(content, data, line)
                if is_last and data and (not len(ends) or ends[-1] < len(data)):
                    ends = np.append(ends, len(data))
                if not len(ends):
                    continue
                firsts = np.append(0, ends[:-1])
                before = np.searchsorted(line_ends, firsts, "right") + line
                if not self.has_blanks:
                    begins = np.frombuffer(data, np.uint8)[firsts]
                    blank = (begins == ord("\n")) | ((begins == ord("\r")) & (ends - firsts <= 2))
                    firsts, before = firsts[~blank], before[~blank]
                starts.append(firsts + at)
                lines.append(before)
                at, line = at + int(ends[-1]), line + int(np.searchsorted(line_ends, ends[-1], "right"))
                data = data[int(ends[-1]) :]
        return np.concatenate(starts), np.concatenate(lines)

    def ends(self, data: bytes) -> tuple[Integers, Integers]:
        """Returns the ends of lines, and of records, in data that begin with a record."""
        line_ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
        if not self.quote or self.quote.encode() not in data:
            return line_ends, line_ends
        plain = self._quoted.sub(lambda found: bytes(len(found[0])), data)
        return line_ends, np.flatnonzero(np.frombuffer(plain, np.uint8) == ord("\n")) + 1

    def _require_closed(self, content: File, data: bytes, line: int) -> None:
        """Refuses a quote that is not closed: all the rest of the file would be in one field."""
        for found in self._quoted.finditer(data):
            if not found[1]:
                number = line + 1 + data.count(b"\n", 0, found.start())
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

    @property
    def rules(self) -> Rules:
        """What a record is."""
        raise NotImplementedError

    @property
    def index_kind(self) -> str:
        return "" if self.rules.is_whole else f"{self.rules}"

    def find_records(self, content: File) -> Arrays:
        return self.rules.places(content)

    def describe(self, index: int) -> str:
        number, record = placed(self.bounds, index)
        if self.rules.is_whole:
            return self.files[number].name
        line = record + 1 + int(np.searchsorted(self.index.found[number]["jumps"], record, "right"))
        return f"{self.files[number].name} line {line}"


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
        """Reads all requests.

        Raises:
            SourceError: Bytes are no text in this encoding. The message has the file and the line.
        """
        encoding, is_line = self._source.encoding, self._source.by == "line"
        for read, (members, data, at), sizes in self.requests(reads):
            view, rows = data.data, row_numbers(rows_of(read.rows, members))
            for number, row, start, size in zip(members.tolist(), rows, at.tolist(), sizes.tolist(), strict=True):
                try:
                    text = str(view[start : start + size], encoding)
                except UnicodeDecodeError as error:
                    raise SourceError(
                        f"{self._source.describe(int(read.indices[number]))} is no text in {encoding}: {error.reason} "
                        f"at its byte {error.start}. Name the encoding with encoding=, such as 'latin-1'."
                    ) from error
                read.arrays[0][row] = text.removesuffix("\n").removesuffix("\r") if is_line else text


def text_source(
    files: tuple[File, ...], by: str, encoding: str, compression: Compressed, cache_dir: str | None
) -> TextSource:
    """Makes a source from the arguments of `penstock.from_text`."""
    if by not in ("line", "file"):
        raise ArgumentError(f"from_text(by={by!r}): it is 'line' or 'file'.")
    try:
        has_lines = "\n".encode(encoding) == b"\n"
    except LookupError:
        raise ArgumentError(f"from_text(encoding={encoding!r}): Python knows no such encoding.") from None
    if by == "line" and not has_lines:
        raise ArgumentError(
            f"from_text(encoding={encoding!r}): lines are found by the byte of their ends, which differs in this "
            "encoding. Write the file again in UTF-8, or read it as a whole: by='file'."
        )
    return TextSource(files, by, encoding, compressed("from_text", compression), cache_dir)  # type: ignore[arg-type]  # checked above
