"""Use of the CPUs, computed from the kernel's counts."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest

import penstock as ps
from penstock.report import _cpus
from penstock.report._cpus import CpuMoment, CpuUse, between, cpus_now

S = 1_000_000_000


def moment(at_s: float, own_s: float, idle_s: float | None, **tasks: tuple[float, float]) -> CpuMoment:
    named = {task.lstrip("p").replace("_", "/"): (int(ran * S), int(late * S)) for task, (ran, late) in tasks.items()}
    return CpuMoment(at_s, own_s, idle_s, named)


def test_used_and_idle_cpus_are_the_available_ones() -> None:
    before = moment(10.0, 1.0, 100.0, p7=(2.0, 0.5))
    after = moment(12.0, 1.5, 101.0, p7=(3.5, 1.1))
    assert between(before, after) == CpuUse(pytest.approx((0.5 + 1.5 + 1.0) / 2), pytest.approx(0.6 / 1.5))


def test_threads_are_part_of_this_process_and_counted_once() -> None:
    before = moment(10.0, 1.0, 100.0, self_task_7=(0.0, 0.0))
    after = moment(12.0, 3.0, 101.0, self_task_7=(1.5, 0.3))
    assert between(before, after) == CpuUse(pytest.approx(1.5), pytest.approx(0.2))


def test_a_worker_that_came_in_between_counts_from_its_start_and_one_that_went_not_at_all() -> None:
    before = moment(10.0, 1.0, 100.0, p7=(2.0, 0.5))
    after = moment(12.0, 1.0, 102.0, p8=(1.0, 0.1))
    assert between(before, after) == CpuUse(pytest.approx(1.5), pytest.approx(0.1))


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(moment(10.1, 1.1, 100.1, p7=(2.1, 0.5)), id="too short"),
        pytest.param(moment(12.0, 1.5, 101.0), id="no workers"),
        pytest.param(moment(12.0, 1.5, 101.0, p7=(2.0, 0.5)), id="they did nothing"),
    ],
)
def test_unmeasured_cpus_are_unknown(after: CpuMoment) -> None:
    assert between(moment(10.0, 1.0, 100.0, p7=(2.0, 0.5)), after) == CpuUse()


def test_without_a_count_of_idle_cpus_waiting_is_known_all_the_same() -> None:
    before, after = moment(10.0, 1.0, None, p7=(2.0, 0.5)), moment(12.0, 1.5, None, p7=(3.0, 1.0))
    assert between(before, after) == CpuUse(None, pytest.approx(0.5))


def test_where_the_kernel_does_not_tell_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_cpus, "PROC", tmp_path)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "schedstat").write_text("not two numbers")
    found = cpus_now(["7", "8"])
    assert (found.idle_s, found.tasks) == (None, {})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc")
def test_this_kernel_tells() -> None:
    found = cpus_now([str(os.getpid()), f"self/task/{threading.get_native_id()}"])
    assert found.idle_s is not None
    assert len(found.tasks) == 2


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc")
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_loader_measures_the_cpu_time_of_its_consumer(executor: str) -> None:
    def consume(seconds: float) -> None:
        ends_s = time.thread_time() + seconds
        while time.thread_time() < ends_s:
            pass

    with ps.range(400).map(lambda x: x).batch(10).loader(executor, workers=1) as loader:  # type: ignore[arg-type]
        for _ in loader:
            consume(0.01)
        said = loader.report()
        consume(0.3)  # after the epoch, so it is not counted
        again = loader.report()
    assert said.cpu_s >= 0.38
    assert said.cpus is not None
    assert said.cpus > 0
    assert again.cpu_s == said.cpu_s
