"""How much faster are the distortions of `penstock.image`, on threads, than the same on Pillow in worker processes?

Question: grey characters of 64x64, each rotated, sheared and scaled with bicubic interpolation, its columns rolled
along a sine, then blurred, sharpened or smoothed; batches of 256, two cores. How many a second, as a multiple of the
same job written on Pillow in two worker processes of a PyTorch DataLoader?

Method: `python benchmarks/augment_images.py`. Each contender has a fresh process, in turn, and the same consumer,
which sums every byte; its rate is that of at least 3 s, after a second that warms up. The amounts are alike: up to 15
degrees, a slope of 0.3, 0.8 to 1.2 in size, rolls of up to 4 pixels; a Gaussian of 1 pixel, or Pillow's SHARPEN or
SMOOTH, whose kernels ours are.

The jobs are alike, not the same: Pillow's interpolates three times, rolls by whole pixels, in a loop over columns as
its users write it, and blurs by boxes; ours interpolates once, where all four lead, by parts of pixels.

Contenders: `torch` is a DataLoader with two persistent workers and default collation; `pillow` is its function in a
plain loop, and `inline` ours. `threads` is `random_map(compose(...))` on two threads, which is what
`executor="auto"` chooses; `bilinear` the same with the default interpolation; `processes` runs it on two worker
processes.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, OpenCV 5.0, Pillow 13.

Result of 2026-11-21, medians and their spread: of `torch`, `inline` and `threads` alone, two rounds, and of all, three
rounds, beside which other programs ran now and then:

    torch       2,333 (2,324 to 2,343)            1,672 (1,192 to 2,441)
    inline     11,968 (11,111 to 12,824)         12,180 (9,720 to 12,487)
    threads    11,470 (11,216 to 11,725)          9,881 (9,798 to 10,548)
    bilinear                                     12,177 (10,210 to 14,058), on threads
    processes                                    19,506 (11,489 to 21,637)

`threads` is 4.92 (4.83 to 5.0) times `torch`, where 4 was wanted; in the other run 5.9 (4.3 to 8.2), with `torch`
disturbed. Before small images had a margin it was 3.34 (3.26 to 3.75). Of the 78 us that an
image of 64x64 takes inline, 39 are OpenCV's and most of the rest is Python, so threads take turns where side by side
would be slower. On images this small, `executor="processes"` is what helps most.

Not shown: larger images, where the share of Python is smaller, and a consumer that computes meanwhile.
"""

import random
from collections.abc import Callable
from typing import Any, Literal

from _characters import COUNT, SIDE, characters, distorted
from _contenders import Contender, Element, serial, torch
from _harness import Array, Epoch, Numbers, Options, Target, ratio, run, time_steady

_BATCH_SIZE = 256


def _on_pillow(drawn: Array) -> Element:
    def element(index: Any) -> Array:
        number = int(index)
        return distorted(drawn[number % COUNT], random.Random(number))

    return element


def _pillow(contender: Contender) -> Callable[[Options], Numbers]:
    return lambda options: time_steady(contender(_on_pillow(characters()), _BATCH_SIZE)(), options)


def _ours(
    executor: Literal["inline", "auto", "processes"], interpolation: Literal["bilinear", "bicubic"] = "bicubic"
) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        return time_steady(_epoch(executor, interpolation)(), options)

    return measure


def _epoch(executor: str, interpolation: Literal["bilinear", "bicubic"]) -> Epoch:
    import penstock as ps
    from penstock.image import blur, compose, exactly, one_of, rotate, scale, sharpen, shear, sine_warp, smooth

    distort = compose(
        rotate(15),
        shear(0.3),
        scale(0.2),
        sine_warp(4, SIDE),
        one_of(blur(exactly(1)), sharpen(exactly(1)), smooth(exactly(8 / 13))),
        interpolation=interpolation,
    )
    dataset = ps.from_arrays(characters()).repeat().random_map(distort, seed=1).batch(_BATCH_SIZE)
    workers: Any = "auto" if executor == "inline" else 2
    return lambda: ((batch,) for batch in dataset.loader(executor=executor, workers=workers))


_CASES = {
    "pillow": _pillow(serial),
    "torch": _pillow(torch),
    "inline": _ours("inline"),
    "threads": _ours("auto"),
    "bilinear": _ours("auto", "bilinear"),
    "processes": _ours("processes"),
}


def _targets(options: Options) -> list[Target]:
    return [
        Target("threads / torch on Pillow", ratio("threads", ["torch"]), at_least=4),
        Target("bilinear / torch on Pillow", ratio("bilinear", ["torch"])),
        Target("processes / torch on Pillow", ratio("processes", ["torch"])),
        Target("inline / pillow, one thread each", ratio("inline", ["pillow"])),
        Target("threads / inline", ratio("threads", ["inline"])),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3, case_timeout_s=60)
