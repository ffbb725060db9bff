"""Stops loaders at the end of the process, and loaders that were dropped.

Why nothing hangs and nothing is left behind:

1. `close`, or the end of a `with` block, stops the workers of a loader and waits for them.
2. A loader that is dropped is finalized. The finalizer tells the workers to stop and does not wait for them. Between
   units the workers hold nothing but their queue, so dropping the loader is enough.
3. At the end of the process, live loaders are closed before modules are torn down, with a short wait. Then handlers get
   the log records of worker processes that still wait (`run/pool/_logs.py`). Workers are daemon threads. One that is
   stuck in a user's function does not keep the process alive, and one that comes back from C++ code after that does not
   end it by a signal (`native.outlast_interpreter`). A daemon thread of the user that is in `next` ends silently
   (`DeliveryBase.require_open`).
4. Ctrl-C reaches the main thread alone. If that thread waits for a batch, the wait ends. The loader stays usable, and 1
   to 3 end it.
5. SIGKILL needs no help. Threads end with the process, and the mapping has no name that could be left behind.
6. After fork() the child has no workers. Its loader says so (`DeliveryBase.require_open`). Neither finalizers nor the
   exit touch the threads of the parent, because `request_stop` looks at the process id.
"""

import atexit
import threading
import weakref
from collections.abc import Callable

from penstock import native
from penstock.run._consumer import DeliveryBase
from penstock.run.pool._logs import close_all

EXIT_WAIT_S = 2.0
"""How long the end of the process waits for the workers of each live loader."""

_live: "weakref.WeakSet[DeliveryBase]" = weakref.WeakSet()


def watch(owner: object, delivery: DeliveryBase) -> None:
    """Makes a delivery stop when its owner is dropped, and at the end of the process."""
    _live.add(delivery)
    # The finalizer lives as long as the owner, so it must not hold the owner. The delivery may hold it, through the
    # functions of the plan and their globals. Executors hold none of that.
    weakref.finalize(owner, _stop, weakref.ref(delivery), delivery.stop_workers).atexit = False


def _stop(delivery_ref: "weakref.ref[DeliveryBase]", stop_workers: Callable[[], object]) -> None:
    delivery = delivery_ref()
    if delivery is None:  # it was dropped together with its owner
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
    close_all()
    if any(thread.daemon for thread in threading.enumerate()):
        native.outlast_interpreter()
