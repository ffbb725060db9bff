"""Reports: the limit, the remedy, and the times of the steps."""

import logging
import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import loader as _loader
from penstock.base._traffic import Traffic
from penstock.memory import _times
from penstock.plan import _map, _reader
from penstock.report import _counters
from penstock.report._lanes import Lane, StepTime
from penstock.run import _unit_runner

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")


def lane(wall_ms: float, cpu_ms: float, *, workers: int = 2, is_serial: bool = False, step_ms: float = 0.0) -> Lane:
    """Ten batches, with the times of each."""
    steps = (StepTime("map(decode)", 1, 160, step_ms / 100),) if step_ms else ()
    return Lane("batch(16)", workers, is_serial, 10, wall_ms / 100, cpu_ms / 100, steps)


def report(*lanes: Lane, use_ms: float, wait_ms: float, workers: int = 2, cpu_count: int = 8) -> ps.Report:
    """A report of eleven batches. Ten of them count in its times."""
    return ps.Report(
        batches=11,
        elements_per_batch=16,
        elapsed_s=(use_ms + wait_ms) / 100,
        wait_s=wait_ms / 100,
        first_batch_s=0.1,
        copied=0,
        executor="processes",
        workers=workers,
        projected_nbytes=212 << 20,
        slot_count=6,
        slot_nbytes=30 << 20,
        shared_nbytes=0,
        note="",
        memory_limit=1024 << 20,
        cpu_count=cpu_count,
        lanes=lanes,
    )


def test_its_repr_is_its_text() -> None:
    said = report(lane(100, 100), use_ms=22, wait_ms=28)
    assert repr(said) == str(said) != ""


# Computation.


def test_workers_share_the_work_until_the_consumer_is_the_limit() -> None:
    said = report(lane(100, 100, step_ms=97.6), use_ms=22, wait_ms=28)
    found = [(said.what_if(workers=n).elements_per_s, said.what_if(workers=n).wait_share) for n in (1, 2, 4, 5, 20)]
    rates, waits = zip(*found, strict=True)
    assert rates == pytest.approx([160, 320, 640, 16 / 0.022, 16 / 0.022])
    assert waits == pytest.approx([0.78, 0.56, 0.12, 0, 0])
    assert (
        said.limit == "map(decode) is the limit, 6.1 ms an element on 2 workers; 3 more workers would remove the wait"
    )
    assert "memory 212 of 1,024 MiB projected" in said.sentence
    assert str(said.what_if(workers=4)) == "with 4 workers: 640 elements/s, waiting 12% of the time"


def test_more_workers_than_cpus_do_not_help_computing() -> None:
    said = report(lane(100, 100, step_ms=99), use_ms=10, wait_ms=40, cpu_count=2)
    assert said.what_if(workers=8).elements_per_s == pytest.approx(320)
    assert said.limit.endswith("on 2 workers; more workers would not help, because all 2 CPUs are busy")


def test_the_number_of_workers_that_is_as_fast_as_more_than_cpus_is_named() -> None:
    many = replace(lane(400, 100, workers=8, step_ms=396), delay_s=3.0)  # eight workers on two CPUs wait for one
    said = report(many, use_ms=1, wait_ms=49, workers=8, cpu_count=2)
    assert said.limit.endswith("because all 2 CPUs are busy, and 2 workers would be enough")
    assert said.what_if(workers=2).elements_per_s == pytest.approx(said.elements_per_s)


def test_more_workers_than_cpus_help_waiting() -> None:
    said = report(lane(100, 10, step_ms=99), use_ms=10, wait_ms=40, cpu_count=2)
    assert said.what_if(workers=8).elements_per_s == pytest.approx(16 / ((0.09 + 0.01 * 4) / 8))


def test_a_consumer_that_takes_the_cpus_leaves_none_for_more_workers() -> None:
    # Two workers take 50 ms for a batch and wait for a CPU half of that. The training takes 50 ms on all its threads.
    busy = replace(lane(100, 50, step_ms=99), delay_s=0.5)
    said = replace(report(busy, use_ms=30, wait_ms=20, cpu_count=2), cpu_s=0.5)
    assert said.what_if(workers=8).elements_per_s == pytest.approx(said.elements_per_s)
    assert said.limit.endswith("on 2 workers; more workers would not help, because all 2 CPUs are busy")


def test_threads_of_workers_are_not_taken_for_the_consumer() -> None:
    threads = replace(lane(100, 100, step_ms=99), reach="thread", delay_s=0.0)
    said = replace(report(threads, use_ms=10, wait_ms=40, cpu_count=4), cpu_s=1.1)
    assert said.what_if(workers=4).elements_per_s == pytest.approx(16 / (0.110 / 4))  # 100 ms of theirs, 10 of its own


