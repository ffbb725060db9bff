"""What goes wrong in a unit arrives where the batch would have, with its element; the loader lives on."""

import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import native
from penstock.sources.arrays import RangeSource
from penstock.testing import FailingSource
from tests.run.common import Gate, assert_ended, interrupted_at, workers
from tests.waits import DEADLINE_S

pytestmark = pytest.mark.usefixtures("leaves_nothing_behind")

SCALAR = ps.ArraySpec((), "int64")


@pytest.fixture(params=["inline", "threads"])
def executor(request: pytest.FixtureRequest) -> Any:
    return request.param


def failing(*elements: int) -> Any:
    def decode(x: Any) -> Any:
        if x in elements:
            raise KeyError(f"frame {x}")
        return x

    return decode


def test_batches_before_the_error_arrive_and_then_the_error(executor: Any) -> None:
    with ps.range(40).map(failing(21)).batch(4).loader(executor) as loader:
        got: list[Any] = []
        with pytest.raises(ps.ElementError) as caught:
            got.extend(batch.tolist() for batch in loader)
        assert got == np.arange(20).reshape(5, 4).tolist()
        error = caught.value
        assert str(error).startswith("map(decode) at test_errors.py:")
        assert "failed on element 21 of epoch 0, made of the integer 21: KeyError: 'frame 21'" in str(error)
        where, cure = error.__notes__
        assert where == "This was in batch 5 of epoch 0."
        assert cure.startswith("To go on without elements that fail: on_error='replace'.")
        assert isinstance(error.__cause__, KeyError)
        assert "in decode" in "".join(traceback.format_exception(error))
        assert isinstance(error, RuntimeError)


def test_after_an_error_the_next_epoch_begins(executor: Any) -> None:
    def fails_once(x: Any, done: list[int] = []) -> Any:  # noqa: B006 - that is how it remembers
        if x == 30 and not done:
            done.append(1)
            raise ValueError("once")
        return x

    with ps.range(40).map(fails_once).batch(4).loader(executor, prefetch=1) as loader:
        with pytest.raises(ps.ElementError, match="once"):
            list(loader)
        assert len(list(loader)) == 10
        assert loader.get_state()["epoch"] == 2


def test_the_state_after_an_error_resumes_at_the_failing_batch(executor: Any) -> None:
    dataset = ps.range(40).shuffle(3).map(failing(17)).batch(4)
    with ps.range(40).shuffle(3).batch(4).loader("inline") as mended:
        want = [batch.tolist() for batch in mended]
    with dataset.loader(executor) as loader:
        iterator = iter(loader)
        got: list[Any] = []
        with pytest.raises(ps.ElementError):
            got.extend(batch.tolist() for batch in iterator)
        assert next(iterator, None) is None
        state = loader.get_state()
        assert state["position"] == len(got)
        assert 17 in want[len(got)]
        loader.set_state(state)
        with pytest.raises(ps.ElementError):  # it fails again, and each time anew
            next(iter(loader))
    with ps.range(40).shuffle(3).map(failing()).batch(4).loader(executor) as loader:
        loader.set_state(state)
        assert [batch.tolist() for batch in loader] == want[len(got) :]


@pytest.mark.parametrize("workers_count", [1, 2, 7])
def test_of_several_errors_in_a_batch_the_first_elements_is_told(workers_count: int) -> None:
    # The one at 13 is there long before the one at 2, which waits for it.
    late = threading.Event()

    def fragile(x: Any) -> Any:
        if x == 13:
            late.set()
            raise ValueError("thirteen")
        if x == 2:
            assert workers_count == 1 or late.wait(DEADLINE_S)
            raise ValueError("two")
        return x

    with ps.range(64).map(fragile).batch(16).loader("threads", workers=workers_count) as loader:
        for _ in range(3):
            loader.set_state(loader.get_state() | {"epoch": 0, "position": 0})
            with pytest.raises(ps.ElementError, match="failed on element 2 of"):
                next(iter(loader))


