"""Many reads of a file in one system call: Linux's native AIO (`io_submit`), through ctypes.

For a file that is read through the page cache, `io_submit` does each read before it returns. That is all that
is wanted of it here: hundreds of `pread` for one entry into the kernel and one release of the GIL. Thousands
of rows a second, 8 kB each, in random order from the page cache, on one thread and on two (measured 2026-11,
2 cores that others used too; smallest and largest of all rounds, destinations of any alignment):

    io_submit                                                        341 to 466       712 to 961
    os.preadv a row                                                  308 to 367       472 to 637
    libc's pread a row, through ctypes                               269 to 280       427 to 470
    process_vm_readv on a mapping, its pages given back each 32 MiB  155 to 399       290 to 787
    process_vm_readv, pages never given back (1.2 GB resident)       341 to 504       740 to 929
    np.take of a memmap (1.2 GB resident, dies if the file shrinks)  295 to 1,090   1,258 to 1,800

The first np.take of a process is the slow one: it maps the pages. process_vm_readv with pages given back was
at 155 to 182 and 290 to 332 while the cache was of single pages (the file had been written through a
mapping), and at twice that when it had been read back by calls. Of the 2 us for a row, half is the copy (50 %
of samples are in `_copy_to_iter`); a read of one byte takes 0.6 to 0.9 us, the way to the page and back.

io_uring would serve as well, but containers refuse it by default; io_submit they allow. Where even that is
refused (ENOSYS, EPERM, or EAGAIN when /proc/sys/fs/aio-max-nr is used up), the caller reads row by row.

Threads: a `ReadQueue` is one thread's from `take` to `put`. There are as many as reads went on at one time,
for however many files, and they stay until the process ends: making one takes 0.25 ms, but giving it back 32
ms, which the kernel waits for its own reasons. At exit it waits once for all. A child made by fork does not
inherit the kernel's half, so a queue knows its process and a child makes its own.
"""

import ctypes
import errno
import os
import platform
import sys
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

CAPACITY: Final = 256
"""Reads in one system call. At 1 us each and more, a larger number saves nothing that can be measured."""

# The kernel's `struct iocb` and `struct io_event` on 64-bit little-endian machines (linux/aio_abi.h).
_IOCB = np.dtype(
    [
        ("data", "<u8"), ("key", "<u4"), ("rw_flags", "<u4"), ("opcode", "<u2"), ("priority", "<i2"),
        ("fd", "<u4"), ("buffer", "<u8"), ("nbytes", "<u8"), ("offset", "<i8"), ("reserved", "<u8"),
        ("flags", "<u4"), ("event_fd", "<u4"),
    ]
)  # fmt: skip
_EVENT = np.dtype([("data", "<u8"), ("iocb", "<u8"), ("result", "<i8"), ("result2", "<i8")])
_PREADV = 7

# glibc has no wrappers, so the calls go by number: io_setup, io_destroy, io_submit, io_getevents.
_NUMBERS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4), "riscv64": (0, 1, 2, 4)}.get(platform.machine())
SUPPORTED = sys.platform == "linux" and sys.maxsize > 2**32 and _NUMBERS is not None
_SETUP, _DESTROY, _SUBMIT, _GETEVENTS = _NUMBERS or (0, 0, 0, 0)

_long, _pointer = ctypes.c_long, ctypes.c_void_p


def _prototype(*arguments: Any) -> Any:
    """Returns `syscall(2)` with argument types; such a function lets go of the GIL while it runs."""
    return ctypes.CFUNCTYPE(_long, _long, *arguments, use_errno=True)(("syscall", ctypes.CDLL(None)))


if SUPPORTED:
    _io_setup = _prototype(_long, _pointer)
    _io_destroy = _prototype(ctypes.c_ulong)
    _io_submit = _prototype(ctypes.c_ulong, _long, _pointer)
    _io_getevents = _prototype(ctypes.c_ulong, _long, _long, _pointer, _pointer)


