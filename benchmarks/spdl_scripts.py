"""How fast is penstock by the methods of the benchmarks that SPDL publishes?

Question: SPDL's repository has scripts that measure the decoding of WAV and `.npz`, the transport of large arrays out
of a process (its arenas), and the start of workers that are sent 128 MiB of paths. What do SPDL and penstock reach here
by the same methods? And what does a training loop get from a folder of sounds?

Method: `python benchmarks/spdl_scripts.py`. Fresh processes in turn. `cpu` columns are the processor time of the
process and all below it, so of workers too; SPDL's own script leaves out a worker that still runs.

- `wav_*`, as `benchmark_wav.py`: the bytes of a WAV of 1 s (44.1 kHz, two channels, 16 bits) are given to a function in
  a pool of one thread, over and over. `spdl` is `load_wav`, a view of the bytes; `soundfile` gives int16, as there;
  `decoding` is `penstock.audio.Decoding`, which gives float32. `loader` is a penstock loader of such arrays with one
  thread, each in a slot of its ring.
- `sound_*`: 1,000 such files in the page cache, shuffled, to batches of 32 of float32, of which the consumer reads
  every byte. `penstock` is `from_files` and a `map` of `Decoding` on two threads; `spdl` a pipeline of two threads with
  `load_wav`, NumPy's conversion and `stack`; `torch` a DataLoader with two workers and soundfile.
- `npz_*`, as `benchmark_numpy.py`: an image of (3, 640, 480) and labels of (640, 480), uint8, as the bytes of a `.npz`.
  `numpy` and `spdl` are `numpy.load` and `load_npz` in a pool of two threads, `numpy_processes` in one of two
  processes. `penstock` and `penstock_spdl` are loaders that have two threads call these functions, `penstock_processes`
  two worker processes with NumPy. `zipped` is a compressed one.
- `arena_*`, as `benchmark_arena_transport.py`: arrays of 32 MiB from a process to a consumer that reads nothing.
  `pickled`, `ring` and `pool` are SPDL's transports, as in the script; `penstock` is a `map` on one worker process.
- `start_*`, as `benchmark_ipc_dataloader.py`: an object of 2,097,152 byte strings of 64 bytes, from making the loader
  to its first batch of 256 of their lengths. `torch` is a DataLoader whose two workers are spawned, as the script has
  it; `spdl` is a pipeline in a process that is spawned (`run_pipeline_in_subprocess`). `penstock` is `from_source` of
  that object on two threads: penstock refuses to send a list of more than 32 MiB to processes, and says that it takes
  arrays or threads. `penstock_array` is `from_arrays` of the strings as one array and a `map`, on two worker processes.

Machine: two cores of an AMD EPYC in a virtual machine, Linux 6.18, Python 3.11.7, NumPy 2.4.6, PyTorch 2.13, SPDL 0.8,
soundfile 0.14, 2026-11-29, quiet.

Result, one round of `--quick`; for each element:

                                    1/s    CPU, us
    wav_spdl                     51,672         22   a view of int16
    wav_soundfile                 8,816        122   int16
    wav_decoding                  5,093        208   float32
    wav_loader                    2,963        351
    sound_penstock                2,312        547
    sound_spdl                    1,584        830
    sound_torch                   1,195      1,523
    npz_spdl                      7,917        232
    npz_penstock_spdl             4,223        384
    npz_penstock_processes        2,289        855
    npz_numpy                     1,511        938
    npz_penstock                  1,450        966
    npz_numpy_processes             264      6,800
    npz_zipped_spdl               1,777      1,078
    npz_zipped_penstock_spdl      1,638      1,159
    npz_zipped_penstock_processes 1,637      1,233
    npz_zipped_numpy                893      1,520
    npz_zipped_penstock             507      2,677
    arena_penstock                  396      2,625   13,290 MB/s
    arena_pool                      102      4,000    3,407 MB/s
    arena_ring                       25     43,125      840 MB/s
    arena_pickled                   9.3    157,125      311 MB/s

    start_penstock          38 ms, CPU 30 ms        start_spdl   1,344, 690
    start_penstock_array   254, 410                 start_torch  4,361, 1,520

A folder of sounds: 1.46 times the best of the others, 1.93 times a DataLoader. Arrays of 32 MiB: 3.9 times SPDL's pool
for 0.66 of its processor time. In two rounds on a busy machine these were 1.89 (1.44 to 2.34), 3.7 (2.73 to 4.66), 1.67
(1.46 to 1.89) and 0.76. Where we lose: `load_wav` gives a view of the bytes, and so does `load_npz` of what is not
compressed; a loader writes every element into a slot (`npz` 0.53; busy 0.65). `Decoding` is 0.58 of soundfile, which
it calls, because it scales to float32. Published by SPDL, of its own machine, one thread, WAV of 1 s: `load_wav`
51,585/s, soundfile 9,904, `load_audio` 116. A reader of plain WAV files in 30 lines took 49 us of processor time for
one of 1 s, `load_wav` with a conversion to float32 21; a kept library reads them all the same.

SPDL's scripts as they stand, run once on this machine, busy (without `load_audio`): WAV of 1 s on one thread, 1/s,
`load_wav` 28,825, soundfile 8,916, and `Decoding` put in beside them 5,572; on two 61,190, 6,211, 4,326. `.npz` on
two threads, `load_npz` 2,082, NumPy 601, compressed 864 and 593; on two processes 196, 147, 147, 141. Arrays of 32
MiB, MB/s: pool 2,967, ring 389, pickled 114. Two spawned workers with 128 MiB of paths: 12.0 s.

Not shown: TorchCodec, torchaudio and SPDL's `load_audio`, which read sound by an FFmpeg of the system, which this
machine does not have; more threads than two.
"""

