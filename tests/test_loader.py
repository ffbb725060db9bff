"""Epochs, positions, states: what iterating a loader means."""

import contextlib
import copy
import itertools
import json
import multiprocessing.spawn
import os
import pickle
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.loader import Loader, LoaderOptions
from penstock.plan._node import walk
from penstock.plan._source import Source
from penstock.report._counters import Counters
from penstock.run._file_watch import FileWatch
from tests.run.common import Gate
from tests.waits import DEADLINE_S

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")


@pytest.fixture(params=["inline", "threads"])
def executor(request: pytest.FixtureRequest) -> Any:
    return request.param


def dataset() -> ps.Dataset:
    return ps.range(40).shuffle(seed=6).batch(4)


def epoch(number: int, plan: ps.Dataset | None = None) -> list[list[int]]:
    """What an epoch holds, by the oracle."""
    with (plan or dataset()).loader("inline") as loader:
        loader.set_state(loader.get_state() | {"epoch": number})
        return [batch.tolist() for batch in loader]


def at(loader: Loader) -> tuple[int, int]:
    state = loader.get_state()
    return state["epoch"], state["position"]


def test_epochs_advance_by_themselves(executor: Any) -> None:
    with dataset().loader(executor) as loader:
        epochs = [[batch.tolist() for batch in loader] for _ in range(4)]
        assert epochs == [epoch(number) for number in range(4)]
        assert len({str(one) for one in epochs}) == 4
        assert all(sorted(itertools.chain(*one)) == list(range(40)) for one in epochs)


def test_a_break_ends_the_epoch(executor: Any) -> None:
    with dataset().loader(executor) as loader:
        assert len(list(itertools.islice(loader, 3))) == 3
        assert at(loader) == (0, 3)
        assert [batch.tolist() for batch in loader] == epoch(1)


def test_an_iterator_that_was_not_read_is_no_epoch(executor: Any) -> None:
    with dataset().loader(executor) as loader:
        iter(loader)
        iter(loader)
        assert [batch.tolist() for batch in loader] == epoch(0)
        loader.set_state(loader.get_state() | {"epoch": 5, "position": 7})
        iter(loader)
        assert [batch.tolist() for batch in loader] == epoch(5)[7:]
        assert [batch.tolist() for batch in loader] == epoch(6)


def test_a_new_iterator_ends_the_older(executor: Any) -> None:
    with dataset().loader(executor) as loader:
        older = iter(loader)
        next(older)
        newer = iter(loader)
        with pytest.raises(ps.LoaderError, match="A newer iterator, or set_state"):
            next(older)
        with pytest.raises(StopIteration):
            next(older)
        assert [batch.tolist() for batch in newer] == epoch(1)
        assert list(older) == []


def test_an_exhausted_iterator_stays_exhausted(executor: Any) -> None:
    with dataset().loader(executor) as loader:
        iterator = iter(loader)
        assert len(list(iterator)) == 10
        assert list(iterator) == []
        assert next(iterator, None) is None
        assert iter(iterator) is iterator


def test_set_state_ends_the_iterator_too(executor: Any) -> None:
    with dataset().loader(executor) as loader:
        iterator = iter(loader)
        next(iterator)
        loader.set_state(loader.get_state())
        with pytest.raises(ps.LoaderError, match="set_state"):
            next(iterator)


def test_position_counts_batches_handed_out(executor: Any) -> None:
    with dataset().loader(executor, prefetch=7) as loader:
        assert at(loader) == (0, 0)
        for number, _ in enumerate(loader, 1):
            assert at(loader) == ((0, number) if number < 10 else (1, 0))
        assert at(loader) == (1, 0)


@pytest.mark.parametrize("cut", range(11))
def test_a_state_resumes_exactly_on_either_executor(executor: Any, cut: int) -> None:
    with dataset().loader(executor) as loader:
        list(loader)
        list(itertools.islice(loader, cut))
        state = json.loads(json.dumps(loader.get_state()))
    want = epoch(1)[cut:] + epoch(2) if cut < 10 else epoch(2) + epoch(3)
    for other in ("inline", "threads"):
        with dataset().loader(other, prefetch=2) as loader:  # type: ignore[arg-type]
            loader.set_state(state)
            assert at(loader) == (state["epoch"], state["position"])
            assert [batch.tolist() for _ in range(2) for batch in loader] == want


