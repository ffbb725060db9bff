"""Does a folder of JPEGs come faster than from what people use, and as evenly?

Question: 3,000 JPEGs of 500x375, in folders, to batches of 32, `(180, 180, 3)` float32, shuffled anew each epoch, on
two cores: the job of Keras's tutorial. Decoding is nearly all of the work, so what can be won is the rest: copies,
fresh memory, conversions, waiting; and, with `decode="fast"`, a part of the decoding.

Method: `python benchmarks/image_folder.py`. The photographs are crops of those of scikit-image, resized, mirrored and
stored at quality 90, once, in `PENSTOCK_BENCH_DIR`; they are in the page cache. As in `shuffled_pairs`: fresh processes
in turn, a consumer that sums every byte; endless epochs, of which the first second is not counted, then at least 3 s
and 200 gaps between batches.

`keras` is `image_dataset_from_directory`, with its `repeat()`, and `keras_grain` the same with `format="grain"` on JAX;
`tf_data` is its guide's pipeline by hand: shuffled paths, `decode_jpeg` and resize in one `map` with AUTOTUNE, not in
order, `prefetch`; `tf_data_half` decodes at half size (`ratio=2`), which is what `decode="fast"` does here. `torch_*`
are a DataLoader with two persistent workers; `grain_*` a `MapDataset` read by its 16 threads, for Pillow and OpenCV let
go of the GIL. `*_pillow` resize with `Image.resize`, which does antialiasing, `*_opencv` with `cv2.resize`, which does
not, as TensorFlow's. `spdl_opencv` is an SPDL pipeline whose two threads decode a batch each. (An image each, or three
to six threads, were no faster; its own decoder, FFmpeg's by `load_image_batch`, had 860 images/s where OpenCV had 1,460
to 1,790.) `litdata` reads its own local chunks of the same JPEGs, made before, with two workers and OpenCV. penstock
runs on threads.

Result of 2026-11-20 (two cores of an AMD EPYC, Python 3.11.7, Keras 3.15 on TensorFlow 2.21, torch 2.13; medians of
five rounds and their spread; at its very end another benchmark ran beside it for some seconds):

                   images/s                gap p99/median    MiB over imports
    penstock       2,420 (2,213 to 2,497)  1.92              33
    penstock_fast  2,932 (2,842 to 3,014)  1.79              29
    keras          2,037 (2,014 to 2,106)  1.80              42
    tf_data        2,136 (1,386 to 2,146)  1.74              42
    tf_data_half   2,431 (2,268 to 2,480)  1.90              41
    torch_opencv   1,232 (1,153 to 1,280)  2.27              46
    grain_opencv   1,199 (1,081 to 1,263)  2.31              377
    torch_pillow     839 (814 to 865)      2.31              65
    grain_pillow     628 (586 to 691)      2.46              325

Exact decoding was 1.13 (1.04 to 1.23) times the best that decodes all, where 1.15 was wanted; `"fast"` 1.37 (1.34 to
1.47), where 1.5 was; 1.22 times tf.data at half size.

Result of 2026-11-21, since batches are cut into units that are alike, of these three alone, five rounds:

    penstock       2,431 (2,414 to 2,502)  1.45 (1.43 to 1.65)
    penstock_fast  2,846 (2,535 to 3,059)  1.43 (1.33 to 1.57)
    tf_data        2,139 (2,054 to 2,212)  1.39 (1.30 to 1.52)

Exact decoding is 1.14 (1.09 to 1.22) times tf.data, `"fast"` 1.38 (1.17 to 1.41); gaps are below the 1.7 that was
wanted. Two runs of three rounds just before gave 0.97 and 0.98, with rounds from 0.92 to 1.33: the speed of this
machine changes.

Result of 2026-11-22, with fewer calls of Python an image, five rounds, on a machine that was slower and less steady
than before. `bare_threads` are two threads that open, read, decode, resize and convert with the same libraries, and a
consumer: no labels, no order but a list, no errors, no report. `bare_threads_half` decode at half size.

    penstock           2,114 (2,054 to 2,188)  1.43 (1.37 to 1.65)
    penstock_fast      2,319 (2,173 to 2,699)  1.52 (1.45 to 1.57)
    keras              1,599 (1,523 to 1,807)  1.33 (1.30 to 1.49)
    tf_data            1,903 (1,699 to 1,996)  1.32 (1.25 to 1.36)
    tf_data_half       2,034 (1,973 to 2,320)  1.35 (1.27 to 1.39)
    bare_threads       2,357 (2,210 to 2,564)  1.49 (1.41 to 1.69)
    bare_threads_half  2,591 (2,521 to 3,072)  1.54 (1.51 to 1.76)

Exact decoding was 1.10 (1.06 to 1.29) times the best, and 0.91 (0.81 to 0.99) of the bare threads; `"fast"` 1.28 (1.15
to 1.43), and 0.88 (0.83 to 0.91). Five rounds more, beside tf.data alone: 1.16 (0.95 to 1.39) and 1.24 (1.15 to 1.46).
The bare threads at half size are 1.48 (1.30 to 1.72) times the best: so 1.5 is more than there is to be had by decoding
at half size on two cores. What limits it is Huffman decoding, two thirds of the time and the same code for all:
`design/0009-decoding.md`.

Result of 2026-11-23, four rounds on a quiet machine:

    penstock           2,464 (2,276 to 2,661)  1.49 (1.33 to 1.54)
    penstock_fast      3,094 (2,984 to 3,180)  1.48 (1.40 to 1.56)
    keras              2,070 (1,676 to 2,166)  1.30 (1.27 to 1.35)
    tf_data            2,132 (2,001 to 2,148)  1.33 (1.27 to 1.36)
    spdl_opencv        1,440 (1,405 to 1,549)  2.58 (2.46 to 2.91)
    bare_threads       2,635 (2,500 to 2,827)  1.44 (1.35 to 1.53)
    bare_threads_half  3,168 (2,465 to 3,508)  1.51 (1.32 to 1.67)

Exact decoding was 1.15 (1.06 to 1.23) times the best, as wanted, and 0.97 (0.81 to 0.98) of the bare threads; `"fast"`
1.45 (1.39 to 1.48), where 1.5 was wanted, and 0.98 (0.85 to 1.27) of the bare threads, which had 1.47 (1.16 to 1.63).

Result of 2026-11-26, a faster AMD EPYC, quiet, one round, images/s: penstock 3,251, penstock_fast 3,942, keras 2,972,
tf_data 2,903, spdl_opencv 2,046, litdata 1,511, keras_grain 422; exact 1.09, `"fast"` 1.33 times the best; gaps 1.55
and 1.6, of keras and tf_data 1.39.

On 2026-11-29, AMD EPYC, quiet, one round, images/s: penstock 2,413, fast 2,567, keras 1,944, tf_data 1,927, spdl_opencv
1,253, grain_opencv 1,228, torch_opencv 1,126. That is 1.24 (wanted 1.15) and 1.32 times the best of the others.

Not shown: a cold page cache; PNG; images of a megapixel and more, where decoding counts for more, and `"fast"` too.
"""

