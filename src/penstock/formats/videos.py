"""Films: frames by index, from files of any number, decoded by PyAV (FFmpeg).

A frame is named by its time in the file. The packets of a file, which are read once and not decoded, say which times
there are and which frames can be decoded alone: the key frames. A frame is decoded from the last key frame before it.
Not every container says the times of all packets, and then FFmpeg counts others after a seek than from the beginning.
So the packets behind a seek are compared with those of the one whole reading. Where they differ, and where pictures are
numbers of a palette, which is read at the beginning alone, a frame is decoded from the beginning.

Threads. Any number of threads may use an open source. A decoder belongs to the thread that took it.
"""

import itertools
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock._dataset import Dataset
from penstock.base._arguments import checked_size, needs
from penstock.base._errors import ArgumentError, PenstockError, SourceError
from penstock.base._spec import ArraySpec
from penstock.memory._rows import Indices, positions_of
from penstock.plan._order import Position, ReadOrder
from penstock.plan._source import Read
from penstock.plan._source_node import SourceNode
from penstock.sources import _openfile
from penstock.sources._ahead import Ahead, Uses
from penstock.sources._diskcache import DiskCache
from penstock.sources._kept import Arrays, kept
from penstock.sources._openfile import File, FilesSource, bounds_of, by_part, for_each, placed

_FORMATS: Final = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,ogg,asf"
"""Containers. Others, such as playlists, name files and addresses that FFmpeg would open."""
_SAFE_FORMATS: Final = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm"
"""Those that PyAV before 17 opens with options. Others, such as FLV, end the process."""
_IDLE_NBYTES: Final = 64 << 20
_IDLE_COUNTS: Final = (4, 128)
"""Decoders that wait for the next frames of their files: as many as fit into these bytes, between these numbers."""
_AHEAD_NBYTES: Final = 256 << 20
"""Frames that were decoded for batches that follow."""
_NO_ROWS: Final = np.empty(0, np.int64)
_FRAMES_OF_DECODER: Final = 20
"""Frames that a decoder holds at most: 16 that others refer to, and those under way."""
_MOST_PIXELS: Final = 1 << 26
"""Of a frame. Its memory is taken when a film is opened: FFmpeg decodes the first for what no header says."""
_UNKNOWN_COUNT: Final = 1 << 30
"""The frames of an AVI that FFmpeg writes into a pipe."""
_NO_SEEK: Final = np.iinfo(np.int64).min
"""In place of the time of a key frame: decode from the beginning of the file."""
_NAMES: Final = ("frame", "time", "video")

Path = str | os.PathLike[str]
Frame = npt.NDArray[np.uint8]


