"""The executors, by the names that users pass as `executor=`.

Each name stands here once. The check of options, the choice of an executor and messages read it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Final, final

from penstock.base._reach import Reach
from penstock.run.executors._executor import Client, Executor
from penstock.run.executors._processes import ProcessesExecutor
from penstock.run.executors._request import ExecutorRequest
from penstock.run.executors._threads import ThreadsExecutor


@final
@dataclass(frozen=True)
class ExecutorKind:
    """An entry of the registry."""

    make: Callable[[Client, ExecutorRequest], Executor] | None
    """None where there are no workers: the caller's thread does the work (`run/_inline.py`)."""
    reach: Reach | None
    """What the workers share with this process; None where there are none."""
    connect: Callable[[], object] = lambda: None
    """For an executor on other machines: connects to them, or raises."""
    process_count: Callable[[ExecutorRequest], int] = lambda request: 0
    """The worker processes on this machine, at most."""
    require: Callable[[ExecutorRequest, int], None] = lambda request, nbytes: None
    """For the same: refuses options, and bytes that the memory between the machines cannot hold."""


def _ray() -> ModuleType:
    """Imports Ray."""
    try:
        from penstock.run.executors import _ray
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "executor='ray' needs Ray: pip install 'penstock[ray]', on each node.", name=error.name
        ) from error
    return _ray


EXECUTORS: Final = {
    "inline": ExecutorKind(None, None),
    "threads": ExecutorKind(lambda client, to: ThreadsExecutor(client, to.worker_count), "thread"),
    "processes": ExecutorKind(
        lambda client, to: ProcessesExecutor(client, to.join_pool(), to.take_payload(), to.worker_count, to.timeout_s),
        "process",
        process_count=lambda request: request.worker_count,
    ),
    "ray": ExecutorKind(
        lambda client, to: _ray().RayExecutor(client, to),
        "machine",
        connect=lambda: _ray().connect(),
        process_count=lambda request: _ray().local_worker_count(request),
        require=lambda to, nbytes: _ray().require(to, nbytes),
    ),
}


def executor_names() -> str:
    """Returns the names for a message."""
    names = ", ".join(repr(name) for name, kind in EXECUTORS.items() if kind.make is not None)
    return f"'auto', {names}, or 'inline' (no workers)"
