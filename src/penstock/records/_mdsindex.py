"""The index of a folder of MDS, `index.json`, and what its columns hold."""

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.base._errors import SourceError
from penstock.base._spec import ArraySpec
from penstock.files._openfile import File

_NUMBERS: Final = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
)  # fmt: skip
_TEXTS: Final = ("str", "json", "str_int", "str_float", "str_decimal")
_CONTENTS: Final = ("bytes", "jpeg", "jpeg_array", "jpegarray", "png", "pil", "list[pil]", "list[jpeg]", "list[png]")
_DTYPES: Final = {
    8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4", 64: "<u8", 65: "<i8", 66: "<f8",
}  # fmt: skip
"""The dtypes of arrays by the byte before them."""


class Form(NamedTuple):
    """What an encoding stands for."""

    kind: str
    """`text`, `content` or `array`."""
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None

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
            ValueError, LookupError: It is damaged.
        """
        if self.kind == "text":
            return str(part, "utf-8")
        if self.kind == "content":
            return np.frombuffer(part, np.uint8).copy()
        dtype, shape, at = self.dtype, self.shape, 0
        if dtype is None:
            dtype, at = np.dtype(_DTYPES[part[0]]), 1
        if shape is None:
            width, axis_count = 1 << (part[at] & 3), part[at] >> 2
            first, at = at + 1, at + 1 + width * axis_count
            shape = tuple(np.frombuffer(part[first:at], f"<u{width}").tolist())
        return np.frombuffer(part[at:], dtype).reshape(shape).copy()


def form_of(encoding: str) -> Form | None:
    """Returns what an encoding stands for; None if it is not read."""
    if encoding in _TEXTS or encoding in _CONTENTS:
        return Form("text" if encoding in _TEXTS else "content")
    if encoding == "int" or encoding in _NUMBERS:
        return Form("array", np.dtype("int64" if encoding == "int" else encoding).newbyteorder("<"), ())
    name, *about = encoding.split(":")
    if name != "ndarray" or len(about) > 2 or (about and about[0] not in _NUMBERS):
        return None
    dtype = np.dtype(about[0]).newbyteorder("<") if about else None
    return Form("array", dtype, tuple(int(size) for size in about[1].split(",")) if len(about) == 2 else None)


class MdsColumn(NamedTuple):
    """A column of an index."""

    name: str
    encoding: str
    nbytes: int | None
    """The bytes of its values; None if they have sizes of their own."""
    form: Form | None
    """What its values are; None if they are not read."""


class Described(NamedTuple):
    """A shard, as an index describes it."""

    name: str
    columns: tuple[MdsColumn, ...]
    samples: int
    zipped: str | None
    """The name of the compressed file."""
    compression: str
    """Empty if there is none."""


def shards_of(index: File) -> list[Described]:
    """Reads an index.

    Raises:
        SourceError: It is none, of another version or format, or names files outside of its folder.
    """
    try:
        return [_described(each) for each in json.loads(index.head(index.nbytes))["shards"]]
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise SourceError(f"{index.url} is no index of MDS, or damaged: {error!r}.") from error


def _described(about: Any) -> Described:
    if (about["format"], about["version"]) != ("mds", 2):
        raise ValueError(f"the format is {about['format']} of version {about['version']}, and mds of version 2 is read")
    facts = about["column_names"], about["column_encodings"], about["column_sizes"]
    columns = tuple(
        MdsColumn(name, encoding, None if nbytes is None else int(nbytes), form_of(encoding))
        for name, encoding, nbytes in zip(*facts, strict=True)
    )
    samples = int(about["samples"])
    if not 0 <= samples < 1 << 32:
        raise ValueError(f"a shard has {samples} samples, and 0 to 4294967295 fit in one")
    zipped = _file_in(about["zip_data"]) if about["zip_data"] else None
    compression = about["compression"].partition(":")[0] if zipped else ""
    return Described(_file_in(about["raw_data"]), columns, samples, zipped, compression)


def _file_in(about: Any) -> str:
    """Returns the name of a file in the folder of its index."""
    name: str = about["basename"]
    name.encode()  # half a surrogate pair is no name
    if not name or name.startswith("/") or "\0" in name or "://" in name or ".." in name.split("/"):
        raise ValueError(f"the file {name!r:.80} lies outside the folder of the index")
    return name


def text_of(columns: Iterable[MdsColumn]) -> str:
    """Names and encodings, for messages."""
    return "{" + ", ".join(f"{column.name!r}: {column.encoding!r}" for column in columns) + "}"