def from_videos(
    paths: Path | Iterable[Path],
    *,
    size: tuple[int, int] | None = None,
    cache_dir: Path | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
) -> Dataset:
    """Makes a dataset of the frames of films: MP4, MOV, Matroska, WebM and other containers, by PyAV.

    An element is a dict of `"frame"`, RGB, uint8 of shape `(height, width, 3)`; `"time"`, seconds, float64, as the file
    says, from its first frame on; and `"video"`, the number of its file, int64. `windows` makes clips of frames:
    `ds.windows(16, stride=2, groups="video")`, none of which reaches into another file.

    The call opens each file and reads its head. The first use reads each file once, without decoding it, to find its
    frames; what is found is kept in a hidden file beside it, as for `from_tfrecord`.

    Frames of a batch are read file by file, in order, and one that several elements share is decoded once. Before a
    frame lie those since the last key frame, which are decoded with it. So a loader decodes at once what its next
    batches want behind a key frame. If films are many, reads at random are faster with frequent key frames: `ffmpeg -i
    a.mp4 -g 8 b.mp4`. Order in a file costs nothing more: `shuffle(window=)` keeps it nearly.

    Random access: yes. Order: that of the given paths, and of time; the files of a pattern by name. Threads decode side
    by side. Memory: 32 bytes a frame in each process; one decoder of some 20 frames for each worker, with 4 MiB of its
    file behind a URL; 64 MiB of others that wait, or four if they are larger; and 256 MiB of frames for later batches.
    A rotation that the file asks for is not applied. Frames before the first key frame that cannot be decoded, as in
    parts of recordings, are left out. Those of MPEG program streams (`.mpg`, `.vob`) and those with a palette are
    decoded from the beginning of the file each time; convert such films before: `ffmpeg -i a.mpg a.mp4`.

    PyAV before version 17, which LeRobot asks for, reads MP4, MOV, Matroska and WebM here, and no other container.

    Args:
        paths: A path, a pattern (`"train/*.mp4"`), a URL, or a list of these.
        size: Height and width to scale frames to, bilinear. Needed if files have several sizes.
        cache_dir: Where to keep what was found of files; None for beside them.
        storage_options: See `from_tar`.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.

    Raises:
        ModuleNotFoundError: PyAV is missing (extra `video`).
        ArgumentError: Files have several sizes and `size` is not given, or it is no size.
        SourceError: A file is missing, is no film, or damaged; while reading, a frame cannot be decoded. The message
            has the file, and the frame.

    Example:
        >>> import av
        >>> with av.open("clip.mp4", "w") as file:
        ...     stream = file.add_stream("mpeg4", rate=10, width=32, height=16, pix_fmt="yuv420p")
        ...     for number in range(5):
        ...         image = np.full((16, 32, 3), 50 * number, np.uint8)
        ...         file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        ...     file.mux(stream.encode())
        >>> ds = penstock.from_videos("clip.mp4")
        >>> len(ds), ds[3]["frame"].shape, float(ds[3]["time"])
        (5, (16, 32, 3), 0.3)
    """
    with needs("from_videos", "av"):
        import av  # noqa: F401  # or each file would be called damaged
    files = _openfile.find("from_videos", paths, storage_options, cache)
    size = None if size is None else checked_size(size)
    heads = list(for_each(files, _head))
    if size is None:
        for file, head in zip(files, heads, strict=True):
            if head != heads[0]:
                raise ArgumentError(
                    f"Frames of {file.url} are {head[0]} by {head[1]}, and those of {files[0].url} {heads[0][0]} by "
                    f"{heads[0][1]} pixels. Say to which height and width they are scaled: "
                    "from_videos(..., size=(240, 320))."
                )
    folder = None if cache_dir is None else os.fspath(cache_dir)
    return Dataset(SourceNode(VideoSource(files, *(size or heads[0]), size is not None, folder), "from_videos"))


@contextmanager
def _named(file: File, frame: int | None = None) -> Iterator[None]:
    """Turns errors of FFmpeg into those of this library."""
    import av

    try:
        yield
    except PenstockError:
        raise
    except (av.FFmpegError, ValueError, IndexError, UnicodeDecodeError) as error:
        what = "cannot be read as a film" if frame is None else f"is damaged: its frame {frame} cannot be decoded"
        raise SourceError(
            f"{file.url} {what}: {getattr(error, 'strerror', None) or error}. See what `ffprobe` says of it."
        ) from error


def _version() -> int:
    """That of PyAV, of which the first number tells what it can do."""
    import av

    return int(av.__version__.partition(".")[0])


@contextmanager
def _opened(file: File, *, is_read_whole: bool = False, **options: str) -> Iterator[tuple[Any, Any]]:
    """Opens a film: its container, and its first stream of pictures that is no cover."""
    import av
    from av.stream import Disposition

    with file.stream() if is_read_whole else file.scan() as data:
        # FFmpeg gets bytes and no name, and so opens no other file.
        options |= {"format_whitelist": _SAFE_FORMATS if _version() < 17 else _FORMATS, "protocol_whitelist": "none"}
        options |= (limits := {"max_pixels": str(_MOST_PIXELS)})
        # Titles that are no text are no error, and from 19 on PyAV takes them of itself.
        errors: Any = {"metadata_errors": "replace"} if _version() < 19 else {}
        with av.open(data, options=options, **errors) as container:
            films = (each for each in container.streams.video if not each.disposition & Disposition.attached_pic)
            stream = next(films, None)
            if stream is None:
                kinds = sorted(
                    {"a cover" if each.type == "video" else each.type or "data" for each in container.streams}
                )
                raise SourceError(
                    f"{file.url} has no pictures, only streams of {', '.join(kinds)}. Sound: ffmpeg -i FILE new.flac "
                    "makes what penstock.audio.decode reads."
                )
            if stream.codec_context is None:
                raise SourceError(f"{file.url}: its pictures are of a kind that PyAV has no decoder for.")
            stream.codec_context.options = limits
            stream.codec_context.thread_count = 1
            yield container, stream


