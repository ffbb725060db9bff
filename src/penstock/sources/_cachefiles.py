"""The files of a cache, made or found, on disk or in memory.

Fixed-size leaves are `.npy` files, `0.npy` and on. Row `i` belongs to element `i`. `index.npy` has a mark for each
element. Leaves of unknown size (text, ragged arrays, batches that may be short) lie in `rest.bin`, one element after
the other in the order of their writing, and the index has their places.

    PATH/<fingerprint of the plan>/
        cache.json    version, the plan's steps by fingerprints, the leaves
        0.npy ...     rows; unwritten rows are holes
        rest.bin      leaves without rows
        index.npy     uint64 (length, 1), or (length, 3): byte and size in `rest.bin`, and the mark
        count         of a stream: int64, the number of its elements plus 1; 0 until all are written
        lock          of a stream: locked by the process that writes it

A mark is 32 bits of CRC, 31 bits of tag, and a bit that is set. The CRC covers the element's number, then its leaves.
The tag identifies the boot of the machine and the files. While a machine runs, its kernel returns all bytes that it has
accepted. So marks with the present tag are trusted. An element with another tag is compared with its CRC at its first
read. The files of a copied directory are other files; so are the files of a disk after a crash of the machine.

A directory is made under another name, `.penstock-new-...`, and renamed when it is complete. A process that is killed
in between leaves it there; it takes no room. One that is damaged is renamed to `<fingerprint>.damaged-<time>`, and
stays: only the user deletes elements.
"""

import ast
import contextlib
import hashlib
import io
import json
import logging
import math
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from penstock.base import _tree
from penstock.base._atomic import sync
from penstock.base._descriptors import keep_standard_numbers
from penstock.base._errors import SourceError
from penstock.base._files import is_folder
from penstock.base._spec import ArraySpec, Spec
from penstock.base._trust import make_private, private_mode, require_own_file, require_safe
from penstock.plan._fingerprint import Step, change, fingerprint_of
from penstock.sources import npy
from penstock.sources.npy import StridedFile, seal_size

VERSION: Final = 2
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
# File systems whose disk only the local kernel writes, so that accepted bytes stay until the machine goes down. With
# others (NFS, FUSE) an error may come after acceptance, or another machine may write: no tag is trusted.
_LOCAL: Final = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
_KNOWN: Final = re.compile(r"cache\.json|\d+\.npy|index\.npy|rest\.bin|count|lock")
_log = logging.getLogger("penstock")


