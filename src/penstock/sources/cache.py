"""What `cache` keeps elements in, as handles that travel: a directory, or memory."""

import threading
from contextlib import suppress
from functools import cached_property
from typing import Any, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, PenstockError, SourceError
from penstock.base._fingerprint import fingerprint
from penstock.base._spec import Spec
from penstock.memory._rows import Indices, Rows, chunk_nbytes
from penstock.plan._cache import ABSENT, Asked, CacheHandle, OpenCache, Whole
from penstock.plan._fingerprint import Step, fingerprint_of, table
from penstock.plan._node import Length, Node
from penstock.plan._reader import Gather, Reader
from penstock.sources._cachefiles import (
    CacheFiles,
    MemoryFiles,
    complete_stream,
    has_rows,
    mark_nbytes,
    of_directory,
    recorded_spec,
    row_nbytes,
)
from penstock.sources._cacheopen import OpenCacheFiles, holds_all


class _Store(CacheHandle):
    """A cache of what a plan gives, made when it is first opened.

    Args:
        before: The plan.
        limit: Bytes that it may take.
    """

    def __init__(self, before: Node, limit: int | None) -> None:
        self._before = before
        self._limit = limit
        self._lock = threading.Lock()
        self._files: CacheFiles | None = None

    def files(self) -> CacheFiles:
        """The files, made now if they are not there.

        Raises:
            SourceError: They cannot be made.
        """
        with self._lock:
            if self._files is None:
                self._files = self._make()
            return self._files

    def _make(self) -> CacheFiles:
        raise NotImplementedError

    def _length(self) -> int | None:
        """How many elements there are to keep one by one; None for a stream."""
        length = self._before.length
        return length if self._before.access == "random" and isinstance(length, int) else None

    def open(self) -> OpenCacheFiles:
        return OpenCacheFiles(self.files())

    def __reduce__(self) -> tuple[Any, ...]:
        # Before element 0 has been run, perhaps in the very worker that this travels to, there are no files.
        failed: Exception | None = None
        try:
            if self._files is None and self._before.known_spec is not None:
                self.files()
        except (PenstockError, OSError) as error:  # who opens it is told, here and there
            failed = error
        return _Arrived, (self._files, failed)

    def scratch_nbytes(self, spec: Spec, length: Length) -> int:
        state = (self._length() or 0) * (1 if mark_nbytes(spec) == 8 else 17)
        return state + (chunk_nbytes(spec) if self._before.access == "stream" else 0)

    def kept_nbytes(self, spec: Spec, length: Length) -> int:
        return 0

    def complete(self, asked: Asked = None) -> Whole | None:
        if self._files is None:
            return None
        with suppress(OSError):  # whoever reads it is told
            return Whole(self._files.spec, self._files.length) if holds_all(self._files, asked) else None
        return None


@final
class CacheDirectory(_Store):
    """On disk.

    Args:
        before: The plan.
        path: The directory that holds caches of plans.
        limit: Bytes that it may take.
        key: What the user says the plan is; None to look at it.

    Raises:
        ArgumentTypeError: It has no fingerprint.
    """

    def __init__(self, before: Node, path: str, limit: int | None, key: str | None) -> None:
        super().__init__(before, limit)
        self._path = path
        self._key = key
        # Now, for variables that functions mention may change when they run; large arrays later, if they are needed.
        skipped: list[str] = []
        steps = table(before, skipped) if key is None else []
        self._known_steps = steps if key is None and not skipped else None

    @cached_property
    def steps(self) -> list[Step]:
        """What it is bound to."""
        if self._key is None:
            return self._known_steps or table(self._before)
        return [Step(self._before.label, 0, {"the key": fingerprint(self._key)})]

    @property
    def fingerprint(self) -> str:
        """That of the plan, or of the key."""
        return fingerprint_of(self.steps)

    def _make(self) -> CacheFiles:
        return of_directory(self._path, self.steps, self._before.spec, self._length(), self._limit)

    def complete(self, asked: Asked = None) -> Whole | None:
        """What is there, by an earlier process perhaps, if it is all."""
        length = self._length()
        if length is None:
            return self._complete_stream()
        if self._files is None and (recorded := recorded_spec(self._path, self.steps, length)):
            spec = self._before.known_spec or recorded  # so that no function is run
            with suppress(SourceError), self._lock:
                self._files = of_directory(self._path, self.steps, spec, length, self._limit)
        return super().complete(asked)

    def _complete_stream(self) -> Whole | None:
        found = complete_stream(self._path, self.steps)
        if found is None:
            return None
        spec, count = found
        spec = spec or self._before.spec
        with suppress(SourceError):
            files = of_directory(self._path, self.steps, spec, None, None).grown(count)
            with self._lock:
                self._files = files
            return Whole(spec, count)
        return None


@final
class CacheMemory(_Store):
    """In memory that worker processes see; it goes with the dataset."""

    def _make(self) -> CacheFiles:
        spec = self._before.spec
        self.kept_nbytes(spec, self._before.length)
        self._memory = MemoryFiles(spec, self._length(), self._limit)
        return self._memory.files

    @property
    def fingerprint(self) -> str:
        """That of the plan."""
        return fingerprint_of(table(self._before))

    def kept_nbytes(self, spec: Spec, length: Length) -> int:
        """The limit, or what all elements take at most.

        Raises:
            ArgumentError: That is not known, and no limit was given.
        """
        rest = [leaf for leaf in spec.leaves if not has_rows(leaf)]
        if all(leaf.is_bounded for leaf in rest) and isinstance(length, int):
            largest = row_nbytes(spec) + sum((leaf.nbytes or 0) + 8 * len(leaf.shape) for leaf in rest)
            return length * largest if self._limit is None else min(length * largest, self._limit)
        if self._limit is None:
            what = "elements are there" if all(leaf.is_bounded for leaf in rest) else f"bytes elements of {spec} take"
            raise ArgumentError(
                f"cache() in memory needs limit=, in bytes, for nobody knows ahead how many {what}. Or keep them on "
                "disk: cache(path)."
            )
        return self._limit


@final
class _Arrived(CacheHandle):
    """A cache in another process than the one that made it."""

    def __init__(self, files: CacheFiles | None, failed: Exception | None) -> None:
        self._files = files
        self._failed = failed

    def open(self) -> OpenCache:
        if self._failed is not None:
            raise self._failed
        return _Nothing() if self._files is None else OpenCacheFiles(self._files)

    def scratch_nbytes(self, spec: Spec, length: Length) -> int:
        return 0

    def kept_nbytes(self, spec: Spec, length: Length) -> int:
        return 0

    def complete(self, asked: Asked = None) -> None:
        return None  # it is asked before it travels

    @property
    def fingerprint(self) -> str:
        return self._files.place if self._files else ""


@final
class _Nothing(OpenCache):
    """A cache that keeps nothing: where the plan arrived before anybody knew what its elements look like."""

    length = 0

    def look(self, indices: Indices) -> npt.NDArray[np.uint8]:
        return np.full(len(indices), ABSENT, np.uint8)

    def read(self, reader: Reader, indices: Indices, out: Rows, gather: Gather) -> None:
        assert not len(indices)

    def check(self, indices: Indices, out: Rows) -> npt.NDArray[np.bool_]:
        return np.zeros(len(indices), np.bool_)

    def write(self, indices: Indices, rows: Rows) -> None:
        """Does nothing."""

    def whole(self) -> None:
        return None

    def recorder(self) -> None:
        return None

    def stretch(self, start: int, stop: int) -> int:
        return stop

    def damaged(self, index: int) -> PenstockError:
        raise AssertionError("it holds nothing")
