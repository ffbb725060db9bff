"""Steps of robots with films of several cameras at random: how fast do batches come?

Question: a policy reads the last eight frames of each camera and the next eight actions, from any step of any episode.
How many steps a second come from two workers, shuffled over all episodes? And how many if the folder is in an object
store, whose answers take 30 ms?

Method: `python benchmarks/robots.py`. LeRobot itself writes the folders (version 3), by H.264, with a key frame at each
second frame, which is its default. `small_*`: 50 episodes of 200 frames of 96x96, one camera, batches of 32. `large_*`:
8 episodes of 200 frames of 480x640, four cameras, batches of 8: 236 MB. `whole_*`: 50 of these, batches of 32: 944 MB.
The consumer reads every byte. `penstock` is `from_lerobot`, `windows` with offsets by name, and `shuffle`, on threads;
`store` is the same from `s3://`, whose server (`_object_server.py`) shares the cores, with indexes of films that were
made before; `lerobot` is `LeRobotDataset` with `delta_timestamps` and `return_uint8=True` in PyTorch's DataLoader, as
its documentation has it, by TorchCodec, and `lerobot_pyav` by PyAV; `torchcodec` is a dataset of indices in a
DataLoader, whose workers keep a `VideoDecoder` for each film.

Where LeRobot is not installed, PyAV writes the folders, with half the bits. The contenders need Python 3.12, FFmpeg and
`pip install "lerobot[dataset]"`, in an environment apart.

Machine: two cores of an AMD EPYC, Linux 6.18, Python 3.12.1, NumPy 2.2.6, LeRobot 0.6.1, TorchCodec 0.11.1, PyAV 15.1,
2026-11-26, three rounds. The machine was busy with other work throughout, and the ranges are wide.

Result, steps a second, median and range:

    case               small             large
    penstock           634 (548-815)     16 (6.8-23)
    lerobot            337 (112-505)     10 (7.7-14)
    lerobot_pyav       195 (143-235)     7.2 (3.7-11)
    torchcodec         947 (441-1,815)   5.8 (5.1-7.7)
    ratio to the best  0.58 (0.45-1.4)   1.6 (0.62-2.1)

On 2026-11-27, a faster AMD EPYC, quiet, `--quick`, two rounds (`whole`: one): penstock also in an environment without
LeRobot, with PyAV 18, which scales on one thread (LeRobot asks for 15, which makes a scaler with threads for each
frame):

    case               small                    large                whole
    penstock           1,496 (1,238 to 1,754)   17.2 (11.5 to 22.8)  12.3
    penstock, PyAV 15    856 (827 to 886)       11.9 (11.6 to 12.2)  12.4
    lerobot              830 (800 to 859)        9.7 (8.9 to 10.5)    5.7
    lerobot_pyav         458 (433 to 482)        9.8 (6.2 to 13.5)
    torchcodec         2,007 (1,995 to 2,018)   19.3 (19.1 to 19.6)   9.1
    ratio to the best  0.75                     0.89                 1.35

So the target of 2 is met beside LeRobot's own loader in `whole`, and not beside TorchCodec. A clip of small frames
takes 0.6 ms of a processor to decode by PyAV, and TorchCodec takes 0.8 ms with the conversion; here it is 0.9 ms on one
thread, and more on two, which wait for the GIL between the frames. Large frames are decoding in all of them (15 ms a
clip of each camera); what is won there are images that cross no process, which counts in large batches.

Behind 30 ms, 2026-11-29, PyAV 18.1, obstore 0.12, folders that PyAV wrote (5 MB and 113 MB), on a machine with eight
other busy processes, `store` beside `penstock` in the same run, 13 rounds in three runs, medians of the runs and range:

    small  1.33 to 1.61 of the local rate (0.56 to 2.5), wanted 0.9
    large  0.92 to 2.2 (0.14 to 6.9), wanted 0.9

The ranges are those of the machine. On a quiet one, two rounds: small 1.23 (0.71 to 1.75), large 1.01 (1.00 to 1.01).
In `large` each byte was requested once on the whole (117 MB), because 64 MiB of pages are kept, and decoded frames too.
With six times as much (24 films, 680 MB) 0.9 is not shown: the report said that the network was the limit for 6 to 21 %
of the time while the machine was busy (4 steps/s), and for 33 % at 11 steps/s. Two causes were found: heads of films
that were read again, and announced pages that no decoder read, which held the memory of later requests. With a version
that read these too it said 13 % at 4 steps/s, of a run of 8 s whose first second opens 24 films. That version read too
much of films with few key frames; now a page is announced once, which was not measured here. 1.4 to 2.4 times the bytes
came that the frames need, because pages of 256 KiB hold more than one clip.
"""