def test_each_error_is_an_object_of_its_own(executor: Any) -> None:
    errors = []
    with ps.range(8).map(failing(1)).batch(4).loader(executor) as loader:
        for _ in range(3):
            with pytest.raises(ps.ElementError) as caught:
                next(iter(loader))
            errors.append(caught.value)
    assert len({id(error) for error in errors}) == 3
    assert len({len(traceback.extract_tb(error.__traceback__)) for error in errors}) == 1
    assert all(len(error.__notes__) == 2 for error in errors)  # the batch, and the cure


def test_no_slot_is_lost_to_errors(executor: Any) -> None:
    with ps.range(80).map(failing(*range(1, 80, 4))).batch(2).loader(executor, prefetch=1) as loader:
        for position in range(40):
            loader.set_state(loader.get_state() | {"epoch": 0, "position": position})
            if position % 2 == 0:
                with pytest.raises(ps.ElementError):
                    next(iter(loader))
            else:
                kept = next(iter(loader))
                assert kept.tolist() == [2 * position, 2 * position + 1]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
def test_what_would_end_a_program_neither_ends_a_worker_nor_hangs(executor: Any, kind: type[BaseException]) -> None:
    armed = [True]

    def leave(x: Any) -> Any:
        if x == 5 and armed:
            raise kind("out")
        return x

    with ps.range(40).map(leave, element_spec=SCALAR).batch(2).loader(executor, workers=1) as loader:
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        for _ in range(3):
            with pytest.raises(kind):
                next(iterator)
        assert loader.get_state()["position"] == 2
        armed.clear()
        assert [batch.tolist() for batch in iterator] == np.arange(4, 40).reshape(18, 2).tolist()


class PanicError(BaseException):
    """As what Python sees of a panic in Rust, `pyo3_runtime.PanicException`: no Exception."""


def panicking(x: Any) -> Any:
    if x == 5:
        raise PanicError("index out of bounds")
    return x


def panicking_generator() -> Iterator[Any]:
    yield from map(panicking, range(8))


class PanickingItems:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return np.int64(panicking(index))


PANICS = {
    "map": (lambda: ps.range(8).map(panicking, element_spec=SCALAR), "on element 5 "),
    "filter": (lambda: ps.range(8).filter(lambda x: panicking(x) < 9), "on element 5 "),
    "flat_map": (lambda: ps.range(8).flat_map(lambda x: [panicking(x)], element_spec=SCALAR), "on element 5 "),
    "from_generator": (lambda: ps.from_generator(panicking_generator, element_spec=SCALAR), "at element 5 "),
    "from_source": (lambda: ps.from_source(PanickingItems()), r"on elements \[4, 5\]"),
}


@pytest.mark.parametrize("verb", PANICS)
def test_a_panic_of_a_library_is_told_with_its_element(executor: Any, verb: str) -> None:
    make, place = PANICS[verb]
    with make().batch(2).loader(executor, workers=1) as loader:
        with pytest.raises(ps.ElementError, match=rf"failed {place}.*PanicError: index out of bounds") as caught:
            list(loader)
        assert isinstance(caught.value.__cause__, PanicError)


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("verb", ["map", "from_source"])
def test_an_element_at_which_a_library_panics_is_set_aside(
    executor: Any, policy: Any, verb: str, tmp_path: Path
) -> None:
    with (
        PANICS[verb][0]()
        .batch(4)
        .loader(executor, workers=1, on_error=policy, quarantine=tmp_path / "bad.jsonl") as loader
    ):
        found = [batch.tolist() for batch in loader]
    assert found == ([[0, 1, 2, 3], [4, 6, 7]] if policy == "skip" else [[0, 1, 2, 3], [4, 6, 6, 7]])


def test_a_panic_at_the_element_of_which_the_spec_is_to_be_is_told() -> None:
    def panic() -> Iterator[Any]:
        raise PanicError("out of bounds")
        yield

    with pytest.raises(ps.ElementError, match=r"failed at element 0 of epoch 0: PanicError: out of bounds"):
        _ = ps.from_generator(panic).element_spec


