"""The end of the process, and of a loader that was dropped.

NOTE on shutdown: why nothing hangs and nothing is left.
1. A loader that is closed, by `close` or `with`, stops its workers and waits for them.
2. A loader that is dropped is finalized: the workers are told to stop, and nobody waits, for a finalizer
   must not. Between units they hold nothing but their queue, so dropping the loader is enough.
3. At the end of the process loaders that still live are closed, before modules are torn down, with a short
   wait. Workers are daemon threads: one that is stuck in a user's function does not keep the process. A
   daemon thread of the user that is in `next` ends without a word (`DeliveryBase.require_open`).
4. Ctrl-C reaches the main thread alone. If it waits for a batch, the wait is interrupted; the loader stays
   usable, and 1 to 3 end it.
5. SIGKILL needs no help: threads end with the process, and the mapping has no name to be left behind.
6. After fork() a child has no workers. Its loader says so (`DeliveryBase.require_open`), and neither finalizer
   nor exit touches the parent's threads (`request_stop` looks at the process id).
"""

import atexit
import weakref
from collections.abc import Callable

from penstock.run._consumer import DeliveryBase

EXIT_WAIT_S = 2.0
"""How long the end of a process waits for the workers of each loader that nobody closed."""

_live: "weakref.WeakSet[DeliveryBase]" = weakref.WeakSet()


def watch(owner: object, delivery: DeliveryBase) -> None:
    """Has a delivery stopped when its owner is dropped, and at the end of the process."""
    _live.add(delivery)
    # The finalizer lives as long as the owner, so it must not hold what may hold the owner: the plan's functions and
    # their globals, by way of the delivery. Executors hold none of that.
    weakref.finalize(owner, _stop, weakref.ref(delivery), delivery.stop_workers).atexit = False


def _stop(delivery_ref: "weakref.ref[DeliveryBase]", stop_workers: Callable[[], object]) -> None:
    delivery = delivery_ref()
    if delivery is None:  # it went together with its owner
        stop_workers()
    else:
        delivery.request_stop()


@atexit.register
def _close_all() -> None:
    deliveries = list(_live)
    for delivery in deliveries:
        delivery.process_ends = True
        delivery.request_stop()
    for delivery in deliveries:
        delivery.close(EXIT_WAIT_S)