import functools
import io
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Array, Numbers, Options, Target, bench_dir, ratio, run, time_steady
from _memory import descendants

_RATE, _SOUND_COUNT, _SOUND_BATCH = 44_100, 1_000, 32
_PAYLOAD_NBYTES, _PAYLOAD_COUNT = 32 << 20, 16
_STRING_COUNT, _STRING_NBYTES, _STRING_BATCH = 2_097_152, 64, 256
_ENDLESS = 1 << 40
_TICKS = os.sysconf("SC_CLK_TCK")

Function = Callable[[bytes], Any]


def _cpu_s() -> float:
    """The processor time of this process and of all that live below it."""
    total = 0.0
    for pid in [os.getpid(), *descendants(os.getpid())]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def _rated_s(options: Options) -> float:
    return 0.5 if options.quick else 2.0


def _called(function: Function, data: bytes, executor: Executor, options: Options) -> Numbers:
    """The rate of calls in an executor, a hundred submitted at a time, of which the first hundred warm up."""
    count = 0
    for _ in range(100):
        executor.submit(function, data).result()
    began_s, began_cpu_s = time.perf_counter(), _cpu_s()
    while time.perf_counter() < began_s + _rated_s(options):
        for future in as_completed([executor.submit(function, data) for _ in range(100)]):
            future.result()
        count += 100
    taken_s, cpu_s = time.perf_counter() - began_s, _cpu_s() - began_cpu_s
    return {"samples/s": count / taken_s, "cpu us": 1e6 * cpu_s / count}


def _drawn(elements: Iterable[Any], options: Options, count: int = 1) -> Numbers:
    """The rate of a loader whose elements, each of so many, nobody reads, after half a second that warms up."""
    began_s = time.perf_counter()
    started_s = cpu_s = 0.0
    number = 0
    for _ in elements:
        now_s = time.perf_counter()
        if not started_s:
            if now_s > began_s + 0.5:
                started_s, cpu_s = now_s, _cpu_s()
            continue
        number += count
        if now_s > started_s + _rated_s(options):
            break
    return {"samples/s": number / (now_s - started_s), "cpu us": 1e6 * (_cpu_s() - cpu_s) / number}


# Sound


def _wav(seconds: float = 1.0, pitch: float = 440.0) -> bytes:
    import soundfile

    times = np.arange(round(_RATE * seconds)) / _RATE
    samples = np.sin(2 * np.pi * np.array([pitch, 1.25 * pitch])[:, None] * times).T
    out = io.BytesIO()
    soundfile.write(out, (samples * 32_767).astype(np.int16), _RATE, format="WAV")
    return out.getvalue()


def by_spdl(data: bytes) -> Array:
    import spdl.io

    samples: Array = spdl.io.to_numpy(spdl.io.load_wav(data))
    return samples