def test_sys_exit_in_a_function_is_told_with_its_element(executor: Any) -> None:
    def leave(x: Any) -> Any:
        if x == 5:
            sys.exit("I quit")
        return x

    with (
        ps.range(8).map(leave).batch(2).loader(executor, workers=1) as loader,
        pytest.raises(ps.ElementError, match=r"failed on element 5 .*SystemExit: I quit") as caught,
    ):
        list(loader)
    assert isinstance(caught.value.__cause__, SystemExit)


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("kind", ["source", "generator", "flat_map", "map", "filter"])
def test_a_signal_that_ends_the_program_does_so_amid_a_function(kind: str, policy: Any, tmp_path: Path) -> None:
    def terminated(x: Any) -> Any:
        if x == 5:
            signal.raise_signal(signal.SIGTERM)
        return x

    class Numbers:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            return np.int64(terminated(index))

    def leave(number: int, frame: object) -> None:
        sys.exit(f"signal {number}")

    datasets = {
        "source": lambda: ps.from_source(Numbers()),
        "generator": lambda: ps.from_generator(lambda: map(terminated, range(8))),
        "flat_map": lambda: ps.range(8).flat_map(lambda x: [terminated(x)]),
        "map": lambda: ps.range(8).map(terminated),
        "filter": lambda: ps.range(8).filter(lambda x: terminated(x) >= 0),
    }
    before = signal.signal(signal.SIGTERM, leave)
    try:
        with (
            datasets[kind]().loader("inline", on_error=policy, quarantine=tmp_path / "bad.jsonl") as loader,
            pytest.raises(SystemExit, match=f"signal {signal.SIGTERM:d}"),
        ):
            list(loader)
        with pytest.raises(SystemExit):
            list(datasets[kind]())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not (tmp_path / "bad.jsonl").exists()


def test_an_exception_whose_own_text_fails_is_told_with_its_element(executor: Any) -> None:
    class SpeechlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def refuse(x: Any) -> Any:
        raise SpeechlessError

    def generate() -> Any:
        yield from range(2)
        raise SpeechlessError

    text = r"SpeechlessError: <its text is not known: it raised RuntimeError>"
    plans = {
        "element 0": ps.range(4).map(refuse, element_spec=SCALAR),
        "element 1": ps.range(4)[1:].filter(lambda x: refuse(x) if x == 2 else True),
        "element 2": ps.from_generator(generate, element_spec=SCALAR),
    }
    for place, plan in plans.items():
        with plan.loader(executor) as loader, pytest.raises(ps.ElementError, match=rf"{place} .*{text}"):
            list(loader)


@pytest.mark.parametrize("kind", ["inline", "threads"])
def test_an_exception_whose_own_cause_fails_costs_no_worker(kind: Any) -> None:
    class UnfoundedError(Exception):
        @property
        def __cause__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("no cause")

    def refuse(x: Any) -> Any:
        raise UnfoundedError

    with ps.range(4).map(refuse, element_spec=SCALAR).loader(kind, timeout_s=DEADLINE_S) as loader:
        for _ in range(2):
            with pytest.raises(ps.ElementError, match=r"failed on element 0 .*UnfoundedError"):
                list(loader)


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_an_exception_that_is_its_own_cause_arrives(executor):
    def fail(x):
        try:
            raise ValueError("no")
        except ValueError as error:
            raise error from error

    dataset = ps.range(4).map(fail, element_spec=ps.ArraySpec((), "int64")).batch(2)
    with dataset.loader(executor=executor) as loader, pytest.raises(ps.ElementError, match="ValueError: no"):
        list(loader)


def test_stop_iteration_from_a_source_does_not_look_like_the_end(executor: Any) -> None:
    source = FailingSource(RangeSource(40), {9: StopIteration("nothing more")})
    with (
        ps.from_source(source).batch(4).loader(executor) as loader,
        pytest.raises(RuntimeError, match=r"A source raised StopIteration in batch 2 of epoch 0\."),
    ):
        list(loader)


def test_stop_iteration_from_a_function_does_not_look_like_the_end(executor: Any) -> None:
    dataset = ps.range(9).map(lambda x: x if x < 5 else next(iter(()))).batch(2)
    text = r"failed on element 5 of epoch 0.*StopIteration"
    with dataset.loader(executor) as loader, pytest.raises(ps.ElementError, match=text):
        list(loader)