def test_set_state_works_in_the_middle_of_an_epoch(executor: Any) -> None:
    with dataset().loader(executor) as loader:
        for _ in range(3):
            for position in (8, 0, 3, 9):
                loader.set_state(loader.get_state() | {"epoch": 2, "position": position})
                assert next(iter(loader)).tolist() == epoch(2)[position]


def test_the_same_epoch_again_for_evaluation(executor: Any) -> None:
    with Loader(dataset()._node, LoaderOptions(executor=executor), same_epoch=True) as loader:
        for _ in range(3):
            assert [batch.tolist() for batch in loader] == epoch(0)
            assert at(loader) == (0, 0)
        list(itertools.islice(loader, 4))
        assert [batch.tolist() for batch in loader] == epoch(0)


def test_an_endless_dataset_is_one_endless_epoch(executor: Any) -> None:
    plan = ps.range(6).shuffle(1).repeat().batch(4)
    with plan.loader(executor) as loader:
        got = [batch.tolist() for batch in itertools.islice(loader, 9)]
        assert at(loader) == (0, 9)
        flat = list(itertools.chain(*got))
        assert [sorted(flat[start : start + 6]) for start in range(0, 36, 6)] == [list(range(6))] * 6
        with pytest.raises(TypeError, match=r"has no len\(\)"):
            len(loader)
        assert loader.length == float("inf")


def long_plan() -> ps.Dataset:
    plan = ps.from_arrays(list(range(64)))
    for number in range(20):
        plan = plan.map(lambda x: x + 1).shuffle(number).skip(1)
    return ps.zip({"a": plan, "b": plan, "c": ps.concatenate([plan[:20], plan[20:]])}).batch(3)


@pytest.mark.parametrize("plan", [dataset, long_plan, lambda: ps.range(2**61).repeat(3).batch(2**20).take(2**40)])
def test_a_state_is_json_below_500_bytes(plan: Any) -> None:
    loader = plan().loader("inline")
    state = loader.get_state() | {"epoch": 2**62 - 1, "position": 2**61}
    assert len(json.dumps(state).encode()) < 500
    assert set(state) - {"batch"} == {"version", "plan", "epoch", "position"}
    assert len(json.dumps(state | {"batch": 2**61, "cut": 2**61}).encode()) < 500