def by_soundfile(data: bytes) -> Array:
    import soundfile

    samples: Array = soundfile.read(io.BytesIO(data), dtype="int16")[0]
    return samples


@functools.cache
def _decoding() -> Any:
    from penstock import audio

    return audio.Decoding()


def by_penstock(data: bytes) -> Array:
    samples: Array = _decoding()(data)
    return samples


def _wav_case(function: Function) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        with ThreadPoolExecutor(1) as executor:
            return _called(function, _wav(), executor, options)

    return measure


def wav_loader(options: Options) -> Numbers:
    import penstock as ps

    data = _wav()
    sounds = ps.range(_ENDLESS).map(lambda _: by_penstock(data))
    with sounds.loader("threads", workers=1) as loader:
        return _drawn(loader, options)


def _sounds() -> list[str]:
    folder = bench_dir() / "sounds"
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number:04}.wav" for number in range(_SOUND_COUNT)]
    for number, path in enumerate(paths):
        if not path.exists():
            path.write_bytes(_wav(pitch=200 + number))
    for path in paths:
        path.read_bytes()
    return list(map(str, paths))


def sound_penstock(paths: list[str]) -> Iterator[Array]:
    import penstock as ps
    from penstock import audio

    decoding = audio.Decoding()
    files = ps.from_files(paths).shuffle(seed=1).map(lambda e: decoding(e["bytes"]))
    yield from files.batch(_SOUND_BATCH, drop_remainder=True).repeat().loader("threads", workers=2)


def sound_spdl(paths: list[str]) -> Iterator[Array]:
    from spdl.pipeline import PipelineBuilder

    def shuffled() -> Iterator[str]:
        rng = np.random.default_rng(1)
        while True:
            yield from (paths[number] for number in rng.permutation(len(paths)).tolist())

    def load(path: str) -> Array:
        return by_spdl(Path(path).read_bytes()) * np.float32(2**-15)

    pipeline = (
        PipelineBuilder()
        .add_source(shuffled())
        .pipe(load, concurrency=2)
        .aggregate(_SOUND_BATCH)
        .pipe(np.stack)
        .add_sink(2)
        .build(num_threads=2)
    )
    with pipeline.auto_stop():
        yield from pipeline


class _SoundDataset:
    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Any:
        import soundfile
        import torch

        return torch.from_numpy(soundfile.read(self._paths[index], dtype="float32")[0])


def sound_torch(paths: list[str]) -> Iterator[Array]:
    from torch.utils.data import DataLoader

    dataset: Any = _SoundDataset(paths)
    loader = DataLoader(dataset, _SOUND_BATCH, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True)
    while True:
        for batch in loader:
            yield batch.numpy()