def test_another_shape_than_the_spec_says_which_element(executor: Any) -> None:
    dataset = ps.range(40).map(lambda x: np.zeros(3 if x < 17 else 4)).batch(4)
    text = r"returned an array of \(4,\) float64 for element 17, but its"
    with dataset.loader(executor) as loader, pytest.raises(ps.SpecError, match=text):
        list(loader)


@pytest.mark.parametrize("harm", ["shortened", "replaced", "deleted"])
def test_a_file_that_changes_while_it_is_read_is_an_error(executor: Any, tmp_path: Path, harm: str) -> None:
    path = tmp_path / "frames.npy"
    np.save(path, np.arange(4000 * 100.0).reshape(4000, 100))
    with ps.from_npy(path).batch(10).loader(executor) as loader:
        iterator = iter(loader)
        assert next(iterator)[1, 0] == 100
        if harm == "shortened":
            with path.open("r+b") as file:
                file.truncate(200_000)
        elif harm == "replaced":
            np.save(tmp_path / "other.npy", np.zeros((4000, 100)))
            (tmp_path / "other.npy").replace(path)
        else:
            path.unlink()
        with pytest.raises(ps.SourceError, match=r"frames\.npy\[\d+\] cannot be read: .*frames\.npy") as caught:
            list(iterator)
        assert isinstance(caught.value, OSError)
        assert "This was in batch" in caught.value.__notes__[0]


# The deadline.


def test_a_function_that_blocks_is_a_deadline_error_in_time() -> None:
    gate = Gate(6)
    timeout_s = 1.0
    loader = ps.range(20).map(gate).batch(1).loader("threads", workers=1, timeout_s=timeout_s)
    iterator = iter(loader)
    assert [int(next(iterator)[0]) for _ in range(6)] == list(range(6))
    gate.wait_for(6)
    began = time.monotonic()
    with pytest.raises(ps.DeadlineError) as caught:
        next(iterator)
    assert timeout_s <= time.monotonic() - began < DEADLINE_S
    message = str(caught.value)
    assert message.startswith("No worker got on for timeout_s=1 s, while batch 6 of epoch 0 was waited for.")
    assert re.search(r"map\(Gate\) at test_errors\.py:\d+ on element 6 of epoch 0", message)
    assert "penstock-0 is at" in message
    assert "in __call__" in message
    assert "raise timeout_s" in message
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(ps.LoaderError, match="closed"):
        iter(loader)
    threads = workers()
    gate.open()
    assert_ended(threads)
    loader.close()


class Blocking(ps.Source):
    """Numbers, of which one is not read before the gate is open."""

    element_spec = SCALAR

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate

    def __len__(self) -> int:
        return 40

    def read_into(self, indices: Any, out: Any) -> None:
        if 21 in indices:
            self.gate.wait()
        out[:] = indices


@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_source_that_blocks_is_named_with_what_it_was_to_read(is_mapped: bool) -> None:
    gate = threading.Event()
    dataset = ps.from_source(Blocking(gate))
    mapped = dataset.map(lambda x: x) if is_mapped else dataset
    loader = mapped.batch(1).loader("threads", workers=1, timeout_s=1.0)
    with pytest.raises(ps.DeadlineError) as caught:
        list(loader)
    assert "They are at: the sources." in str(caught.value)
    assert "penstock-0 is at batch 21 of epoch 0, made of element 21 of Blocking" in str(caught.value)
    threads = workers()
    gate.set()
    assert_ended(threads)


@pytest.mark.slow
def test_a_slow_batch_is_no_error_while_elements_come() -> None:
    # Each element takes a fortieth of the deadline, on a busy machine more; a batch takes longer than it.
    pause = threading.Event()
    dataset = ps.range(50).map(lambda x: pause.wait(0.05) or x, element_spec=SCALAR).batch(50)
    with dataset.loader("threads", workers=1, timeout_s=2.0) as loader:
        assert next(iter(loader)).tolist() == list(range(50))


# Ctrl-C in the consumer, at any bytecode.


