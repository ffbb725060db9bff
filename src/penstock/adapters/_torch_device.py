"""Batches of torch on their way to a CUDA device.

The memory of a loader's ring is registered as page-locked memory, once (`cudaHostRegister`). Then a batch goes to the
device from its slot, without a copy on the host. The adapter holds the slot's views until the event behind the copy.
Memory outside of the ring, such as a private copy of a batch, goes through torch's own page-locked memory, and so does
everything where the system refuses to register.

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

    def copy(self, leaves: list[Any]) -> tuple[list[Any], Any]:
        """Begins to copy tensors to the device. Returns the copies, and the event behind them."""
        assert self._stream is not None
        with torch.cuda.stream(self._stream):
            # `non_blocking` is safe from pageable memory, too: the lease keeps it unchanged until the event.
            copies = [leaf.to(self._device, non_blocking=True) if is_tensor(leaf) else leaf for leaf in leaves]
            return copies, self._stream.record_event()

    def finish(self, event: Any, copies: list[Any]) -> None:
        """Waits for an event, and hands the copies over to the user's stream."""
        event.synchronize()
        current = torch.cuda.current_stream(self._device)
        for leaf in copies:
            if is_tensor(leaf):
                # Its memory came from the pool of another stream, and returns there when this stream is done with it.
                leaf.record_stream(current)


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