DIFFERENT: dict[str, tuple[ps.Dataset, str]] = {
    "seed": (ps.range(40).shuffle(seed=7).batch(4), r"step 2 differs: the arguments of shuffle changed"),
    "rest": (ps.range(40).shuffle(seed=6).batch(4, drop_remainder=True), r"step 3 .* the arguments of batch changed"),
    "length": (ps.range(44).shuffle(seed=6).batch(4), r"step 1 differs: the length or spec of range changed"),
    "step": (ps.range(40).repeat(1).batch(4), r"step 2 differs: shuffle was repeat|step 2 differs: .*shuffle.*repeat"),
    "number": (ps.range(40).shuffle(seed=6).batch(4).take(9), r"it had 4 steps, this one has 3"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_state_of_another_plan_says_what_differs(name: str) -> None:
    other, text = DIFFERENT[name]
    state = other.loader("inline").get_state()
    with pytest.raises(ps.StateError, match=f"^The state is of another dataset: (?:{text})"):
        dataset().loader("inline").set_state(state)


def test_another_batch_size_needs_random_access_and_the_error_says_so() -> None:
    before, after = (ps.range(40).filter(lambda x: x % 2 == 0).batch(size).loader("inline") for size in (4, 5))
    with pytest.raises(ps.StateError, match=r"of batch changed .* Only random access, with batch\(\) last but for map"):
        after.set_state(before.get_state())


def test_a_refused_state_changes_nothing(executor: Any) -> None:
    with dataset().loader(executor) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(ps.StateError):
            loader.set_state({})
        assert at(loader) == (0, 1)
        assert [batch.tolist() for batch in iterator] == epoch(0)[1:]


GARBAGE: list[tuple[Any, str]] = [
    (None, "Not a loader's state: None"),
    ([], "Not a loader's state"),
    ("x" * 10_000, "Not a loader's state: 'xxx"),
    ({}, r"Not a loader's state: \{\}"),
    ({"epoch": 0, "position": 0}, "Not a loader's state"),
    ({"version": 2}, "The state has version 2, this penstock reads version 1"),
    ({"version": "1"}, "The state has version '1', this penstock reads version 1"),
    ({"plan": None}, "The state is of another dataset"),
    ({"plan": 17}, "The state is of another dataset"),
    ({"extra": 0}, "Not a loader's state"),
    ({"epoch": -1}, "epoch=-1 and position=0 must be integers from 0"),
    ({"epoch": True}, "epoch=True and position=0 must be integers"),
    ({"epoch": 0.0}, r"epoch=0\.0 and position=0 must be integers"),
    ({"epoch": 2**62}, ".* must be integers from 0 to 2"),
    ({"position": "3"}, "epoch=0 and position='3' must be integers"),
    ({"position": None}, "epoch=0 and position=None must be integers"),
    ({"position": 10}, "position=10 is beyond the 10 batches of an epoch"),
    ({"position": 2**80}, ".* must be integers from 0 to 2"),
    ({"batch": "4"}, "batch='4' and cut=0 must be integers from 0 to 2"),
    ({"cut": -1}, "batch=4 and cut=-1 must be integers from 0 to 2"),
    ({"cut": 40}, "position=0 is beyond the 0 batches of an epoch"),
    ({"cut": 38, "position": 1}, "position=1 is beyond the 1 batches of an epoch"),
]


@pytest.mark.parametrize(("garbage", "text"), GARBAGE, ids=[str(pair[0])[:20] for pair in GARBAGE])
def test_garbage_is_no_state(garbage: Any, text: str) -> None:
    loader = dataset().loader("inline")
    if isinstance(garbage, dict) and garbage and set(garbage) != {"epoch", "position"}:
        garbage = loader.get_state() | garbage
    with pytest.raises(ps.StateError, match=f"^{text}") as caught:
        loader.set_state(garbage)
    assert len(str(caught.value)) < 1500
    assert isinstance(caught.value, ValueError)


def test_a_state_survives_a_renamed_file_and_a_mended_function() -> None:
    def plan(function: Any) -> ps.Dataset:
        return ps.range(40).map(function).batch(4)

    def scale(x: Any) -> Any:
        return x * 2

    before = plan(scale).loader("inline").get_state()

    def scale(x: Any) -> Any:  # type: ignore[no-redef]
        return x * 3

    plan(scale).loader("inline").set_state(before)


def test_two_threads_take_turns_at_one_iterator(executor: Any) -> None:
    with ps.range(2000).batch(1).loader(executor) as loader:
        iterator = iter(loader)
        got: list[list[int]] = [[], [], []]

        def consume(mine: list[int]) -> None:
            mine.extend(int(batch[0]) for batch in iterator)

        threads = [threading.Thread(target=consume, args=(mine,)) for mine in got]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(itertools.chain(*got)) == list(range(2000))
        assert all(mine == sorted(mine) for mine in got)
        assert at(loader) == (1, 0)


def test_a_state_saved_by_another_thread_is_of_one_moment(executor: Any) -> None:
    with ps.range(2).batch(1).loader(executor) as loader:
        seen: set[tuple[int, int]] = set()
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                seen.add(at(loader))

        thread = threading.Thread(target=watch)
        thread.start()
        for _ in range(300):
            for _batch in loader:
                pass
        done.set()
        thread.join()
        assert all(position < 2 for _, position in seen)


@pytest.mark.slow
@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("kind", ["inline", "threads", "processes"])
def test_a_copy_is_refused_and_harms_nothing(kind: Any, make: Callable[[Any], Any]) -> None:
    with dataset().loader(kind) as loader:
        batches = iter(loader)
        first = next(batches).tolist()
        with pytest.raises(ps.TravelError, match=r"is neither copied nor pickled.*dataset\.loader\(\.\.\.\)"):
            make({"train": loader} if make is not copy.copy else loader)
        assert [first, *(batch.tolist() for batch in batches)] == epoch(0)


def test_a_call_from_within_a_call_is_refused() -> None:
    # As a finalizer or a signal handler might, on the thread that is in `next`.
    errors = []

    class Meddler(ps.Source):
        element_spec = ps.ArraySpec((), "int64")
        iterator: Iterator[Any] | None = None

        def __len__(self) -> int:
            return 4

        def read_into(self, indices: Any, out: Any) -> None:
            out[...] = indices
            if self.iterator is not None and threading.current_thread() is threading.main_thread():
                try:
                    next(self.iterator)
                except ps.LoaderError as error:
                    errors.append(str(error))

    source = Meddler()
    with ps.from_source(source).batch(1).loader("inline") as loader:
        source.iterator = iter(loader)
        assert [int(batch[0]) for batch in source.iterator] == [0, 1, 2, 3]
        source.iterator = None
    assert len(errors) == 4
    assert errors[0].startswith("This loader is in the middle of a call on this very thread")


def test_a_call_from_within_a_call_never_waits_for_itself(executor: Any) -> None:
    left = step = 0

    def strike(frame: Any, event: str, _: Any) -> None:
        """Takes a batch, as a signal handler may, at a place where Python looks for signals."""
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                with contextlib.suppress(ps.LoaderError):
                    next(iterator)

    with ps.range(10**6).batch(1).loader(executor) as loader:
        iterator = iter(loader)
        while left <= 0:
            left = step = step + 1
            sys.setprofile(strike)
            try:
                next(iterator)
            finally:
                sys.setprofile(None)
    assert step > 20


def test_a_new_iterator_of_another_thread_waits_for_the_batch_of_the_older() -> None:
    gate = Gate(5)
    with ps.range(20).map(gate).batch(1).loader("threads", workers=1, prefetch=1) as loader:
        iterator = iter(loader)
        assert [int(next(iterator)[0]) for _ in range(5)] == list(range(5))
        got: list[int] = []
        older = threading.Thread(target=lambda: got.append(int(next(iterator)[0])))
        older.start()
        gate.wait_for(5)
        newer = threading.Thread(target=lambda: got.append(int(next(iter(loader))[0])))
        newer.start()
        gate.open()
        older.join()
        newer.join()
        assert got in ([5, 0], [0])  # the second if the newer iterator came first
        # In the second case the older one was ended, and said so on its thread.


def test_len_spec_and_repr(executor: Any) -> None:
    loader = dataset().loader(executor)
    assert len(loader) == loader.length == 10
    assert loader.element_spec == ps.ArraySpec((4,), "int64")
    assert repr(loader) == f"<penstock.Loader of 10 elements, {executor}, epoch 0, position 0>"
    next(iter(loader))
    assert repr(loader).endswith("epoch 0, position 1>")
    loader.close()
    assert repr(loader).endswith("closed>")


def test_report_counts_batches_and_says_what_was_chosen(executor: Any) -> None:
    with dataset().loader(executor, workers=1) as loader:
        assert str(loader.report()) == "No batch was handed out yet."
        list(loader)
        report = loader.report()
        assert (report.batches, report.elements_per_batch) == (10, 4)
        assert report.executor == executor
        assert report.slot_count == 6
        assert 0 <= report.wait_share <= 1
        assert "10 batches" in str(report)
        assert f"({executor}" in str(report)


def test_counters_are_plain_numbers_at_any_time(executor: Any) -> None:
    loader = ps.range(100).batch(10).loader(executor=executor)
    before = loader.counters()
    with loader:
        asked = [loader.counters() for _ in loader]
    after = loader.counters()
    assert [each["batches"] for each in asked] == list(range(1, 11))
    assert (asked[3]["epoch"], asked[3]["position"], after["epoch"], after["position"]) == (0, 4, 1, 0)
    assert before["batches"] == before["wait_s"] == before["worker_s"] == 0
    assert json.loads(json.dumps(after)) == after
    assert (after["batches"], after["elements_per_batch"], after["set_aside"]) == (10, 10, 0)
    assert before.keys() == after.keys()


def test_counters_and_report_of_another_thread_do_not_disturb_the_run(executor: Any) -> None:
    seen: list[dict[str, int | float]] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            seen.append(loader.counters())
            loader.report()

    with ps.range(300).batch(1).loader(executor=executor) as loader:
        watcher = threading.Thread(target=watch)
        watcher.start()
        for _ in range(5):
            assert len(list(loader)) == 300
        is_over.set()
        watcher.join()
    assert [each["batches"] for each in seen] == sorted(each["batches"] for each in seen)


@pytest.mark.parametrize("end", [Counters.ended, Counters.paused])
def test_an_epoch_that_ends_while_its_counts_are_copied_harms_nothing(end: Any, monkeypatch: Any) -> None:
    counters = Counters()
    counters.delivered(0.0, 0.0)
    times = iter([counters._cpu_began_s or 0.0] * 3)

    def ends_meanwhile() -> float:
        monkeypatch.undo()
        end(counters)
        return next(times)

    monkeypatch.setattr("penstock.report._counters.time.process_time", ends_meanwhile)
    assert counters.copy().batches == 1


OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"executor": "process"}, ValueError, r"executor='process' is not known"),
    ({"workers": 0}, ValueError, "workers=0 is below 1"),
    ({"workers": 2**70}, ValueError, r"workers=\d+: at most 4,096\."),
    ({"workers": 2.0}, TypeError, r"workers=2\.0 is not an integer"),
    ({"workers": True}, TypeError, "workers=True is not an integer"),
    ({"workers": np.True_}, TypeError, "workers=np.True_ is not an integer"),
    ({"executor": "inline", "workers": 3}, ValueError, "executor='inline' has no workers, but workers=3"),
    ({"prefetch": 0}, ValueError, "prefetch=0 is below 1"),
    ({"prefetch": "4"}, TypeError, "prefetch='4' is not an integer"),
    ({"memory_limit": 1e9}, TypeError, r"memory_limit=1000000000\.0 is not an integer \(bytes"),
    ({"memory_limit": 0}, ValueError, "memory_limit=0 is below 1"),
    ({"timeout_s": 0}, ValueError, "timeout_s=0 is not a time above zero"),
    ({"timeout_s": float("nan")}, ValueError, "timeout_s=nan is not a time above zero"),
    ({"timeout_s": -(10**400)}, ValueError, "timeout_s=-10{400} is not a time above zero"),
    ({"timeout_s": np.timedelta64(3, "s")}, TypeError, "timeout_s=.* is not a number of seconds"),
    ({"shard": 1}, TypeError, r"shard=1 is not a pair"),
    ({"shard": (0.0, 2)}, TypeError, r"shard=\(0\.0, 2\) is not a pair"),
    ({"shard": (2, 2)}, ValueError, r"shard=\(2, 2\) is \(index, count\)"),
    ({"shard": (0, 3)}, ValueError, "A batch has 4 elements, which 3 shards cannot share"),
]


