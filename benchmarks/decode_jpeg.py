"""Which decoder of JPEGs, and what does an image cost, part by part?

Question: what takes the time between the bytes of a JPEG of 500x375 and `(180, 180, 3)` float32 in a batch, with
which of the decoders that Python has wheels of, and how much of it do two threads do at once?

Method: `python benchmarks/decode_jpeg.py`. 300 of the photographs of `image_folder` in memory, each decoded in turn.
"us" is the time of the thread's processor for an image, the best of some passes, so a busy machine changes it
little; "two threads" is how many times more images a second two threads decode than one, of wall-clock time, and does
need a quiet machine. `decode_*` are decoders alone, whole or at half size, which is read into memory that is there
already where they can. `into_*` are `Decoding.into`, with rows of a ring of batches; `opencv_pipeline` is the same with
what people write: `imdecode`, `cvtColor`, `resize`, `astype`.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, OpenCV 5.0.0,
simplejpeg 1.9.0, Pillow 13.0.0, 2026-11-20. It was busy; "us" differed by 5 % between two rounds.

Result, us an image: decoding 552 with simplejpeg, 650 with Pillow, 1,134 with OpenCV, of which some 500 are 247 page
faults: each of its images is new memory, which malloc here hands back to the system at once; where malloc keeps it, as
it happens to in `opencv_pipeline`, OpenCV takes 628. At half size 452 (simplejpeg) and 473 (OpenCV): what is left is
Huffman decoding. All of it: 685 exact, 553 fast, 1,567 with `area`, against 729 for OpenCV's pipeline (1.06 and 1.32
times). So the target of 1.15 is not met by decoding alone: two thirds of the time is one and the same Huffman decoder.
Two threads: 1.96 times one in a quiet minute, for simplejpeg and OpenCV alike; 1.2 in this busy run.

On 2026-11-28, a faster AMD EPYC, busy, `--quick`: OpenCV's pipeline takes 1.09 times ours, 1.37 times `fast`; decoding
is 556 of 685 us.

Not shown: reading the files; other sizes, for which the share of resizing differs; progressive JPEGs, twice as dear.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _harness import Numbers, Options, Target, ratio, run, value
from image_folder import photographs

_FILE_COUNT = 300
_SIZE = (180, 180)
_PASS_COUNT = 8

Decoder = Callable[[bytes, np.ndarray[Any, Any]], object]
"""Decodes a JPEG; the array is a row of a batch, for those that write one."""


def _measure(make: Callable[[], Decoder], options: Options) -> Numbers:
    """Times a decoder, made anew for each thread, alone and on two threads."""
    files = [path.read_bytes() for path in sorted(photographs(_FILE_COUNT).rglob("*.jpg"))]
    pass_count = 2 if options.quick else _PASS_COUNT

    def decode_all(best_s: list[float], barrier: threading.Barrier) -> None:
        decoder = make()
        rows = np.zeros((192, *_SIZE, 3), np.float32)
        barrier.wait()
        for _ in range(pass_count):
            began_s = time.thread_time()
            for number, file in enumerate(files):
                decoder(file, rows[number % len(rows)])
            best_s.append(time.thread_time() - began_s)

    def wall_s(thread_count: int) -> tuple[float, float]:
        spent_s: list[float] = []
        barrier = threading.Barrier(thread_count + 1)
        threads = [threading.Thread(target=decode_all, args=(spent_s, barrier)) for _ in range(thread_count)]
        for thread in threads:
            thread.start()
        barrier.wait()
        began_s = time.perf_counter()
        for thread in threads:
            thread.join()
        return time.perf_counter() - began_s, min(spent_s)

    wall_s(1)
    alone_s, best_s = wall_s(1)
    together_s, _ = wall_s(2)
    return {"us": 1e6 * best_s / len(files), "two threads": 2 * alone_s / together_s}


def decode_simplejpeg(options: Options) -> Numbers:
    import simplejpeg

    def make() -> Decoder:
        pixels = np.empty((375, 500, 3), np.uint8)
        return lambda file, _: simplejpeg.decode_jpeg(file, fastdct=True, buffer=pixels)

    return _measure(make, options)


def decode_simplejpeg_half(options: Options) -> Numbers:
    import simplejpeg

    def make() -> Decoder:
        pixels = np.empty((188, 250, 3), np.uint8)
        half = {"min_height": 188, "min_width": 250, "min_factor": 2}
        return lambda file, _: simplejpeg.decode_jpeg(file, fastdct=True, buffer=pixels, **half)

    return _measure(make, options)


def decode_opencv(options: Options) -> Numbers:
    import cv2

    cv2.setNumThreads(1)
    return _measure(lambda: lambda file, _: cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR), options)


def decode_opencv_half(options: Options) -> Numbers:
    import cv2

    cv2.setNumThreads(1)
    half = cv2.IMREAD_REDUCED_COLOR_2
    return _measure(lambda: lambda file, _: cv2.imdecode(np.frombuffer(file, np.uint8), half), options)


def decode_pillow(options: Options) -> Numbers:
    import io

    from PIL import Image

    return _measure(lambda: lambda file, _: Image.open(io.BytesIO(file)).load(), options)


def opencv_pipeline(options: Options) -> Numbers:
    import cv2

    cv2.setNumThreads(1)

    def decode(file: bytes, row: np.ndarray[Any, Any]) -> None:
        pixels = cv2.cvtColor(cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        row[...] = cv2.resize(pixels, _SIZE[::-1]).astype(np.float32)

    return _measure(lambda: decode, options)


def into_exact(options: Options) -> Numbers:
    from penstock.image import Decoding

    return _measure(lambda: Decoding(_SIZE).into, options)


def into_fast(options: Options) -> Numbers:
    from penstock.image import Decoding

    return _measure(lambda: Decoding(_SIZE, decode="fast").into, options)


def into_area(options: Options) -> Numbers:
    from penstock.image import Decoding

    return _measure(lambda: Decoding(_SIZE, interpolation="area").into, options)


_CASES = {
    "decode_simplejpeg": decode_simplejpeg,
    "decode_simplejpeg_half": decode_simplejpeg_half,
    "decode_opencv": decode_opencv,
    "decode_opencv_half": decode_opencv_half,
    "decode_pillow": decode_pillow,
    "opencv_pipeline": opencv_pipeline,
    "into_exact": into_exact,
    "into_fast": into_fast,
    "into_area": into_area,
}


def _targets(options: Options) -> list[Target]:
    return [
        Target("OpenCV's pipeline / ours, us", ratio("opencv_pipeline", ["into_exact"], "us"), at_least=1.15),
        Target("the same, fast", ratio("opencv_pipeline", ["into_fast"], "us"), at_least=1.5),
        Target("times the images of one thread on two", value("into_exact", "two threads"), at_least=1.8),
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