def test_waiting_for_a_cpu_is_not_waiting_for_a_disk() -> None:
    found = [
        report(replace(lane(100, 40), delay_s=delay_s), use_ms=1, wait_ms=49).what_if(workers=4).elements_per_s
        for delay_s in (0.0, 0.4)
    ]
    assert found[0] == pytest.approx(16 / 0.025)
    assert found[1] == pytest.approx(16 / (0.060 / 4 + 0.020))  # what was lost in between stays lost


def test_idle_cpus_are_not_reported_as_busy() -> None:
    # Two workers share 10 ms of work on a batch that takes 18 ms. The time between them and the consumer is not theirs.
    said = report(lane(10, 9), use_ms=1, wait_ms=17, cpu_count=2)
    assert said.limit.endswith(
        "on 2 workers; more workers would not help, because most of the time goes into work that is done one at a "
        "time, such as handing elements over"
    )


def test_an_inline_report_names_a_number_of_workers() -> None:
    said = report(lane(99, 99, step_ms=98, workers=1), use_ms=1, wait_ms=99, workers=0, cpu_count=2)
    assert said.limit.endswith("inline; 2 workers would give 323 elements/s")


def test_workers_share_the_cpus_with_other_programs() -> None:
    # Two workers get 1 of 2 CPUs, and could run twice as long. So could two threads of others.
    busy = replace(lane(200, 100, step_ms=199), delay_s=1.0)
    said = replace(report(busy, use_ms=1, wait_ms=99, cpu_count=2), cpus=1.0)
    rates = [said.what_if(workers=n).elements_per_s / said.elements_per_s for n in (1, 2, 6)]
    assert rates == pytest.approx([2 / 3, 1.0, 1.5])  # they get 1 of 3, 2 of 4, 6 of 8 turns
    # More would take turns from the others. For work that computes, no more workers than CPUs are advised.
    assert said.advice == (
        "more workers would not help, because all 2 CPUs are busy, while other programs have 1.0 of the 2 CPUs"
    )


def test_more_workers_help_waiting_as_far_as_other_programs_leave_cpus() -> None:
    # Each of two workers waits 90 of 100 ms. Many of them would take more than the one free CPU.
    slow = replace(lane(200, 20, step_ms=199), delay_s=0.0)
    said = replace(report(slow, use_ms=1, wait_ms=99, cpu_count=2), cpus=1.0)
    found = re.search(r"; (\d+) more workers would give (\d+) elements/s, while other programs have 1.0", said.limit)
    assert found is not None
    more, rate = map(int, found.groups())
    assert said.what_if(workers=2 + more).elements_per_s == pytest.approx(rate, abs=1)
    assert rate <= 1600  # 16 elements take 20 ms of a CPU, and there are two


@pytest.mark.parametrize("cpus", [None, 1.9, 2.2])
def test_other_programs_that_take_little_are_not_spoken_of(cpus: float | None) -> None:
    said = replace(report(lane(100, 100, step_ms=99), use_ms=10, wait_ms=50, cpu_count=2), cpus=cpus)
    assert "other programs" not in str(said)
    assert said.limit.endswith("because all 2 CPUs are busy")


def test_the_report_recommends_the_smallest_sufficient_number_of_workers() -> None:
    said = report(lane(100, 30, step_ms=99), use_ms=1, wait_ms=49, cpu_count=2)
    # n workers on two CPUs need 15 ms and 70 / n. Advice stops at eight workers a CPU.
    assert said.what_if(workers=16).elements_per_s == pytest.approx(16 / (0.015 + 0.070 / 16))
    assert said.limit.endswith("on 2 workers; 11 more workers would give 785 elements/s")
    rates = {count: said.what_if(workers=count).elements_per_s for count in range(1, 17)}
    assert min(count for count, rate in rates.items() if rate >= 0.95 * max(rates.values())) == 13


def test_too_many_workers_give_the_speed_of_fewer() -> None:
    # Eight workers on two CPUs: each batch took 100 ms by the clock and 25 ms of a CPU.
    said = report(lane(100, 25, workers=8, step_ms=99), use_ms=5, wait_ms=7.5, workers=8, cpu_count=2)
    assert said.what_if(workers=2).elements_per_s == pytest.approx(said.what_if(workers=8).elements_per_s)