import collections
import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Array, Numbers, Options, Target, bench_dir, ratio, run, time_steady, value
from _memory import PeakMemory, warm_pages

_FILE_COUNT = 3000
_QUICK_FILE_COUNT = 300
_SIZE = (180, 180)
_BATCH_SIZE = 32
_GAP_COUNT = 200
_PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "hubble_deep_field", "immunohistochemistry", "retina", "rocket")

Batches = Iterator[tuple[Array]]
Contender = Callable[[Path], Batches]
"""Makes endless batches of the images of a folder."""


def photographs(count: int) -> Path:
    """Returns a folder of JPEGs in a folder for each photograph, made once and kept."""
    import cv2
    from skimage import data

    folder = bench_dir() / f"photographs-{count}"
    if folder.exists():
        return folder
    unfinished = folder.with_suffix(".part")
    rng = np.random.default_rng(0)
    originals = [getattr(data, name)()[..., :3] for name in _PHOTOGRAPHS]
    for number in range(count):
        which = number % len(originals)
        photograph = originals[which]
        height = int(rng.uniform(0.7, 1) * min(len(photograph), photograph.shape[1] * 3 // 4))
        width = height * 4 // 3
        top, left = (int(rng.integers(0, room + 1)) for room in np.subtract(photograph.shape[:2], (height, width)))
        crop = cv2.resize(photograph[top : top + height, left : left + width], (500, 375), interpolation=cv2.INTER_AREA)
        crop = crop[:, :: rng.choice([-1, 1]), ::-1]
        path = unfinished / _PHOTOGRAPHS[which] / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(path), crop, [cv2.IMWRITE_JPEG_QUALITY, 90])
    return unfinished.rename(folder)


def keras(folder: Path) -> Batches:
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    dataset = keras.utils.image_dataset_from_directory(
        folder, image_size=_SIZE, batch_size=_BATCH_SIZE, seed=1, verbose=False
    )
    return ((images,) for images, _ in dataset.repeat().as_numpy_iterator())


def keras_grain(folder: Path) -> Batches:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    dataset = keras.utils.image_dataset_from_directory(
        folder, image_size=_SIZE, batch_size=_BATCH_SIZE, seed=1, verbose=False, format="grain"
    )
    while True:  # each epoch has an iterator of its own, as in `fit`
        for images, _ in dataset:
            yield (np.asarray(images),)


def tf_data(part: int) -> Contender:
    def batches(folder: Path) -> Batches:
        import tensorflow as tf

        def load(path: Any, label: Any) -> Any:
            image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3, ratio=part)
            return tf.image.resize(image, _SIZE), label

        paths, labels = _files(folder)
        dataset = (
            tf.data.Dataset.from_tensor_slices((paths, labels))
            .shuffle(len(paths), seed=1)
            .repeat()
            .map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
            .batch(_BATCH_SIZE)
            .prefetch(tf.data.AUTOTUNE)
        )
        return ((images,) for images, _ in dataset.as_numpy_iterator())

    return batches


