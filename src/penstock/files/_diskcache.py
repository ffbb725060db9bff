"""Blocks of remote objects in a folder of this machine, shared by all processes of a user.

    FOLDER/penstock-blocks-<user>/
        state                        8 bytes a slot: the bytes that its processes added, less those they deleted
        writing/<slot>-<number>      a block that is being written
        <folder of the URL>/<object>-<first byte>-<end>    a block, and 16 bytes: a checksum, and the boot it is of

Names are hashes, of the URL, the version of the object (its ETag) and the endpoint. So no block is ever another
version's, or another server's. The folder belongs to one user of the system, and no other may enter it.

Valid or absent. A block is written aside and renamed, so a name stands for all bytes, whenever a process is killed. A
full disk leaves the name out. After a crash of the machine, the first read of each older block compares the checksum:
the disk may have the name and not the bytes. Only files with such names are deleted.

Locks are bytes of `state` (`fcntl.lockf`), which the kernel frees when their process ends, also by SIGKILL. A process
holds one for its slot, shared ones for the folders that it reads, and one for each block that it downloads. No call
waits for a lock. A process that starts takes a free slot and deletes what dead processes left in `writing/`.

Threads. Any thread may call; `_lock` protects the slot's count and the tables of locks, because locks of the system
belong to the process.
"""

import errno
import fcntl
import hashlib
import itertools
import logging
import os
import re
import stat
import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np

from penstock.base._atomic import complete
from penstock.base._descriptors import keep_standard_numbers
from penstock.base._errors import ArgumentError, ArgumentTypeError, type_of
from penstock.base._trust import require_safe
from penstock.files._store import StorageOptions

SLOT_COUNT: Final = 512
_CLAIMS: Final = 1 << 20
_FOLDERS: Final = 1 << 40
_TRAILER_NBYTES: Final = 16
_DISK_BLOCK_NBYTES: Final = 4096
_PAGE_NBYTES: Final = 4096
_MOST_NBYTES: Final = 1 << 56
_NAME: Final = re.compile(r"([0-9a-f]{32})-(\d+)-(\d+)")
_ASIDE: Final = re.compile(r"\d+-\d+")
_PLACES: Final = re.compile(r"endpoint|account|host", re.IGNORECASE)
_VARIABLES: Final = (
    "AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT",
    "STORAGE_EMULATOR_HOST", "FSSPEC_S3_ENDPOINT_URL",
)  # fmt: skip

_log = logging.getLogger("penstock")


@final
@dataclass(frozen=True)
class DiskCache:
    """A folder of this machine that keeps parts of remote files, for the `cache=` of functions that take URLs.

    Parts that were read over the network once are read from the folder after, in later epochs and by later runs. All
    processes of a user on a machine may share it, whatever they read. Of several that want the same part, one
    downloads it. If the limit is smaller than the data, data that no run reads any more go first, those that were used
    least recently before the others. Then parts stay as they came, and what finds no room is read over the network.

    An object that is replaced has another ETag, so old bytes are never read for it. Objects without a version are not
    kept. The folder is made in `folder` for the present user, and no other user's is read. A process may be killed at
    any moment, and the disk may be full. Then parts are read over the network, and the log says so once.

    Order, random access: unchanged. Memory: some 100 bytes for each part of the cells that change, in each process.

    Args:
        folder: A folder on a local disk, made if need be. Worker processes and Ray nodes use it by this name.
        nbytes: The most bytes that files in it may take.

    Raises:
        ArgumentError: The folder is a URL, or `nbytes` is below 1.
        ArgumentTypeError: The folder is no path, or `nbytes` no int.

    Example:
        >>> penstock.DiskCache("cache", 100 * 10**9).nbytes
        100000000000
    """

    folder: str
    nbytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.folder, (str, os.PathLike)):
            raise ArgumentTypeError(f"DiskCache() needs the path of a folder, got {type_of(self.folder)}.")
        folder = os.fspath(self.folder)
        if "://" in folder:
            raise ArgumentError(f"DiskCache({folder!r}) is a URL; the cache is a folder on a disk of this machine.")
        if not isinstance(self.nbytes, int) or isinstance(self.nbytes, bool):
            raise ArgumentTypeError(
                f"DiskCache(nbytes=) is an int, such as 100 * 10**9 for 100 GB, got {type_of(self.nbytes)}."
            )
        if self.nbytes < 1:
            raise ArgumentError(f"DiskCache(nbytes={self.nbytes}): at least 1.")
        object.__setattr__(self, "folder", os.path.abspath(folder))

    def fingerprint_parts(self) -> dict[str, Any]:
        """Nothing: elements do not depend on it."""
        return {}

    @staticmethod
    def of(verb: str, given: Any) -> "DiskCache | None":
        """Returns the cache that a user gave.

        Raises:
            ArgumentTypeError: It is none.
        """
        if given is None or isinstance(given, DiskCache):
            return given
        raise ArgumentTypeError(
            f"{verb}(cache=) is a penstock.DiskCache, such as DiskCache({str(given)!r}, nbytes=100 * 10**9), got "
            f"{type_of(given)}."
        )

    def require_room(self, nbytes: int) -> None:
        """Warns if the limit is below the size of the data."""
        if nbytes > self.nbytes:
            _log.warning(
                "The cache in %s may take %s bytes, and the data have %s. What comes first stays; the rest is "
                "read over the network in each epoch. Give it a larger nbytes= to read from the disk alone.",
                self.folder,
                f"{self.nbytes:,}",
                f"{nbytes:,}",
            )

    def open(self) -> "CacheFolder | None":
        """Opens the folder, once in each process. None if it cannot be used; the log has the reason."""
        with _opening:
            try:
                status = os.stat(_made(self.folder))  # several names of a folder, as by a link, lead to the same locks
                key = status.st_dev, status.st_ino, os.getpid()
                return _opened.get(key) or _opened.setdefault(key, CacheFolder(self.folder))
            except OSError as error:
                _log.warning(
                    "The cache in %s cannot be used: %s. Everything is read over the network.",
                    self.folder,
                    error.strerror or error,
                )
                return None


