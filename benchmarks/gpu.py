"""Does a GPU wait for its batches? A training step with batches from the host, against the step with one batch.

Question: is a step with `to_torch(device="cuda", pin_memory=True)` at 0.98 of the step with a constant batch on the
device, for batches of 4 to 368 MiB? What do page-locked memory, more batches ahead, and the wait for the copy on the
stream bring? Has each batch the bits that it has on the CPU?

Method: `python benchmarks/gpu.py`, at most eight minutes on a machine with a CUDA GPU; `--quick` is a short round. One
process, all cases of one size in turn, in rounds. A step reads each byte of its batch and multiplies matrices. It is
made 1.5 times as long as a copy from page-locked memory, or as the loader alone needs for a batch, whichever is longer:
the question is what the way to the device costs, and not how fast rows are copied on the host. The loop queues steps
and never waits; the clock stops when the device is done. The data are rows of 1 MiB in memory, shuffled.

Cases, as parts of the speed with a constant batch:
- `pinned`: the adapter as it is: page-locked ring, one batch ahead, the stream waits for the copy.
- `thread waits`: the same, but the thread that trains waits for each copy before it gets the batch.
- `pageable`: as `pinned`, from memory that is not page-locked.
- `2 ahead`, `3 ahead`: as `pinned`, with more batches on their way. The adapter has no setting for it.

`next us` is the median time in which the training thread gets a batch, in `pinned` and in `thread waits`.

Machine: none yet. Nothing of this ran on a GPU; on a CPU the tests run its parts.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any, Final

import numpy as np
import torch

import penstock as ps
from penstock.adapters._epochs import Epoch
from penstock.adapters._torch_device import Copying, CudaRuntime

MIB: Final = 1 << 20
SIZES_MIB: Final = (4, 16, 64, 128, 368)
_WANTED: Final = 0.98
_SLOWER: Final = 1.5
"""How long a step is, in times of what it waits for at worst."""
_LIMIT_S: Final = 420.0
"""No case begins after that; one case takes seconds."""


class WaitingRuntime(CudaRuntime):
    """The thread waits for a copy, as it did until November 2026."""

    def finish(self, copying: Copying, copies: list[Any]) -> None:
        """Waits for the copy here, and then as ever."""
        copying.wait()
        super().finish(copying, copies)


class Step:
    """A training step: reads each byte of a batch, and multiplies matrices `repeats` times."""

    def __init__(self, device: torch.device, width: int = 2048) -> None:
        self.repeats = 1
        self._device = device
        self._weights = torch.randn(width, width, device=device) / width**0.5
        self._state = torch.randn(width, width, device=device)
        self.loss = torch.zeros((), device=device)

    def __call__(self, batch: torch.Tensor) -> None:
        """Queues one step."""
        self.loss += batch.view(torch.int32).sum()
        self._multiply()

    def take(self, seconds: float, batch: torch.Tensor) -> None:
        """Sets `repeats`, so that a step with this batch takes about this time."""
        self.repeats = 16
        least_s = seconds_each(self._multiply, self._device, 8) / self.repeats
        reading_s = seconds_each(lambda: self.loss.add_(batch.view(torch.int32).sum()), self._device, 8)
        self.repeats = max(1, round((seconds - reading_s) / least_s))

    def _multiply(self) -> None:
        for _ in range(self.repeats):
            self._state = self._weights @ self._state


def finish_all(device: torch.device) -> None:
    """Waits until the device has done what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_each(call: Callable[[], object], device: torch.device, count: int) -> float:
    """Returns the time of one of `count` calls that are queued one behind the other, after some to warm up."""
    for _ in range(3):
        call()
    finish_all(device)
    began_s = time.perf_counter()
    for _ in range(count):
        call()
    finish_all(device)
    return (time.perf_counter() - began_s) / count