@pytest.mark.parametrize(("options", "kind", "text"), OPTIONS, ids=[str(one[0]) for one in OPTIONS])
def test_an_option_without_a_meaning_is_refused(options: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=f"^{text}"):
        dataset().loader(**options)


NUMPY_OPTIONS: list[dict[str, Any]] = [
    {"workers": np.int64(2)},
    {"prefetch": np.uint8(3)},
    {"memory_limit": np.int64(1 << 30)},
    {"timeout_s": np.int64(30)},
    {"timeout_s": np.float32(30)},
    {"shard": (np.int64(0), np.int64(1))},
    {"on_error": "replace", "max_errors": np.int64(3)},
    {"on_error": "replace", "max_errors": np.float32(0.5)},
]


@pytest.mark.parametrize("options", NUMPY_OPTIONS, ids=str)
def test_options_are_numbers_of_numpy_too(options: dict[str, Any]) -> None:
    with dataset().loader("threads" if "workers" in options else "inline", **options) as loader:
        assert [batch.tolist() for batch in loader] == epoch(0)
    plain = LoaderOptions(**options)
    assert {type(value) for value in vars(plain).values()} <= {str, int, bool, float, tuple, type(None)}
    assert {type(part) for part in plain.shard} == {int}


def test_a_state_is_of_integers_of_numpy_too_as_frameworks_give_it_back() -> None:
    with dataset().loader("inline") as loader:
        state = loader.get_state()
        loader.set_state(state | {"version": np.int64(1), "epoch": np.int64(1), "position": np.array(3)})
        assert json.loads(json.dumps(loader.get_state())) == state | {"epoch": 1, "position": 3}
        assert [batch.tolist() for batch in loader] == epoch(1)[3:]


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(ps.ArgumentError, match=r"^There is nothing to load: take\(0\) has no elements"):
        ps.range(10).take(0).shuffle(1).batch(2).loader()