STRIKES_IN_A_FINALIZER = """
import functools, operator, os, signal, sys
import penstock as ps

signal.signal(signal.SIGINT, signal.default_int_handler)
with ps.range(100).map(abs).batch(2).loader(sys.argv[1], workers=1) as loader:
    iterator = iter(loader)
    held = [next(iterator)]
    try:
        # C code alone: the signal is pending while the slot comes back.
        list(map(operator.call, [functools.partial(os.killpg, 0, signal.SIGINT), held.clear]))
        next(iterator)
    except KeyboardInterrupt:
        assert len(list(iterator)) == 49
        print("caught")
"""


@pytest.mark.skipif(native.implementation() == "numpy", reason="Python drops what strikes where a finalizer begins")
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_an_interrupt_is_not_lost_where_a_slot_comes_back(fresh_python: Any, executor: str) -> None:
    done = fresh_python(STRIKES_IN_A_FINALIZER, executor)
    assert (done.returncode, done.stdout, done.stderr) == (0, "caught\n", "")


def test_an_interrupt_anywhere_in_next_loses_no_slot_and_no_batch() -> None:
    with ps.range(10**6).batch(2).loader("threads", workers=2, prefetch=1, timeout_s=DEADLINE_S) as loader:
        iterator = iter(loader)
        step, in_a_row = 0, 0
        while in_a_row < 3:
            step += 1
            before = loader.get_state()["position"]
            kept: list[Any] = []
            was_raised = interrupted_at(step, lambda kept=kept: kept.append(next(iterator)))
            in_a_row = 0 if was_raised else in_a_row + 1
            position = loader.get_state()["position"]
            assert position - before in (0, 1)
            if kept:
                assert kept[0].tolist() == [2 * before, 2 * before + 1]
            assert next(iterator).tolist() == [2 * position, 2 * position + 1]
        assert step > 20
        # All three slots are still there.
        kept.clear()
        both = [next(iterator), next(iterator)]
        assert loader.report().copied == 0
        del both


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_an_interrupt_while_a_batch_is_dropped_comes_with_the_next(executor: Any) -> None:
    def strike(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "wake":
            sys.setprofile(None)
            raise KeyboardInterrupt

    with ps.range(20).batch(2).loader(executor, workers=1) as loader:
        iterator = iter(loader)
        batch = next(iterator)
        sys.setprofile(strike)
        try:
            del batch  # Python drops what is raised here
        finally:
            sys.setprofile(None)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        iterator = iter(loader)
        assert [batch.tolist() for batch in iterator][-1] == [18, 19]
        assert loader.report().copied == 0


@pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning"
)  # of /proc, where it strikes between `open` and `with`
def test_an_interrupt_is_delivered_while_next_waits() -> None:
    gate = Gate(3)
    with ps.range(8).map(gate).batch(1).loader("threads", workers=1) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        gate.wait_for(3)
        timer = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert time.monotonic() - began < DEADLINE_S / 2  # and not when the gate gives up
        timer.join()
        gate.open()
        assert [int(batch[0]) for batch in iterator] == [3, 4, 5, 6, 7]


def test_batches_that_were_read_come_before_the_error_of_a_replaced_file(tmp_path: Path) -> None:
    path = tmp_path / "frames.npy"
    np.save(path, np.arange(40.0).reshape(40, 1))
    with ps.from_npy(path).batch(1).loader("threads", prefetch=4) as loader:
        batches = iter(loader)
        first = next(batches)
        filled_by = time.monotonic() + DEADLINE_S
        while loader._delivery.lanes()[0].batches < 2:  # the batch behind it is being filled
            assert time.monotonic() < filled_by
        np.save(tmp_path / "other.npy", np.zeros((40, 1)))
        (tmp_path / "other.npy").replace(path)
        found = [float(first[0, 0])]
        with pytest.raises(ps.SourceError, match="was replaced") as caught:
            found.extend(float(batch[0, 0]) for batch in batches)
    assert found == list(range(len(found)))
    assert len(found) >= 2
    assert caught.value.__notes__[0] == f"This was in batch {len(found)} of epoch 0."