def test_a_stream_is_as_fast_as_the_one_place_where_it_is_read() -> None:
    feed = replace(lane(40, 40, is_serial=True), label="from_generator(lines)")
    said = report(lane(60, 60, step_ms=59), feed, use_ms=5, wait_ms=35)
    assert said.what_if(workers=9).elements_per_s == pytest.approx(16 / 0.04)
    assert said.limit == (
        "from_generator(lines), read in one place, is the limit, 2.5 ms an element; "
        "a map() after it runs on all workers"
    )


def test_a_consumer_that_hardly_waits_is_the_limit() -> None:
    assert report(lane(100, 100), use_ms=99, wait_ms=1).limit == "your program is the limit, 99.0 ms a batch"


def test_time_outside_of_steps_goes_into_batches() -> None:
    said = report(lane(100, 100, step_ms=20), use_ms=10, wait_ms=40)
    assert said.limit.startswith("putting elements into batches is the limit, 5.0 ms an element on 2 workers")


def test_reading_labels_is_no_epoch_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    ds = ps.from_arrays({"who": np.arange(9) // 3, "x": np.arange(9)})
    with caplog.at_level(logging.INFO, "penstock"):
        train, _ = ds.split(0.5, 0.5, groups="who", seed=1)
        with train.loader("inline") as loader:
            list(loader)
    assert [record.getMessage()[:18] for record in caplog.records] == [f"Epoch 0: {len(train)} batches"]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_parts_that_begin_later_are_reported(executor: Any, caplog: pytest.LogCaptureFixture) -> None:
    dataset = ps.range(50).filter(lambda x: x % 2).batch(5)
    with caplog.at_level(logging.INFO, "penstock"), dataset.loader(executor) as loader:
        assert [len(list(loader)) for _ in range(2)] == [5, 5]
    assert [record.getMessage()[:18] for record in caplog.records] == ["Epoch 0: 5 batches", "Epoch 1: 5 batches"]


def test_an_epoch_is_reported_without_earlier_ones() -> None:
    before, now = (
        lane(10, 10, step_ms=8),
        replace(lane(100, 50), batches=40, steps=(StepTime("map(decode)", 1, 200, 0.9),)),
    )
    done = now.since(before)
    assert (done.batches, done.wall_s, done.cpu_s) == pytest.approx((30, 0.9, 0.4))
    assert done.steps == (StepTime("map(decode)", 1, 40, pytest.approx(0.82)),)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "2"])
def test_what_if_refuses_wrong_numbers_of_workers(workers: Any) -> None:
    with pytest.raises(ps.ArgumentError, match="a number from 1 on is needed"):
        report(lane(1, 1), use_ms=1, wait_ms=1).what_if(workers=workers)


def test_what_if_needs_a_batch() -> None:
    with (
        ps.range(4).batch(2).loader("inline") as loader,
        pytest.raises(ps.ArgumentError, match="no batch was handed out yet"),
    ):
        loader.report().what_if(workers=2)


def test_workers_that_are_mostly_idle_are_not_the_limit() -> None:
    quick = lane(2, 2, step_ms=1.9)
    assert report(quick, use_ms=96, wait_ms=4).limit == "your program is the limit, 96.0 ms a batch"
    said = report(quick, use_ms=4, wait_ms=96)
    assert (said.slowest, said.is_idle) == (None, True)
    assert said.limit == (
        "no step is the limit, all workers are mostly idle: handing elements over takes 96.0 ms a batch; more workers "
        "would not help"
    )
    on_a_busy_machine = replace(said, cpu_count=2, cpus=1.0, cpu_s=0.9)
    assert on_a_busy_machine.is_idle
    rates = {on_a_busy_machine.what_if(workers=count).elements_per_s for count in (1, 2, 4, 64)}
    assert rates == {said.elements_per_s}


def test_one_long_wait_for_idle_workers_is_not_blamed_on_handing_over() -> None:
    said = report(lane(2, 2, step_ms=1.9), use_ms=4, wait_ms=96)
    assert replace(said, longest_wait_s=0.9).limit == (
        "no step is the limit, 0.9 of 1.0 s were one wait, such as for workers that start or import packages"
    )
    assert "handing elements over" in replace(said, longest_wait_s=0.4).limit  # others took as long
    busy = report(lane(80, 80, step_ms=79), use_ms=4, wait_ms=96)
    assert "one wait" not in replace(busy, longest_wait_s=0.9).limit


