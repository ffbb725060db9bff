"""The parts of `benchmarks/gpu.py` that need no GPU."""

import importlib
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"

pytestmark = [pytest.mark.framework]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("gpu")


def test_without_a_gpu_it_says_so_and_measures_nothing(gpu: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("needs a machine without a CUDA device")
    assert gpu.main([]) == 0
    assert capsys.readouterr().out == "gpu: torch finds no CUDA device here, so nothing was measured.\n"


def test_a_batch_that_differs_in_a_bit_is_counted(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    dataset, cpu = gpu.rows(1, 3), torch.device("cpu")
    assert gpu.differing(dataset, cpu, 7, pin_memory=False) == 0
    calls = iter(range(14))
    equal = torch.equal
    monkeypatch.setattr(torch, "equal", lambda one, two: equal(one, two ^ (next(calls) == 4)))
    assert gpu.differing(dataset, cpu, 7, pin_memory=False) == 1


def test_steps_of_a_constant_batch_and_of_a_loader_are_timed(gpu: Any) -> None:
    import torch

    cpu = torch.device("cpu")
    dataset = gpu.rows(1, 3)
    step = gpu.Step(cpu, width=8)
    with dataset.to_torch() as adapter:
        constant = next(iter(adapter))
        step.take(1e-3, constant)
        assert step.repeats >= 1
        for batches in (iter(lambda: constant, None), iter(adapter)):
            rate, wait_s = gpu.run_steps(batches, step, cpu, seconds=0)
            assert rate > 0
            assert wait_s >= 0
    copy_s, load_s = gpu.needed_s(dataset, constant.clone(), cpu)
    assert min(copy_s, load_s) > 0


def test_batches_of_a_size_have_it_and_never_end(gpu: Any) -> None:
    with gpu.rows(2, 2).to_torch() as adapter:
        assert {batch.nbytes for batch in islice(adapter, 5)} == {2 * gpu.MIB}