def _pillow(path: str) -> Array:
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize(_SIZE[::-1], Image.Resampling.BILINEAR), np.float32)


def _opencv(path: str) -> Array:
    import cv2

    image = cv2.cvtColor(cv2.imread(path, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    return cv2.resize(image, _SIZE[::-1]).astype(np.float32)


def torch(load: Callable[[str], Array]) -> Contender:
    def batches(folder: Path) -> Batches:
        import cv2
        import torch
        from torch.utils.data import DataLoader, Dataset, RandomSampler

        paths, labels = _files(folder)

        class Images(Dataset):  # type: ignore[misc, unused-ignore]
            def __len__(self) -> int:
                return len(paths)

            def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
                return torch.from_numpy(load(paths[index])), labels[index]

        def one_thread(_: int) -> None:  # as torch does for itself: the two workers share two cores
            cv2.setNumThreads(0)

        images = Images()
        loader = DataLoader(
            images,
            batch_size=_BATCH_SIZE,
            sampler=RandomSampler(images, num_samples=1000 * len(paths)),
            num_workers=2,
            persistent_workers=True,
            worker_init_fn=one_thread,
        )
        return ((pictures.numpy(),) for pictures, _ in loader)

    return batches


def grain(load: Callable[[str], Array]) -> Contender:
    def batches(folder: Path) -> Batches:
        import cv2
        import grain  # type: ignore[import-untyped, unused-ignore]

        cv2.setNumThreads(0)
        paths, labels = _files(folder)
        dataset = grain.MapDataset.range(len(paths)).shuffle(seed=1).repeat()
        dataset = dataset.map(lambda index: (load(paths[index]), labels[index])).to_iter_dataset().batch(_BATCH_SIZE)
        return ((images,) for images, _ in dataset)

    return batches


def litdata(folder: Path) -> Batches:
    import cv2
    import torch
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import Cache

    chunks = folder.with_name(f"{folder.name}-litdata")
    if not chunks.exists():
        cache = Cache(str(chunks), chunk_bytes="64MB")
        for number, (path, label) in enumerate(zip(*_files(folder), strict=True)):
            cache[number] = {"image": Path(path).read_bytes(), "label": label}
        cache.done()
        cache.merge()

    def decoded(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
        cv2.setNumThreads(0)
        image = cv2.imdecode(np.frombuffer(sample["image"], np.uint8), cv2.IMREAD_COLOR)
        image = cv2.resize(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), _SIZE[::-1])
        return torch.from_numpy(image.astype(np.float32)), sample["label"]

    data = StreamingDataset(str(chunks), shuffle=True, transform=decoded)
    loader = StreamingDataLoader(data, batch_size=_BATCH_SIZE, num_workers=2, persistent_workers=True)
    while True:
        for images, _ in loader:
            yield (images.numpy(),)


def spdl(folder: Path) -> Batches:
    import cv2
    from spdl.pipeline import PipelineBuilder

    cv2.setNumThreads(0)
    paths, labels = _files(folder)
    rng = np.random.default_rng(1)

    def load_batch(members: list[int]) -> tuple[Array, Array]:
        return np.stack([_opencv(paths[member]) for member in members]), np.array([labels[each] for each in members])

    pipeline = (
        PipelineBuilder()
        .add_source(itertools.chain.from_iterable(rng.permutation(len(paths)).tolist() for _ in itertools.count()))
        .aggregate(_BATCH_SIZE)
        .pipe(load_batch, concurrency=2)
        .add_sink(2)
        .build(num_threads=2)
    )
    with pipeline.auto_stop():
        for images, _ in pipeline:
            yield (images,)


def penstock(decode: Any) -> Contender:
    def batches(folder: Path) -> Batches:
        import penstock as ps

        dataset = ps.image_dataset_from_directory(
            folder, image_size=_SIZE, batch_size=_BATCH_SIZE, seed=1, verbose=False, decode=decode
        )
        return ((images,) for images, _ in dataset.repeat().loader("threads", workers=2))

    return batches


def bare_threads(part: int) -> Contender:
    def batches(folder: Path) -> Batches:
        import cv2
        import simplejpeg

        cv2.setNumThreads(0)
        paths = [path.encode() for path in _files(folder)[0]]
        rng = np.random.default_rng(1)
        slots = np.zeros((4, _BATCH_SIZE, *_SIZE, 3), np.float32)
        tasks: queue.SimpleQueue[tuple[int, int, list[int]]] = queue.SimpleQueue()
        done: queue.SimpleQueue[int] = queue.SimpleQueue()

        def work() -> None:
            content, pixels = np.zeros(1 << 20, np.uint8), np.zeros(4 << 20, np.uint8)
            levels = np.zeros((*_SIZE, 3), np.uint8)
            while True:
                slot, first, members = tasks.get()
                for row, member in enumerate(members, first):
                    descriptor = os.open(paths[member], os.O_RDONLY | os.O_CLOEXEC)
                    data = content.data[: os.readv(descriptor, [content])]
                    os.close(descriptor)
                    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
                    least = {"min_height": -(-height // part), "min_width": -(-width // part), "min_factor": part}
                    image = simplejpeg.decode_jpeg(data, "RGB", fastdct=True, buffer=pixels, **least)
                    cv2.resize(image, _SIZE[::-1], dst=levels)
                    slots[slot, row] = levels
                done.put(slot)

        for _ in range(2):
            threading.Thread(target=work, daemon=True).start()
        whole_count = len(paths) // _BATCH_SIZE * _BATCH_SIZE
        orders = (rng.permutation(len(paths))[:whole_count].tolist() for _ in itertools.count())
        members_of = itertools.chain.from_iterable(orders)
        left, order = [0] * len(slots), collections.deque[int]()
        for ahead in itertools.count():
            slot, half = ahead % len(slots), _BATCH_SIZE // 2
            members = list(itertools.islice(members_of, _BATCH_SIZE))
            left[slot] = 2
            tasks.put((slot, 0, members[:half]))
            tasks.put((slot, half, members[half:]))
            order.append(slot)
            if len(order) == len(slots) - 1:
                head = order.popleft()
                while left[head]:
                    left[done.get()] -= 1
                yield (slots[head],)

    return batches


def _files(folder: Path) -> tuple[list[str], list[int]]:
    classes = sorted(folder.iterdir())
    found = [(str(path), number) for number, each in enumerate(classes) for path in sorted(each.iterdir())]
    return [path for path, _ in found], [label for _, label in found]


def _case(contender: Contender) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        folder = photographs(_QUICK_FILE_COUNT if options.quick else _FILE_COUNT)
        for path in itertools.chain.from_iterable(each.iterdir() for each in folder.iterdir()):
            warm_pages(path)
        batches = contender(folder)
        with PeakMemory() as memory:
            numbers = time_steady(batches, options, gap_count=_GAP_COUNT)
        return numbers | memory.peaks_mib()

    return measure


_OTHERS = (
    "keras",
    "keras_grain",
    "tf_data",
    "torch_pillow",
    "torch_opencv",
    "grain_pillow",
    "grain_opencv",
    "spdl_opencv",
    "litdata",
)
_CASES = {
    "penstock": _case(penstock("exact")),
    "penstock_fast": _case(penstock("fast")),
    "bare_threads": _case(bare_threads(1)),
    "bare_threads_half": _case(bare_threads(2)),
    "keras": _case(keras),
    "keras_grain": _case(keras_grain),
    "tf_data": _case(tf_data(1)),
    "tf_data_half": _case(tf_data(2)),
    "torch_pillow": _case(torch(_pillow)),
    "torch_opencv": _case(torch(_opencv)),
    "grain_pillow": _case(grain(_pillow)),
    "grain_opencv": _case(grain(_opencv)),
    "spdl_opencv": _case(spdl),
    "litdata": _case(litdata),
}


def _targets(options: Options) -> list[Target]:
    return [
        Target("penstock, exact / the best that decodes all", ratio("penstock", _OTHERS), at_least=1.15),
        Target("penstock, fast / the best that decodes all", ratio("penstock_fast", _OTHERS), at_least=1.5),
        Target("penstock, fast / tf.data at half size", ratio("penstock_fast", ["tf_data_half"])),
        Target("penstock, exact / bare threads", ratio("penstock", ["bare_threads"])),
        Target("penstock, fast / bare threads", ratio("penstock_fast", ["bare_threads_half"])),
        Target("bare threads at half size / the best that decodes all", ratio("bare_threads_half", _OTHERS)),
        Target("gap p99 / median", value("penstock", "p99/median"), at_most=1.7),
        Target("gap p99 / median, fast", value("penstock_fast", "p99/median"), at_most=1.7),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
