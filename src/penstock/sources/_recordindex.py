"""What is found out about a file once, and kept: where its records are, and its content without compression.

Such a file is hidden and lies beside the data, so that everybody who reads them finds it; where that cannot be
written, as with an URL, in a cache directory. It holds what the data file looked like, and is made anew when that has
changed, or when it is damaged in any way. It gets its name when it is complete: who is interrupted leaves nothing that
counts, and of two who write it at once, either wins.
"""

import contextlib
import hashlib
import logging
import os
import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import numpy as np
import numpy.typing as npt

from penstock.base._descriptors import keep_standard_numbers
from penstock.base._errors import SourceError
from penstock.sources._openfile import File, described

Arrays = Mapping[str, npt.NDArray[Any]]
Compression = Literal["gzip", "zlib"]

_log = logging.getLogger("penstock")

_VERSION: Final = 1
# Of compressed data; a thousand times as much is the most that they can hold.
_PIECE_NBYTES: Final = 64 << 10
_PROGRESS_S: Final = 10.0
# `wbits` of zlib: with gzip's header, or with its own.
_WBITS: Final = {"gzip": 31, "zlib": 15}


def kept(file: File, kind: str, cache_dir: str | None, build: Callable[[], Arrays]) -> Arrays:
    """Returns the arrays that `build` makes of a file, as they were kept or made now.

    Where they cannot be kept they are in memory alone, which the log says.

    Args:
        file: The file that is indexed.
        kind: What index it is, such as `tfrecord`; another kind is another index.
        cache_dir: Where it is kept, and nowhere else; None for beside the file, or else in the cache directory.
        build: Makes it. What it raises is raised here.
    """
    stamp = f"{_VERSION} {kind} {file.nbytes} {file.version}"
    folders = _folders(file, cache_dir)
    for folder in folders:
        # Damage can look like anything: a zip file that is none, a missing name, a wrong checksum.
        # NumPy would leave one that it opened itself open.
        path = folder / _index_name(file, folder)
        with contextlib.suppress(Exception), open(path, "rb") as stream, np.load(stream) as arrays:
            found = {name: arrays[name] for name in arrays.files}
            if str(found.pop("stamp")) == _stamp_of(stamp, found):
                return found
    made = build()
    for folder in folders:
        with contextlib.suppress(OSError):
            with complete(folder / _index_name(file, folder)) as out:
                np.savez(out, allow_pickle=False, **{"stamp": np.array(_stamp_of(stamp, made)), **made})
            return made
    _log.warning(
        "The index of %s cannot be kept in %s, so every process that reads it makes its own. Give a cache_dir that can "
        "be written.",
        file.url,
        " or ".join(map(str, folders)) or "a home, which this user has not",
    )
    return made


def _stamp_of(stamp: str, arrays: Arrays) -> str:
    # With their names, which have no checksum in a zip file.
    return " ".join([stamp, *sorted(arrays)])


def decompressed(file: File, compression: Compression, cache_dir: str | None) -> File:
    """Returns a file with the content of a compressed one, as it was kept or made now.

    Compressed data have no random access. Takes as much room on the disk as the content; the log says how much.

    Raises:
        SourceError: It is damaged or ends too early, or there is no room to write.
    """
    state = hashlib.sha256(f"{_VERSION} {compression} {file.nbytes} {file.version}".encode()).hexdigest()[:8]
    folders = _folders(file, cache_dir)
    paths = [folder / f"{_stem(file, folder)}.{state}.content" for folder in folders]
    for path in paths:
        if path.exists():
            return described(str(path))
    problems = []
    for path in paths:
        try:
            with complete(path) as out:
                _decompress(file, compression, out)
        except SourceError:
            raise
        except OSError as error:
            problems.append(f"{path.parent}: {error.strerror or error}")
            continue
        with contextlib.suppress(OSError):
            for old in set(path.parent.glob(f"{path.name[: -len(state) - 8]}*.content")) - {path}:
                old.unlink()  # of a file that has changed since
        result = described(str(path))
        _log.info("%s was decompressed into %s, %d MiB.", file.url, path, result.nbytes >> 20)
        return result
    raise SourceError(
        f"{file.url} is compressed, so there is no random access to its records, and its content cannot be written "
        f"beside it ({'; '.join(problems) or 'and this user has no home'}). Give a cache_dir with "
        "room for it, or decompress the file."
    )


def progress(what: str, total_nbytes: int) -> Callable[[int], None]:
    """Returns a function that is told of bytes done, and says so in the log when it takes long."""
    began_s = said_s = time.monotonic()

    def tell(done_nbytes: int) -> None:
        nonlocal said_s
        now_s = time.monotonic()
        if now_s - said_s >= _PROGRESS_S:
            said_s = now_s
            part = 100 * done_nbytes / max(total_nbytes, 1)
            _log.info("%s: %.0f %% of %d MiB after %.0f s.", what, part, total_nbytes >> 20, now_s - began_s)

    return tell


def pieces(file: File, compression: Compression) -> Iterator[bytes]:
    """Yields the content of a compressed file, some of it at a time.

    Raises:
        SourceError: It is damaged or ends too early.
    """
    machine, fed = zlib.decompressobj(_WBITS[compression]), 0
    tell = progress(f"Decompressing {file.url}", file.nbytes)
    with file.stream() as stream:
        try:
            while data := stream.read(_PIECE_NBYTES):
                fed += len(data)
                tell(fed)
                while data:
                    if machine.eof:  # gzip files may follow one another in one
                        machine = zlib.decompressobj(_WBITS[compression])
                    yield machine.decompress(data)
                    data = machine.unused_data
        except zlib.error as error:
            raise SourceError(
                f"{file.url} is damaged: it cannot be decompressed ({error}), around byte {fed:,} of {file.nbytes:,}."
            ) from error
    if not machine.eof:
        raise SourceError(f"{file.url} is truncated: its {compression} data do not end within {file.nbytes:,} bytes.")


def _decompress(file: File, compression: Compression, out: BinaryIO) -> None:
    out.writelines(pieces(file, compression))


def _folders(file: File, cache_dir: str | None) -> list[Path]:
    if cache_dir is not None:
        return [Path(cache_dir)]
    folders = [Path(file.url).parent] if file.is_local else []
    with contextlib.suppress(RuntimeError):  # a number that is nobody's, as users of containers have, has no home
        folders.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "penstock"))
    return folders


def _stem(file: File, folder: Path) -> str:
    # A leading dot: patterns such as `train-*` do not find it.
    if file.is_local and Path(file.url).parent == folder:
        return f".{file.name}"
    return f".{file.name}.{hashlib.sha256(file.url.encode()).hexdigest()[:8]}"


def _index_name(file: File, folder: Path) -> str:
    return f"{_stem(file, folder)}.index"


@contextlib.contextmanager
def complete(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for writing that gets its name when it is written, and is gone if it is not.

    On Linux it has no name at all until then, so that not even a process that is killed leaves it behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    keep_standard_numbers()
    descriptor = _nameless(path.parent)
    try:
        with open(unfinished, "xb") if descriptor is None else open(descriptor, "wb") as out:
            yield out
            if descriptor is not None:
                out.flush()
                _give_name(descriptor, unfinished)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _nameless(folder: Path) -> int | None:
    """Opens a file without a name; None where the system has none, or anything is wrong with the folder."""
    if not os.path.exists("/proc/self/fd"):  # by which it gets its name
        return None
    try:
        return os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o666)
    except (AttributeError, OSError):
        return None


def _give_name(descriptor: int, path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # A name cannot replace another in this call, and the link in /proc is followed only with a directory given.
        os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
