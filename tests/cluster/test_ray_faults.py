"""What happens on a cluster when agents and nodes die, hang, leave and come, and what is left behind."""

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.sources.arrays import RangeSource
from penstock.testing import CountingSource, GatedSource
from penstock.testing._shared import SharedLog
from tests.cluster.conftest import NODE
from tests.cluster.watch import agents, are_gone, stores, until, workers
from tests.waits import DEADLINE_S

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("cluster")]


class KillsAgent:
    """A function for `map` that sends a signal to the agent of its worker, the first times that it meets an element."""

    def __init__(self, element: int, times: int, number: int = signal.SIGKILL) -> None:
        self._element, self._times, self._number = element, times, number
        self._log = SharedLog()

    def __call__(self, x: Any) -> Any:
        if x == self._element and self._log.append(np.zeros(1, np.int64)) <= self._times:
            os.kill(os.getppid(), self._number)
            if self._number == signal.SIGKILL:
                signal.pause()  # the system ends a worker with its agent
        return x


@pytest.fixture(autouse=True)
def _leaves_no_agent_and_no_object() -> Iterator[None]:
    until(lambda: not agents())
    before = stores()[0]  # of Ray Data in other tests
    yield
    until(lambda: not agents())
    until(lambda: stores()[0] <= before)


def test_nodes_that_are_removed_without_warning_change_nothing(cluster: Any) -> None:
    source = GatedSource(RangeSource(40), closed={0}, deadline_s=DEADLINE_S)
    with ps.from_source(source).batch(1).loader("ray", workers=1) as loader:
        iterator = iter(loader)
        source.wait_for_reads({0})  # one of the nodes works on it
        for node in cluster.worker_nodes.copy():
            cluster.remove_node(node, allow_graceful=False)
            cluster.add_node(**NODE)
        source.open_gate()
        assert [int(batch[0]) for batch in iterator] == list(range(40))
        assert "was lost" in str(loader.report())


def test_a_node_that_comes_takes_over_from_one_that_leaves(cluster: Any) -> None:
    late = {**NODE, "resources": {"late": 1}}
    options: Any = {"resources": {"late": 0.1}}
    with ps.range(40).batch(1).loader("ray", workers=1, ray_options=options) as loader:
        iterator = iter(loader)
        node = cluster.add_node(**late)  # the loader waits for it: no other one fits
        found = [int(next(iterator)[0]) for _ in range(10)]
        cluster.remove_node(node, allow_graceful=False)
        node = cluster.add_node(**late)
        found += [int(batch[0]) for batch in iterator]
    assert found == list(range(40))
    cluster.remove_node(node, allow_graceful=False)


@pytest.mark.parametrize("times", [1, 2])
def test_agents_that_are_killed_change_nothing(times: int) -> None:
    dataset = ps.range(40).map(KillsAgent(13, times)).shuffle(1).batch(4)
    want = [batch.tolist() for batch in ps.range(40).shuffle(1).batch(4)]
    with dataset.loader("ray", workers=1) as loader:
        assert [batch.tolist() for batch in loader] == want


def test_rows_that_kill_three_agents_are_named() -> None:
    with ps.range(40).map(KillsAgent(13, 1000)).batch(4).loader("ray", workers=1) as loader:
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(3)] == np.arange(12).reshape(3, 4).tolist()
        with pytest.raises(
            ps.WorkerError, match=r"agent number 3 that was lost .* batch 3 of epoch 0, elements 0 to 3"
        ):
            next(iterator)
        loader.set_state({**loader.get_state(), "position": 4})
        assert [batch.tolist() for batch in loader] == np.arange(16, 40).reshape(6, 4).tolist()


def test_an_agent_that_is_stopped_changes_nothing() -> None:
    function = KillsAgent(13, 1, signal.SIGSTOP)
    with ps.range(40).map(function).batch(4).loader("ray", workers=1, timeout_s=4) as loader:
        assert [batch.tolist() for batch in loader] == np.arange(40).reshape(10, 4).tolist()
        assert "did not answer for 4 s" in str(loader.report())


