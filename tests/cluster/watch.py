"""What the tests see of a cluster from outside: its processes, and what its object stores hold."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waits import DEADLINE_S

MARK = "PENSTOCK_TEST_CLUSTER"
"""A variable that the processes of the cluster have."""


def agents() -> set[int]:
    """The processes of agents of the tests' own cluster."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::Agent") and MARK.encode() in (path.parent / "environ").read_bytes():
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


def workers() -> set[int]:
    """The worker processes of agents: children of agents, by the time they are asked."""
    found = set()
    for agent in agents():
        for path in Path(f"/proc/{agent}/task").glob("*/children"):
            try:
                found |= set(map(int, path.read_text().split()))
            except OSError:
                continue
    return found


def are_gone(pids: set[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def until(condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> None:
    """Waits for something that reports itself to nobody. While all processes are paused, no time passes."""
    for _ in range(int(deadline_s / 0.02)):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"not within {deadline_s} s")


def stores() -> tuple[int, int]:
    """Returns the bytes that object stores must keep, and the bytes that were ever spilled, of all nodes.

    Ray frees objects once a second. Until then they are in the store, but give way to others.
    """
    import ray
    from grpc import RpcError
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    state = get_state_from_address(ray.get_runtime_context().gcs_address)
    used = spilled = 0
    for node in ray.nodes():
        if node["Alive"]:
            try:
                reply = get_memory_info_reply(state, node["NodeManagerAddress"], node["NodeManagerPort"])
            except RpcError:  # it was removed, and Ray has not noticed yet
                continue
            used += reply.store_stats.object_store_bytes_primary_copy
            spilled += reply.store_stats.spilled_bytes_total
    return used, spilled
