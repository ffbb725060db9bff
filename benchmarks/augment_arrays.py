"""How fast is an augmentation written in NumPy, a new array for each of its steps?

Question: pictures of (224, 224, 3) are mirrored, made brighter, less colourful and normalised, in float32, as it is
usually written: 3 MB of arrays that live for one element. Batches of 32, two worker processes on two cores. The speed,
as a part of twice that of a plain loop.

Method: `python benchmarks/augment_arrays.py`. Each contender has a fresh process, in turn, and the same consumer, which
sums every byte; the rate is that of 3 s of batches, after a second that warms up. `serial` is the function in a plain
loop in such a process, in the same round; `serial_keeping` is that with the allocator told not to give memory back.
After each, the first and the last picture of every eighth batch are compared with what the function gives.

Contenders, as their documentations advise: those of `gil_bound`, and `torch_keeping`, a DataLoader whose
`worker_init_fn` tells the allocator what penstock's workers are told (PyTorch's tuning guide advises another allocator
where many arrays come and go).

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, 2026-11-23. Its
speed varies by a tenth and more from run to run; ratios are of the same round.

Result, three rounds, medians and spread, pictures/s, and as parts of twice serial:

    penstock          999 (843 to 1,008)   0.98 (0.79 to 1.05)
    torch_keeping     757 (651 to 770)
    torch             696 (681 to 706)     0.69 (0.64 to 0.73)
    grain             680 (676 to 744)     0.71 (0.64 to 0.72)
    tf_data           669 (643 to 679)     0.66 (0.63 to 0.67)
    keras             440 (402 to 446)     0.41 (0.39 to 0.47)
    spdl              354 (295 to 399)     0.33 (0.29 to 0.42)
    serial            516 (477 to 532)
    serial_keeping    479 (458 to 543)

1.35 times the best of the others (1.24 to 1.43), 1.32 times torch_keeping (1.09 to 1.55). Before workers kept the
memory of a function's arrays, penstock had 546 (505 to 616) where it had 883 (873 to 989) with it, in turn, and was
behind torch: see `_HEAP` in `run/pool/_child.py`. A plain loop drops batches of 19 MB, after which glibc keeps as
much by itself.

Not shown: pictures so large that an element needs more than 128 MiB; Pillow and OpenCV, which take memory from the same
allocator (see `augment_characters` and `augment_images`).
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from _contenders import Contender, Element, grain, keras, penstock, serial, spdl, tf_data, torch
from _harness import Array, Epoch, Numbers, Options, Target, part_of_twice, ratio, run, time_steady
from _jobs import adjusted_picture

_BATCH_SIZE = 32
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""As `mallopt(3)` numbers them."""


def keep_memory(worker: int = 0) -> None:
    """Tells glibc to keep 128 MiB of what is let go of, in this process."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_TRIM_THRESHOLD, 128 << 20)
    libc.mallopt(_MMAP_THRESHOLD, 32 << 20)


def serial_keeping(element: Element, batch_size: int) -> Epoch:
    """One thread, whose memory is kept."""
    keep_memory()
    return serial(element, batch_size)


def torch_keeping(element: Element, batch_size: int) -> Epoch:
    """The DataLoader, with workers whose memory is kept."""
    return torch(element, batch_size, worker_init_fn=keep_memory)


_OTHERS: dict[str, Contender] = {"torch": torch, "grain": grain, "keras": keras, "tf_data": tf_data, "spdl": spdl}
_UNORDERED = {"spdl"}


def _case(name: str, contender: Contender) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        batches = contender(adjusted_picture, _BATCH_SIZE)()
        return time_steady(batches if name in _UNORDERED else _checked(batches), options)

    return measure


def _checked(batches: Iterable[Sequence[Array]]) -> Iterator[Sequence[Array]]:
    for number, (batch,) in enumerate(batches):
        for row in (0, len(batch) - 1) if number % 8 == 0 else ():
            if not np.array_equal(batch[row], adjusted_picture(number * _BATCH_SIZE + row)):
                raise RuntimeError(f"Row {row} of batch {number} is not what the function makes in one process.")
        yield (batch,)


_CASES = {
    name: _case(name, contender)
    for name, contender in {
        "serial": serial,
        "serial_keeping": serial_keeping,
        "penstock": penstock,
        "torch_keeping": torch_keeping,
        **_OTHERS,
    }.items()
}


def _targets(options: Options) -> list[Target]:
    return [
        Target("penstock / twice serial", part_of_twice("penstock")),
        Target("penstock / best of the others", ratio("penstock", list(_OTHERS)), at_least=1.3),
        Target("penstock / torch_keeping", ratio("penstock", ["torch_keeping"])),
        *(Target(f"{name} / twice serial", part_of_twice(name)) for name in _OTHERS),
        Target("serial_keeping / serial", ratio("serial_keeping", ["serial"])),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3, case_timeout_s=90)