def test_an_epoch_that_turns_out_to_be_empty_is_said_once(executor: Any, caplog: pytest.LogCaptureFixture) -> None:
    with ps.range(3).filter(lambda x: True).batch(4, drop_remainder=True).loader(executor) as loader:
        assert [list(loader), list(loader)] == [[], []]
    (said,) = caplog.messages
    assert said.startswith("Epoch 0 had no batch: nothing came out of batch(4, drop_remainder=True). To see which step")
    caplog.clear()
    with ps.range(8).filter(lambda x: True).batch(4).loader(executor) as loader:
        assert [len(list(loader)), len(list(loader))] == [2, 2]
    assert not caplog.messages


@pytest.mark.parametrize("timeout_s", [float("inf"), 10**400])
def test_no_timeout_is_a_timeout(executor: Any, timeout_s: float) -> None:
    with dataset().loader(executor, timeout_s=timeout_s) as loader:
        assert len(list(loader)) == 10


def test_more_slots_than_can_be_counted_are_too_many() -> None:
    loader = dataset().loader("inline", prefetch=10**400)
    with pytest.raises(ps.MemoryLimitError, match=r"^The system gives no .* slots of"):
        next(iter(loader))


class Doubler:
    """A function that says of itself that threads can run it side by side."""

    releases_gil = True

    def __call__(self, x: Any) -> Any:
        return x * 2


