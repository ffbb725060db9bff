"""Lines of text, and whole files, as elements: an index has the first byte of each line."""

import codecs
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np

from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, type_of
from penstock.base._spec import ArraySpec
from penstock.files._kept import Arrays
from penstock.files._openfile import File, placed
from penstock.files._recordindex import Compressed, RecordFiles, RecordFilesReader, compressed, progress
from penstock.plan._source import Read

_WINDOW_NBYTES: Final = 8 << 20
_MARK: Final = b"\xef\xbb\xbf"
"""The mark at the start of some files of UTF-8, which is no text."""


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
    """Whether ends of lines can be found in the bytes of an encoding.

    Its bytes of ASCII mean the same, and no other character has a byte of theirs, as those of ISO-2022-JP do.
    """
    ascii_text, others = "".join(map(chr, range(128))), "".join(map(chr, range(128, 1 << 16, 7)))
    try:
        is_same = ascii_text.encode(encoding) == ascii_text.encode()
    except UnicodeEncodeError:
        return False
    return is_same and b"\n" not in others.encode(encoding, "ignore")


@final
@dataclass(frozen=True)
class TextSource(RecordFiles):
    """The lines of files, or the files, as text."""

    files: tuple[File, ...]
    by: Literal["line", "file"]
    encoding: str
    compression: Compressed
    cache_dir: str | None

    element_spec = ArraySpec((), np.dtype("U"))

    @property
    def index_kind(self) -> str:
        return "lines" if self.by == "line" else ""

    @property
    def recoded(self) -> str | None:
        return None if self.by == "file" or has_ascii(self.encoding) else self.encoding

    def find_records(self, content: File) -> Arrays:
        tell = progress(f"Looking for the lines of {content.url}", content.nbytes)
        with content.stream() as stream:
            at = len(_MARK) if stream.read(len(_MARK)) == _MARK else 0
            starts = [np.array([at])]
            stream.seek(at)
            while self.by == "line" and (data := stream.read(_WINDOW_NBYTES)):
                starts.append(np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + (at + 1))
                at += len(data)
                tell(at)
        offsets = np.concatenate(starts)
        is_complete = self.by == "line" and offsets[-1] == content.nbytes
        return {"offsets": offsets if is_complete else np.append(offsets, content.nbytes)}

    def describe(self, index: int) -> str:
        number, line = placed(self.bounds, index)
        return f"{self.files[number]} line {line + 1}" if self.by == "line" else str(self.files[number])

    def text(self, index: int, data: bytes | memoryview) -> str:
        """The text of an element.

        Raises:
            SourceError: Bytes are no text in this encoding. The message has the file, the line and the column.
        """
        try:
            return str(data, "utf-8" if self.recoded else self.encoding)
        except UnicodeDecodeError as error:
            before = str(bytes(data[: error.start]), error.encoding, "replace")
            line = f" (its line {before.count(chr(10)) + 1})" if "\n" in before else ""
            cure = "utf-16" if bytes(data[:2]) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "latin-1"
            raise SourceError(
                f"{self.describe(index)} is no text in {error.encoding}: {error.reason} in column "
                f"{len(before) - before.rfind(chr(10))}{line}, at its byte {error.start}. Name the encoding with "
                f"encoding=, such as {cure!r}."
            ) from error

    def open(self) -> "OpenTextSource":
        return OpenTextSource(self)


@final
class OpenTextSource(RecordFilesReader):
    """Reads text."""

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests. Raises as `TextSource.text`."""
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
