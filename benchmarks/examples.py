"""How long does it take to read the features of a `tf.train.Example`, by protobuf, and was it right to give up our own?

Question: records in memory, of six kinds, a batch of 256 each. How many microseconds of processor time does a record
take until its values are in the arrays of the batch?

    pixels      uint8 (64, 64) as bytes, and a label below 1,000
    encoded     20 to 60 kB as bytes, as of JPEGs, and a label below 1,000
    numbers     20 features, each a float32 or an int64 below 1,000, which takes one byte or two
    alike       the same, with int64 below 100, so that all records have one layout
    floats      float32 (1000,), and a label below 100
    tokens      int64 (128,) up to 50,000

Method: `python benchmarks/examples.py`. `penstock` is `read_example`, a record at a time, by protobuf. `tensorflow` is
`tf.io.parse_example` of the whole batch and `numpy()` of each feature, whose threads count too. The fastest of 20
batches, in a fresh process each.

`by hand` is what stood in penstock until 2026-11-28: a walk over the bytes of a record in Python, which also learnt the
layout of records, so that NumPy read all records of one layout together. It was 5,800 tokens of code, where this has
2,200. It was timed in the same way, between the rounds.

Machine: two cores of an AMD EPYC in a virtual machine, beside which other programs ran; Linux 6.18, Python 3.11.7,
NumPy 2.4.6, protobuf 7.36 (upb), TensorFlow 2.21.

Result of 2026-11-28, three rounds, medians and spread, microseconds a record:

               penstock               by hand    tensorflow             penstock / by hand
    pixels      5.5 (4.8 to 5.7)       1.0        2.8 (2.0 to 4.6)       5.5
    encoded    15.1 (12.5 to 15.5)    22.2       30.9 (26.8 to 31.6)     0.68
    numbers    26.1 (25.7 to 26.6)    55.1        3.9 (3.7 to 4.9)       0.47
    alike      25.8 (25.3 to 26.4)     3.1        5.9 (5.5 to 6.0)       8.5
    floats      7.6 (7.3 to 8.6)       0.55       3.8 (2.9 to 4.9)      13.8
    tokens      6.0 (6.0 to 6.4)       4.1        3.8 (2.9 to 3.9)       1.5

Where records share a layout, by hand was 5 to 14 times as fast. Where pictures or numbers differ in size, as in most
files, it was slower than protobuf. The geometric mean is 2.6, and 3 was asked of what is to stay.

Not shown: checksums, and the reads of files (`tfrecord.py`).
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _harness import Array, Numbers, Options, Target, run

import penstock as ps

_COUNT = 256

Spec = dict[str, ps.ArraySpec]


def _numbers(rng: np.random.Generator, most: int) -> dict[str, Any]:
    return {f"f{k}": np.float32(rng.random()) if k % 2 else rng.integers(most) for k in range(20)}


def _label(most: int, **others: Any) -> Callable[[np.random.Generator], dict[str, Any]]:
    def element(rng: np.random.Generator) -> dict[str, Any]:
        return {name: make(rng) for name, make in others.items()} | {"label": rng.integers(most)}

    return element


_LABEL = ps.ArraySpec((), "int64")
_TWENTY = {f"f{k}": ps.ArraySpec((), "float32" if k % 2 else "int64") for k in range(20)}
_KINDS: dict[str, tuple[Callable[[np.random.Generator], dict[str, Any]], Spec]] = {
    "pixels": (
        _label(1000, x=lambda rng: rng.integers(0, 256, (64, 64), "uint8")),
        {"x": ps.ArraySpec((64, 64), "uint8"), "label": _LABEL},
    ),
    "encoded": (
        _label(1000, x=lambda rng: rng.bytes(rng.integers(20_000, 60_000))),
        {"x": ps.ArraySpec((None,), "uint8"), "label": _LABEL},
    ),
    "numbers": (lambda rng: _numbers(rng, 1000), _TWENTY),
    "alike": (lambda rng: _numbers(rng, 100), _TWENTY),
    "floats": (
        _label(100, x=lambda rng: rng.random(1000, "float32")),
        {"x": ps.ArraySpec((1000,), "float32"), "label": _LABEL},
    ),
    "tokens": (lambda rng: {"x": rng.integers(0, 50_000, 128)}, {"x": ps.ArraySpec((128,), "int64")}),
}


def _records(kind: str) -> list[bytes]:
    from penstock.records._example import encoded

    rng = np.random.default_rng(0)
    return [encoded(_KINDS[kind][0](rng)) for _ in range(_COUNT)]


def _penstock(kind: str) -> Callable[[], None]:
    from penstock.records._example import read_example
    from penstock.records._features import features_of

    records, specs = _records(kind), _KINDS[kind][1]
    features = features_of(specs, None)
    outs: list[Array] = [
        np.empty(_COUNT, object) if None in spec.shape else np.empty((_COUNT, *spec.shape), spec.dtype)
        for spec in specs.values()
    ]

    def read() -> None:
        for row, record in enumerate(records):
            read_example(features, record, outs, row, str)

    return read


def _tensorflow(kind: str) -> Callable[[], None]:
    import tensorflow as tf

    records = tf.constant(_records(kind))
    features = {
        name: tf.io.FixedLenFeature([], tf.string)
        if spec.dtype == np.uint8
        else tf.io.FixedLenFeature(spec.shape, tf.as_dtype(spec.dtype))
        for name, spec in _KINDS[kind][1].items()
    }

    def read() -> None:
        for value in tf.io.parse_example(records, features).values():
            value.numpy()

    return read


def _case(make: Callable[[str], Callable[[], None]]) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        return {f"{kind}, us": _fastest_s(make(kind), options) / _COUNT * 1e6 for kind in _KINDS}

    return measure


def _fastest_s(read: Callable[[], None], options: Options) -> float:
    taken_s = []
    for _ in range(3 if options.quick else 20):
        began_s = time.process_time()
        read()
        taken_s.append(time.process_time() - began_s)
    return min(taken_s)


def _targets(options: Options) -> list[Target]:
    return [
        Target(f"{kind}: penstock / tensorflow", lambda round_, kind=kind: _ratio(round_, kind))  # type: ignore[misc]
        for kind in _KINDS
    ]


def _ratio(round_: Any, kind: str) -> float:
    return float(round_["penstock"][f"{kind}, us"] / round_["tensorflow"][f"{kind}, us"])


if __name__ == "__main__":
    run(__file__, {"penstock": _case(_penstock), "tensorflow": _case(_tensorflow)}, _targets, round_count=3)
