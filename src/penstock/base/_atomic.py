"""The one way to write a file: its name appears when all of it is on the disk.

An interrupted process, a full disk and a crash of the machine leave the name as it was before. Of several writers of
one name either wins. A link that has the name is replaced, and what it points to is not touched.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from penstock.base._descriptors import keep_standard_numbers

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
# What file systems without `fsync` say.
_UNKNOWN: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
_UNFINISHED: Final = re.compile(r"\.penstock-[0-9a-f]{16}\.part")
_ABANDONED_S: Final = 3600.0

_swept: set[str] = set()
"""The folders in which this process has looked for abandoned files."""


@contextlib.contextmanager
def complete(
    path: str | os.PathLike[str], mode: int = 0o666, *, aside: str | None = None, is_synced: bool = True
) -> Iterator[BinaryIO]:
    """Opens a file for writing. It gets its name at the end, and is removed if the body fails.

    Until then it has another one. The next process that writes into the folder deletes what a killed one left an hour
    ago or earlier. A lock shows that a writer is alive, also on another machine.

    Args:
        path: The name. Its folder is made if need be.
        mode: The permissions, less the user's umask.
        aside: A name for the unfinished file, on the same disk; None for one of its own.
        is_synced: Waits for the disk. False for content that has a checksum, which its reader compares.

    Raises:
        OSError: It cannot be written, or the name is that of a folder, a device or a pipe.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _require_replaceable(path)
    unfinished = path.with_name(f".penstock-{secrets.token_hex(8)}.part") if aside is None else Path(aside)
    keep_standard_numbers()
    if aside is None:
        _delete_abandoned(path.parent)
    with naming(path), open(os.open(unfinished, _NEW, mode), "wb") as out:
        try:
            with contextlib.suppress(OSError):  # without locks nobody deletes it
                fcntl.flock(out.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield out
            out.flush()
            if is_synced:
                sync(out.fileno())
            os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Adds a path to errors of the system that have none: a write knows a number alone."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def write(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a whole file into a folder that is there; see `complete`."""
    os.stat(Path(path).parent)
    with complete(path) as out:
        out.write(content)


def sync(descriptor: int) -> None:
    """Waits until the bytes of a file are on its disk.

    Raises:
        OSError: The disk is full, or fails.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise


def _require_replaceable(path: Path) -> None:
    """Refuses `/dev/null` and `/dev/stdout`, which a rename would replace by a file."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EEXIST, f"{path} is a folder, a device or a pipe, and no file that can be replaced")


def _delete_abandoned(folder: Path) -> None:
    """Deletes files of this user that killed processes have not finished, once in each process: only names of ours."""
    if os.fspath(folder) in _swept:
        return
    _swept.add(os.fspath(folder))
    with contextlib.suppress(OSError):
        for name in filter(_UNFINISHED.fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError):
                _delete_if_abandoned(folder / name)


def _delete_if_abandoned(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if is_ours and time.time() - status.st_mtime > _ABANDONED_S:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if a writer has it
            os.unlink(path)
    finally:
        os.close(descriptor)
