"""Writes elements as tar shards of a size that suits object stores."""

import io
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from penstock.base._arguments import as_int
from penstock.base._atomic import naming
from penstock.base._errors import ArgumentError, ArgumentTypeError, no_path, type_of
from penstock.dataset import Dataset
from penstock.records._publish import publisher
from penstock.records.tar import KEY, MEMBER

_SPOOLED_NBYTES: Final = 16 << 20


def repack(
    ds: Dataset,
    target: str | os.PathLike[str],
    *,
    shard_nbytes: int = 256 << 20,
    storage_options: dict[str, Any] | None = None,
) -> list[str]:
    """Writes a dataset as tar shards, in its order, for quick reads from an object store.

    An element is a dict of byte arrays: what `from_tar` gives, or `{"jpg": content}`. Text and bytes are fields, too,
    numbers and other arrays are `.npy` content. Keys are those of `"__key__"`, or numbers. Read the shards with
    `from_tar(f"{target}/*.tar")`; `np.load(io.BytesIO(...))` reads a field of `.npy` content.

    Many small objects are then few large ones. To train in another order each epoch, shuffle once before, and within a
    window after: `repack(ds.shuffle(seed=0), url)`, then `from_tar(...).shuffle(window=4096)`.

    Order: that of epoch 0. Memory: one element, and 16 MiB; a shard waits in a temporary file. Each shard gets its name
    when it is complete, so an interrupted call leaves whole shards. Remove them before you call it again.

    Args:
        ds: The dataset, without `batch`.
        target: A folder, or a URL of one (`s3://bucket/folder`), without other shards.
        shard_nbytes: The size after which a shard ends, in bytes.
        storage_options: See `from_tar`.

    Returns:
        The paths of the shards.

    Raises:
        ArgumentError: The dataset is endless, has no elements, or the target holds tar files, or gets some from another
            program now.
        ArgumentTypeError: An element is no dict, or a field cannot be the end of a file name.
        SourceError: The connection fails.
        OSError: A disk is full, or fails.

    Example:
        >>> pages = penstock.from_arrays({"txt": [b"one", b"two"]})
        >>> [os.path.basename(path) for path in penstock.repack(pages, "pages")]
        ['000000.tar']
        >>> penstock.from_tar("pages/*.tar")[1]["txt"].tobytes()
        b'two'
    """
    import tarfile
    import tempfile

    if not isinstance(target, (str, os.PathLike)):
        raise ArgumentTypeError(f"repack() needs a folder or a URL, got {no_path(target)}")
    if not isinstance(ds, Dataset):
        raise ArgumentTypeError(f"repack() needs a dataset, got {type_of(ds)}.")
    if ds.length == math.inf:
        raise ArgumentError("repack() got an endless dataset. Cut it with take(n).")
    if (most := as_int(shard_nbytes)) is None or most < 1:
        raise ArgumentError(f"repack(shard_nbytes={shard_nbytes!r}): a number of bytes is needed.")
    publish = publisher("repack", os.fspath(target), storage_options)
    names: list[str] = []
    members = _members(ds)
    first = next(members, None)
    while first is not None:
        with naming(tempfile.gettempdir()), tempfile.SpooledTemporaryFile(_SPOOLED_NBYTES) as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                while first is not None and (tar.offset < most or not tar.offset):
                    for name, content in first:
                        member = tarfile.TarInfo(name)
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
                    first = next(members, None)
            file.seek(0)
            names.append(publish(f"{len(names):06}.tar", file))
    if not names:
        raise ArgumentError("repack() got a dataset without elements.")
    return names


def _members(elements: Iterable[Any]) -> Iterator[list[tuple[str, bytes]]]:
    """Yields the names and contents of the members of each element."""
    for number, element in enumerate(elements):
        if not isinstance(element, dict) or not set(element) - {KEY}:
            raise ArgumentTypeError(
                f"repack() writes dicts of fields, such as {{'jpg': content}}, and element {number} is "
                f"{type_of(element)}. Make one with map()."
            )
        key = str(element.get(KEY, f"{number:09}"))
        fields = [(name, value) for name, value in element.items() if name != KEY]
        for name, _ in fields:
            member = f"{key}.{name}"
            split = MEMBER.fullmatch(member)
            if split is None or split.groups() != (key, name) or name != name.lower():
                raise ArgumentTypeError(
                    f"repack() cannot name a file for field {name!r} of element {number}, key {key!r}. The last part "
                    "of a key has no dot, and fields are in lower case without '/'."
                )
        yield [(f"{key}.{name}", _content(value)) for name, value in fields]


def _content(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    array = np.asarray(value)
    if array.dtype == np.uint8 and array.ndim == 1:
        return array.tobytes()
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()
