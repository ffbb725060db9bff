"""Batches of torch on their way to a CUDA device.

The memory of a loader's ring is registered as page-locked memory, once (`cudaHostRegister`). Then a batch goes to the
device from its slot, without a copy on the host. Memory outside of the ring, such as a private copy of a batch, goes
through torch's own page-locked memory, and so does everything where the system refuses to register.

Who waits for a copy: the stream on which the user computes, by the copy's event. The thread that trains gets the batch
at once, and queues its step. So the device begins the step when the copy is done, and not after a thread woke up.

Who frees the slot: a `Copying` has the slot's views until its copy is done. When the next batch is asked for, the epoch
waits for it and drops it, before it draws one more from the loader. So two slots are leased during a step, and one
while a batch is drawn. The thread waits, if at all, for the copy of a batch whose step it has queued already, and a
Ctrl-C that strikes meanwhile costs nothing. An epoch that is abandoned drops it too, and then the `Copying` itself
waits, so the loader never fills, or unmaps, memory that the device still reads. Rejected: a poll of events that holds
more slots; and a callback of CUDA, which torch does not offer.

How far a loop gets ahead that only queues steps: the copy of batch n waits for step n - 2, and batch n + 1 is handed
out after the copy of batch n. So a step runs, the next is queued, and up to four batches are on the device.

Who unregisters: the ring, before it unmaps its memory (`Ring.before_release`), or a finalizer of the ring.
"""

import weakref
from typing import Any, final

import numpy as np
import torch

from penstock.memory._ring import Ring


class CudaRuntime:
    """The calls of CUDA that are used here. Tests replace them.

    Copies run on a stream of their own, beside the one on which the user computes.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def register(self, address: int, nbytes: int) -> bool:
        """Makes memory page-locked. Returns whether the system allows it."""
        return int(torch.cuda.cudart().cudaHostRegister(address, nbytes, 0)) == 0

    def unregister(self, address: int) -> None:
        """Takes that back."""
        torch.cuda.cudart().cudaHostUnregister(address)

    def copy(self, leaves: list[Any]) -> "tuple[Copying, list[Any]]":
        """Begins to copy tensors to the device. Returns the copies with what is under way."""
        assert self._stream is not None
        # Not before what is queued: where a loop queues steps faster than the device does them, batches would fill it.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            # `non_blocking` is safe from pageable memory, too: the lease keeps it unchanged until the event.
            copies = [leaf.to(self._device, non_blocking=True) if is_tensor(leaf) else leaf for leaf in leaves]
            return Copying(leaves, self._stream.record_event()), copies

    def finish(self, copying: "Copying", copies: list[Any]) -> None:
        """Makes the user's stream wait for the copies, which are that stream's from now on."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(copying.done)
        for leaf in copies:
            if is_tensor(leaf):
                # Its memory came from the pool of another stream, and returns there when this stream is done with it.
                leaf.record_stream(current)


@final
class Copying:
    """A copy under way. Its source stays leased until the copy is done, also where this object dies before.

    Args:
        source: The tensors on the host.
        done: The event behind the copy.
    """

    def __init__(self, source: list[Any], done: Any) -> None:
        self._source = source
        self.done = done

    def wait(self) -> None:
        """Waits until the copy is done, and lets its source go."""
        self.done.synchronize()
        self._source = []

    def __del__(self) -> None:
        if self._source:
            self.wait()


@final
class PinnedRing:
    """The ring of a loader, as page-locked memory.

    Args:
        runtime: The calls of CUDA.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._ring: weakref.ref[Ring] | None = None
        self._start = self._end = 0

    def cover(self, ring: Ring) -> None:
        """Registers the memory of a ring, unless that was tried before."""
        if self._ring is not None and self._ring() is ring:
            return
        self._ring = weakref.ref(ring)
        self._start = self._end = 0
        if ring.memory is None:
            return
        memory = np.frombuffer(ring.memory, np.uint8)
        address, nbytes = int(memory.ctypes.data), memory.nbytes
        if self._runtime.register(address, nbytes):
            self._start, self._end = address, address + nbytes
            # A finalizer runs once, whether the ring calls it or dies.
            ring.before_release = weakref.finalize(ring, self._runtime.unregister, address)

    def holds(self, tensor: Any) -> bool:
        """Whether a tensor lies in the memory that was registered."""
        return bool(self._start <= tensor.data_ptr() < self._end)


def is_tensor(leaf: Any) -> bool:
    """Whether a leaf became a tensor; text does not."""
    return isinstance(leaf, torch.Tensor)
