"""Clips of films at random: how fast are frames decoded into batches?

Question: a policy or a classifier of films reads clips from anywhere in any film. How many clips a second come from two
workers?

Method: `python benchmarks/videos.py`. `small_*`: 50 films of 96x96, batches of 32 clips of eight frames. `large_*`: 8
films of 480x640, batches of 8 such clips. `rare_*`: 20 films of 240x320, batches of 32 single frames. Films have 200
frames, in H.264, with a key frame at every second frame, as LeRobot writes them; those of `rare` have one at the start
alone, as x264 does if nothing is said. All clips are shuffled over all films; the consumer reads every byte. `pyav` is
PyTorch's DataLoader over a dataset that opens a film, seeks, and decodes the frames of one clip; `pyav_open` keeps
films open in each worker; `opencv` is the same with `cv2.VideoCapture`, kept open. TorchCodec and LeRobot are in
`robots.py`.

Machine: two cores of an AMD EPYC, Linux 6.18, Python 3.11.7, NumPy 2.4.6, PyAV 18.1, 2026-11-27, two rounds, `--quick`,
quiet.

Result, clips a second, median and range:

    case              small                   large                 rare
    penstock          1,267 (1,215 to 1,319)  87.3 (86.9 to 87.7)   5,235 (5,122 to 5,349)
    pyav                416 (403 to 429)      47.6 (46.9 to 48.4)     172 (159 to 186)
    pyav_open           540 (502 to 577)      52.8 (51.9 to 53.8)     164 (146 to 182)
    opencv              449 (438 to 460)      29.7 (28.6 to 30.8)     123 (120 to 126)
    ratio to the best  2.35 (2.28-2.42)       1.65 (1.62-1.69)       30.5 (28.8-32.2)

So the target of 2 is met but for large frames, where decoding is 80 % of the time in all. What was won are frames that
are decoded once for several batches (`design/0035-films.md`), images that cross no process, and one scaler a decoder on
one thread. Before frames were decoded ahead, on 2026-11-26 on a slower machine: 1.52 and 1.38.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _harness import Numbers, Options, Target, bench_dir, ratio, run, time_steady


class Kind(NamedTuple):
    """Films, and clips of them."""

    films: int
    height: int
    width: int
    batch_size: int
    clip: int
    """Frames of a clip."""
    group: int
    """A key frame at each of so many frames."""


_LENGTH = 200
_KINDS = {
    "small": Kind(50, 96, 96, 32, 8, 2),
    "large": Kind(8, 480, 640, 8, 8, 2),
    "rare": Kind(20, 240, 320, 32, 1, 250),
}


@functools.cache
def films(kind: str) -> list[Path]:
    """The films, written once."""
    import av

    count, height, width, _, _, group = _KINDS[kind]
    folder = bench_dir() / f"films-{kind}"
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number:03}.mp4" for number in range(count)]
    for number, path in enumerate(paths):
        if path.exists():
            continue
        rng = np.random.default_rng(number)
        picture = rng.integers(0, 255, (height // 8, width // 8, 3)).repeat(8, 0).repeat(8, 1).astype(np.uint8)
        unfinished = path.with_suffix(".part.mp4")
        with av.open(str(unfinished), "w") as file:
            stream = file.add_stream("libx264", rate=30, width=width, height=height, pix_fmt="yuv420p")
            stream.codec_context.gop_size = group
            for shift in range(_LENGTH):
                image = np.roll(picture, (shift, 2 * shift), (0, 1))
                file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            file.mux(stream.encode())
        unfinished.rename(path)
    return paths


def _places(kind: str) -> list[tuple[Path, int]]:
    return [(path, first) for path in films(kind) for first in range(_LENGTH - _KINDS[kind].clip + 1)]


class _Clips:
    """A dataset of PyTorch: clips, decoded by a function of a path and the first frame."""

    def __init__(self, kind: str, decode: Callable[[Path, int, int], Any]) -> None:
        self._places = _places(kind)
        self._decode = decode
        self._count = _KINDS[kind].clip

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Any:
        return self._decode(*self._places[index], self._count)


def _decoded(container: Any, first: int, count: int) -> Any:
    stream = container.streams.video[0]
    step = round(1 / (stream.average_rate * stream.time_base))
    container.seek(first * step, stream=stream, backward=True)
    wanted = (frame for frame in container.decode(stream) if frame.pts >= first * step)
    return np.stack([frame.to_ndarray(format="rgb24") for frame in itertools.islice(wanted, count)])


def pyav(path: Path, first: int, count: int) -> Any:
    """A clip of a film that is opened for it."""
    import av

    with av.open(str(path)) as container:
        return _decoded(container, first, count)


@functools.cache
def _container(path: Path) -> Any:
    import av

    return av.open(str(path))


def pyav_open(path: Path, first: int, count: int) -> Any:
    """A clip of a film that stays open."""
    return _decoded(_container(path), first, count)


@functools.cache
def _capture(path: Path) -> Any:
    import cv2

    cv2.setNumThreads(1)
    return cv2.VideoCapture(str(path))


def opencv(path: Path, first: int, count: int) -> Any:
    """A clip by OpenCV, of a film that stays open."""
    import cv2

    capture = _capture(path)
    capture.set(cv2.CAP_PROP_POS_FRAMES, first)
    return np.stack([cv2.cvtColor(capture.read()[1], cv2.COLOR_BGR2RGB) for _ in range(count)])


def _by_torch(kind: str, decode: Callable[[Path, int, int], Any], options: Options) -> Numbers:
    from torch.utils.data import DataLoader

    loader = DataLoader(
        _Clips(kind, decode), _KINDS[kind].batch_size, shuffle=True, num_workers=2, persistent_workers=True
    )

    def epoch() -> Iterator[Any]:
        return ((batch.numpy(),) for batch in loader)

    return _measured(epoch, options)


def _by_penstock(kind: str, options: Options) -> Numbers:
    import penstock as ps

    frames, of = ps.from_videos(films(kind)).select("frame", "video"), _KINDS[kind]
    clips = frames.windows(of.clip, groups="video").select("frame")
    loader = clips.shuffle(seed=1).batch(of.batch_size).loader(executor="threads", workers=2)
    return _measured(lambda: ((batch["frame"],) for batch in loader), options)


def _measured(epoch: Callable[[], Iterator[Any]], options: Options) -> Numbers:
    """Goes through epochs without an end."""
    return time_steady(itertools.chain.from_iterable(epoch() for _ in itertools.count()), options)


_DECODERS = {"pyav": pyav, "pyav_open": pyav_open, "opencv": opencv}
_CASES: dict[str, Callable[[Options], Numbers]] = {}
for _kind in _KINDS:
    _CASES[f"{_kind}_penstock"] = functools.partial(_by_penstock, _kind)
    for _name, _decode in _DECODERS.items():
        _CASES[f"{_kind}_{_name}"] = functools.partial(_by_torch, _kind, _decode)


def _targets(options: Options) -> list[Target]:
    return [
        Target(
            f"{kind}: clips a second, of the best other",
            ratio(f"{kind}_penstock", [f"{kind}_{name}" for name in _DECODERS]),
            at_least=2.0,
        )
        for kind in _KINDS
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets)