import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Numbers, Options, Target, bench_dir, ratio, run, time_steady
from _object_server import Behaviour, serving

OFFSETS, FPS = 8, 30
_KINDS = {
    "small": (50, 200, 96, 96, 1, 32),
    "large": (8, 200, 480, 640, 4, 8),
    "whole": (50, 200, 480, 640, 4, 32),
}
"""Episodes, frames of each, height, width, cameras, steps in a batch."""


def _cameras(kind: str) -> list[str]:
    return [f"observation.images.c{number}" for number in range(_KINDS[kind][4])]


@functools.cache
def folder(kind: str) -> Path:
    """The folder of LeRobot, written once; by PyAV where LeRobot is not installed."""
    path = bench_dir() / f"robot-{kind}"
    if (path / "written").exists():
        return path
    try:
        from lerobot.configs.video import RGBEncoderConfig
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
    except ImportError:
        _write(kind, path)
        (path / "written").touch()
        return path

    _, length, height, width, _, _ = _KINDS[kind]
    names = {"names": ["height", "width", "channels"]}
    features = {name: {"dtype": "video", "shape": (height, width, 3), **names} for name in _cameras(kind)}
    features["action"] = {"dtype": "float32", "shape": (6,), "names": None}
    encoder = RGBEncoderConfig(vcodec="h264")
    made = LeRobotDataset.create(f"bench/{kind}", FPS, features, root=path, rgb_encoder=encoder)
    rng = np.random.default_rng(0)
    frames = zip(*(_images(kind, number) for number in range(len(_cameras(kind)))), strict=True)
    for place, images in enumerate(frames, 1):
        named = dict(zip(_cameras(kind), images, strict=True))
        made.add_frame({**named, "action": rng.random(6, np.float32), "task": "move"})
        if place % length == 0:
            made.save_episode()
    made.finalize()
    (path / "written").touch()
    return path