def test_an_element_that_kills_its_worker_is_named() -> None:
    def lethal(x: Any) -> Any:
        if x == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    with ps.range(40).map(lethal).batch(4).loader("ray", workers=1) as loader:
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(3)] == np.arange(12).reshape(3, 4).tolist()
        with pytest.raises(ps.WorkerError, match=r"map\(.*lethal\) at .* on element 13|element 13") as caught:
            next(iterator)
        assert any(re.match(r"It was on the Ray node \d+\.", note) for note in caught.value.__notes__)


def test_a_slow_consumer_has_nothing_spilled() -> None:
    # 2 MiB a batch: the ring has 16 MiB, and each object store 100.
    source = CountingSource(RangeSource(2 * 64))
    dataset = ps.from_source(source).map(lambda x: np.full(1 << 18, x, np.int64)).batch(1)
    before, spilled = stores()
    with dataset.loader("ray", workers=1, prefetch=6) as loader:
        ring_nbytes = loader._budget.ring_nbytes
        assert loader.projected_nbytes >= 2 * ring_nbytes
        iterator = iter(loader)
        for number in range(24):
            assert next(iterator)[0, 0] == number
            until(lambda: sum(source.reads.values()) >= number + 1 + 6)  # noqa: B023  # all slots are filled again
            until(
                lambda: stores()[0] <= before + ring_nbytes + (1 << 20)
            )  # the message that frees an object takes a while
    assert stores()[1] == spilled


def test_a_store_that_is_too_small_is_refused() -> None:
    dataset = ps.range(64).map(lambda x: np.full(1 << 20, x, np.int64)).batch(1)
    with pytest.raises(ps.MemoryLimitError, match=r"up to 48 MiB of Ray's object store, which has 95 MiB|object store"):
        dataset.loader("ray", prefetch=10)


KILLED = """
import os, signal, sys
import ray, penstock as ps
ray.init(address=sys.argv[1], log_to_driver=False)
loader = ps.range(10**6).map(lambda x: x).batch(64).loader("ray", workers=1)
for number, batch in enumerate(loader):
    if number == 20:
        print("ready", flush=True)
        if sys.argv[2] == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        elif sys.argv[2] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            break
"""


@pytest.mark.parametrize(("end", "code"), [("kill", -9), ("interrupt", -2), ("return", 0)])
def test_the_end_of_the_trainer_leaves_nothing(cluster: Any, fresh_python: Any, end: str, code: int) -> None:
    done = fresh_python(KILLED, cluster.address, end)
    assert done.stdout.strip().endswith("ready"), done.stderr
    assert done.returncode in (code, 1 if end == "interrupt" else code), done.stderr
    if end == "return":
        assert "Error" not in done.stderr, done.stderr


def test_workers_end_with_close() -> None:
    with ps.range(40).batch(4).loader("ray", workers=1) as loader:
        next(iter(loader))
        until(lambda: len(agents() | workers()) == 4)  # the first batch may come before the last worker
        pids = agents() | workers()
    until(lambda: are_gone(pids))


def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.ray import _fleet as _ray_fleet

    known = _ray_fleet.versions()
    monkeypatch.setattr(_ray_fleet, "versions", lambda: {**known, "numpy": "1.99"})
    text = rf"numpy {known['numpy']}, and the trainer has 1\.99"
    with ps.range(8).batch(4).loader("ray", workers=1) as loader, pytest.raises(ps.WorkerError, match=text):
        next(iter(loader))


def test_options_that_no_node_fits_are_an_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.ray import _fleet as _ray_fleet

    monkeypatch.setattr(_ray_fleet, "START_S", 0.5)
    options: Any = {"resources": {"nowhere": 1}}
    dataset, text = ps.range(8).batch(4), r"it has 0 nowhere, and an agent needs 1"
    with dataset.loader("ray", workers=1, timeout_s=0.5, ray_options=options) as loader:
        iterator = iter(loader)
        with pytest.raises(ps.WorkerError, match=text):
            next(iterator)
