"""Facts about a data file that are found once and kept: the places of its records, the keys of its elements.

The result is a hidden file beside the data, so that every reader finds it. If that folder cannot be written, or the
data are behind a URL, it goes to a cache directory. It records the state of the data file, and is made again if that
has changed or if the result is damaged. It gets its name when it is complete: an interrupted process leaves nothing
valid, and of two concurrent writers either wins. Folders in which a stranger may plant a file (`base/_trust.py`) are
passed over.
"""

import contextlib
import functools
import hashlib
import json
import logging
import math
import operator
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.base._atomic import complete
from penstock.base._trust import make_private, private_mode, require_own_file, require_safe
from penstock.files._openfile import File

Arrays = Mapping[str, npt.NDArray[Any]]

_log = logging.getLogger("penstock")

VERSION: Final = 2
_HEAD: Final = re.compile(rb"[0-9a-f]{8}\[")
"""How an index begins."""


def kept(
    file: File,
    kind: str,
    cache_dir: str | None,
    build: Callable[[], Arrays],
    name: str = "index",
    others: Sequence[File] = (),
) -> Arrays:
    """Returns the index of a file, kept from before or built now.

    If it cannot be kept, it stays in memory and the log says so.

    Args:
        file: The file.
        kind: The kind of the index, such as `tfrecord`. Another kind is another index.
        cache_dir: The only folder to keep it in; None for the file's folder, or else the cache directory.
        build: Builds it.
        name: The ending of its file's name. A file with the same is replaced.
        others: More files whose content is in it. Only those who can read all of them can read it.
    """
    if (found := kept_before(file, kind, cache_dir, name)) is not None:
        return found
    stamp, paths = _index_of(file, kind, cache_dir, name)
    made, problems = build(), []
    for path in paths:
        try:
            _spare(path)
            write(file, path, index_bytes(stamp, made), others=others)
            return made
        except OSError as error:
            problems.append(problem(path, error))
    _log.warning(
        "The index of %s cannot be kept (%s), so every process that reads it makes its own. Give a cache_dir that can "
        "be written.",
        file.url,
        "; ".join(problems) or "this user has no home directory",
    )
    return made


def write(
    file: File, path: Path, parts: Iterable[bytes], changed_ns: int | None = None, others: Sequence[File] = ()
) -> None:
    """Writes what is kept of files, readable for those who can read all of them; with a time of its last change.

    Raises:
        OSError: It cannot be written, or a stranger may have made what is there.
    """
    require_safe(path.parent)
    make_private(path.parent)
    modes = (os.stat(each.url).st_mode if each.is_local else 0 for each in (file, *others))
    readers = functools.reduce(operator.and_, modes)
    # An index and a note have a checksum, which is compared; content has not.
    is_synced = changed_ns is not None
    with complete(path, 0o600 | readers & private_mode(path.parent), is_synced=is_synced) as out:
        out.writelines(parts)
        if changed_ns is not None:
            out.flush()
            os.utime(out.fileno(), ns=(changed_ns, changed_ns))


def _spare(path: Path) -> None:
    """Renames a file that has the name of an index and is none: it may be the user's.

    Raises:
        OSError: It cannot be renamed.
    """
    with contextlib.suppress(FileNotFoundError):
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            head = file.read(9)
        if head and not _HEAD.fullmatch(head):
            spared = path.with_name(f"{path.name}.other-{secrets.token_hex(4)}")
            os.rename(path, spared)
            _log.warning("%s is no index, and is kept as %s.", path, spared)


def problem(path: Path, error: OSError) -> str:
    return f"{path.parent}: {error.strerror or error}"


def kept_before(file: File, kind: str, cache_dir: str | None, name: str = "index") -> Arrays | None:
    """Returns the index of a file if it was kept; see `kept`."""
    stamp, paths = _index_of(file, kind, cache_dir, name)
    for path in paths:
        with contextlib.suppress(Exception):  # damage has many forms
            require_own_file(path)
            if (found := read_index(stamp, path.read_bytes())) is not None:
                return found
    return None


def _index_of(file: File, kind: str, cache_dir: str | None, name: str) -> tuple[str, list[Path]]:
    """Returns what the index of a file begins with, and the places where it may be."""
    paths = [stem.with_name(f"{stem.name}.{name}") for stem in stems_of(file, cache_dir)]
    return f"{VERSION} {kind} {file.state}", paths


def index_bytes(stamp: str, arrays: Arrays) -> Iterator[bytes]:
    """Yields the content of an index: a checksum of all that follows, a line of JSON, and the arrays.

    NumPy's archives take 0.8 ms to read, which for 1,000 shards is a second before the first batch; this takes 0.05.
    """
    facts = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    parts = [json.dumps([stamp, facts]).encode() + b"\n", *(array.tobytes() for array in arrays.values())]
    yield b"%08x" % functools.reduce(lambda crc, part: zlib.crc32(part, crc), parts, 0)
    yield from parts


def read_index(stamp: str, content: bytes) -> Arrays | None:
    """Returns the arrays of an index; None if it has another stamp, or is damaged."""
    at = content.index(b"\n") + 1
    found, facts = json.loads(content[8:at])
    if found != stamp or int(content[:8], 16) != zlib.crc32(memoryview(content)[8:]):
        return None
    arrays = {}
    for name, dtype, shape in facts:
        arrays[name] = np.frombuffer(content, dtype, math.prod(shape), at).reshape(shape)
        at += arrays[name].nbytes
    return arrays


def stems_of(file: File, cache_dir: str | None) -> list[Path]:
    """Returns the paths that the result may have, without endings; the best first."""
    # A leading dot hides it from patterns such as `train-*`.
    beside = Path(file.url).parent / f".{file.name}" if file.is_local else None
    elsewhere = f".{file.name}.{hashlib.sha256(file.url.encode()).hexdigest()[:8]}"
    if cache_dir is not None:
        folder = Path(cache_dir)
        return [beside if beside is not None and beside.parent == folder else folder / elsewhere]
    stems = [] if beside is None else [beside]
    with contextlib.suppress(RuntimeError):  # users of containers may have no home directory
        stems.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "penstock", elsewhere))
    return stems
