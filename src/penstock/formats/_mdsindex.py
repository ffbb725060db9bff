"""The index of a folder of MDS, `index.json`, and what its columns hold. It is not trusted: see `mds`."""

import json
import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.base._errors import SourceError
from penstock.base._spec import ArraySpec
from penstock.sources._openfile import File

_VERSION: Final = 2
_MAX_NBYTES: Final = 256 << 20
"""The bytes of an index, which is read into memory."""
_NUMBERS: Final = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
)  # fmt: skip
_TEXTS: Final = ("str", "json", "str_int", "str_float", "str_decimal")
_CONTENTS: Final = ("bytes", "jpeg", "jpeg_array", "jpegarray", "png", "pil", "list[pil]", "list[jpeg]", "list[png]")
_DTYPES: Final = {
    8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4", 64: "<u8", 65: "<i8", 66: "<f8",
}  # fmt: skip
"""The dtypes of arrays by the byte before them."""


class MdsColumn(NamedTuple):
    """A column of an index."""

    name: str
    encoding: str
    nbytes: int | None
    """The bytes of its values; None if they have sizes of their own."""


class Described(NamedTuple):
    """A shard, as an index describes it."""

    name: str
    columns: tuple[MdsColumn, ...]
    samples: int
    raw_nbytes: int
    zipped: tuple[str, int, str] | None
    """The name and bytes of the compressed file, and its compression."""


