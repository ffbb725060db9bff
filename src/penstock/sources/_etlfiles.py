"""The files of the ETL Character Database: finding them, checking their size, and reading their codes."""

import os
import re
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import SourceError
from penstock.sources import _recordindex
from penstock.sources._etlrecords import LAYOUTS, Layout, codes_of
from penstock.sources._openfile import File, described

# `ETL8B2C1`, `ETL1C_01`, `ETL9G_50`, also in lower case; not `ETL10`, `ETL8B.zip` or, below, `ETL8INFO`.
_NAME: Final = re.compile(r"(ETL(?:[1-7](?!\d)|[89][BG]))[A-Z0-9_-]*(?:\.\d+)?")
_CO59: Final = "EUC_CO59.DAT"
# The folder of the database, that of a part, and one more that some programs create when they unpack.
_DEPTH: Final = 3
_CHUNK_NBYTES: Final = 4 << 20


def look(directory: str) -> tuple[dict[str, list[str]], list[str]]:
    """Finds the files of each part, and tables of CO-59, in a directory and its folders.

    Raises:
        SourceError: A directory cannot be listed.
    """
    parts: dict[str, list[str]] = {}
    tables = []
    for path in _walk(directory, _DEPTH):
        name = os.path.basename(path).upper()
        match = _NAME.fullmatch(name)
        if match and "INFO" not in name:
            parts.setdefault(match[1], []).append(path)
        elif name == _CO59:
            tables.append(path)
    return parts, tables


def _walk(directory: str, depth: int) -> Iterator[str]:
    """Yields the files in a directory and its folders, sorted by name."""
    try:
        with os.scandir(directory) as entries:
            found = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda each: each.name)
    except OSError as error:
        raise SourceError(f"{directory} cannot be looked into: {error.strerror or error}.") from error
    for entry in found:
        if entry.is_file():
            yield entry.path
        elif depth > 1 and entry.is_dir():
            yield from _walk(entry.path, depth - 1)


def tables_in(directory: str) -> list[str]:
    """Finds tables of CO-59 in a directory, but not in its folders."""
    return [path for path in _walk(directory, 1) if os.path.basename(path).upper() == _CO59]


def apart(paths: list[str]) -> tuple[File, ...]:
    """Returns files sorted by name.

    Raises:
        SourceError: Two have the same name.
    """
    by_name: dict[str, str] = {}
    for path in paths:
        other = by_name.setdefault(os.path.basename(path).upper(), path)
        if other is not path:
            raise SourceError(
                f"{other} and {path} have the same name, so one is a copy of the other, and with both every character "
                "would come twice, also in training and validation. Give the folder of one, or remove the other."
            )
    return tuple(described(path) for _, path in sorted(by_name.items()))


def check(file: File, part: str) -> None:
    """Refuses a file that does not consist of whole records.

    Raises:
        SourceError: With the file's name and size.
    """
    layout = LAYOUTS[part]
    count, rest = divmod(file.nbytes, layout.record_nbytes)
    if rest or count <= layout.dummy_count:
        what = f"{count:,} records of {layout.record_nbytes:,} bytes and {rest:,} bytes more"
        raise SourceError(
            f"{file.url} has {file.nbytes:,} bytes: {what if rest else 'no character'}. A file of {part} is whole "
            f"records{', the first without a character' * bool(layout.dummy_count)}. It was cut off when it was copied "
            "or unpacked, or it is something else; unpack it again from the archive."
        )


def read_codes(file: File, layout: Layout) -> npt.NDArray[np.uint32]:
    """Reads the codes of all records of a file except the dummies, 4 MiB at a time."""
    nbytes = layout.record_nbytes
    codes = np.empty(file.nbytes // nbytes, np.uint32)
    buffer = np.empty((max(1, _CHUNK_NBYTES // nbytes), nbytes), np.uint8)
    tell = _recordindex.progress(f"Reading the labels of {file.url}", file.nbytes)
    with file.stream() as stream:
        for first in range(0, len(codes), len(buffer)):
            records = buffer[: len(codes) - first]
            got = stream.readinto(records.data)
            if got < records.nbytes:
                raise SourceError(f"{file.url} ends at byte {first * nbytes + got:,} of {file.nbytes:,} now.")
            codes[first : first + len(records)] = codes_of(records, layout)
            tell(first * nbytes + got)
    return codes[layout.dummy_count :]