def _head(file: File) -> tuple[int, int]:
    """The height and the width of the frames of a file."""
    with _named(file), _opened(file) as (_, stream):
        height, width = stream.codec_context.height, stream.codec_context.width
        if not 0 < height * width <= _MOST_PIXELS:
            size = f"are {height} by {width} pixels" if height * width else "have no size, or too large a one"
            raise SourceError(
                f"{file.url} says that its frames {size}. Between 1 and {_MOST_PIXELS:,} pixels are read."
            )
        return height, width


def _frames_of(file: File) -> Arrays:
    """Finds the frames of a file.

    Returns:
        `times` in units of `base`, in order; for each the time to seek, and the place of its key frame; and the marks
        of all packets, as they follow one another.

    Raises:
        SourceError: It is damaged, or frames have no times.
    """
    times: list[int] = []
    starts: list[tuple[int, int]] = []
    marks: list[int] = []
    with _named(file), _opened(file, is_read_whole=True) as (container, stream):
        said, base, kind = stream.frames, stream.time_base, container.format.name
        # AVI has no times: FFmpeg counts packets, which are in another order than frames.
        is_untimed = kind == "avi" and stream.codec_context.has_b_frames
        for packet in container.demux(stream):
            if _is_end(packet):
                continue
            if packet.pts is None or packet.is_corrupt or is_untimed:
                fault = "is damaged" if packet.is_corrupt else "does not say at which time it is shown"
                raise SourceError(
                    f"{file.url}: frame {len(marks)} {fault}, so frames cannot be read by their numbers. Write it "
                    "anew: ffmpeg -i FILE new.mp4."
                )
            marks.append(_mark(packet))
            if packet.is_keyframe:
                starts.append((packet.pts, packet.pts if packet.dts is None else packet.dts))
            if not packet.is_discard:
                times.append(packet.pts)
        has_palette = stream.codec_context.pix_fmt == "pal8"
    count = len(marks)
    if count < said and kind == "avi":
        # Frames that were dropped have times, and no packets. Of a film that is written into a pipe nothing is known.
        count = said if said == _UNKNOWN_COUNT else max(times, default=-1) + 1
    if count < said and kind.startswith("mov"):
        count = _packet_count(file)
    if count < said:
        raise SourceError(f"{file.url} is cut off: it has {count:,} frames, and its head says {said:,}.")
    shown, keys = np.sort(np.array(times, np.int64)), np.array(sorted(starts), np.int64).reshape(-1, 2)
    if len(keys) and len(shown) and shown[0] < keys[0, 0]:
        shown = shown[shown >= _first_time(file, int(keys[0, 0]))]
    if not len(shown) or not len(keys) or not base:
        raise SourceError(f"{file.url} has no frame that can be decoded.")
    if (shown[1:] == shown[:-1]).any():
        raise SourceError(f"{file.url} has two frames at one time, so they cannot be told apart. Write it anew.")
    if has_palette:
        keys = np.array([[keys[0, 0], _NO_SEEK]])
    place = np.maximum(np.searchsorted(keys[:, 0], shown, "right") - 1, 0)
    return {
        "times": shown,
        "seeks": keys[place, 1],
        "firsts": np.searchsorted(shown, keys[place, 0]),
        "marks": np.array(marks, np.int64),
        "base": np.array([base.numerator, base.denominator], np.int64),
    }


def _is_end(packet: Any) -> bool:
    """Whether a packet is the mark of the end."""
    return packet.size == 0 and packet.pts is None


def _mark(packet: Any) -> int:
    """What tells a packet from those around it: its time and its size, in 63 bits."""
    return int((packet.pts << 24 ^ packet.size) & (1 << 63) - 1)


def _packet_count(file: File) -> int:
    """The packets of an MP4 or MOV, with those that its edit list leaves out."""
    with _named(file), _opened(file, is_read_whole=True, ignore_editlist="1") as (container, stream):
        return sum(not _is_end(packet) for packet in container.demux(stream))