class Form(NamedTuple):
    """What an encoding stands for."""

    kind: str
    """`number`, `text`, `content` or `array`."""
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int | None:
        """The bytes of each value; None if they differ."""
        if self.dtype is None or self.shape is None:
            return None
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def spec(self) -> ArraySpec | None:
        """The spec of values; None if each value says its own."""
        if self.kind == "text":
            return ArraySpec((), np.dtype("U"))
        if self.kind == "content":
            return ArraySpec((None,), np.dtype(np.uint8))
        return None if self.dtype is None or self.shape is None else ArraySpec(self.shape, self.dtype)

    def value(self, part: memoryview) -> Any:
        """Returns a value, in memory of its own.

        Raises:
            ValueError: It is damaged. The text follows the name of the column.
        """
        if self.kind == "text":
            try:
                return str(part, "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"is no text in UTF-8: {error.reason} at byte {error.start}") from None
        if self.kind == "content":
            return np.frombuffer(part, np.uint8).copy()
        dtype, shape, at = self.dtype, self.shape, 0
        if dtype is None:
            at += 1
            if not part or part[0] not in _DTYPES:
                raise ValueError(f"has the dtype {bytes(part[:1])!r}, and there is none such")
            dtype = np.dtype(_DTYPES[part[0]])
        if shape is None:
            about = part[at] if at < len(part) else 0
            width, axis_count = 1 << (about & 3), about >> 2
            at += 1 + width * axis_count
            if at > len(part):
                raise ValueError(f"has {len(part):,} bytes, and its shape alone takes {at:,}")
            shape = tuple(np.frombuffer(part[at - width * axis_count : at], f"<u{width}").tolist())
        if (nbytes := math.prod(shape) * dtype.itemsize) != len(part) - at:
            raise ValueError(f"has {len(part) - at:,} bytes of values, and {shape} of {dtype} take {nbytes:,}")
        return np.frombuffer(part, dtype, offset=at).reshape(shape).copy()


def form_of(encoding: str) -> Form | None:
    """Returns what an encoding stands for; None if it is not read.

    Raises:
        ValueError: It has a shape that is none.
    """
    if encoding == "int" or encoding in _NUMBERS:
        return Form("number", np.dtype("int64" if encoding == "int" else encoding).newbyteorder("<"), ())
    if encoding in _TEXTS or encoding in _CONTENTS:
        return Form("text" if encoding in _TEXTS else "content")
    name, *about = encoding.split(":")
    if name != "ndarray" or len(about) > 2 or (about and about[0] not in _NUMBERS):
        return None
    dtype = np.dtype(about[0]).newbyteorder("<") if about else None
    shape = tuple(int(size) for size in about[1].split(",")) if len(about) == 2 else None
    if shape is not None and min(shape) < 1:
        raise ValueError(f"its encoding {encoding!r} has an axis of no size")
    return Form("array", dtype, shape)


def shards_of(index: File) -> list[Described]:
    """Reads an index.

    Raises:
        SourceError: It is none, of another version or format, or describes what cannot be.
    """
    if index.nbytes > _MAX_NBYTES:
        raise SourceError(f"{index.url} has {index.nbytes:,} bytes; an index has at most {_MAX_NBYTES:,}.")
    try:
        about = json.loads(index.head(index.nbytes))
        if not isinstance(about, dict) or not isinstance(about.get("shards"), list):
            raise ValueError("it has no list of shards")
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{index.url} is no index of MDS, or damaged: {error}.") from error
    found = []
    for number, each in enumerate(about["shards"]):
        try:
            found.append(_described(each))
        except (KeyError, TypeError, ValueError) as error:
            fact = f"it has no {error}" if isinstance(error, KeyError) else error
            raise SourceError(f"{index.url} is no index of MDS, or damaged: of shard {number} {fact}.") from None
    return found


def _described(about: Any) -> Described:
    """Checks the description of a shard.

    Raises:
        KeyError, TypeError, ValueError: It is wrong.
    """
    if not isinstance(about, dict):
        raise TypeError(f"there is {about!r:.40} in place of a description")
    if about["format"] != "mds" or about["version"] != _VERSION:
        raise ValueError(
            f"the format is {about['format']!r:.40} of version {about['version']!r:.40}, and 'mds' of version "
            f"{_VERSION} is read"
        )
    facts = about["column_names"], about["column_encodings"], about["column_sizes"]
    if not all(isinstance(each, list) and len(each) == len(facts[0]) for each in facts) or not facts[0]:
        raise ValueError("columns have names, encodings and sizes, as many of each")
    columns = tuple(map(_column, *facts))
    if len({column.name for column in columns}) < len(columns):
        raise ValueError(f"two columns have one name: {text_of(columns)}")
    samples, (name, raw_nbytes) = _count(about["samples"]), _data(about["raw_data"])
    least = 4 * (samples + 2) + samples * sum(4 if each.nbytes is None else each.nbytes for each in columns)
    if raw_nbytes < least:
        raise ValueError(f"{name} has {raw_nbytes:,} bytes, and {samples:,} samples take {least:,} or more")
    zipped = None
    if about["zip_data"]:
        if not isinstance(about["compression"], str):
            raise TypeError(f"the compression is {about['compression']!r:.40}")
        zipped = (*_data(about["zip_data"]), about["compression"].partition(":")[0])
    return Described(name, columns, samples, raw_nbytes, zipped)


def _column(name: Any, encoding: Any, nbytes: Any) -> MdsColumn:
    if not isinstance(name, str) or not isinstance(encoding, str):
        raise TypeError(f"a column is {name!r:.40}, encoded as {encoding!r:.40}")
    form = form_of(encoding)
    if form is not None and form.nbytes != nbytes:
        raise ValueError(f"the column {name!r} is {encoding}, of {form.nbytes} bytes, and has {nbytes!r:.40}")
    return MdsColumn(name, encoding, None if nbytes is None else _count(nbytes))


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"there is {value!r:.40} in place of a count")
    return value


def _data(about: Any) -> tuple[str, int]:
    """Returns the name and bytes of a file in the folder of its index.

    Raises:
        KeyError, TypeError, ValueError: The description is wrong, or names a file elsewhere.
    """
    if not isinstance(about, dict) or not isinstance(about["basename"], str):
        raise TypeError(f"there is {about!r:.40} in place of a file")
    name = about["basename"]
    name.encode()  # half a surrogate pair is no name
    if not name or name.startswith("/") or "\0" in name or "://" in name or ".." in name.split("/"):
        raise ValueError(f"the file {name!r:.80} lies outside the folder of the index")
    return name, _count(about["bytes"])


def text_of(columns: Iterable[MdsColumn]) -> str:
    return "{" + ", ".join(f"{column.name!r}: {column.encoding!r}" for column in columns) + "}"
