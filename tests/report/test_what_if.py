"""The model behind `what_if` and the advice: its bounds, and the number of workers that the sentence recommends."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

import penstock as ps
from penstock.report._lanes import Lane, StepTime
from penstock.report._what_if import LEAST_GAIN, MOST_PER_CPU, NEAR_BEST, Model

SECONDS = st.floats(1e-6, 10)


@st.composite
def lanes(draw: st.DrawFn) -> Lane:
    wall_s = draw(SECONDS)
    cpu_s = wall_s * draw(st.floats(0, 1))
    delay_s = draw(st.none() | st.floats(0, 1).map(lambda part: part * (wall_s - cpu_s)))
    workers = draw(st.integers(1, 16))
    return Lane("map(f)", workers, draw(st.booleans()), 10, wall_s, cpu_s, (), delay_s=delay_s)


@st.composite
def models(draw: st.DrawFn) -> Model:
    return Model(
        lanes=tuple(draw(st.lists(lanes(), min_size=1, max_size=3))),
        workers=draw(st.integers(0, 16)),
        cpu_count=draw(st.integers(1, 8)),
        others=draw(st.floats(0, 20)),
        use_s=draw(SECONDS),
        other_cpu_s=draw(st.floats(0, 1)),
        measured_s=draw(st.none() | SECONDS),
    )


@given(models())
def test_the_recommended_number_is_the_smallest_near_the_best(model: Model) -> None:
    now, count = model.workers or 1, model.advised()
    most = max(now, model.cpu_count) if model.computes else max(2 * now, MOST_PER_CPU * model.cpu_count)
    times = {each: model.batch_s(each) for each in range(1, most + 1)}
    best_s = min(times.values())
    assert now <= count <= max(times)
    if count == now:
        enough = LEAST_GAIN * best_s > times[now] or NEAR_BEST * times[now] <= best_s * 1.000001
        assert enough or any(NEAR_BEST * times[each] <= best_s for each in range(1, now))
    else:
        assert NEAR_BEST * times[count] <= best_s
        assert all(NEAR_BEST * times[each] > best_s for each in range(1, count))


@given(models(), st.integers(1, 200))
def test_no_number_of_workers_is_promised_more_cpus_than_there_are(model: Model, workers: int) -> None:
    model = replace(model, measured_s=None)
    cpu_s = model.other_cpu_s + sum(lane.cpu_s / lane.batches for lane in model.lanes)
    assert model.batch_s(workers) >= cpu_s / model.cpu_count * 0.999999
    assert model.batch_s(workers) >= model.use_s


@given(models())
def test_no_more_workers_than_cpus_are_advised_for_a_step_that_computes(model: Model) -> None:
    busy = [replace(lane, wall_s=lane.cpu_s, delay_s=0.0) for lane in model.lanes]
    model = replace(model, lanes=tuple(busy))
    assert model.computes
    assert model.advised() <= max(model.workers, model.cpu_count)


@given(models())
def test_the_present_number_has_the_measured_speed(model: Model) -> None:
    if model.measured_s is not None and model.workers and model.measured_s >= model.use_s:
        assert model.batch_s(model.workers) == pytest.approx(model.measured_s)


def report(lane: Lane, *, workers: int = 2, cpu_count: int = 8, **fields: object) -> ps.Report:
    """A report of eleven batches that took 100 ms each, nearly all of it waiting."""
    return ps.Report(
        batches=11,
        elements_per_batch=16,
        elapsed_s=1.0,
        wait_s=0.99,
        first_batch_s=0.1,
        copied=0,
        executor="threads" if lane.reach == "thread" else "processes",
        workers=workers,
        projected_nbytes=1 << 20,
        slot_count=6,
        slot_nbytes=1 << 20,
        shared_nbytes=0,
        note="",
        cpu_count=cpu_count,
        lanes=(lane,),
        **fields,  # type: ignore[arg-type]
    )


STEP = StepTime("map(f)", 1, 160, 1.9, may_hold_gil=True)
COMPUTING = Lane("batch(16)", 2, False, 10, 2.0, 1.98, (STEP,), "process", delay_s=0.0)
WAITING = replace(COMPUTING, cpu_s=0.02)


@pytest.mark.parametrize(
    ("said", "workers"),
    [
        (report(COMPUTING), 8),
        (report(COMPUTING, cpu_count=4), 4),
        (report(COMPUTING, cpu_count=2), None),
        (report(WAITING, cpu_count=2), 16),
        (report(replace(COMPUTING, delay_s=1.0, cpu_s=0.99), cpu_count=2, cpus=1.0), None),
        (report(replace(WAITING, is_serial=True)), None),
    ],
    ids=["computes", "four CPUs", "two CPUs", "waits", "other programs", "one place"],
)
def test_the_sentence_and_what_if_agree(said: ps.Report, workers: int | None) -> None:
    found = re.search(r"; (\d+) more workers would give ([\d,]+) elements/s", said.limit)
    assert (int(found[1]) + 2 if found else None) == workers
    if found and workers:
        assert said.what_if(workers=workers).elements_per_s == pytest.approx(int(found[2].replace(",", "")), abs=1)


def test_more_threads_that_share_one_cpu_do_not_help() -> None:
    on_threads = replace(COMPUTING, reach="thread", cpu_s=1.0)
    said = report(on_threads, may_hold_gil=True, cpus=8.0)
    assert "executor='processes' helps" in said.limit
    assert said.what_if(workers=8).elements_per_s == pytest.approx(said.what_if(workers=2).elements_per_s)
    parallel = report(on_threads, may_hold_gil=False, cpus=8.0)
    assert parallel.what_if(workers=8).elements_per_s > 1.5 * parallel.what_if(workers=2).elements_per_s