def test_workers_of_one_pool_are_busy_together() -> None:
    first, second = (replace(lane(60, 60, step_ms=59), label=label, reach="process") for label in "ab")
    said = report(first, second, replace(first, batches=0), use_ms=5, wait_ms=75)
    assert said.limit.startswith("map(decode) is the limit, ")
    apart = report(*(replace(each, reach="thread") for each in (first, second)), use_ms=75, wait_ms=5)
    assert apart.limit.startswith("your program is the limit, ")


def test_one_long_element_is_work_though_the_workers_are_idle_meanwhile() -> None:
    # One of eight workers had it. The results of the others could not be handed out before.
    said = report(lane(80, 1, workers=8, step_ms=79), use_ms=10, wait_ms=90, workers=8)
    assert said.limit.startswith("map(decode) is the limit, ")


def test_one_long_step_of_the_consumer_is_reported() -> None:
    said = replace(report(lane(2, 2), use_ms=360, wait_ms=0), longest_use_s=3.0)
    assert "; 3.0 of 3.6 s were one step of your program;" in said.sentence
    assert said.sentence.split("; ")[4] == "your program is the limit, 360.0 ms a batch"
    assert "one step" not in replace(said, longest_use_s=1.1).sentence  # less than a third
    few = replace(said, batches=3, elapsed_s=3.6, longest_use_s=1.9)
    assert "one step" not in few.sentence  # one of two
    assert "one step" not in replace(said, elapsed_s=0.004, longest_use_s=0.003).sentence  # too short to matter


def test_the_steps_of_a_group_of_workers_stand_below_it() -> None:
    feed = replace(lane(40, 40, is_serial=True, workers=1), label="from_generator(lines)", given=170)
    said = replace(report(lane(60, 60, step_ms=59), feed, use_ms=5, wait_ms=35), first_batch_s=0.0, batches=10)
    lines = str(said).splitlines()[4:8]
    assert [line[:30].rstrip() for line in lines] == [
        "  2 threads for batch(16): 75%",
        "    map(decode)",
        "    into batches",
        "  one thread for from_generato",
    ]
    assert "100% of the workers' time" in str(said).splitlines()[8]
    assert "from_generator(lines), read in one place  170 elements" in str(said).splitlines()[8]
    assert "first batch after" not in said.sentence


def test_shards_of_a_stream_are_shown_as_several_workers() -> None:
    steps = [StepTime("map(f)", number, 100, 0.3) for number in (3, 4)]
    shards = [Lane("from_generator(lines)", 1, True, 10, 0.4, 0.4, (step,), "process", given=100) for step in steps]
    said = report(replace(lane(60, 60, step_ms=59), reach="process"), *shards, use_ms=5, wait_ms=35)
    table = [" ".join(line.split()) for line in str(said).splitlines()]
    assert "2 processes for from_generator(lines): 100% computing, 0% waiting at work, 0% idle" in table
    assert "map(f) 200 elements begun 3.0 ms each 75% of the workers' time" in table
    assert "from_generator(lines), read in 2 places 200 elements begun 1.0 ms each 25% of the workers' time" in table
    assert said.limit.startswith("from_generator(lines), read in 2 places, is the limit, 4.0 ms an element; a map()")


# Measurement.


class Sleeping(ps.Source):
    """A source whose elements take a while."""

    element_spec = ps.ArraySpec((), "int64")
    is_cpu_bound = True

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 160

    def read_into(self, indices: Any, out: Any) -> None:
        time.sleep(self.seconds * len(indices))
        out[...] = indices


def slowly(seconds: float) -> Callable[[Any], Any]:
    def work(x: Any) -> Any:
        time.sleep(seconds)
        return np.full(4, x)

    return work


KINDS = {"source": (0.002, 0, 0), "map": (0, 0.002, 0), "consumer": (0, 0, 0.04)}