@pytest.mark.usefixtures("auto_workers_stay")
def test_functions_that_let_go_of_the_gil_run_on_threads() -> None:
    doubled = ps.range(8).map(Doubler())
    with doubled.batch(4).loader() as loader:
        assert loader.report().executor == "threads"
    with doubled.map(lambda x: x + 1).batch(4).loader() as loader:  # one that nobody knows is enough
        assert loader.report().executor == "processes"


class Slow(ps.Source):
    """Elements that take computation."""

    element_spec = ps.ArraySpec((), "int64")
    is_cpu_bound = True

    def __init__(self) -> None:
        self.read_counts: list[int] = []

    def __len__(self) -> int:
        return 64

    def read_into(self, indices: Any, out: Any) -> None:
        self.read_counts.append(len(indices))
        out[...] = indices


def test_sources_that_compute_are_shared_by_all_workers() -> None:
    for computes, most in ((True, 4), (False, 64)):
        source = Slow()
        source.is_cpu_bound = computes
        with ps.from_source(source).batch(64).loader("threads", workers=2) as loader:
            assert [batch.tolist() for batch in loader] == [[*range(64)]]
        # The first batch, by this many at a time; the next one may be read by as many as take long enough.
        assert source.read_counts.count(most) >= 64 // most


def test_a_loader_refuses_to_become_an_array_with_the_cure():
    loader = ps.range(4).batch(2).loader(executor="inline")
    with pytest.raises(ps.ArgumentTypeError, match=r"A loader is no array: .*for batch in loader\. Keras takes fit\("):
        np.asarray(loader)
    assert not hasattr(loader, "shape")


def test_a_consumer_waits_for_another_that_has_just_begun():
    with ps.range(8).batch(2).loader(workers=1) as loader:
        epoch = iter(loader)
        next(epoch)
        loader._lock.acquire()
        thread = threading.Thread(target=next, args=(epoch,))
        thread.start()
        loader._lock.release()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        assert next(epoch).tolist() == [4, 5]