def _images(kind: str, number: int) -> Iterator[Any]:
    """The frames of a camera."""
    count, length, height, width, _, _ = _KINDS[kind]
    for episode in range(count):
        rng = np.random.default_rng(episode)
        picture = rng.integers(0, 255, (height // 8, width // 8, 3)).repeat(8, 0).repeat(8, 1).astype(np.uint8)
        for shift in range(length):
            yield np.roll(picture, (shift, 2 * shift + 9 * number), (0, 1))


def _write(kind: str, path: Path) -> None:
    """Writes the folder as LeRobot does, with one film a camera."""
    import av
    import pyarrow as pa
    import pyarrow.parquet as pq

    count, length, height, width, _, _ = _KINDS[kind]
    form = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    features = {name: {"dtype": "video", "shape": [height, width, 3]} for name in _cameras(kind)}
    info = {"codebase_version": "v3.0", "fps": FPS, "features": features, "video_path": form}
    episodes: dict[str, Any] = {"episode_index": np.arange(count)}
    for number, name in enumerate(_cameras(kind)):
        film = path / form.format(video_key=name, chunk_index=0, file_index=0)
        film.parent.mkdir(parents=True)
        with av.open(str(film), "w") as file:
            stream: Any = file.add_stream("libx264", rate=FPS, width=width, height=height, pix_fmt="yuv420p")
            stream.options = {"g": "2", "crf": "30"}
            for image in _images(kind, number):
                file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            file.mux(stream.encode())
        episodes |= {f"videos/{name}/{word}_index": np.zeros(count, int) for word in ("chunk", "file")}
        episodes[f"videos/{name}/from_timestamp"] = np.arange(count) * length / FPS
    actions = np.random.default_rng(0).random(6 * count * length, np.float32)
    steps = {
        "action": pa.FixedSizeListArray.from_arrays(pa.array(actions), 6),
        "timestamp": (np.tile(np.arange(length), count) / FPS).astype(np.float32),
        "episode_index": np.repeat(np.arange(count), length),
    }
    for where, columns in (("meta/episodes/chunk-000", episodes), ("data/chunk-000", steps)):
        (path / where).mkdir(parents=True)
        pq.write_table(pa.table(columns), path / where / "file-000.parquet")
    (path / "meta" / "info.json").write_text(json.dumps(info))


def _by_torch(kind: str, dataset: Any, options: Options) -> Numbers:
    from torch.utils.data import DataLoader

    batch = _KINDS[kind][5]
    loader = DataLoader(dataset, batch, shuffle=True, num_workers=2, persistent_workers=True)

    def epoch() -> Iterator[Any]:
        for found in loader:
            yield [np.asarray(found[name]) for name in [*_cameras(kind), "action"]]

    return time_steady(itertools.chain.from_iterable(epoch() for _ in itertools.count()), options)


def by_lerobot(kind: str, backend: str, options: Options) -> Numbers:
    """LeRobot's own dataset."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    times: dict[str, list[float]] = {name: [k / FPS for k in range(1 - OFFSETS, 1)] for name in _cameras(kind)}
    times["action"] = [k / FPS for k in range(OFFSETS)]
    dataset = LeRobotDataset(
        f"bench/{kind}", folder(kind), delta_timestamps=times, video_backend=backend, return_uint8=True
    )
    return _by_torch(kind, dataset, options)


class _Steps:
    """A dataset of PyTorch that decodes by TorchCodec alone, in films of all episodes one after the other."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._episodes, self._length = _KINDS[kind][:2]
        self._decoders: dict[str, Any] = {}

    def __len__(self) -> int:
        return self._episodes * self._length

    def __getitem__(self, index: int) -> Any:
        from torchcodec.decoders import VideoDecoder

        episode, step = divmod(index, self._length)
        frames = np.clip(np.arange(step + 1 - OFFSETS, step + 1), 0, None) + episode * self._length
        found: dict[str, Any] = {}
        for name in _cameras(self._kind):
            if name not in self._decoders:
                (film,) = (folder(self._kind) / "videos" / name).rglob("*.mp4")
                self._decoders[name] = VideoDecoder(film, seek_mode="approximate", num_ffmpeg_threads=1)
            found[name] = self._decoders[name].get_frames_at(frames.tolist()).data
        return found | {"action": np.zeros((OFFSETS, 6), np.float32)}


def by_torchcodec(kind: str, options: Options) -> Numbers:
    """TorchCodec in a DataLoader."""
    return _by_torch(kind, _Steps(kind), options)


def by_penstock(kind: str, options: Options, path: str | None = None) -> Numbers:
    """`from_lerobot`."""
    import penstock as ps

    steps = ps.from_lerobot(path or folder(kind))
    offsets = {name: range(1 - OFFSETS, 1) for name in _cameras(kind)} | {"action": range(OFFSETS)}
    windows = steps.windows(offsets, groups="episode_index").shuffle(1).batch(_KINDS[kind][5])
    with windows.loader("threads", workers=2, prefetch=2) as loader:

        def epoch() -> Iterator[Any]:
            for batch in loader:
                yield [batch[name] for name in [*_cameras(kind), "action"]]

        return time_steady(itertools.chain.from_iterable(epoch() for _ in itertools.count()), options)


def by_store(kind: str, options: Options) -> Numbers:
    """`from_lerobot` with an object store, whose answers take 30 ms. Indexes of films are kept from the first time."""
    import penstock as ps

    path = folder(kind)
    with serving(Behaviour(latency_s=0.0)) as store:
        for each in path.rglob("*"):
            if each.is_file() and each.name[0] != ".":
                store.put(f"bench/{each.relative_to(path)}", each.read_bytes())
        os.environ.update(store.environment, XDG_CACHE_HOME=str(bench_dir() / "robot-indexes"))
        len(ps.from_lerobot("s3://bench"))  # finds the frames
        store.set(Behaviour())
        numbers = by_penstock(kind, options, "s3://bench")
        return numbers | {"MB asked for": store.stats()["bytes"] / 1e6}


_CASES: dict[str, Callable[[Options], Numbers]] = {}
for _kind in _KINDS:
    _CASES[f"{_kind}_penstock"] = functools.partial(by_penstock, _kind)
    _CASES[f"{_kind}_store"] = functools.partial(by_store, _kind)
    _CASES[f"{_kind}_lerobot"] = functools.partial(by_lerobot, _kind, "torchcodec")
    _CASES[f"{_kind}_lerobot_pyav"] = functools.partial(by_lerobot, _kind, "pyav")
    _CASES[f"{_kind}_torchcodec"] = functools.partial(by_torchcodec, _kind)


def _targets(options: Options) -> list[Target]:
    return [
        Target(
            f"{kind}: steps a second, of the best other",
            ratio(f"{kind}_penstock", [f"{kind}_{name}" for name in ("lerobot", "lerobot_pyav", "torchcodec")]),
            at_least=2,
        )
        for kind in _KINDS
    ] + [
        Target(f"{kind}: behind 30 ms, of the local rate", ratio(f"{kind}_store", [f"{kind}_penstock"]), at_least=0.9)
        for kind in _KINDS
    ]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=3)