@final
@dataclass(frozen=True, eq=False)
class CacheFiles:
    """A description of the files of a cache, which travels."""

    place: str
    """The user's name of the cache."""
    paths: dict[str, str]
    """The path of each file, by name."""
    spec: Spec
    length: int
    """The number of elements that fit into the files."""
    leaves: tuple[StridedFile | None, ...]
    """The rows of each leaf; None for a leaf without rows."""
    index: StridedFile
    tag: int
    """See above; 0 to trust none."""
    limit: int | None
    """The largest size of all files in bytes."""

    def grown(self, length: int) -> "CacheFiles":
        """Returns the same files for a stream with `length` elements.

        Raises:
            SourceError: A file is too short, or cannot be read.
        """
        with reading(self.place):
            leaves, index = described(self.paths, self.spec, length)
        return replace(self, length=length, leaves=leaves, index=index, limit=None)

    @property
    def row_limit(self) -> int:
        """The number of elements from the first on that may be kept."""
        return self.length if self.limit is None else min(self.length, self.limit // row_nbytes(self.spec))

    @property
    def rest_limit(self) -> int | None:
        """The largest size of `rest.bin` in bytes."""
        return None if self.limit is None else self.limit - self.row_limit * row_nbytes(self.spec)

    @property
    def has_rest(self) -> bool:
        """Whether a leaf has no rows."""
        return mark_nbytes(self.spec) > 8


def row_nbytes(spec: Spec) -> int:
    """Returns the bytes of an element in files of rows and in the index."""
    return sum(leaf.nbytes or 0 for leaf in spec.leaves if has_rows(leaf)) + mark_nbytes(spec)


def mark_nbytes(spec: Spec) -> int:
    """Returns the bytes of an element in the index."""
    return 8 if all(map(has_rows, spec.leaves)) else 24


def has_rows(leaf: ArraySpec) -> bool:
    """Whether the leaf has the same size in each element."""
    return leaf.is_bounded and not leaf.varies


def rows_of(spec: Spec) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Returns the dtype and the shape of the rows in each file of rows, by name."""
    rows = {f"{n}.npy": (leaf.dtype, leaf.max_shape or ()) for n, leaf in enumerate(spec.leaves) if has_rows(leaf)}
    return {**rows, "index.npy": (np.dtype("<u8"), (mark_nbytes(spec) // 8,))}


def names(spec: Spec) -> list[str]:
    """Returns the names of the files beside `cache.json`."""
    return [*rows_of(spec), "rest.bin", "count", "lock"]


def header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Returns the header of a `.npy` file. Its size does not depend on the number of rows."""
    file, content = io.BytesIO(), {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    try:
        np.lib.format.write_array_header_1_0(file, content)
    except ValueError:  # many fields
        file.seek(0)
        np.lib.format.write_array_header_2_0(file, content)
    return file.getvalue()


def described(paths: dict[str, str], spec: Spec, length: int) -> tuple[tuple[StridedFile | None, ...], StridedFile]:
    """Returns the rows of the leaves and of the index, for `length` elements.

    Raises:
        SourceError: A file is too short, or of other rows.
        FileNotFoundError: A file is missing.
        OSError: A file cannot be read, so it is not known whether it is damaged.
    """
    if mark_nbytes(spec) > 8:
        os.stat(paths["rest.bin"])

    def rows(name: str, dtype: np.dtype[Any], shape: Any) -> StridedFile:
        with open(paths[name], "rb", buffering=0) as opened:
            status = os.fstat(opened.fileno())
            state = status.st_dev, status.st_ino, status.st_size
            file = npy.described(opened, name, paths[name], state)
        if file.shape[0] != length > 0 or (file.row_shape, file.dtype.itemsize) != (shape, dtype.itemsize):
            raise SourceError(f"{paths[name]} has other rows.")
        return replace(file, shape=(length, *shape), dtype=dtype)  # .npy has no names for dtypes of other libraries

    found = {name: rows(name, *each) for name, each in rows_of(spec).items()}
    return tuple(found.get(f"{number}.npy") for number in range(len(spec.leaves))), found["index.npy"]


def _fill_files(paths: dict[str, str], spec: Spec, length: int, *, is_there: bool = False, mode: int = 0o600) -> None:
    """Gives new files their headers and sizes. They are holes, which take no disk."""
    rows = rows_of(spec)
    for name, path in paths.items():
        with open(path, "r+b" if is_there else "xb", opener=lambda path, flags: os.open(path, flags, mode)) as file:
            if name in rows:
                dtype, shape = rows[name]
                file.write(header(dtype, (length, *shape)))
                file.truncate(file.tell() + length * math.prod(shape) * dtype.itemsize)
            elif name == "count":
                file.write(bytes(8))
            file.flush()
            sync(file.fileno())


def tag_of(files: Sequence[StridedFile | None]) -> int:
    """Returns the tag for writes until the machine goes down; 0 if none may be trusted."""
    known = [(file.st_dev, file.st_ino) for file in files if file is not None]
    try:
        life = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return 0
    if not all(_is_local(device) for device, _ in known):
        return 0
    digest = hashlib.blake2b(f"{life} {known}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1 or 1


def _is_local(device: int) -> bool:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields, _, kind = line.partition(" - ")
            if fields.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                return kind.split()[0] in _LOCAL
    return False


def of_directory(path: str, steps: list[Step], spec: Spec, length: int | None, limit: int | None) -> CacheFiles:
    """Finds the cache of a plan below a directory, or makes an empty one.

    Args:
        path: The directory.
        steps: The plan.
        spec: Spec of the elements.
        length: Number of elements; None for a stream.
        limit: Largest size in bytes.

    Raises:
        SourceError: The directory cannot be read or written, or other users can plant files there.
    """
    directory = os.path.join(path, fingerprint_of(steps))
    content = {"version": VERSION, "length": length, "spec": _text_of(spec), "steps": steps}
    try:
        require_own(directory)
        if not is_folder(directory):
            _announce(path, steps)
        if (found := _found(directory, content, spec, limit)) is None:
            make_private(path)
            _make(path, directory, content, spec)
            found = _found(directory, content, spec, limit)
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(
            f"cache() cannot use the directory {path}: {error.strerror or error}. Give one that can be written."
        ) from error
    if found is None:
        raise SourceError(f"cache() cannot use {directory}: it changes all the time. Delete it, and give another path.")
    return found


def require_own(directory: str) -> None:
    """Refuses a directory that a stranger may have made or changed, so that nothing in it is read.

    Raises:
        SourceError: It is such a one, or cannot be looked at.
    """
    try:
        require_safe(directory)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
            for entry in entries:
                if _KNOWN.fullmatch(entry.name):
                    require_own_file(entry.path)
    except OSError as error:
        raise SourceError(f"cache() cannot use the directory {directory}: {error.strerror}.") from None


@contextlib.contextmanager
def reading(place: str) -> Iterator[None]:
    """Turns failures to read a cache that is there into errors that say so. They are no damage: all stays as it is."""
    try:
        yield
    except SourceError:
        raise
    except OSError as error:
        raise unreadable(place, error) from error


def unreadable(place: str, error: OSError) -> SourceError:
    """The error of a cache that cannot be read."""
    why = str(error.strerror or error).rstrip(".")
    return SourceError(
        f"The cache in {place} cannot be read: {why}. It was there when the dataset was made; make the dataset again."
        if isinstance(error, FileNotFoundError)
        else f"The cache in {place} cannot be read: {why}. Nothing of it was changed. Mend the disk, the connection to "
        "it or the permissions, and try again; or give another path."
    )


def _paths(directory: str, spec: Spec) -> dict[str, str]:
    return {name: os.path.join(directory, name) for name in names(spec)}


def _files(place: str, paths: dict[str, str], spec: Spec, length: int | None, limit: int | None) -> CacheFiles:
    if length is None and (count := _count_in(paths["count"])) is not None:
        described(paths, spec, count)
    if os.path.getsize(paths["count"]) != 8:  # without it a complete stream would count as one that is being written
        raise SourceError(f"{paths['count']} has another size than 8 bytes")
    leaves, index = described(paths, spec, length or 0)
    return CacheFiles(place, paths, spec, length or 0, leaves, index, tag_of([*leaves, index]), limit)


def _found(directory: str, content: dict[str, Any], spec: Spec, limit: int | None) -> CacheFiles | None:
    """Returns the cache in a directory, if there is one of this content. Sets a damaged cache aside.

    Raises:
        SourceError: It is there and cannot be read. That is no damage.
    """
    if not is_folder(directory):
        return None
    seen = os.stat(directory)
    try:
        written = json.loads(Path(directory, "cache.json").read_text())
        differs = {name for name in content if name != "steps" and written[name] != content[name]}
        if differs:
            raise SourceError(f"its {', '.join(sorted(differs))} differ")
        return _files(directory, _paths(directory, spec), spec, content["length"], limit)
    except (ValueError, KeyError, TypeError, SourceError, FileNotFoundError) as error:
        _set_aside(directory, seen, error)
        return None
    except OSError as error:
        raise unreadable(directory, error) from error


def _set_aside(directory: str, seen: os.stat_result, why: Exception) -> None:
    """Renames a damaged cache, unless another process was faster and has made a new one."""
    aside = f"{directory}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.stat(directory), seen):
            os.rename(directory, aside)
            _log.warning(
                "The cache in %s is damaged (%s) and begins anew. The old one is kept as %s; delete it if it is not "
                "needed.", directory, why, aside,
            )  # fmt: skip


def _make(path: str, directory: str, content: dict[str, Any], spec: Spec) -> None:
    mode = private_mode(path)
    new = os.path.join(path, f".penstock-new-{secrets.token_hex(8)}")
    os.mkdir(new, 0o700 | mode | (mode & 0o444) >> 2)
    try:
        with open(os.path.join(new, "cache.json"), "x", opener=lambda path, flags: os.open(path, flags, mode)) as file:
            json.dump(content | {"python": _PYTHON}, file, indent=1)
            file.flush()
            sync(file.fileno())
        _fill_files(_paths(new, spec), spec, content["length"] or 0, mode=mode)
        os.rename(new, directory)
    except BaseException as error:
        with contextlib.suppress(OSError):
            for name in os.listdir(new):
                os.unlink(os.path.join(new, name))
            os.rmdir(new)
        if not isinstance(error, OSError) or not is_folder(directory):  # another process was faster
            raise


def _announce(path: str, steps: list[Step]) -> None:
    """Logs why a new cache begins, if there is a cache of another plan."""
    others = []
    for file in Path(path).glob("[!.]*/cache.json"):
        if ".damaged-" in file.parent.name:
            continue
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            written = json.loads(file.read_text())
            before = [Step(*step) for step in written["steps"]]
            now = {(number, *part) for number, step in enumerate(steps) for part in step.parts.items()}
            then = {(number, *part) for number, step in enumerate(before) for part in step.parts.items()}
            if now != then:  # equal if another process has just made it
                # All fingerprints of another Python differ, because its code and its types do.
                python = written.get("python", _PYTHON)
                why = change(before, steps) if python == _PYTHON else f"Python was {python} and is {_PYTHON}"
                others.append((len(now ^ then), file.parent, why))
    if others:
        _, directory, why = min(others, key=lambda other: (other[0], str(other[1])))
        taken = sum(each.stat().st_blocks * 512 for each in directory.iterdir())
        _log.warning(
            "The cache in %s begins anew: %s. The earlier elements stay in %s (%.1f MiB); delete it if it is not "
            "needed.", path, why, directory, taken / (1 << 20),
        )  # fmt: skip


def recorded_count(path: str | Path) -> int | None:
    """Reads the file that has the length of a stream once it is complete; None if it is not there or not complete.

    Raises:
        SourceError: It cannot be read.
    """
    with reading(os.path.dirname(path)):
        return _count_in(path)


def _count_in(path: str | Path) -> int | None:
    """As `recorded_count`, but raises the system's errors: to `_found` a `SourceError` is damage."""
    try:
        raw = Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    count = int.from_bytes(raw, "little") - 1
    return count if count >= 0 else None


def recorded_spec(path: str, steps: list[Step], length: int | None) -> Spec | None:
    """Returns the spec of a cache that was begun; None if there is no cache, or only a run finds the spec."""
    try:
        written = json.loads(Path(path, fingerprint_of(steps), "cache.json").read_text())
        if (written["version"], written["length"]) != (VERSION, length):
            return None
        leaves, structure = _tree.flatten(ast.literal_eval(written["spec"]))
        specs = (ArraySpec(shape, np.lib.format.descr_to_dtype(descr), most) for shape, descr, most in leaves)
        return Spec(tuple(specs), structure)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(os.path.join(path, fingerprint_of(steps)), error) from error
    except (ValueError, KeyError, TypeError, SyntaxError):
        return None  # also for a class or a dtype that text cannot restore


def _text_of(spec: Spec) -> str:
    """Returns a spec as a Python literal: a tree of lists, each with the shape, the dtype and the largest shape."""
    leaves = []
    for leaf in spec.leaves:
        descr = np.lib.format.dtype_to_descr(leaf.dtype)
        # For a dtype of another library, such as bfloat16, it has no more than the number of bytes.
        is_whole = np.lib.format.descr_to_dtype(descr) == leaf.dtype
        leaves.append([leaf.shape, descr if is_whole else repr(leaf.dtype), leaf.max_shape])
    return repr(spec.structure.unflatten(leaves))


_NOT_IN_MEMORY: Final = (
    "cache() cannot keep elements in memory here: {}. It needs memory files that other processes open below /proc, "
    "which a sandbox, a /proc that is not mounted, or a limit on open files or their size (ulimit -n, -f) prevents. "
    "cache(path) keeps them on disk, or in memory if the path is on a tmpfs."
)


@final
class MemoryFiles:
    """Files without a name in memory, freed with this object. Other processes open them below `/proc`."""

    def __init__(self, spec: Spec, length: int | None, limit: int | None) -> None:
        folder: str | None = None
        if not sys.platform.startswith("linux"):
            folder = tempfile.mkdtemp(prefix="penstock")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        try:
            paths = {name: os.path.join(folder, name) if folder else self._memory() for name in names(spec)}
            _fill_files(paths, spec, length or 0, is_there=folder is None)
        except OSError as error:
            raise SourceError(_NOT_IN_MEMORY.format(error)) from error
        if length is not None:  # the files of a stream grow and begin anew, until they are complete
            for path in paths.values():
                with open(path, "r+b") as file:
                    seal_size(file.fileno())
        files = _files("memory", paths, spec, length, limit)
        self.files = files if folder is not None else replace(files, tag=1)

    def _memory(self) -> str:
        """Makes a file without a name, and returns its path for other processes.

        Raises:
            OSError: There is no such file, or no such path.
        """
        keep_standard_numbers()
        descriptor = os.memfd_create("penstock-cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, descriptor)
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        if not os.path.samestat(os.stat(path), os.fstat(descriptor)):  # /proc numbers processes differently
            raise OSError("/proc is that of other processes")
        return path
