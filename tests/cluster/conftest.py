"""A Ray cluster on this machine: a head, on which the tests run, and nodes that may get agents."""

import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import penstock as ps
from tests.cluster.watch import MARK

NODE: Any = {"wait": False, "num_cpus": 1, "object_store_memory": 100 << 20}
"""The head has no CPU, so that the nodes do all work."""
HERE: Any = {"num_cpus": 0, "resources": {"here": 0.1}}
"""Options with which the head does all work. It is the node of the tests."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A head without CPUs and two nodes of one CPU and 100 MiB of object store."""
    os.environ[MARK] = "1"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    from ray._private import node
    from ray.cluster_utils import Cluster

    # Ray gives a node 30 s to start, without an option. Where other programs run, that is too short.
    node.time = SimpleNamespace(**vars(time) | {"monotonic": lambda: time.monotonic() / 10})
    head: dict[str, Any] = {"num_cpus": 0, "object_store_memory": 100 << 20, "include_dashboard": False}
    head["resources"] = {"here": 1}
    # Ray's workers would give way to all that runs beside these tests, and miss their deadlines.
    head["_system_config"] = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "worker_niceness": 0}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def agents_stay(cluster: object) -> Iterator[None]:
    with ps.range(8).loader(executor="ray", workers=1) as loader:
        next(iter(loader))
        yield