def test_shards_are_refused_if_any_of_several_short_batches_does_not_divide():
    dataset = ps.concatenate([ps.range(10).batch(4), ps.range(9).batch(4)])
    with pytest.raises(ps.ArgumentError, match="The last batch has 1 element, which 2 shards"):
        dataset.loader(shard=(0, 2))


@pytest.mark.parametrize("is_copied", [True, False])
def test_a_file_that_is_written_to_while_it_is_read_is_one_line_in_the_log(
    is_copied: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(100))
    ds = ps.from_npy(path)
    with (ds if is_copied else ds.map(np.negative)).batch(10).loader("threads") as loader:
        for _ in loader:
            pass
        assert not caplog.records
        for number, _ in enumerate(loader):
            if number == 5:
                np.load(path, mmap_mode="r+")[:] = -1
                os.utime(path, ns=(0, 1))  # another time of change, however coarse the clock
        for _ in loader:
            pass
    (record,) = caplog.records
    text = f"{path} was written to while a loader reads it: 928 bytes before, 928 now. So epoch 1 may have old and new"
    assert record.getMessage().startswith(text)


def test_a_file_replaced_by_one_of_its_size_and_time_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("x.npy", "new.npy"):
        np.save(tmp_path / name, np.arange(100))
        os.utime(tmp_path / name, ns=(1, 1))
    watch = FileWatch(ps.from_npy(tmp_path / "x.npy")._node)
    watch.look(0)
    (tmp_path / "x.npy").chmod(0o600)
    watch.look(0)
    assert not caplog.records
    os.replace(tmp_path / "new.npy", tmp_path / "x.npy")
    watch.look(1)
    assert "x.npy was written to while a loader reads it" in caplog.text


def test_files_of_records_are_looked_at_too(tmp_path: Path) -> None:
    path = str(tmp_path / "data.tar")
    with tarfile.open(path, "w") as file:
        file.addfile(tarfile.TarInfo("1.txt"))
    (source,) = (node.opens for node in walk(ps.from_tar(path)._node))
    assert isinstance(source, Source)
    assert list(source.local_files) == [path]


def test_streams_have_no_workers_inline_either() -> None:
    with pytest.raises(ps.ArgumentError, match="executor='inline' has no workers, but workers=2"):
        ps.from_generator(range, 3).loader("inline", workers=2)


def test_workers_that_could_not_start_are_tried_again_in_the_next_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = ps.range(4).map(np.negative, element_spec=ps.ArraySpec((), "int64"))
    with ds.loader("processes", workers=1) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(multiprocessing.spawn, "_python_exe", b"/nowhere/python")
            for _ in range(2):
                with pytest.raises(ps.WorkerError, match="It was start number 3 in a row that failed"):
                    next(iter(loader))
        assert [int(x) for x in loader] == [0, -1, -2, -3]


def test_an_object_that_answers_to_every_name_is_a_function() -> None:
    class Twice:
        def __getattr__(self, name: str) -> int:
            return 3

        def __call__(self, x: Any) -> Any:
            return x * 2

    ds = ps.range(3).map(Twice())
    assert repr(ds).startswith("map(Twice)")
    assert [int(x) for x in ds.cache()] == [0, 2, 4]


@pytest.mark.parametrize(
    "make",
    [
        lambda labels: ps.range(12).windows(2, groups=np.sort(labels)),
        lambda labels: ps.range(12).split(0.5, 0.5, stratify=labels)[0],
        lambda labels: ps.range(12).split(0.5, 0.5, groups=labels)[0],
    ],
    ids=["windows", "stratify", "groups"],
)
def test_a_state_of_other_labels_is_refused(make: Callable[[Any], ps.Dataset]) -> None:
    labels, others = np.arange(12) % 4, np.minimum(np.arange(12) // 2, 3)
    state = make(labels).batch(2).loader("inline").get_state()
    make(labels).batch(2).loader("inline").set_state(state)
    with pytest.raises(ps.StateError, match="is of another dataset: step 2 differs"):
        make(others).batch(2).loader("inline").set_state(state)
