"""`executor="ray"`, as it is registered. Ray is imported when it is used."""

from types import ModuleType
from typing import Final

from penstock.base._arguments import install
from penstock.run.executors._registry import ExecutorKind


def _ray() -> ModuleType:
    """Imports Ray."""
    try:
        from penstock.ray import _executor as _ray
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"executor='ray' needs Ray: {install('ray[data]')}, on each node.", name=error.name
        ) from error
    return _ray


KIND: Final = ExecutorKind(
    lambda client, to: _ray().RayExecutor(client, to),
    "machine",
    connect=lambda: _ray().connect(),
    process_count=lambda request: _ray().local_worker_count(request),
    require=lambda to, nbytes: _ray().require(to, nbytes),
)
