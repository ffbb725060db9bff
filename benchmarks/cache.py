"""What does the second epoch cost, from a cache on disk?

Question: 3,000 JPEGs of 500x375 are read, decoded and scaled to (180, 180, 3), as uint8 and as float32, kept by
`cache(path)`, and shuffled over all of them anew each epoch, in batches of 32. The epochs after the first against the
first; against tf.data's `cache(filename)`; and against `from_npy` on the same bytes.

Method: `python benchmarks/cache.py`. Fresh processes in turn. The first epoch, which fills the cache, is timed from its
`iter` to its last batch, workers started and pipelines traced by a batch of another dataset before; then the epochs of
2 s. The consumer sums every byte. `tfdata` is `map(..., num_parallel_calls=AUTOTUNE).cache(filename)`, then
`shuffle(3000, reshuffle_each_iteration=True)`, `batch` and `prefetch(AUTOTUNE)`, as TensorFlow's guides advise; its
shuffle holds all 3,000 elements in memory. `npy` is `from_npy` of the same elements, saved by `np.save`; `npy_kept` is
`from_npy` of the very file that a shuffled first epoch has written. penstock decodes by OpenCV on two worker processes,
and reads `.npy` files on two threads.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, OpenCV 5.0,
TensorFlow 2.21, 2026-11-22. Its disk and its speed vary: the first epochs were half as fast again the day before.

Result of two rounds, samples/s in the first epoch and in those after it, medians and spread:

                 uint8                                  float32
    penstock     760   55,893 (44,437 to 67,349)        566   20,549 (20,526 to 20,571)
    tfdata       554    3,189 (2,672 to 3,707)          392    4,684 (4,491 to 4,876)
    npy                50,680 (45,094 to 56,267)              17,080 (16,519 to 17,642)
    npy_kept           48,887 (44,179 to 53,594)              17,046 (16,425 to 17,667)

Later epochs were 77 (52 to 102) and 37 (33 to 40) times the first, wanted 10 and 5; 18.6 (12 to 25) and 4.4 (4.2 to
4.6) times tf.data's, wanted 1; 1.13 (1.01 to 1.26) and 1.21 (1.16 to 1.25) of `npy_kept`, wanted 0.9. On 2026-11-21
tf.data had 9,216 as uint8, and `cache` was 5.8 times that. Once its cache has all that it asks for, a loader goes on on
threads (`design/0010-cache.md`); the first of the later epochs has that change in it, some 0.1 s.

Not shown: a cache larger than memory, of which the disk's speed would be the limit for all.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Array, Numbers, Options, Target, bench_dir, ratio, read_every_byte, run, time_epochs, value

import penstock as ps

_COUNT = 3000
_SIDE = 180
_BATCH_SIZE = 32


def _images() -> list[str]:
    """The paths of the JPEGs, made once and kept: a photograph's noise, so that they have 60 kB each."""
    import cv2

    folder = bench_dir() / "jpegs"
    paths = [str(folder / f"{number:04}.jpg") for number in range(_COUNT)]
    if not (folder / "complete").exists():
        folder.mkdir(exist_ok=True)
        rng = np.random.default_rng(0)
        for number, path in enumerate(paths):
            small = rng.integers(0, 256, (12, 16, 3), "uint8")
            image = cv2.resize(small, (500, 375), interpolation=cv2.INTER_CUBIC)
            noise = rng.normal(0, 8, image.shape) + number % 5
            cv2.imwrite(path, np.clip(image + noise, 0, 255).astype("uint8"), [cv2.IMWRITE_JPEG_QUALITY, 90])
        (folder / "complete").write_text("")
    return paths


def _decoded(paths: list[str], dtype: str) -> ps.Dataset:
    names = np.array(paths)

    def decode(index: Any) -> Array:
        import cv2

        cv2.setNumThreads(1)
        image = cv2.imread(str(names[int(index)]))
        scaled = cv2.resize(image, (_SIDE, _SIDE), interpolation=cv2.INTER_LINEAR)
        return scaled.astype(dtype) if dtype != "uint8" else scaled

    spec = ps.ArraySpec((_SIDE, _SIDE, 3), dtype)
    return ps.range(len(paths)).map(decode, element_spec=spec)


