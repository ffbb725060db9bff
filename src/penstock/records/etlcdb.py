"""The ETL Character Database as a source with random access: handwritten and printed Japanese characters.

Records have one size, so an element is a file and an offset, without an index. The classes are known only after the
codes of all records were read. That happens once, when they are first needed, in one pass over each file. The codes are
kept beside the files (see `files/_kept.py`), 4 bytes a record.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, type_of
from penstock.base._spec import ArraySpec
from penstock.base._tree import Tree
from penstock.files._kept import kept
from penstock.files._openfile import File, FilesSource, RecordReader, bounds_of, described, for_each, placed
from penstock.memory._rows import Indices
from penstock.plan._source import Read
from penstock.records import _etlfiles
from penstock.records._etlfiles import LAYOUTS, EtlLayout, unpacked
from penstock.records._jis import GROUPS, Group, character_of, co59_table, group_of

Integers = npt.NDArray[np.int64]

# Bytes that are unpacked at once. They and their pixels stay in the core's cache.
_BLOCK_NBYTES: Final = 64 << 10


def source(directory: str | os.PathLike[str], part: Any, groups: Any) -> "EtlcdbSource":
    """Makes a source from the arguments of `penstock.from_etlcdb`."""
    if not isinstance(directory, (str, os.PathLike)):
        raise ArgumentTypeError(f"from_etlcdb() needs a directory, got {type_of(directory)}.")
    path = os.path.abspath(directory)
    chosen = _groups(groups)
    parts, tables = _etlfiles.look(path)
    if not parts:
        raise SourceError(
            f"{path} holds no file of the ETL Character Database, nor do folders in it. Its files are called such as "
            "ETL1C_01, ETL8B2C1 or ETL9G_01, without an ending; files such as ETL8INFO and archives are passed over. "
            "Unpack what was downloaded, and give the folder that it is in."
        )
    wanted = min(parts) if part is None and len(parts) == 1 else str(part).upper()
    if wanted not in parts:
        raise ArgumentError(
            f"from_etlcdb(part={part!r}): a dataset is of one part, since their images differ in size or in levels. "
            f"{path} holds {', '.join(sorted(parts))}. Name one of these, or unpack another there."
        )
    files = _etlfiles.apart(parts[wanted])
    for file in files:
        _etlfiles.check(file, wanted)
    co59 = None
    if LAYOUTS[wanted].code == "CO-59":
        tables += _etlfiles.tables_in(os.path.dirname(path))
        if not tables:
            raise SourceError(
                f"{wanted} names characters in the code CO-59, and its table, euc_co59.dat, is not in {path}. It is in "
                'unpack.zip, on the page "File formats and sample unpacking code" of the ETL Character Database: put '
                f"it into {path}."
            )
        co59 = described(tables[0])
    return EtlcdbSource(files, wanted, chosen, co59)


class _CodeIndex(NamedTuple):
    names: tuple[str, ...]
    """The characters, sorted."""
    labels: npt.NDArray[np.int32]
    """The place in `names` of each element."""
    records: Integers
    """The record of each element, counted through all files."""


@final
@dataclass(frozen=True)
class EtlcdbSource(FilesSource):
    """The characters of one part of the database, one file after the other, sorted by file name."""

    files: tuple[File, ...]
    part: str
    groups: tuple[Group, ...] | None
    co59: File | None
    """The table of ETL2's codes."""
    suits_one_thread = False  # NumPy unpacks pixels without the GIL

    @property
    def layout(self) -> EtlLayout:
        """The layout of the records."""
        return LAYOUTS[self.part]

    @property
    def element_spec(self) -> Tree:
        image = ArraySpec((self.layout.height, self.layout.width, 1), np.dtype(np.uint8))
        return image, ArraySpec((), np.dtype(np.int32))

    @property
    def class_names(self) -> list[str]:
        """The characters in the order of their code points; a label is a place in it. The first use reads all codes."""
        return list(self.index.names)

    @cached_property
    def bounds(self) -> Integers:
        """The first record of each file, counted through all files; see `bounds_of`."""
        layout = self.layout
        return bounds_of(file.nbytes // layout.record_nbytes - layout.dummy_count for file in self.files)

    @cached_property
    def index(self) -> _CodeIndex:
        """The label and the place of each element.

        Raises:
            SourceError: A record has an unknown code, or no record belongs to the groups.
        """
        codes = np.concatenate(for_each(self.files, self._codes))
        found, inverse = np.unique(codes, return_inverse=True)
        characters = self._characters(codes, found)
        names = sorted({name for name in characters if self.groups is None or group_of(name) in self.groups})
        if not names:
            there = sorted({group_of(character) for character in characters})
            raise SourceError(
                f"{self} has no character of the groups {', '.join(self.groups or ())}. Its files have "
                f"{', '.join(there)}; choose groups=(...) among these, or another part."
            )
        places = {name: place for place, name in enumerate(names)}
        # Characters outside the groups get the label -1.
        labels = np.array([places.get(name, -1) for name in characters], np.int32)[inverse]
        records = np.flatnonzero(labels >= 0).astype(np.int64)
        return _CodeIndex(tuple(names), labels[records], records)

    def _codes(self, file: File) -> npt.NDArray[np.uint32]:
        codes: npt.NDArray[np.uint32] = kept(
            file, f"etlcdb {self.part}", None, lambda: {"codes": _etlfiles.read_codes(file, self.layout)}
        )["codes"]
        return codes

    def _characters(self, codes: npt.NDArray[np.uint32], found: npt.NDArray[np.uint32]) -> list[str]:
        table = {} if self.co59 is None else co59_table(self.co59)
        characters = []
        for code in found.tolist():
            character = character_of(code, self.layout.code, table)
            if character is None:
                record = int(np.argmax(codes == code))
                at = self.layout.code_at[0]
                raise SourceError(
                    f"{self._place(record)} has the code {code:#x} at byte {at} of its {self.layout.record_nbytes}, "
                    f"which is no character in {self.layout.code}. Either the file is damaged, or it is not of "
                    f"{self.part}; unpack it again from the archive."
                )
            characters.append(character)
        return characters

    def __len__(self) -> int:
        return int(self.bounds[-1]) if self.groups is None else len(self.index.labels)

    def __str__(self) -> str:
        return self.part

    def record_of(self, elements: Indices) -> Indices:
        """Returns the records of elements, counted through all files."""
        return elements if self.groups is None else self.index.records[elements]

    def describe(self, index: int) -> str:
        return self._place(int(self.record_of(np.array([index]))[0]))

    def _place(self, record: int) -> str:
        number, place = placed(self.bounds, record)
        return f"{self.files[number]} record {place + self.layout.dummy_count}"

    def open(self) -> "OpenEtlcdbSource":
        return OpenEtlcdbSource(self)


@final
class OpenEtlcdbSource(RecordReader):
    """Reads characters; files are opened at their first read."""

    def __init__(self, source: EtlcdbSource) -> None:
        super().__init__(source.files)
        self._source = source
        self._layout = source.layout

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests. Records that are neighbours in a file are one read.

        Raises:
            SourceError: A file was changed or shortened, or its device fails.
        """
        for read in reads:
            read.arrays[1][read.rows] = self._source.index.labels[read.indices]
        nbytes = self._layout.record_nbytes
        count = max(1, _BLOCK_NBYTES // nbytes)
        for read, (members, data, starts), _ in self.requests(reads):
            # The ranges, with the gaps between them, are whole records: a table.
            records, images = data.reshape(-1, nbytes), read.arrays[0].reshape(len(read.arrays[0]), -1)
            rows = np.arange(len(images))[read.rows][members]
            for first in range(0, len(rows), count):
                block = slice(first, first + count)
                images[rows[block]] = unpacked(records[starts[block] // nbytes], self._layout)

    def ranges(self, elements: Indices) -> tuple[Integers, Integers, Integers]:
        source, nbytes = self._source, self._layout.record_nbytes
        records = source.record_of(elements)
        numbers = (np.searchsorted(source.bounds, records, "right") - 1).astype(np.int64)
        offsets = (records - source.bounds[numbers] + self._layout.dummy_count) * nbytes
        return numbers, offsets, np.full(len(elements), nbytes, np.int64)


def _groups(groups: Any) -> tuple[Group, ...] | None:
    if groups is None:
        return None
    chosen = (groups,) if isinstance(groups, str) or not isinstance(groups, Iterable) else tuple(groups)
    if not chosen or not set(chosen) <= set(GROUPS):
        raise ArgumentError(f"from_etlcdb(groups={groups!r}): groups are one or more of {', '.join(GROUPS)}.")
    return chosen
