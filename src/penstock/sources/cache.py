"""The places where `cache` keeps elements, as handles that travel: a directory, or memory."""

import os
import threading
from contextlib import suppress
from functools import cached_property
from typing import Any, final

from penstock.base._errors import ArgumentError, PenstockError, SourceError
from penstock.base._fingerprint import fingerprint
from penstock.base._spec import Spec
from penstock.base._travel import leaves_machine
from penstock.memory._rows import chunk_nbytes
from penstock.plan._cache import Asked, CacheHandle, OpenCache, Whole
from penstock.plan._fingerprint import Step, fingerprint_of, table
from penstock.plan._node import Length, Memory, Node
from penstock.sources._cachefiles import (
    CacheFiles,
    MemoryFiles,
    has_rows,
    of_directory,
    recorded_count,
    recorded_spec,
    require_own,
    row_nbytes,
)
from penstock.sources._cacheopen import OpenCacheFiles, holds_all


class _Store(CacheHandle):
    """A cache of a plan's elements, made when it is first opened.

    Args:
        before: The plan.
        limit: Largest size in bytes.
    """

    def __init__(self, before: Node, limit: int | None) -> None:
        self._before = before
        self._limit = limit
        self._lock = threading.Lock()
        self._files: CacheFiles | None = None

    def files(self) -> CacheFiles:
        """Returns the files, which are made at the first call.

        Raises:
            SourceError: They cannot be made.
        """
        with self._lock:
            if self._files is None:
                self._files = self._make(self._before.spec)
            return self._files

    def _make(self, spec: Spec) -> CacheFiles:
        raise NotImplementedError

    def _length(self) -> int | None:
        """Returns the number of elements that are kept one by one; None for a stream."""
        length = self._before.length
        return length if self._before.access == "random" and isinstance(length, int) else None

    def open(self) -> OpenCacheFiles:
        return OpenCacheFiles(self.files())

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(table(self._before))

    def __reduce__(self) -> tuple[Any, ...]:
        if leaves_machine() and not self._is_for_all():
            return _Arrived, (None, None)
        # There are no files before element 0 was run, perhaps in the worker that this travels to.
        failed: Exception | None = None
        try:
            if self._files is None and self._before.known_spec is not None:
                self.files()
        except (PenstockError, OSError) as error:  # `open` raises it, here and there
            failed = error
        return _Arrived, (self._files, failed)

    def _is_for_all(self) -> bool:
        """Whether processes of other machines can read what is kept.

        Raises:
            TypeError: They need it, and only this machine has it.
        """
        # Files that are being written differ from one moment to the next, and `mmap` is not shared between machines.
        return self.complete() is not None

    def memory(self, spec: Spec, length: Length) -> Memory:
        nbytes = (self._length() or 0) + (chunk_nbytes(spec) if self._before.access == "stream" else 0)
        return Memory(nbytes, nbytes, self._kept_nbytes(spec, length))

    def _kept_nbytes(self, spec: Spec, length: Length) -> int:
        return 0

    def complete(self, asked: Asked = None) -> Whole | None:
        with suppress(OSError):  # a read reports it
            if self._files is not None and holds_all(self._files, asked):
                return Whole(self._files.spec, self._files.length)
        return None


@final
class CacheDirectory(_Store):
    """A cache on disk.

    Args:
        before: The plan.
        path: The directory that holds the caches of plans.
        limit: Largest size in bytes.
        key: The user's name for the plan; None for the plan's fingerprint.

    Raises:
        ArgumentTypeError: The plan has no fingerprint.
        SourceError: Other users can plant files in the directory.
    """

    def __init__(self, before: Node, path: str, limit: int | None, key: str | None) -> None:
        super().__init__(before, limit)
        self._path = path
        self._key = key
        require_own(path)
        # Now, because functions may change their variables when they run. Large arrays are read later, if needed.
        skipped: list[str] = []
        steps = table(before, skipped) if key is None else []
        self._known_steps = steps if key is None and not skipped else None

    @cached_property
    def steps(self) -> list[Step]:
        """The steps that identify the cache."""
        if self._key is None:
            return self._known_steps or table(self._before)
        return [Step(self._before.label, 0, {"the key": fingerprint(self._key)})]

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.steps)

    def _make(self, spec: Spec) -> CacheFiles:
        return of_directory(self._path, self.steps, spec, self._length(), self._limit)

    def complete(self, asked: Asked = None) -> Whole | None:
        # An earlier process may have made it.
        require_own(os.path.join(self._path, self.fingerprint))
        length = self._length()
        if length is None:
            return self._complete_stream()
        if self._files is None and (recorded := recorded_spec(self._path, self.steps, length)):
            spec = self._before.known_spec or recorded  # without running a function
            with suppress(SourceError), self._lock:
                self._files = self._make(spec)
        return super().complete(asked)

    def _complete_stream(self) -> Whole | None:
        place = os.path.join(self._path, self.fingerprint, "count")
        if recorded_count(place) is None:
            return None
        spec = recorded_spec(self._path, self.steps, None) or self._before.spec
        with self._lock:
            files = self._make(spec)
            if (count := recorded_count(place)) is None:  # it was damaged, and is set aside
                return None
            self._files = files.grown(count)
        return Whole(spec, count)


@final
class CacheMemory(_Store):
    """A cache in memory that worker processes share. It lives as long as the dataset."""

    def complete(self, asked: Asked = None) -> Whole | None:
        if self._files is not None and self._length() is None:
            count = recorded_count(self._files.paths["count"])
            if count is None:
                return None
            with self._lock:
                self._files = self._files.grown(count)
            return Whole(self._files.spec, count)
        return super().complete(asked)

    def _make(self, spec: Spec) -> CacheFiles:
        self._kept_nbytes(spec, self._before.length)
        self._memory = MemoryFiles(spec, self._length(), self._limit)
        return self._memory.files

    def _is_for_all(self) -> bool:
        if self._length() is None and self.complete() is not None:  # its input is a stream, and is not read again
            raise TypeError("cache() without a path keeps elements in the memory of this machine alone")
        return False

    def _kept_nbytes(self, spec: Spec, length: Length) -> int:
        """Returns the limit, or the largest size of all elements.

        Raises:
            ArgumentError: That size is unknown, and there is no limit.
        """
        rest = [leaf for leaf in spec.leaves if not has_rows(leaf)]
        if all(leaf.is_bounded for leaf in rest) and isinstance(length, int):
            largest = row_nbytes(spec) + sum((leaf.nbytes or 0) + 8 * len(leaf.shape) for leaf in rest)
            return length * largest if self._limit is None else min(length * largest, self._limit)
        if self._limit is None:
            what = "elements are there" if all(leaf.is_bounded for leaf in rest) else f"bytes elements of {spec} take"
            raise ArgumentError(
                f"cache() in memory needs limit=, in bytes, because it is not known ahead how many {what}. Or keep "
                "them on disk: cache(path)."
            )
        return self._limit


@final
class _Arrived(CacheHandle):
    """A cache in a process that did not make it. Without files it keeps nothing."""

    def __init__(self, files: CacheFiles | None, failed: Exception | None) -> None:
        self._files = files
        self._failed = failed

    def open(self) -> OpenCache:
        if self._failed is not None:
            raise self._failed
        return OpenCache() if self._files is None else OpenCacheFiles(self._files)

    def memory(self, spec: Spec, length: Length) -> Memory:
        return Memory()

    def complete(self, asked: Asked = None) -> None:
        return None  # known before it travels

    @property
    def fingerprint(self) -> str:
        return self._files.place if self._files else ""