def _sound_case(contender: Callable[[list[str]], Iterator[Array]]) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        paths = _sounds()
        marks: list[tuple[float, int]] = []

        def counted() -> Iterator[Sequence[Array]]:
            count = 0
            for batch in contender(paths):
                count += len(batch)
                marks.append((_cpu_s(), count))
                yield (batch,)

        numbers = time_steady(counted(), options)
        (first_s, first), (last_s, last) = marks[len(marks) // 4], marks[-1]
        return {"samples/s": numbers["samples/s"], "cpu us": 1e6 * (last_s - first_s) / (last - first)}

    return measure


# .npz


def _npz(*, is_zipped: bool) -> bytes:
    rng, out = np.random.default_rng(0), io.BytesIO()
    arrays: dict[str, Any] = {
        "img": rng.integers(0, 256, (3, 640, 480), np.uint8),
        "lbl": rng.integers(0, 256, (640, 480), np.uint8),
    }
    (np.savez_compressed if is_zipped else np.savez)(out, **arrays)
    return out.getvalue()


def npz_numpy(data: bytes) -> tuple[Array, ...]:
    return tuple(np.load(io.BytesIO(data)).values())


def npz_spdl(data: bytes) -> tuple[Array, ...]:
    import spdl.io

    return tuple(spdl.io.load_npz(data).values())


def _npz_case(function: Function, pool: type[Executor], *, is_zipped: bool) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        with pool(2) as executor:  # type: ignore[call-arg]  # both kinds take the number of workers
            return _called(function, _npz(is_zipped=is_zipped), executor, options)

    return measure


def _npz_loader(function: Function, executor: Any, *, is_zipped: bool) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        import penstock as ps

        data = _npz(is_zipped=is_zipped)
        loader = ps.range(_ENDLESS).map(lambda _: function(data)).loader(executor, workers=2)
        return _drawn(loader, options)

    return measure


# Large arrays out of a process


@functools.cache
def _payload() -> Array:
    return np.zeros(_PAYLOAD_NBYTES // 4, np.float32)


class _Payloads:
    """A dataset whose array is made where it is iterated."""

    def __iter__(self) -> Iterator[dict[str, Array]]:
        for _ in range(_PAYLOAD_COUNT):
            yield {"data": _payload()}


def _arena(kind: str) -> Callable[[Options], Numbers]:
    def measure(options: Options) -> Numbers:
        from spdl.pipeline import (
            PipelineBuilder,
            SharedMemoryRingBuffer,
            SharedMemorySegmentPool,
            run_pipeline_in_subprocess,
        )

        slots = _PAYLOAD_COUNT + 2  # an arena that is full is an error, so the script has room for all
        arena: Any = None
        if kind == "ring":
            arena = SharedMemoryRingBuffer(capacity=2 * _PAYLOAD_NBYTES * slots)
        elif kind == "pool":
            arena = SharedMemorySegmentPool(segment_size=2 * _PAYLOAD_NBYTES, count=slots)
        config = PipelineBuilder().add_source(_Payloads()).add_sink(buffer_size=3).get_config()
        source = run_pipeline_in_subprocess(config, num_threads=1, arena=arena, buffer_size=3)
        return _moved(source for _ in iter(int, 1))

    def _moved(passes: Iterable[Iterable[Any]]) -> Numbers:
        began_s = began_cpu_s = 0.0
        for number, items in enumerate(passes):
            if number == 1:
                began_s, began_cpu_s = time.perf_counter(), _cpu_s()
            for item in items:
                del item
            if number == 5:
                break
        return _transport(5 * _PAYLOAD_COUNT, time.perf_counter() - began_s, _cpu_s() - began_cpu_s)

    return measure


def _transport(count: int, taken_s: float, cpu_s: float) -> Numbers:
    return {
        "samples/s": count / taken_s,
        "cpu us": 1e6 * cpu_s / count,
        "MB/s": count * _PAYLOAD_NBYTES / taken_s / 1e6,
    }


def arena_penstock(options: Options) -> Numbers:
    import penstock as ps

    payloads = ps.range(_ENDLESS).map(lambda index: {"data": _payload()})
    with payloads.loader("processes", workers=1) as loader:
        batches = iter(loader)
        for _ in range(_PAYLOAD_COUNT):
            next(batches)
        began_s, began_cpu_s = time.perf_counter(), _cpu_s()
        for _ in range(5 * _PAYLOAD_COUNT):
            next(batches)
        return _transport(5 * _PAYLOAD_COUNT, time.perf_counter() - began_s, _cpu_s() - began_cpu_s)


# Workers that are sent 128 MiB


class ByteStrings:
    """Byte strings as of paths; an element is the length of one."""

    def __init__(self) -> None:
        self._strings = [b"/data/train/%047d.JPEG" % number for number in range(_STRING_COUNT)]

    def __len__(self) -> int:
        return len(self._strings)

    def __getitem__(self, index: int) -> int:
        return len(self._strings[index])

    def array(self) -> Array:
        """All of them."""
        return np.array(self._strings)

    def __iter__(self) -> Iterator[int]:
        return map(len, self._strings)


def _first(batches: Callable[[], Iterable[Any]]) -> Numbers:
    began_s, began_cpu_s = time.perf_counter(), _cpu_s()
    batch = next(iter(batches()))
    taken_s = time.perf_counter() - began_s
    if len(batch) != _STRING_BATCH:
        raise RuntimeError(f"The first batch is not what it should be: {batch}")
    return {"first batch ms": 1e3 * taken_s, "cpu ms": 1e3 * (_cpu_s() - began_cpu_s)}


def start_torch(_: Options) -> Numbers:
    from torch.utils.data import DataLoader

    strings: Any = ByteStrings()
    return _first(
        lambda: iter(
            DataLoader(
                strings, _STRING_BATCH, num_workers=2, multiprocessing_context=multiprocessing.get_context("spawn")
            )
        )
    )


def start_spdl(_: Options) -> Numbers:
    from spdl.pipeline import PipelineBuilder, run_pipeline_in_subprocess

    strings = ByteStrings()
    config = PipelineBuilder().add_source(strings).aggregate(_STRING_BATCH).add_sink(2).get_config()
    return _first(lambda: run_pipeline_in_subprocess(config, num_threads=1, mp_context="spawn"))


def start_penstock(_: Options) -> Numbers:
    import penstock as ps

    strings = ByteStrings()
    return _first(lambda: ps.from_source(strings).batch(_STRING_BATCH).loader("threads", workers=2))


def start_penstock_array(_: Options) -> Numbers:
    import penstock as ps

    strings = ByteStrings().array()
    return _first(lambda: ps.from_arrays(strings).map(len).batch(_STRING_BATCH).loader("processes", workers=2))


_CASES: dict[str, Callable[[Options], Numbers]] = {
    "wav_soundfile": _wav_case(by_soundfile),
    "wav_spdl": _wav_case(by_spdl),
    "wav_decoding": _wav_case(by_penstock),
    "wav_loader": wav_loader,
    "sound_penstock": _sound_case(sound_penstock),
    "sound_spdl": _sound_case(sound_spdl),
    "sound_torch": _sound_case(sound_torch),
    **{
        f"npz{end}_{name}": case
        for end, is_zipped in (("", False), ("_zipped", True))
        for name, case in {
            "numpy": _npz_case(npz_numpy, ThreadPoolExecutor, is_zipped=is_zipped),
            "numpy_processes": _npz_case(npz_numpy, ProcessPoolExecutor, is_zipped=is_zipped),
            "spdl": _npz_case(npz_spdl, ThreadPoolExecutor, is_zipped=is_zipped),
            "penstock": _npz_loader(npz_numpy, "threads", is_zipped=is_zipped),
            "penstock_spdl": _npz_loader(npz_spdl, "threads", is_zipped=is_zipped),
            "penstock_processes": _npz_loader(npz_numpy, "processes", is_zipped=is_zipped),
        }.items()
    },
    "arena_pickled": _arena("pickled"),
    "arena_ring": _arena("ring"),
    "arena_pool": _arena("pool"),
    "arena_penstock": arena_penstock,
    "start_torch": start_torch,
    "start_spdl": start_spdl,
    "start_penstock": start_penstock,
    "start_penstock_array": start_penstock_array,
}


def _targets(options: Options) -> list[Target]:
    arenas = ["arena_pickled", "arena_ring", "arena_pool"]
    return [
        Target("wav: Decoding / soundfile", ratio("wav_decoding", ["wav_soundfile"])),
        Target("wav: a loader with one thread / soundfile", ratio("wav_loader", ["wav_soundfile"])),
        Target("sound: penstock / the best of the others", ratio("sound_penstock", ["sound_spdl", "sound_torch"])),
        Target("sound: penstock / a DataLoader", ratio("sound_penstock", ["sound_torch"]), at_least=1),
        *(
            Target(f"{kind}: the best of penstock / SPDL's", _best_of_penstock(kind, f"{kind}_spdl"))
            for kind in ("npz", "npz_zipped")
        ),
        Target("arena: penstock / SPDL's best, MB/s", ratio("arena_penstock", arenas), at_least=1),
        Target(
            "arena: penstock / SPDL's pool, processor time", _part("arena_penstock", "arena_pool", "cpu us"), at_most=1
        ),
        *(
            Target(
                f"start: {name} / {other}, ms", _part(f"start_{name}", f"start_{other}", "first batch ms"), at_most=1
            )
            for name in ("penstock", "penstock_array")
            for other in ("torch", "spdl")
        ),
    ]


def _best_of_penstock(kind: str, other: str) -> Callable[[Any], float]:
    ours = (f"{kind}_penstock", f"{kind}_penstock_spdl", f"{kind}_penstock_processes")
    return lambda round_: max(round_[name]["samples/s"] for name in ours) / round_[other]["samples/s"]


def _part(case: str, other: str, column: str) -> Callable[[Any], float]:
    return lambda round_: round_[case][column] / round_[other][column]


if __name__ == "__main__":
    run(__file__, _CASES, _targets, round_count=2, case_timeout_s=60)