def _first_time(file: File, key: int) -> int:
    """The time of the first frame that can be decoded, in a file in which some are shown before the first key frame.

    They need frames that are not there if the film was cut out of a longer one. Otherwise they are sound.
    """
    with _named(file), _opened(file) as (container, stream):
        for packet in itertools.dropwhile(lambda packet: not packet.is_keyframe, container.demux(stream)):
            for frame in packet.decode():
                return key if frame.pts is None else min(int(frame.pts), key)
    return key


class VideoIndex(NamedTuple):
    """The frames of all files."""

    bounds: npt.NDArray[np.int64]
    """See `bounds_of`."""
    found: Sequence[Arrays]
    """Those of each file, see `_frames_of`."""


@final
@dataclass(frozen=True)
class VideoSource(FilesSource):
    """The frames of films, one file after the other."""

    files: tuple[File, ...]
    height: int
    width: int
    is_scaled: bool
    cache_dir: str | None
    names: tuple[str, ...] = _NAMES
    most_kept: int = field(default=_IDLE_NBYTES + _AHEAD_NBYTES, compare=False)
    """The bytes that an open source keeps, at most, if one decoder is not larger."""

    is_cpu_bound = True
    suits_one_thread = False
    reads_ahead = False

    @property
    def element_spec(self) -> dict[str, ArraySpec]:
        specs = {
            "frame": ArraySpec((self.height, self.width, 3), np.dtype(np.uint8)),
            "time": ArraySpec((), np.dtype(np.float64)),
            "video": ArraySpec((), np.dtype(np.int64)),
        }
        return {name: specs[name] for name in self.names}

    @cached_property
    def index(self) -> VideoIndex:
        """The frames. Reads what was kept, or each file."""

        def found(file: File) -> Arrays:
            return kept(file, "frames", self.cache_dir, lambda: _frames_of(file))

        arrays = list(for_each(self.files, found))
        return VideoIndex(bounds_of(len(each["times"]) for each in arrays), arrays)

    @property
    def bounds(self) -> npt.NDArray[np.int64]:
        return self.index.bounds

    def times(self, number: int, places: Indices | slice = slice(None)) -> npt.NDArray[np.float64]:
        """The seconds of frames of a file, from its first one on."""
        found = self.index.found[number]
        numerator, denominator = found["base"].tolist()
        return (found["times"][places] - found["times"][0]) * numerator / denominator  # type: ignore[no-any-return]

    @property
    def kept_nbytes(self) -> int:
        if "frame" not in self.names:
            return 0
        return self.most_idle * self._decoder_nbytes + self.most_ahead * self.frame_nbytes

    @property
    def _decoder_nbytes(self) -> int:
        return _FRAMES_OF_DECODER * self.height * self.width * 3 // 2 + self.files[0].scan_nbytes

    @property
    def frame_nbytes(self) -> int:
        """The bytes of a frame as it is delivered."""
        return self.height * self.width * 3

    @property
    def most_idle(self) -> int:
        """Decoders that wait at most."""
        least, most = _IDLE_COUNTS
        wanted = max(least, min(most, _IDLE_NBYTES // self._decoder_nbytes))
        return max(1, min(len(self.files), wanted, self.most_kept // self._decoder_nbytes))

    @property
    def most_ahead(self) -> int:
        """Frames that are decoded for batches that follow, at most."""
        left = self.most_kept - self.most_idle * self._decoder_nbytes
        return max(0, min(len(self), min(left, _AHEAD_NBYTES) // self.frame_nbytes))

    def with_cache_limit(self, nbytes: int) -> "VideoSource":
        return replace(self, most_kept=nbytes)

    def selected(self, names: Sequence[str]) -> "VideoSource":
        return replace(self, names=tuple(names))

    def describe(self, index: int) -> str:
        number, frame = placed(self.bounds, index)
        return f"{self.files[number].name} frame {frame}"

    def open(self) -> "OpenVideoSource":
        return OpenVideoSource(self)


@final
class _Kept:
    """Decoded frames that wait for their batches, and which frames are being decoded. Any number of threads may use it.

    A frame that a thread *claims* is decoded by it alone. Others wait for it when they have no claim themselves. So a
    wait ends: the thread that is waited for does not wait, and frees its claims when it ends, whatever happens. A claim
    that Ctrl-C left over is no obstacle to its own thread, the only one that Ctrl-C strikes.

    Args:
        most: How many frames may wait.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._changed = threading.Condition()
        self._frames: dict[int, tuple[Frame, int, Position]] = {}
        """By number: the frame, how many uses are left, and the batch of the last one."""
        self._claimed: dict[int, int] = {}
        """The thread of each claim."""

    def take(self, wanted: Mapping[int, Indices]) -> tuple[dict[int, Frame], list[int], list[int]]:
        """Takes frames that wait, which are dropped with their last use, and claims others.

        Args:
            wanted: The rows of frames, by number.

        Returns:
            The frames that were there; the numbers of those that this call claims; and of those that others decode.
        """
        me, there, claims, elsewhere = threading.get_ident(), {}, [], []
        with self._changed:
            for frame, rows in wanted.items():
                if (found := self._frames.get(frame)) is not None:
                    there[frame], left, last = found
                    if left > len(rows):
                        self._frames[frame] = there[frame], left - len(rows), last
                    else:
                        del self._frames[frame]
                elif self._claimed.get(frame, me) != me:
                    elsewhere.append(frame)
                else:
                    claims.append(frame)
                    self._claimed[frame] = me
        return there, claims, elsewhere

    def claim(self, frames: Sequence[int], now: Position) -> list[int]:
        """Claims frames for later batches, as many as there is room for, and returns them.

        Args:
            frames: The frames, those first that are wanted first.
            now: The present batch. If room is short, frames for batches before it, or of another epoch, are dropped.
        """
        with self._changed:
            if len(self._frames) + len(frames) > self.most:
                self._frames = {key: each for key, each in self._frames.items() if now <= each[2] < (now[0] + 1, 0)}
            room = max(0, self.most - len(self._frames) - len(self._claimed))
            claims = [each for each in frames if each not in self._frames and each not in self._claimed][:room]
            self._claimed.update(dict.fromkeys(claims, threading.get_ident()))
        return claims

    def put(self, frame: int, image: Frame, uses: int, last: Position) -> None:
        """Keeps a frame that was claimed, if there is room, and frees its claim."""
        with self._changed:
            if len(self._frames) < self.most:
                self._frames[frame] = image, uses, last
            self._claimed.pop(frame, None)
            self._changed.notify_all()

    def free(self, claims: Iterable[int]) -> None:
        """Frees claims of this thread, if it has them still."""
        me = threading.get_ident()
        with self._changed:
            for frame in claims:
                if self._claimed.get(frame) == me:
                    del self._claimed[frame]
            self._changed.notify_all()

    def wait(self, frames: Iterable[int]) -> None:
        """Waits until no thread decodes any of some frames. The calling thread has no claim."""
        with self._changed:
            self._changed.wait_for(lambda: self._claimed.keys().isdisjoint(frames))

    def clear(self) -> None:
        """Drops all frames."""
        with self._changed:
            self._frames.clear()


@final
class OpenVideoSource:
    """Reads frames. Decoders stay open: the next frames of a file are often those after the last ones.

    In a plan whose order is known, frames that are decoded from one key frame are decoded together for all batches of a
    term, see `_ahead.py`, and wait for their batches. The decoders that are closed are those whose files are wanted
    last.
    """

    def __init__(self, source: VideoSource) -> None:
        self._source = source
        self._index = source.index
        self._lock = threading.Lock()
        self._idle: list[_Decoder] = []
        """The latest last."""
        self._kept = _Kept(source.most_ahead)
        self._ahead: Ahead | None = None
        self._mine = threading.local()
        """`now`: the batch that a thread reads."""

    @property
    def follows_order(self) -> bool:
        """See `plan/_order.py`."""
        return "frame" in self._source.names and self._kept.most > 0

    def follow(self, order: ReadOrder, now: Position, ahead: Position) -> None:
        """See `plan/_order.py`."""
        self._mine.now = now
        if self._ahead is None or self._ahead.order is not order:
            self._ahead = Ahead(order, now[0], self._kept.most, self._index.bounds)

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests, file by file, in the order of time.

        Raises:
            SourceError: A frame cannot be decoded. The message has the file and the frame.
        """
        for read in reads:
            outs = dict(zip(self._source.names, read.arrays, strict=True))
            for number, places, rows in by_part(self._index.bounds, read.indices, read.rows):
                if "video" in outs:
                    outs["video"][rows] = number
                if "time" in outs:
                    outs["time"][rows] = self._source.times(number, places)
            if "frame" in outs and len(read.indices):
                self._read(read.indices, outs["frame"], positions_of(read.rows, len(outs["frame"])))

    def _read(self, frames: Indices, out: Frame, rows: Indices) -> None:
        """Writes frames, those last that other threads decode."""
        order = np.argsort(frames, kind="stable")
        unique, starts = np.unique(frames[order], return_index=True)
        wanted = dict(zip(unique.tolist(), np.split(rows[order], starts[1:]), strict=True))
        if self._ahead is None:
            self._decode(wanted, wanted, out)
            return
        while wanted:
            there, claims, elsewhere = self._kept.take(wanted)
            try:
                for frame, image in there.items():
                    out[wanted[frame]] = image
                self._decode(claims, wanted, out)
            finally:
                self._kept.free(claims)
            wanted = {frame: wanted[frame] for frame in elsewhere}
            self._kept.wait(wanted)

    def _decode(self, frames: Iterable[int], wanted: Mapping[int, Indices], out: Frame) -> None:
        """Decodes frames for this batch, and with them what later batches want in the terms of their groups.

        Args:
            frames: The frames, ascending.
            wanted: The rows of all frames that the batch wants.
            out: The frames of the batch.
        """
        numbers = np.fromiter(frames, np.int64)
        for number, places, _ in by_part(self._index.bounds, numbers, slice(0, len(numbers))):
            base = int(self._index.bounds[number])
            mine = (places + base).tolist()
            if (ahead := self._ahead) is None:
                self._decode_file(number, mine, wanted, out, {})
                continue
            firsts = self._index.found[number]["firsts"]
            begins = np.unique(firsts[places])
            ends = np.searchsorted(firsts, begins, "right")
            uses = ahead.uses(self._mine.now, base + np.searchsorted(firsts, begins), base + ends)
            behind = sorted((each for each in uses if each not in wanted), key=lambda each: uses[each].first)
            later = self._kept.claim(behind, self._mine.now)
            try:
                self._decode_file(number, sorted(mine + later), wanted, out, uses)
            finally:
                self._kept.free(mine + later)

    def _decode_file(
        self, number: int, frames: list[int], wanted: Mapping[int, Indices], out: Frame, uses: Mapping[int, Uses]
    ) -> None:
        """Decodes frames of a file, writes those that are wanted, and keeps those that are used again."""
        base = int(self._index.bounds[number])
        while frames:
            try:
                with self._decoder(number) as decoder:
                    while frames:
                        image, frame = decoder.frame(frames[0] - base), frames.pop(0)
                        rows = wanted.get(frame, _NO_ROWS)
                        if len(rows):
                            out[rows] = image
                        if (of := uses.get(frame)) is not None and of.rows > len(rows):
                            self._kept.put(frame, image, of.rows - len(rows), (self._mine.now[0], of.last))
            except SourceError:
                if frames[0] in wanted:
                    raise
                frames = [each for each in frames if each in wanted]  # a later batch says so of the other one

    @contextmanager
    def _decoder(self, number: int) -> "Iterator[_Decoder]":
        """A decoder of a file, for this thread alone. One that failed is not used again."""
        with self._lock:
            idle = [place for place, each in enumerate(self._idle) if each.number == number]
            decoder = self._idle.pop(idle[-1]) if idle else None
        if decoder is None:
            decoder = _Decoder(self._source, number, self._index.found[number])
        try:
            yield decoder
        except BaseException:
            decoder.close()
            raise
        with self._lock:
            self._idle.append(decoder)
            over = self._idle.pop(self._wanted_last()) if len(self._idle) > self._source.most_idle else None
        if over is not None:
            over.close()

    def _wanted_last(self) -> int:
        """Which waiting decoder is wanted last: the oldest one, if the order is not known."""
        if (ahead := self._ahead) is None:
            return 0
        epoch, index = self._mine.now
        numbers = np.array([each.number for each in self._idle])
        # Files of a batch are read in order, so those behind this one may be wanted by this batch.
        wanted = ahead.next_batches(epoch, numbers, np.where(numbers > numbers[-1], index, index + 1))
        return int(np.argmax(wanted * len(self._source.files) + numbers))

    def close(self) -> None:
        """Closes the files. No thread reads any more."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.close()
        self._kept.clear()


@final
class _Decoder:
    """Decodes the frames of one file, for one thread at a time."""

    def __init__(self, source: VideoSource, number: int, found: Arrays) -> None:
        from av.video.reformatter import VideoReformatter

        # Older versions scale on one thread, and cannot be asked to.
        self._scaling_options: dict[str, Any] = {} if _version() < 17 else {"threads": 1}
        self.number = number
        self._source = source
        self._file = source.files[number]
        self._times, self._seeks, self._firsts = (found[name] for name in ("times", "seeks", "firsts"))
        marks: Any = found["marks"]
        self._marks, self._integers = marks, memoryview(marks).cast("B").cast("q")  # which gives those of Python
        self._reformatter = VideoReformatter()
        self._at = -1
        """The frame that was decoded last."""
        self._frames: Iterator[Any] = iter(())
        self._context: AbstractContextManager[Any] = nullcontext()
        with _named(self._file):
            self._begin()

    def close(self) -> None:
        """Closes the file."""
        self._frames = iter(())  # before the file that it reads
        self._context.__exit__(None, None, None)

    def frame(self, place: int) -> Frame:
        """A frame as RGB.

        Raises:
            SourceError: It cannot be decoded.
        """
        with _named(self._file, place):
            if not (self._at < place and self._firsts[place] <= self._at + 1):
                self._seek(int(self._seeks[place]))
            found = self._decoded(place)
            if found is None:  # a key frame after which not everything can be decoded, as in some streams
                self._begin()
                found = self._decoded(place)
            if found is None or found.is_corrupt:
                raise SourceError(f"{self._file.url} is damaged: its frame {place} cannot be decoded.")
            return self._as_rgb(found, place)

    def _begin(self) -> None:
        """Opens the file anew, which forgets everything."""
        self.close()
        self._context = _opened(self._file)
        self._container, self._stream = self._context.__enter__()
        self._frames, self._at = self._decode(), -1

    def _seek(self, time: int) -> None:
        if time == _NO_SEEK:
            self._begin()
            return
        self._container.seek(time, stream=self._stream, backward=True, any_frame=False)
        self._frames, self._at = self._decode(), -1

    def _decode(self) -> Iterator[Any]:
        """Decodes from the next key frame on, until a packet is not the one that the file has there."""
        following: Iterator[int] | None = None
        for packet in self._container.demux(self._stream):
            if packet.pts is not None:
                mark = _mark(packet)
                if following is None:
                    if not packet.is_keyframe:
                        continue
                    following = iter(self._integers[int(np.argmax(self._marks == mark)) :])
                if next(following, None) != mark:
                    return
            elif not _is_end(packet):
                return
            yield from packet.decode()

    def _decoded(self, place: int) -> Any:
        """Decodes on to a frame; None if it does not come."""
        time, last = int(self._times[place]), -math.inf
        for each in self._frames:
            if each.pts is not None:
                if each.pts <= last:
                    raise SourceError(f"{self._file.url} is damaged: times of frames around {place} do not ascend.")
                last = each.pts
                self._at = int(np.searchsorted(self._times, each.pts, "right")) - 1
                if each.pts >= time:
                    return each if each.pts == time else None
        self._at = len(self._times)
        return None

    def _as_rgb(self, found: Any, place: int) -> Frame:
        height, width = self._source.height, self._source.width
        if not self._source.is_scaled and (found.height, found.width) != (height, width):
            raise SourceError(
                f"{self._file.url}: frame {place} is {found.height} by {found.width} pixels, and the first one is "
                f"{height} by {width}. Say to which size frames are scaled: from_videos(..., size=(240, 320))."
            )
        scaled = self._reformatter.reformat(
            found, width, height, "rgb24", interpolation="BILINEAR", **self._scaling_options
        )
        return np.asarray(scaled.to_ndarray(), np.uint8)