@pytest.mark.usefixtures("workers_stay")
@pytest.mark.parametrize(("executor", "workers"), [("inline", 1), ("threads", 2), ("processes", 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_time_is_counted_where_it_is_spent(kind: str, executor: Any, workers: int) -> None:
    # A sleep never ends early, so these bounds hold on a busy machine too.
    source_s, map_s, consumer_s = KINDS[kind]
    dataset = ps.from_source(Sleeping(source_s)).map(slowly(map_s)).batch(8)
    with dataset.loader(executor, workers=workers) as loader:
        for _ in loader:
            time.sleep(consumer_s)
        said = loader.report()
    steps = {step.step.partition("(")[0]: step for step in said.lanes[0].steps}
    assert steps.keys() == {"from_source", "map"}
    assert all(160 <= step.elements <= 160 + 8 * 8 for step in steps.values()), "workers are ahead by the ring"
    assert steps["from_source"].seconds >= 160 * source_s
    assert steps["map"].seconds >= 160 * map_s
    assert said.elapsed_s - said.wait_s >= 19 * consumer_s
    assert loader.report().lanes[0].steps, "what was measured outlives the loader"


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass in an inline loader. Nothing else does."""
    now_s = 1.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    clocks = dict.fromkeys(("perf_counter", "thread_time", "process_time"), lambda: now_s)
    for module in (_counters, _loader, _map, _reader, _times, _unit_runner, sys.modules[__name__]):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep, **clocks))
    return sleep


@pytest.mark.parametrize("kind", KINDS)
def test_the_sentence_names_the_limit(kind: str, sleep: Callable[[float], None]) -> None:
    source_s, map_s, consumer_s = KINDS[kind]
    with ps.from_source(Sleeping(source_s)).map(slowly(map_s)).batch(8).loader("inline") as loader:
        for _ in loader:
            sleep(consumer_s)
        limit = loader.report().limit
    names = {"source": "from_source is the limit, 2.0 ms", "map": "map(work) is the limit, 2.0 ms"}
    assert limit.startswith(names.get(kind, "your program is the limit, "))


@pytest.mark.usefixtures("workers_stay")
def test_workers_that_another_loader_asked_for_are_counted_where_they_share_the_work() -> None:
    with ps.range(64).map(slowly(0.001)).batch(8).loader("processes", workers=1) as loader:
        assert sum(len(batch) for batch in loader) == 64
        said = loader.report()
    assert said.workers == said.lanes[0].workers == 2
    assert "(processes, 2 workers)" in said.sentence


def held(step_ms: float, *, may_hold_gil: bool = True) -> ps.Report:
    """A report of threads whose slowest step takes most of a batch, in a plan with a function of the user."""
    step = StepTime("step", 1, 160, step_ms / 100, may_hold_gil=may_hold_gil)
    on_threads = Lane("batch(16)", 2, False, 10, step_ms / 90, step_ms / 150, (step,))
    return replace(report(on_threads, use_ms=0.1, wait_ms=step_ms), executor="threads", may_hold_gil=True)


def test_inline_is_advised_for_batches_that_are_filled_as_fast_as_they_are_handed_over() -> None:
    inline = "executor='inline' may be faster"
    assert inline in held(0.5).limit
    assert inline not in held(5).limit
    assert inline not in held(0.5, may_hold_gil=False).limit


@pytest.mark.parametrize(
    ("step_ms", "may_hold_gil", "are_promised"), [(0.5, True, False), (0.5, False, True), (5, True, True)]
)
def test_inline_workers_are_not_promised_to_fill_batches_that_are_filled_as_fast_as_they_are_handed_over(
    step_ms, may_hold_gil, are_promised
):
    inline = replace(held(step_ms, may_hold_gil=may_hold_gil), executor="inline", workers=0, may_hold_gil=False)
    inline = replace(inline, lanes=tuple(replace(each, reach=None) for each in inline.lanes))
    assert inline.limit.startswith("step is the limit")
    assert bool(re.search("workers would (give|remove)", inline.limit)) is are_promised
    assert (
        inline.limit.endswith("handing such a batch over costs as much as filling it, so more workers would not help")
    ) is not are_promised


def test_the_gil_is_spoken_of_for_steps_of_the_user_alone() -> None:
    for may_hold_gil in (True, False):
        said = held(50, may_hold_gil=may_hold_gil)
        alone = replace(said, lanes=tuple(replace(each, workers=1) for each in said.lanes))
        assert ("; more threads help if it releases the GIL" in alone.limit) == may_hold_gil


@pytest.mark.parametrize(
    ("cpu_ms", "cpus", "workers", "text"),
    [
        (
            50,
            2.0,
            2,
            "; its threads share one CPU, as Python does that holds the GIL: executor='processes' helps",
        ),
        (25, 8.0, 4, "; its threads share one CPU"),
        (96, 2.0, 2, "; more workers would not help, because all 2 CPUs are busy"),
        (50, 1.0, 2, "; more workers would not help, because all 2 CPUs are busy, while other programs have 1.0"),
        (50, None, 2, "; its threads share one CPU"),
        (70, 2.0, 2, "; more workers would not help, because all 2 CPUs are busy"),
        (20, 2.0, 2, "; 12 more workers would give 509 elements/s"),
        (45, 1.0, 4, "; more workers would not help, because"),
        (100, 2.0, 1, "; more threads help if it releases the GIL"),
    ],
)
def test_cpu_use_of_threads_shows_whether_they_wait_for_the_gil(
    cpu_ms: float, cpus: float | None, workers: int, text: str
) -> None:
    # Each of ten batches takes 100 ms, and each of the workers computes for so long meanwhile.
    step = StepTime("step", 1, 160, workers * 1.0, may_hold_gil=True)
    on_threads = Lane("batch(16)", workers, False, 10, workers * 1.0, workers * cpu_ms / 100, (step,))
    said = report(on_threads, use_ms=1, wait_ms=99, workers=workers, cpu_count=max(2, workers))
    said = replace(said, executor="threads", may_hold_gil=True, cpus=cpus, cpu_s=workers * cpu_ms / 100)
    assert text in said.limit


def test_the_object_of_a_user_may_hold_the_gil_as_functions_may() -> None:
    class Items:
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> int:
            return index

    with ps.from_source(Items()).batch(8).loader("threads", workers=2) as loader:
        assert sum(map(len, loader)) == 16
        said = loader.report()
    assert said.may_hold_gil
    assert said.lanes[0].steps[0].may_hold_gil


@pytest.mark.parametrize(("columns", "lines"), [(4, 4), (100, 1)])
def test_the_columns_of_a_wide_table_are_one_line(columns: int, lines: int) -> None:
    names = [f"column {number}" for number in range(columns)]
    table = {"label": np.arange(64), **dict.fromkeys(names, np.zeros(64, np.float32))}
    with ps.from_arrays(table).batch(8).loader("inline") as loader:
        assert sum(len(batch["label"]) for batch in loader) == 64
        said = str(loader.report()).splitlines()[4:]  # the lines above name the slowest step, which may be any column
    found = [line for line in said if "from_arrays(array of (64,) float32)" in line]
    assert len(found) == lines
    if lines == 1:
        assert found[0].lstrip().startswith("100 times from_arrays(array of (64,) float32)")
        assert "6,400 elements" in found[0]
    assert sum("from_arrays(array of (64,) int64)" in line for line in said) == 1


@pytest.mark.parametrize("has_step_above", [False, True])
def test_a_slow_generator_is_named(has_step_above: bool) -> None:
    def lines() -> Any:
        for number in range(64):
            time.sleep(0.002)
            yield number

    dataset = ps.from_generator(lines)
    if has_step_above:
        dataset = dataset.map(slowly(0))
    with dataset.batch(8).loader("threads", workers=2) as loader:
        assert sum(map(len, loader)) == 64
        said = loader.report()
    (serial,) = (each for each in said.lanes if each.is_serial)
    assert serial.wall_s >= 64 * 0.002  # a sleep never ends early
    waiting = replace(said, elapsed_s=7.0, wait_s=7.0, lanes=(replace(serial, wall_s=8.0, cpu_s=0.0),))
    assert "lines), read in one place, is the limit, 125.0 ms an element" in waiting.limit


@pytest.mark.parametrize("rows", [16, 96, 256])
def test_no_advice_comes_from_the_first_call_of_a_function(rows: int, sleep: Callable[[float], None]) -> None:
    calls = []

    def first_imports(x: Any) -> Any:
        calls.append(x)
        sleep(3.0 if len(calls) == 1 else 0.001)
        return x

    dataset = ps.range(rows).map(first_imports, element_spec=ps.ArraySpec((), "int64"))
    with dataset.batch(8).loader("inline") as loader:
        assert sum(map(len, loader)) == rows
        limit = loader.report().limit
    assert limit.startswith("map(first_imports) is the limit, ")
    assert ("too few elements for advice, because a first call, which may import a library, counts" in limit) == (
        rows < 100
    )
    assert ("worker" in limit) == (rows > 100)


def test_the_limit_is_unknown_after_one_batch() -> None:
    with ps.range(16).batch(8).loader("inline") as loader:
        next(iter(loader))
        said = loader.report()
    assert said.limit == "the limit is known from the second batch on"
    assert said.sentence.startswith("1 batch (inline, 0 workers); first batch after ")
    assert "; the limit is known from the second batch on; memory " in said.sentence


def test_the_rate_of_a_later_epoch_counts_its_first_batch_whose_time_is_counted() -> None:
    first = report(lane(100, 100), use_ms=10, wait_ms=40)
    later = replace(first, first_batch_s=0.0, batches=10)
    assert first.elements_per_s == later.elements_per_s == pytest.approx(10 * 16 / 0.5)


def test_each_epoch_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    with ps.range(40).map(slowly(0)).batch(8).loader("threads", workers=2) as loader:
        for _ in range(2):
            list(loader)
        table = str(loader.report()).splitlines()
    lines = [record.message for record in caplog.records]
    assert [line.partition(" (")[0] for line in lines] == ["Epoch 0: 5 batches", "Epoch 1: 5 batches"]
    assert [row.split()[0].partition("(")[0] for row in table[4:7]] == ["range", "map", "into"]


def test_a_run_without_a_log_has_a_report() -> None:
    with ps.range(40).batch(8).loader("inline") as loader:
        list(loader)
        said = loader.report()
    assert said.elements_per_s > 0
    assert math.isfinite(said.what_if(workers=3).elements_per_s)


def ragged(count: int) -> Any:
    def make(i: Any) -> Any:
        return np.zeros(int(i) % 7 + 1)

    return ps.range(count).map(make, element_spec=ps.ArraySpec((None,), "float64"))


def numbers() -> Any:
    yield from (np.int64(number) for number in range(80))


PAIRS = ps.range(80).map(lambda x: x)
COUNTED: dict[str, tuple[Any, int, str]] = {
    "batch": (PAIRS.batch(8), 8, "elements"),
    "padded_batch": (ragged(80).padded_batch(8), 8, "elements"),
    "padded_batch(shape)": (ragged(80).padded_batch(8, padded_shapes=(7,)), 8, "elements"),
    "bucket_by_length": (ragged(80).bucket_by_length(len, [3], [4, 4]), 4, "elements"),
    "bucket_by_length(sizes)": (ragged(80).bucket_by_length(len, [3], [4, 8]), 1, "batches"),
    "no batches": (PAIRS, 1, "elements"),
    "unbatch": (PAIRS.batch(8).unbatch(), 1, "elements"),
    "windows": (PAIRS.windows(4), 1, "elements"),
    "map of batches": (PAIRS.batch(8).map(lambda x: x + 1), 8, "elements"),
    "map to one number": (PAIRS.batch(8).map(lambda x: x.sum()), 1, "batches"),
    "filter of batches": (PAIRS.batch(8).filter(lambda x: True), 8, "elements"),
    "stream": (ps.from_generator(numbers).batch(8), 8, "elements"),
    "fewer than a batch": (PAIRS.batch(100).repeat(3), 80, "elements"),
    "one batch of several": (PAIRS.batch(72).take(1).repeat(3), 72, "elements"),
}


@pytest.mark.parametrize("kind", COUNTED)
def test_elements_are_counted_or_else_batches(kind: str) -> None:
    dataset, size, unit = COUNTED[kind]
    with dataset.loader("inline") as loader:
        count = sum(1 for _ in loader)
        said = loader.report()
    assert (said.batches, said.elements_per_batch) == (count, size)
    assert said.elements_per_s == pytest.approx((count - 1) * size / said.elapsed_s)
    assert f" {unit}/s; waited" in said.sentence
    rows = [
        line
        for line in str(said).splitlines()
        if line.lstrip().startswith(("into batches", "from_generator(numbers), read in"))
    ]
    assert f" {unit} " in rows[0]


def test_a_shard_counts_its_own_elements() -> None:
    with PAIRS.batch(8).loader("inline", shard=(1, 4)) as loader:
        assert sum(len(batch) for batch in loader) == 20
        said = loader.report()
    assert said.elements_per_batch == 2
    assert said.elements_per_s == pytest.approx(9 * 2 / said.elapsed_s)
    (row,) = (line for line in str(said).splitlines() if line.lstrip().startswith("into batches"))
    assert row.split()[:4] == ["into", "batches", "20", "elements"]


def test_a_serial_stream_counts_its_elements() -> None:
    third = ps.from_generator(numbers).filter(lambda x: x % 4 == 0).padded_batch(5)
    with third.loader("inline") as loader:
        assert sum(1 for _ in loader) == 4
        lanes = loader.report().lanes
    assert next((lane.label.partition("(")[0], lane.given) for lane in lanes if lane.is_serial) == ("filter", 20)


def test_a_stream_counts_the_elements_of_a_short_batch() -> None:
    with ps.from_generator(numbers).batch(25).loader("inline") as loader:
        assert [len(batch) for batch in loader] == [25, 25, 25, 5]
        (lane,) = loader.report().lanes
    assert lane.batches == pytest.approx(80 / 25)


def test_rows_that_are_kept_leaf_by_leaf_are_counted_once(tmp_path: Any) -> None:
    kept = ps.range(40).map(lambda i: {"x": np.full(8, i, "float32"), "y": i, "z": i}).cache(str(tmp_path))
    with kept.batch(8).loader("inline") as loader:
        list(loader)
    with kept.batch(8).loader("inline") as loader:
        list(loader)
        (step,) = [each for each in loader.report().lanes[0].steps if each.step.startswith("cache")]
    assert step.elements == 40
    assert step.nbytes == 40 * (32 + 8 + 8)


def test_a_source_that_is_read_twice_has_its_elements_with_each_step() -> None:
    source = Sleeping(0.0)
    both = ps.zip((ps.from_source(source).take(80), ps.from_source(source).skip(80)))
    with both.batch(8).loader("inline") as loader:
        list(loader)
        steps = loader.report().lanes[0].steps
    assert [step.elements for step in steps] == [80, 80]


def test_the_first_batch_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    with ps.range(40).batch(8).loader("inline") as loader:
        for _ in range(3):
            list(loader)
        assert loader.report().first_batch_s > 0
    assert ["first batch after" in record.message for record in caplog.records] == [True, False, False]


def test_the_longest_step_of_the_consumer_is_measured(sleep: Callable[[float], None]) -> None:
    with ps.range(80).batch(8).loader("inline") as loader:
        for number, _ in enumerate(loader):
            sleep(0.15 if number == 3 else 0.001)
        said = loader.report()
    assert said.longest_use_s == pytest.approx(0.15)
    assert "; 0.1 of 0.2 s were one step of your program" in said.sentence


def test_the_longest_wait_is_measured_without_that_for_the_first_batch(sleep: Callable[[float], None]) -> None:
    def slow(x: Any) -> Any:
        time.sleep(0.3 if x == 0 else 0.1 if x == 40 else 0)
        return x

    with ps.range(80).map(slow, element_spec=ps.ArraySpec((), "int64")).batch(8).loader("inline") as loader:
        list(loader)
        said = loader.report()
    assert (said.first_batch_s, said.longest_wait_s, said.wait_s) == pytest.approx((0.3, 0.1, 0.1))


def test_more_processes_are_not_promised_where_handing_over_takes_the_time() -> None:
    step = StepTime("map(cut)", 1, 160, 0.004, may_hold_gil=True)
    short = Lane("batch(16)", 2, False, 10, 0.008, 0.006, (step,), "process", delay_s=0.0)
    limit = report(short, use_ms=0.1, wait_ms=0.9).limit
    assert limit.endswith(
        "on 2 workers; handing such a batch over costs as much as filling it, so more workers would not help, and "
        "executor='threads' may be faster"
    )


def test_the_limit_counts_what_the_speed_counts() -> None:
    tokens = StepTime("from_npy(tokens.npy)", 2, 160_000, 1.98)
    said = report(replace(lane(200, 200), steps=(tokens,)), use_ms=1, wait_ms=99)
    assert said.limit.startswith("from_npy(tokens.npy) is the limit, 12.4 ms an element on 2 workers")


@pytest.mark.parametrize("workers", [2, 8])
def test_threads_that_sleep_and_wait_long_for_a_cpu_do_not_share_the_gil(workers: int) -> None:
    # Half of the time or an eighth of it each waits for a CPU, to use it for a moment: one or so at a time.
    step = StepTime("map(f)", 1, 160, workers * 0.99, may_hold_gil=True)
    lane = Lane("batch(16)", workers, False, 10, workers * 0.99, 0.01, (step,), delay_s=0.99)
    said = report(lane, use_ms=1, wait_ms=99, workers=workers, cpu_count=2)
    said = replace(said, executor="threads", may_hold_gil=True, cpus=0.1)
    assert "GIL" not in said.limit
    assert re.search(r"; \d+ more workers would give ", said.limit)


def test_requests_are_counted_and_the_network_has_its_share_of_the_time() -> None:
    traffic = Traffic(200, 3, 3 << 20, 2 << 20, 10.0, 6.0)
    both = [replace(lane(1000, 100), wall_s=8.0, traffic=traffic), lane(1000, 100)]
    shown = report(*both, use_ms=200, wait_ms=800)
    assert shown.network_share == pytest.approx(0.8 * 6 / 8)
    assert (
        "  network: 200 requests, 3 of them repeated, 50.0 ms each; 3 MiB read, 1.50 times what elements need; it was "
        "the limit for 60% of the time"
    ) in str(shown).splitlines()
    assert both[0].since(both[0]).traffic == Traffic()
    assert "network" not in str(report(lane(1000, 100), use_ms=200, wait_ms=800))