def _first(batches: Callable[[], Iterator[tuple[Array]]]) -> Numbers:
    """Samples/s of an epoch, which is run."""
    import time

    began_s, count = time.perf_counter(), 0
    for leaves in batches():
        read_every_byte(leaves)
        count += len(leaves[0])
    return {"first/s": count / (time.perf_counter() - began_s)}


def _epochs(dataset: ps.Dataset, executor: Any) -> Callable[[], Iterator[tuple[Array]]]:
    loader = dataset.shuffle(seed=1).batch(_BATCH_SIZE).loader(executor=executor)
    next(iter(loader))  # the workers have started
    loader.set_state({**loader.get_state(), "epoch": 0, "position": 0})
    return lambda: ((batch,) for batch in loader)


def penstock(dtype: str, options: Options) -> Numbers:
    with tempfile.TemporaryDirectory(dir=bench_dir()) as folder:
        epochs = _epochs(_decoded(_images(), dtype).cache(folder), "auto")
        return _first(epochs) | time_epochs(epochs, options)


def npy(dtype: str, options: Options) -> Numbers:
    path = bench_dir() / f"decoded-{dtype}.npy"
    if not path.exists():
        np.save(path, np.stack([np.asarray(x) for x in _decoded(_images(), dtype)]))
    return time_epochs(_epochs(ps.from_npy(path), "threads"), options)


def npy_kept(dtype: str, options: Options) -> Numbers:
    with tempfile.TemporaryDirectory(dir=bench_dir()) as folder:
        _first(_epochs(_decoded(_images(), dtype).cache(folder), "auto"))
        (path,) = Path(folder).glob("*/0.npy")
        return time_epochs(_epochs(ps.from_npy(path), "threads"), options)


def tfdata(dtype: str, options: Options) -> Numbers:
    import tensorflow as tf

    def decode(path: Any) -> Any:
        image = tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(path), channels=3), (_SIDE, _SIDE))
        return tf.cast(image, dtype)

    folder = Path(tempfile.mkdtemp(dir=bench_dir()))
    try:
        made = tf.data.Dataset.from_tensor_slices(_images()).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
        kept = made.cache(str(folder / "kept")).shuffle(_COUNT, reshuffle_each_iteration=True)
        batches = kept.batch(_BATCH_SIZE).prefetch(tf.data.AUTOTUNE)

        def epochs() -> Iterator[tuple[Array]]:
            return ((batch,) for batch in batches.as_numpy_iterator())

        next(iter(made.as_numpy_iterator()))
        return _first(epochs) | time_epochs(epochs, options)
    finally:
        shutil.rmtree(folder)


_CONTENDERS = {"penstock": penstock, "tfdata": tfdata, "npy": npy, "npy_kept": npy_kept}
_KINDS = ("uint8", "float32")


def _case(contender: Callable[[str, Options], Numbers], dtype: str) -> Callable[[Options], Numbers]:
    return lambda options: contender(dtype, options)


_CASES = {f"{name} {dtype}": _case(contender, dtype) for dtype in _KINDS for name, contender in _CONTENDERS.items()}


def _gain(case: str) -> Callable[[Any], float]:
    later, first = value(case, "samples/s"), value(case, "first/s")
    return lambda round_: later(round_) / first(round_)


def _targets(options: Options) -> list[Target]:
    return [
        target
        for dtype, least in (("uint8", 10), ("float32", 5))
        for target in (
            Target(f"{dtype}: later epochs / the first", _gain(f"penstock {dtype}"), at_least=least),
            Target(f"{dtype}: penstock / tfdata", ratio(f"penstock {dtype}", [f"tfdata {dtype}"]), at_least=1.0),
            Target(f"{dtype}: penstock / npy_kept", ratio(f"penstock {dtype}", [f"npy_kept {dtype}"]), at_least=0.9),
            Target(f"{dtype}: penstock / npy", ratio(f"penstock {dtype}", [f"npy {dtype}"])),
        )
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3, case_timeout_s=180)
