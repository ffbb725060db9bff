"""`ds[i]` is right wherever it is called: in several threads at once, and in a function of the dataset itself."""

import threading
from typing import Any

import penstock as ps
from tests.waits import DEADLINE_S


class HoldsAfterWriting(ps.Source):
    """Writes an element and, if it is 0, returns only when another was read."""

    element_spec = ps.ArraySpec((2,), "int64")

    def __init__(self) -> None:
        self.arrived, self.passed = threading.Event(), threading.Event()

    def __len__(self) -> int:
        return 10

    def read_into(self, indices: Any, out: Any) -> None:
        out[...] = indices[:, None]
        if indices[0] == 0 and threading.current_thread() is not threading.main_thread():
            self.arrived.set()
            assert self.passed.wait(DEADLINE_S)


def test_two_threads_that_look_at_one_dataset_do_not_share_scratch_memory() -> None:
    source = HoldsAfterWriting()
    spec = ps.ArraySpec((2,), "int64")
    dataset = ps.from_source(source).map(lambda x: x * 10, element_spec=spec)
    got: list[list[int]] = []
    thread = threading.Thread(target=lambda: got.append(dataset[0].tolist()))
    thread.start()
    assert source.arrived.wait(DEADLINE_S)
    assert dataset[7].tolist() == [70, 70]
    source.passed.set()
    thread.join()
    assert got == [[0, 0]]


def test_a_function_may_look_into_the_dataset_that_runs_it() -> None:
    def sum_so_far(x: Any) -> Any:
        return x + (dataset[int(x[0]) - 1] if x[0] else 0)

    spec = ps.ArraySpec((2,), "int64")
    dataset = ps.from_source(HoldsAfterWriting()).map(sum_so_far, element_spec=spec)
    assert [element.tolist() for element in dataset] == [[k * (k + 1) // 2] * 2 for k in range(10)]


def test_iterators_over_one_dataset_do_not_disturb_each_other() -> None:
    dataset = ps.range(20).map(lambda x: x + 1).batch(3).unbatch()
    first, second = iter(dataset), iter(dataset)
    for want in range(1, 21):
        assert next(first) == want
        assert next(second) == want
        assert dataset[20 - want] == 21 - want