class BlockName(NamedTuple):
    """The name of a block."""

    folder: str
    """A hash of the folder of the URL."""
    object: str
    start: int
    stop: int

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.object}-{self.start}-{self.stop}"


def disk_nbytes(name: BlockName) -> int:
    """Returns the bytes that a block takes on the disk."""
    return -(-(name.stop - name.start + _TRAILER_NBYTES) // _DISK_BLOCK_NBYTES) * _DISK_BLOCK_NBYTES


def object_names(url: str, version: str, nbytes: int, options: StorageOptions | None) -> tuple[str, str]:
    """Returns the names of a URL's folder and of the object in this version, at the endpoint that is in use."""
    places = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    places += sorted(_places({} if options is None else options.values))
    where = "\0".join(places)
    names = ((where, url.rpartition("/")[0]), (where, url, version, str(nbytes)))
    folder, name = (hashlib.sha256("\0\0".join(parts).encode(errors="surrogatepass")).hexdigest() for parts in names)
    return folder[:16], name[:32]


def _places(options: dict[str, Any]) -> Iterator[str]:
    """Yields the options that name a server or an account."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _places(value)
        elif _PLACES.search(name):
            yield f"{name}={value}"


@final
class CacheFolder:
    """An open cache in this process, which opens it once: to close a file drops all locks of the process on it.

    Raises:
        OSError: The folder cannot be made, or is another user's.
    """

    def __init__(self, folder: str) -> None:
        self._fd = -1
        self._pid = os.getpid()
        self.path = _made(folder)
        self._writing = os.path.join(self.path, "writing")
        os.makedirs(self._writing, exist_ok=True)
        keep_standard_numbers()
        self._fd = os.open(
            os.path.join(self.path, "state"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        self._lock = threading.Lock()
        self._claimed: set[BlockName] = set()
        self._held: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._boot = _boot()
        self.is_failing = False
        self._slot = next((slot for slot in range(SLOT_COUNT) if self._try_lock(slot)), None)
        self._nbytes = self._unwritten_nbytes = 0
        if self._slot is not None:
            noted = int.from_bytes(os.pread(self._fd, 8, 8 * self._slot), "little", signed=True)
            self._nbytes = noted if abs(noted) < _MOST_NBYTES else 0  # no disk is as large: that is damage
            self._sweep()

    def __del__(self) -> None:
        if self._fd >= 0 and self._pid == os.getpid():  # in a child of fork() this would drop the child's locks
            os.close(self._fd)

    # Locks.

    def _try_lock(self, byte: int, kind: int = fcntl.LOCK_EX) -> bool:
        try:
            fcntl.lockf(self._fd, kind | fcntl.LOCK_NB, 1, byte)
        except OSError as error:
            # A file system without locks has no other processes either, as far as they can be known.
            return error.errno not in (errno.EACCES, errno.EAGAIN)
        return True

    def _is_locked(self, byte: int) -> bool:
        """Whether another process has a lock."""
        if not self._try_lock(byte):
            return True
        self._unlock(byte)
        return False

    def _unlock(self, byte: int) -> None:
        with suppress(OSError):
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)

    def claim(self, name: BlockName) -> bool:
        """Takes the right to download a block. False if another thread or process has it. Never waits."""
        with self._lock:
            if name in self._claimed or not self._try_lock(_CLAIMS + zlib.crc32(name.path.encode())):
                return False
            self._claimed.add(name)
            return True

    def leave(self, name: BlockName) -> None:
        """Gives the right back."""
        with self._lock:
            self._claimed.discard(name)
            self._unlock(_CLAIMS + zlib.crc32(name.path.encode()))

    def hold(self, folder: str, count: int = 1) -> None:
        """Says that this process reads objects of a folder, so that no other evicts them; -1 takes it back."""
        byte = _FOLDERS + zlib.crc32(folder.encode())
        with self._lock:
            self._held[folder] += count
            if self._held[folder] == 0:
                del self._held[folder]
                self._unlock(byte)
            elif self._held[folder] == count:
                self._try_lock(byte, fcntl.LOCK_SH)

    def _is_held(self, folder: str) -> bool:
        """Whether a running process reads objects of a folder."""
        byte = _FOLDERS + zlib.crc32(folder.encode())
        with self._lock:
            return folder in self._held or self._is_locked(byte)

    # Room.

    def reserve(self, nbytes: int, limit: int) -> bool:
        """Adds bytes to what the cache takes; not beyond the limit, even if several processes do so at once."""
        if self._slot is None or self.is_failing:
            return False
        with self._lock:
            self._add(nbytes)
            if self.nbytes <= limit:
                self._unwritten_nbytes += nbytes
                return True
            self._add(-nbytes)
            return False

    def release(self, nbytes: int) -> None:
        """Takes bytes from what the cache takes."""
        with self._lock:
            self._add(-nbytes)

    def _add(self, nbytes: int) -> None:
        self._nbytes += nbytes
        if self._slot is not None:
            try:
                os.pwrite(self._fd, self._nbytes.to_bytes(8, "little", signed=True), 8 * self._slot)
            except OSError as error:
                self._fail(error)

    @property
    def nbytes(self) -> int:
        """The bytes that all processes have reserved. Beyond any limit if the disk does not say."""
        try:
            state = os.pread(self._fd, 8 * SLOT_COUNT, 0)
        except OSError as error:
            self._fail(error)
            return _MOST_NBYTES
        return int(np.frombuffer(state, np.int64, len(state) // 8).sum())

    # Blocks.

    def has(self, name: BlockName) -> bool:
        return os.access(f"{self.path}/{name.path}", os.F_OK)

    def read(self, name: BlockName, parts: Sequence[tuple[int, memoryview]]) -> bool:
        """Copies parts of a block into memory. False if the block is not there.

        Args:
            name: The block.
            parts: Where each part starts in the block, and its memory.
        """
        size, trailer = name.stop - name.start, bytearray(_TRAILER_NBYTES)
        try:
            descriptor = os.open(f"{self.path}/{name.path}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            wanted = [*parts, (size, memoryview(trailer))]
            is_whole = all(os.preadv(descriptor, [place], at) == len(place) for at, place in wanted)
            if is_whole and (trailer[8:] == self._boot or self._is_right(name, descriptor, trailer)):
                return True
        except OSError:  # the disk fails
            pass
        finally:
            os.close(descriptor)
        self.delete(name)
        return False

    def _is_right(self, name: BlockName, descriptor: int, trailer: bytearray) -> bool:
        """Compares the checksum of a block that was written before the machine started, once."""
        if _checksum(os.pread(descriptor, name.stop - name.start, 0)) != trailer[:8]:
            return False
        with suppress(OSError), open(f"{self.path}/{name.path}", "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), self._boot, name.stop - name.start + 8)
        return True

    def store(self, name: BlockName, data: Any) -> bool:
        """Writes a block for which room is reserved. False if the disk is full or fails; then the room is free."""
        aside, path = f"{self._writing}/{self._slot}-{next(self._numbers)}", f"{self.path}/{name.path}"
        try:
            # Its reader compares the checksum, so nothing waits for the disk.
            with complete(path, 0o600, aside=aside, is_synced=False) as out:
                out.write(data)
                out.write(_checksum(data) + self._boot)
        except OSError as error:
            self.release(disk_nbytes(name))
            self._fail(error)
            return False
        finally:
            with self._lock:
                self._unwritten_nbytes -= disk_nbytes(name)
        return True

    def _fail(self, error: OSError) -> None:
        if not self.is_failing:
            self.is_failing = True
            _log.warning(
                "The cache in %s cannot be written: %s. What is in it is used; the rest is read over the network.",
                self.path,
                error.strerror or error,
            )

    def delete(self, name: BlockName) -> None:
        """Deletes a block, if it is there."""
        with suppress(OSError):
            os.unlink(f"{self.path}/{name.path}")
            self.release(disk_nbytes(name))

    def blocks(self, folders: set[str]) -> tuple[list[BlockName], list[BlockName]]:
        """Returns the blocks of some folders, and those of folders that no running process reads.

        Those that were used least recently come first, as far as the file system notes it. Corrects the count of bytes,
        which a killed process may have left too high, if no other process runs now.
        """
        with self._lock:
            too_many = self.nbytes - self._unwritten_nbytes
            is_alone = not any(self._is_locked(slot) for slot in range(SLOT_COUNT) if slot != self._slot)
        found: list[tuple[float, BlockName]] = []
        with suppress(OSError):
            for folder in os.listdir(self.path):
                if len(folder) != 16:
                    continue
                with os.scandir(f"{self.path}/{folder}") as entries:
                    for entry in entries:
                        if match := _NAME.fullmatch(entry.name):
                            status, name = entry.stat(), BlockName(folder, match[1], int(match[2]), int(match[3]))
                            found.append((max(status.st_atime, status.st_mtime), name))
            if is_alone and (too_many := too_many - sum(disk_nbytes(name) for _, name in found)) > 0:
                self.release(too_many)  # blocks that came meanwhile make it smaller
        names = [name for _, name in sorted(found)]
        others = {name.folder for name in names} - folders
        unused = {folder for folder in others if not self._is_held(folder)}
        return [name for name in names if name.folder in folders], [name for name in names if name.folder in unused]

    def _sweep(self) -> None:
        """Deletes what dead processes left unfinished. Their slots are free."""
        for name in os.listdir(self._writing):
            slot = name.partition("-")[0]
            if not _ASIDE.fullmatch(name) or int(slot) >= SLOT_COUNT:
                continue
            is_mine = int(slot) == self._slot
            if is_mine or not self._is_locked(int(slot)):
                with suppress(OSError):
                    os.unlink(f"{self._writing}/{name}")


def _made(folder: str) -> str:
    """Makes the folder of blocks of this user, unless it is there, and returns its path.

    Raises:
        OSError: It cannot be made, or is another user's.
    """
    path = os.path.join(folder, f"penstock-blocks-{os.geteuid()}")
    os.makedirs(folder, exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(errno.EPERM, f"{path} is not this user's alone (chmod 700)")
    require_safe(path)
    return path


_opened: "weakref.WeakValueDictionary[tuple[int, int, int], CacheFolder]" = weakref.WeakValueDictionary()
_opening = threading.RLock()  # reentrant: the collector may drop a folder while one is opened


def _checksum(data: Any) -> bytes:
    """Returns 8 bytes that show pages which are missing, and words and pages that changed places.

    The data are a table of pages, one a row: 4 bytes are a CRC of the sums of its columns, and 4 are a CRC of the sums
    of its rows and of what follows the last page. This takes 12 GB/s, and a CRC of the data 1 to 3.
    """
    view = memoryview(data).cast("B")
    whole = len(view) // _PAGE_NBYTES * _PAGE_NBYTES
    table = np.frombuffer(view[:whole], np.uint64).reshape(-1, _PAGE_NBYTES // 8)
    columns = zlib.crc32(table.sum(axis=0), len(view))
    rows = zlib.crc32(view[whole:], zlib.crc32(table.sum(axis=1), len(view)))
    return columns.to_bytes(4, "little") + rows.to_bytes(4, "little")


def _boot() -> bytes:
    """Returns 8 bytes that are others after each start of the machine; if it does not say, others in each process."""
    try:
        life = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        life = os.urandom(16)
    return hashlib.sha256(life).digest()[:8]
