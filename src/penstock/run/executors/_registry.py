"""The executors, by the names that users pass as `executor=`.

Each name stands here once, or is registered by another package. The check of options, the choice of an executor and
messages read it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from penstock.base import _extensions
from penstock.base._extensions import is_registered, lookup, names
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


@final
class _Executors(dict[str, ExecutorKind]):
    """Those of the core, and each other one once it was asked for."""

    def __missing__(self, name: str) -> ExecutorKind:
        kind: ExecutorKind | None = lookup(_extensions.EXECUTORS, name)
        if kind is None:
            raise KeyError(name)
        return self.setdefault(name, kind)

    def knows(self, name: object) -> bool:
        """Whether an executor has this name."""
        return isinstance(name, str) and (name in self or is_registered(_extensions.EXECUTORS, name))


EXECUTORS: Final = _Executors(
    {
        "inline": ExecutorKind(None, None),
        "threads": ExecutorKind(lambda client, to: ThreadsExecutor(client, to.worker_count), "thread"),
        "processes": ExecutorKind(
            lambda client, to: ProcessesExecutor(client, to.join_pool(), to.payload, to.worker_count, to.timeout_s),
            "process",
            process_count=lambda request: request.worker_count,
        ),
    }
)


def known_names() -> list[str]:
    """Returns the names of all executors, also those that are not imported."""
    return list(dict.fromkeys([*EXECUTORS, *names(_extensions.EXECUTORS)]))


def executor_names() -> str:
    """Returns the names for a message."""
    several = ", ".join(repr(name) for name in known_names() if name not in EXECUTORS or EXECUTORS[name].make)
    return f"'auto', {several}, or 'inline' (no workers)"