def rows(batch_mib: int, batch_count: int = 4) -> ps.Dataset:
    """Returns an endless dataset of batches: random bits, in rows of 1 MiB, in a new order in each epoch."""
    rng = np.random.default_rng(0)
    data = rng.integers(0, 1 << 63, (batch_mib * batch_count, MIB // 8), np.int64).view(np.float32)
    return ps.from_arrays(data).shuffle(seed=1).batch(batch_mib, drop_remainder=True).repeat()


def on_device(adapter: Any, ahead_count: int) -> Iterator[torch.Tensor]:
    """Returns the batches of an adapter of a CUDA device, with so many on their way."""
    return Epoch(adapter.loader, adapter._copy, adapter._copied, ahead_count=ahead_count, rest=itemgetter(0))


def run_steps(batches: Iterator[torch.Tensor], step: Step, device: torch.device, seconds: float) -> tuple[float, float]:
    """Returns steps per second, and the median time of `next()`. The first steps warm up."""
    for batch in islice(batches, 4):
        step(batch)
    finish_all(device)
    waits_s: list[float] = []
    began_s = time.perf_counter()
    while time.perf_counter() < began_s + seconds or len(waits_s) < 8:
        asked_s = time.perf_counter()
        batch = next(batches)
        waits_s.append(time.perf_counter() - asked_s)
        step(batch)
    finish_all(device)
    return len(waits_s) / (time.perf_counter() - began_s), statistics.median(waits_s)


def differing(dataset: ps.Dataset, device: torch.device, count: int, *, pin_memory: bool) -> int:
    """Returns how many of the first batches differ in a bit from those on the CPU. All are kept until the end."""
    with dataset.to_torch(device=device, pin_memory=pin_memory) as adapter, dataset.to_torch() as oracle:
        kept = list(islice(adapter, count))
        wanted = islice(oracle, count)
        pairs = zip(kept, wanted, strict=True)
        return sum(not torch.equal(one.cpu().view(torch.int32), two.view(torch.int32)) for one, two in pairs)


def needed_s(dataset: ps.Dataset, batch: torch.Tensor, device: torch.device) -> tuple[float, float]:
    """Returns the time of a copy of a batch from page-locked memory, and that of a batch of the loader alone."""
    host = batch.cpu().pin_memory() if device.type == "cuda" else batch.clone()
    copy_s = seconds_each(lambda: batch.copy_(host, non_blocking=True), device, 8)
    with dataset.to_torch() as adapter:
        batches = iter(adapter)
        load_s = seconds_each(lambda: next(batches), torch.device("cpu"), 16)
    return copy_s, load_s


def _cases(dataset: ps.Dataset, constant: torch.Tensor, device: torch.device) -> dict[str, Callable[..., Any]]:
    def ours(runner: Callable[..., Any], ahead: int = 1, pin: bool = True, runtime: Any = None) -> Any:
        with dataset.to_torch(device=device, pin_memory=pin) as adapter:
            adapter._runtime = runtime or adapter._runtime
            return runner(on_device(adapter, ahead))

    return {
        "constant": lambda runner: runner(iter(lambda: constant, None)),
        "pinned": ours,
        "thread waits": lambda runner: ours(runner, runtime=WaitingRuntime(device)),
        "pageable": lambda runner: ours(runner, pin=False),
        "2 ahead": lambda runner: ours(runner, ahead=2),
        "3 ahead": lambda runner: ours(runner, ahead=3),
    }


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})" if values else "not measured"


def _measure(size_mib: int, device: torch.device, round_count: int, seconds: float, ends_s: float) -> bool:
    """Prints what one size gives. Returns whether it is as fast as wanted."""
    dataset = rows(size_mib)
    with dataset.to_torch() as adapter:
        constant = next(iter(adapter)).to(device)
    copy_s, load_s = needed_s(dataset, constant, device)
    step = Step(device)
    step.take(_SLOWER * max(copy_s, load_s), constant)
    cases = _cases(dataset, constant, device)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(round_count):
        for name, case in cases.items():
            if time.perf_counter() < ends_s:
                found[name].append(case(lambda batches: run_steps(batches, step, device, seconds)))
    if not found["constant"]:
        print(f"{size_mib:4} MiB: not measured, the time is over")
        return True
    step_ms = [1e3 / rate for rate, _ in found["constant"]]
    print(
        f"{size_mib:4} MiB: copy {1e3 * copy_s:.2f} ms ({size_mib / 1024 / copy_s:.1f} GiB/s), loader "
        f"{1e3 * load_s:.2f} ms, step with a constant batch {statistics.median(step_ms):.2f} ms"
    )
    parts = {}
    for name in list(cases)[1:]:
        pairs = zip(found[name], found["constant"], strict=False)
        parts[name] = [rate / constant_rate for (rate, _), (constant_rate, _) in pairs]
        asked = [1e6 * wait_s for _, wait_s in found[name]]
        waits = f", next us {statistics.median(asked):.0f}" if asked else ""
        print(f"    {name:13} {_spread(parts[name])}{waits}")
    return not parts["pinned"] or statistics.median(parts["pinned"]) >= _WANTED


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one short round of three sizes")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("gpu: torch finds no CUDA device here, so nothing was measured.")
        return 0
    ends_s = time.perf_counter() + _LIMIT_S
    device = torch.device("cuda", torch.cuda.current_device())
    print(f"gpu: {torch.cuda.get_device_name(device)}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    good = True
    for pin in (True, False):
        count = differing(rows(4, 16), device, 48, pin_memory=pin)
        good &= not count
        print(f"{'pinned' if pin else 'pageable'}: {count} of 48 batches differ from those on the CPU, wanted 0")
    round_count, seconds = (1, 0.5) if options.quick else (3, 1.5)
    for size_mib in SIZES_MIB[::2] if options.quick else SIZES_MIB:
        good &= _measure(size_mib, device, round_count, seconds, ends_s)
    print(f"a step at {_WANTED} of one with a constant batch, and the same bits: {'met' if good else 'NOT MET'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