class ReadQueue:
    """One kernel AIO context and the tables it reads from: `CAPACITY` requests, about 40 kB.

    Raises:
        OSError: The kernel does not give one; its errno says why.
    """

    def __init__(self) -> None:
        self._context = 0
        self._pid = os.getpid()
        if not SUPPORTED:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        context = ctypes.c_ulong(0)
        if _io_setup(_SETUP, CAPACITY, ctypes.byref(context)) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._context = context.value
        self._iocbs = np.zeros(CAPACITY, _IOCB)
        self._iocbs["data"] = np.arange(CAPACITY)
        self._events = np.zeros(CAPACITY, _EVENT)
        self._pointers = self._iocbs.ctypes.data + np.arange(CAPACITY, dtype=np.uint64) * _IOCB.itemsize
        self._pointers_at = self._pointers.ctypes.data
        self._events_at = self._events.ctypes.data
        self._iocbs["opcode"] = _PREADV
        self._result = self._events["result"]
        self._fd, self._buffer, self._nbytes, self._offset = (
            self._iocbs[name] for name in ("fd", "buffer", "nbytes", "offset")
        )
        self._last_fd = -1

    def read(
        self,
        fd: int,
        offsets: NDArray[np.int64],
        vectors: NDArray[np.int64],
        counts: NDArray[np.int64],
        sizes: NDArray[np.int64],
    ) -> Iterable[int]:
        """Does up to `CAPACITY` reads, each into several pieces of memory.

        All arrays are of shape `(count,)`. Memory that they point to has to outlive the call.

        Args:
            fd: The open file.
            offsets: Byte of the file at which each read starts.
            vectors: Address of the array of `struct iovec` that each fills.
            counts: Its length.
            sizes: The bytes of all its pieces.

        Returns:
            The reads that did not bring all that they should: the file ended, the device failed, or the kernel
            did not begin them.
        """
        count = len(offsets)
        if fd != self._last_fd:
            self._fd[:] = self._last_fd = fd
        self._buffer[:count] = vectors
        self._nbytes[:count] = counts
        self._offset[:count] = offsets
        try:
            submitted = int(_io_submit(_SUBMIT, self._context, count, self._pointers_at))
            done = 0
            while done < submitted:
                at = self._events_at + done * _EVENT.itemsize
                left = submitted - done
                got = int(_io_getevents(_GETEVENTS, self._context, left, left, at, None))
                if got < 0 and ctypes.get_errno() != errno.EINTR:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                done += max(got, 0)
        except BaseException:
            # An interrupt between the two calls. Reads that were begun would write into memory that the
            # caller is about to let go of; destroying the context waits for them.
            self.close()
            raise
        # No read brings more than it was asked for, so the sum tells whether all brought all.
        if done == count and int(self._result[:done].sum()) == int(sizes.sum()):
            return ()
        results = np.full(count, -1, np.int64)
        events = self._events[:done]
        results[events["data"].astype(np.intp)] = events["result"]
        return (results != sizes).nonzero()[0].tolist()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Gives the context back to the kernel; waits for reads that were begun, and 32 ms besides."""
        context, self._context = self._context, 0
        if context:
            _io_destroy(_DESTROY, context)

    @property
    def usable(self) -> bool:
        """False once closed, and in a child of the process that made it."""
        return self._context != 0 and self._pid == os.getpid()


_idle: deque[ReadQueue] = deque()


def take() -> ReadQueue | None:
    """Lends a queue to the calling thread, or None where the kernel gives none."""
    # Deque operations are atomic, so two threads never get the same queue and none waits.
    try:
        while True:
            queue = _idle.pop()
            if queue.usable:
                return queue
    except IndexError:
        pass
    try:
        return ReadQueue()
    except OSError:
        return None


def put(queue: ReadQueue | None) -> None:
    """Takes back what `take` lent."""
    if queue is not None:
        _idle.append(queue)
