"""What an executor is made from: the registry and the executors both name it, and it names neither."""

from collections.abc import Mapping
from typing import Any, Protocol

from penstock.run.pool._payload import PlanPayload
from penstock.run.pool._pool import PoolClient


class ExecutorRequest(Protocol):
    """The values from which an executor is made."""

    @property
    def worker_count(self) -> int:
        """0 where each node of a cluster decides."""

    @property
    def ray_options(self) -> Mapping[str, Any]:
        """The user's."""

    @property
    def timeout_s(self) -> float:
        """How long a worker may stand still."""

    @property
    def events(self) -> list[str]:
        """Receives a line for each event that the report shows."""

    def join_pool(self) -> PoolClient:
        """Returns the right to the worker processes of this process."""

    @property
    def payload(self) -> PlanPayload:
        """The program, packed."""
