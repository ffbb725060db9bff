"""Films: frames by index, from files of any number, decoded by PyAV (FFmpeg).

A frame is named by its time in the file, and is decoded from the last key frame before it; `_films.py` finds both.
Some containers do not say the times of all packets, and then FFmpeg counts others after a seek than from the beginning.
So the packets behind a seek are compared with those of the one whole reading. Some containers call packets key frames
that are none, so the first frame behind a seek must be one. Where either fails, a frame is decoded from the beginning.

Threads. Any number of threads may use an open source. A decoder belongs to the thread that took it.
"""

import functools
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock import native
from penstock.base._arguments import as_int, checked_size, needs
from penstock.base._errors import ArgumentError, ArgumentTypeError, SourceError, type_of
from penstock.base._spec import ArraySpec
from penstock.dataset import Dataset
from penstock.files import _openfile
from penstock.files._diskcache import DiskCache
from penstock.files._fetch import MEMORY_COUNT
from penstock.files._kept import Arrays, kept
from penstock.files._openfile import File, FilesSource, bounds_of, for_each, placed
from penstock.films._ahead import Ahead
from penstock.films._ffmpeg import version
from penstock.films._films import NO_SEEK, dtype_of, frames_of, head_of, is_end, mark_of, named, opened
from penstock.films._pages import PAGE_NBYTES, FilmStream, Pages
from penstock.memory._rows import Indices, positions_of
from penstock.plan._order import Position, ReadOrder
from penstock.plan._parted import by_part
from penstock.plan._source import Read
from penstock.plan._source_node import SourceNode

_IDLE_NBYTES: Final = 128 << 20
_IDLE_COUNTS: Final = (4, 128)
"""Decoders that wait for the next frames of their files: as many as fit into these bytes, between these numbers."""
_AHEAD_NBYTES: Final = 256 << 20
"""Decoded frames that are kept."""
_DROPPED_SHARE: Final = 64
"""If room is short, this share of the frames goes at once. With a 16th, 5 % more frames are decoded."""
_REQUESTS_SHARE: Final = 4
"""With a limit of memory, this share of it is for requests of remote films."""
_DECODER_NBYTES: Final = 1 << 20
"""What a decoder takes besides frames: 1.1 MB in all was measured with frames of 96x96."""
_FRAMES_OF_DECODER: Final = 20
"""Frames that a decoder holds at most: 16 that others refer to, and those under way."""
_NAMES: Final = ("frame", "time", "video")
_CODES: Final = 4096
"""Values of a depth camera."""

Path = str | os.PathLike[str]
Frame = npt.NDArray[Any]

_log = logging.getLogger("penstock")


def from_videos(
    paths: Path | Iterable[Path],
    *,
    size: tuple[int, int] | None = None,
    cache_dir: Path | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: DiskCache | None = None,
    stream: int | None = None,
) -> Dataset:
    """Makes a dataset of the frames of films: MP4, MOV, Matroska, WebM and other containers, by PyAV.

    An element is a dict of `"frame"`, RGB, uint8 of shape `(height, width, 3)`; `"time"`, seconds, float64, as the file
    says, from its first frame on; and `"video"`, the number of its file, int64. `windows` makes clips of frames:
    `ds.windows(16, stride=2, groups="video")`, none of which reaches into another file.

    Colours of more than 8 bits become 8 bits. Films with one channel of more than 8 bits (`gray10le`, `gray12le`,
    `gray16be`) are measurements, such as depth, so a frame has the values of the file: uint16 of shape
    `(height, width, 1)`, or float16 and float32 for `grayf16le` and `grayf32le`.

    The call opens each file and reads its head. The first use reads each file once to find its frames, and decodes a
    frame or two; what is found is kept in a hidden file beside it, as for `from_tfrecord`.

    Frames of a batch are read file by file, in order, and one that several elements share is decoded once. Before a
    frame lie those since the last key frame, which are decoded with it. So a loader decodes at once what its next
    batches want behind a key frame. It keeps decoded frames, over epochs; if room is short, what is wanted last goes.
    If films are many, reads at random are faster with frequent key frames: `ffmpeg -i a.mp4 -g 8 b.mp4`. Order in a
    file costs nothing more: `shuffle(window=)` keeps it nearly.

    Of a film behind a URL, a loader requests what its next batches need ahead, in multiples of 256 KiB, and keeps the
    last 64 MiB. Worker processes, and files that do not say where frames lie, request what decoders ask for, and more
    as they read on.

    Random access: yes. Order: that of the given paths, and of time; the files of a pattern by name. Threads decode side
    by side. Memory: 48 bytes a frame in each process; one decoder of some 20 frames for each worker, with 256 KiB of
    its file behind a URL; 128 MiB of others that wait, or four if they are larger; 256 MiB of decoded frames; and
    320 MiB of requests, if films are behind URLs.
    A rotation that the file asks for is not applied. Frames before the first key frame that cannot be decoded, as in
    parts of recordings, are left out.

    Some films are decoded from the beginning for each read at random: MPEG program streams (`.mpg`, `.vob`), those with
    a palette, those whose file calls frames key frames that are none, those of old codecs whose decoder names no key
    frames (SVQ1, Cinepak, CineForm), and those whose file does not say when a frame is shown, such as AVI with
    B-frames. The first use decodes films of the last kind once, to count their frames. Convert such films before:
    `ffmpeg -i a.avi a.mp4`.

    Args:
        paths: A path, a pattern (`"train/*.mp4"`), a URL, or a list of these.
        size: Height and width to scale frames to, bilinear; for measurements, the nearest value. Needed if files have
            several sizes.
        cache_dir: Where to keep what was found of files; None for beside them.
        storage_options: See `from_tar`.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.
        stream: Which stream of pictures to read, from 0 on, as `ffmpeg -map 0:v:1` counts. None for the one that FFmpeg
            finds best, which is no cover; if a file has several, the log says which one it is.

    Raises:
        ModuleNotFoundError: PyAV is missing (extra `video`).
        ArgumentError: Files have several sizes and `size` is not given, or it is no size. Some files have colours and
            others measurements. A file has no such stream.
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
    if stream is not None and as_int(stream) is None:
        raise ArgumentTypeError(f"stream is {stream!r:.80}, {type_of(stream)}. It is a number from 0 on.")
    heads = list(for_each(files, lambda file: head_of(file, stream)))
    first = heads[0]
    for file, head in zip(files, heads, strict=True):
        if head.form != first.form:
            raise ArgumentError(
                f"Frames of {file.url} are {head.form or 'colours'}, and those of {files[0].url} "
                f"{first.form or 'colours'}. Make a dataset of each kind."
            )
        if size is None and (head.height, head.width) != (first.height, first.width):
            raise ArgumentError(
                f"Frames of {file.url} are {head.height} by {head.width}, and those of {files[0].url} {first.height} "
                f"by {first.width} pixels. Say to which height and width they are scaled: "
                "from_videos(..., size=(240, 320))."
            )
    if stream is None and (several := [place for place, head in enumerate(heads) if head.choices > 1]):
        _log.warning(
            "%s has %d streams of pictures, and from_videos() reads number %d, which FFmpeg finds best. %d of %d files "
            "have several. Choose another: from_videos(..., stream=...).",
            files[several[0]].url,
            heads[several[0]].choices,
            heads[several[0]].stream,
            len(several),
            len(files),
        )
    folder, streams = None if cache_dir is None else os.fspath(cache_dir), tuple(head.stream for head in heads)
    height, width = size or (first.height, first.width)
    source = VideoSource(files, streams, height, width, first.form, size is not None, folder)
    return Dataset(SourceNode(source, "from_videos"))


class Metres(NamedTuple):
    """How values of 12 bits stand for metres, in steps of equal length or of equal ratio."""

    least: float
    most: float
    shift: float
    """Metres that are added before the logarithm is taken."""
    is_log: bool

    def table(self) -> npt.NDArray[np.float32]:
        """The metres of each value."""
        if not self.is_log:
            return np.linspace(self.least, self.most, _CODES, dtype=np.float32)
        low, high = math.log(self.least + self.shift), math.log(self.most + self.shift)
        metres = np.exp(np.linspace(low, high, _CODES)) - self.shift
        return np.clip(metres, self.least, self.most).astype(np.float32)


@final
@dataclass(frozen=True)
class VideoSource(FilesSource):
    """The frames of films, one file after the other."""

    files: tuple[File, ...]
    streams: tuple[int, ...]
    """For each file, the number of its stream among those of pictures."""
    height: int
    width: int
    form: str | None
    """See `Head`."""
    is_scaled: bool
    cache_dir: str | None
    metres: Metres | None = None
    """What the values of a depth camera mean."""
    names: tuple[str, ...] = _NAMES
    most_kept: int = field(default=_IDLE_NBYTES + _AHEAD_NBYTES, compare=False)
    """The bytes that an open source keeps, at most, if one decoder is not larger."""

    is_cpu_bound = True
    suits_one_thread = False

    @property
    def reads_ahead(self) -> bool:  # type: ignore[override]  # depends on the files
        """Whether the places of frames are known, so that they can be announced."""
        return self.is_remote and all(each["bytes"][0, 0] >= 0 for each in self.found)

    @property
    def element_spec(self) -> dict[str, ArraySpec]:
        specs = {
            "frame": self._frame_spec,
            "time": ArraySpec((), np.dtype(np.float64)),
            "video": ArraySpec((), np.dtype(np.int64)),
        }
        return {name: specs[name] for name in self.names}

    @property
    def _frame_spec(self) -> ArraySpec:
        dtype = np.dtype(np.float32) if self.metres else dtype_of(self.form)
        if dtype is None:
            return ArraySpec((self.height, self.width, 3), np.dtype(np.uint8))
        return ArraySpec((self.height, self.width, 1), dtype.newbyteorder("="))

    @cached_property
    def found(self) -> Sequence[Arrays]:
        """The frames of each file, see `frames_of`. Reads what was kept, or the file."""

        def found(place: int) -> Arrays:
            file, number = self.files[place], self.streams[place]
            name = f"{number}.index" if number else "index"
            return kept(
                file, f"frames and bytes of stream {number}", self.cache_dir, lambda: frames_of(file, number), name
            )

        return list(for_each(range(len(self.files)), found))

    @cached_property
    def bounds(self) -> npt.NDArray[np.int64]:
        """See `bounds_of`."""
        return bounds_of(len(each["times"]) for each in self.found)

    def times(self, number: int, places: Indices | slice = slice(None)) -> npt.NDArray[np.float64]:
        """The seconds of frames of a file, from its first one on."""
        found = self.found[number]
        numerator, denominator = found["base"].tolist()
        return (found["times"][places] - found["times"][0]) * numerator / denominator  # type: ignore[no-any-return]

    @property
    def kept_nbytes(self) -> int:
        if "frame" not in self.names:
            return 0
        requests_nbytes = super().kept_nbytes
        return requests_nbytes + self.most_idle * self._decoder_nbytes + self.most_ahead * self.frame_nbytes

    @property
    def _decoder_nbytes(self) -> int:
        frames_nbytes = _FRAMES_OF_DECODER * self.height * self.width * 3 // 2
        return _DECODER_NBYTES + frames_nbytes + min(PAGE_NBYTES, self.files[0].scan_nbytes)

    @property
    def frame_nbytes(self) -> int:
        """The bytes of a frame as it is delivered."""
        return self._frame_spec.nbytes or 0  # which is known

    @property
    def most_idle(self) -> int:
        """Decoders that wait at most."""
        least, most = _IDLE_COUNTS
        wanted = max(least, min(most, _IDLE_NBYTES // self._decoder_nbytes))
        return max(1, min(len(self.files), wanted, self.most_kept // self._decoder_nbytes))

    @property
    def most_ahead(self) -> int:
        """Decoded frames that are kept, at most."""
        left = self.most_kept - self.most_idle * self._decoder_nbytes
        return max(0, min(len(self), min(left, _AHEAD_NBYTES) // self.frame_nbytes))

    def with_cache_limit(self, nbytes: int) -> "VideoSource":
        requests_nbytes = min(super().kept_nbytes, nbytes // _REQUESTS_SHARE)
        made = replace(self, most_kept=min(self.most_kept, nbytes - requests_nbytes))
        made.__dict__["ahead_nbytes"] = requests_nbytes // MEMORY_COUNT
        return made

    def selected(self, names: Sequence[str]) -> "VideoSource":
        return replace(self, names=tuple(names))

    def describe(self, index: int) -> str:
        number, frame = placed(self.bounds, index)
        return f"{self.files[number]} frame {frame}"

    def open(self) -> "OpenVideoSource":
        return OpenVideoSource(self)


@final
class _FrameCache:
    """Decoded frames that are kept, and which frames are being decoded. Any number of threads may use it.

    A frame that a thread *claims* is decoded by it alone. Others wait for it when they have no claim themselves. So a
    wait ends: the thread that is waited for does not wait, and frees its claims when it ends, whatever happens. A claim
    that Ctrl-C left over is no obstacle to its own thread, the only one that Ctrl-C strikes.

    Args:
        most: How many frames are kept.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._changed = threading.Condition()
        self._frames: dict[int, native.Source] = {}
        self._claimed: dict[int, int] = {}
        """The thread of each claim."""

    def take(self, wanted: Iterable[int]) -> tuple[dict[int, native.Source], list[int], list[int]]:
        """Returns the frames that are there; those that this call claims; and those that other threads decode."""
        me, there, claims, elsewhere = threading.get_ident(), {}, [], []
        with self._changed:
            for frame in wanted:
                if (found := self._frames.get(frame)) is not None:
                    there[frame] = found
                elif self._claimed.get(frame, me) != me:
                    elsewhere.append(frame)
                else:
                    claims.append(frame)
                    self._claimed[frame] = me
        return there, claims, elsewhere

    def without(self, frames: Indices) -> list[int]:
        """Returns frames, each once and in order, without those that are there or being decoded."""
        with self._changed:
            return [
                frame
                for frame in dict.fromkeys(frames.tolist())
                if not (frame in self._frames or frame in self._claimed)
            ]

    def claim(self, frames: Indices, lasts: Indices, next_uses: Callable[[Indices], Indices]) -> list[int]:
        """Claims frames for later batches, as many as there is room for, and returns them.

        If room is short, frames go that are wanted last, a share of all at once, because looking for them takes time.
        None goes that is wanted before the term of a claimed one ends. Else terms would end at the same batch.

        Args:
            frames: The frames, those first that are wanted first.
            lasts: The number of the last batch of the term of each.
            next_uses: Returns the number of the batch that wants a frame next, for frames that are kept.
        """
        with self._changed:
            is_new = [each not in self._frames and each not in self._claimed for each in frames.tolist()]
            frames, lasts = frames[is_new], lasts[is_new]
            room = self.most - len(self._claimed)
            if len(self._frames) + len(frames) > room:
                kept = np.fromiter(self._frames, np.int64)
                order = np.argsort(np.concatenate([next_uses(kept), lasts]), kind="stable")
                order, goes = np.split(order, [max(0, room - self.most // _DROPPED_SHARE)])
                for frame in kept[goes[goes < len(kept)]].tolist():
                    del self._frames[frame]
                frames = frames[order[order >= len(kept)] - len(kept)]
            claims: list[int] = frames.tolist()
            self._claimed.update(dict.fromkeys(claims, threading.get_ident()))
        return claims

    def put(self, frame: int, image: Frame) -> None:
        """Keeps a frame that was claimed, if there is room, and frees its claim."""
        source = native.Engine.memory(image[None])
        with self._changed:
            if len(self._frames) < self.most:
                self._frames[frame] = source
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

    In a plan whose order is known, decoded frames are kept over epochs as far as there is room. If it is short, those
    go that are wanted last. With a frame, others of its group are decoded that later batches of a term want; see
    `_ahead.py`. The decoders that are closed are those whose files are wanted last, too.
    """

    def __init__(self, source: VideoSource) -> None:
        self._source = source
        self._bounds, self._found = source.bounds, source.found
        self._lock = threading.Lock()
        self._idle: list[_Decoder] = []
        """The latest last."""
        self._kept = _FrameCache(source.most_ahead)
        self._pages = Pages(source.files, source.ahead_nbytes) if source.is_remote and "frame" in source.names else None
        self._ahead: Ahead | None = None
        self._mine = threading.local()
        """`now`: the number of the batch that a thread reads."""

    @property
    def follows_order(self) -> bool:
        """See `plan/_order.py`."""
        return "frame" in self._source.names and self._kept.most > 0

    def follow(self, order: ReadOrder, now: Position, ahead: Position) -> None:
        """See `plan/_order.py`."""
        if self._ahead is None or self._ahead.order is not order:
            self._ahead = Ahead(order, now[0], self._kept.most, self._bounds)
        self._mine.now = self._ahead.number(now)

    @property
    def is_advised(self) -> bool:
        """See `SourceAdapter`."""
        return self._pages is not None

    def advise(self, indices: Indices) -> None:
        """Requests the bytes of the frames that are not kept."""
        frames = np.array(self._kept.without(indices), np.int64)
        numbers = np.searchsorted(self._bounds, frames, "right") - 1
        each = zip(numbers.tolist(), (frames - self._bounds[numbers]).tolist(), strict=True)
        ranges = ((number, *self._found[number]["bytes"][place].tolist()) for number, place in each)
        if self._pages is not None:
            self._pages.announce(found for found in ranges if found[1] >= 0)

    def gather(self, reads: Sequence[Read]) -> None:
        """Reads all requests, file by file, in the order of time.

        Raises:
            SourceError: A frame cannot be decoded. The message has the file and the frame.
        """
        for read in reads:
            outs = dict(zip(self._source.names, read.arrays, strict=True))
            for number, places, rows in by_part(self._bounds, read.indices, read.rows):
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
                native.copy([(image, 0 * wanted[frame], out, wanted[frame], None) for frame, image in there.items()])
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
        for number, places, _ in by_part(self._bounds, numbers, slice(0, len(numbers))):
            base = int(self._bounds[number])
            mine = (places + base).tolist()
            if (ahead := self._ahead) is None:
                self._decode_file(number, mine, wanted, out)
                continue
            now, firsts = self._mine.now, self._found[number]["firsts"]
            begins = np.unique(firsts[places])
            ends = np.searchsorted(firsts, begins, "right")
            later, uses, lasts = ahead.wanted(now, base + np.searchsorted(firsts, begins), base + ends)
            soonest = np.argsort(uses, kind="stable")
            # Other threads may still read the batch before.
            next_uses = functools.partial(ahead.next_uses, max(0, now - 1))
            claims = self._kept.claim(later[soonest], lasts[soonest], next_uses)
            try:
                self._decode_file(number, sorted(mine + claims), wanted, out)
            finally:
                self._kept.free(mine + claims)

    def _decode_file(self, number: int, frames: list[int], wanted: Mapping[int, Indices], out: Frame) -> None:
        """Decodes frames of a file, writes those that are wanted, and keeps all if the order is known."""
        base = int(self._bounds[number])
        while frames:
            try:
                with self._decoder(number) as decoder:
                    while frames:
                        image, frame = decoder.frame(frames[0] - base), frames.pop(0)
                        if frame in wanted:
                            out[wanted[frame]] = image
                        if self._ahead is not None:
                            self._kept.put(frame, image)
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
            decoder = _Decoder(self._source, number, self._found[number], self._pages)
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
        numbers, now = np.array([each.number for each in self._idle]), self._mine.now
        # Files of a batch are read in order, so those behind this one may be wanted by this batch.
        wanted = ahead.next_uses_of_parts(now, numbers, np.where(numbers > numbers[-1], now, now + 1))
        return int(np.argmax(wanted * len(self._source.files) + numbers))

    def close(self) -> None:
        """Closes the files. No thread reads any more."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.close()
        self._kept.clear()
        if self._pages is not None:
            self._pages.files.close()


@final
class _Decoder:
    """Decodes the frames of one file, for one thread at a time."""

    def __init__(self, source: VideoSource, number: int, found: Arrays, pages: Pages | None) -> None:
        from av.video.reformatter import VideoReformatter

        # Older versions scale on one thread, and cannot be asked to.
        self._scaling_options: dict[str, Any] = {} if version() < 17 else {"threads": 1}
        self.number = number
        self._source = source
        self._file = source.files[number]
        self._pages = pages
        self._errors: list[BaseException] = []
        """Those of reads, in place of which PyAV raises others."""
        self._table = source.metres.table() if source.metres else None
        self._times, self._seeks, self._firsts = (found[name] for name in ("times", "seeks", "firsts"))
        self._marks: Any = found["marks"]
        self._begin_mark = self._marks[found["begin"]] if len(self._marks) else None
        self._reformatter = VideoReformatter()
        self._at = -1
        """The frame that was decoded last."""
        self._frames: Iterator[Any] = iter(())
        self._context = ExitStack()
        self._container: Any = None
        self._stream: Any = None
        with self._named():
            self._begin(NO_SEEK)

    @contextmanager
    def _named(self, place: int | None = None) -> Iterator[None]:
        """See `named`. The error of a read comes before what FFmpeg says of it."""
        try:
            with named(self._file, place):
                yield
        finally:
            if self._errors:
                raise self._errors[0] from None

    def close(self) -> None:
        """Closes the file."""
        self._frames = iter(())  # before the file that it reads
        self._context.close()

    def frame(self, place: int) -> Frame:
        """A frame as it is delivered.

        Raises:
            SourceError: It cannot be decoded.
        """
        with self._named(place):
            if not (self._at < place and self._firsts[place] <= self._at + 1):
                self._begin(int(self._seeks[place]))
            found = self._decoded(place)
            if found is None:  # a key frame after which not everything can be decoded, as in some streams
                self._begin(NO_SEEK)
                found = self._decoded(place)
            if found is None or found.is_corrupt:
                raise SourceError(f"{self._file.url} is damaged: its frame {place} cannot be decoded.")
            return self._values(found, place)

    def _begin(self, time: int) -> None:
        """Begins anew at the key frame of a time, or opens the file anew, which forgets everything."""
        self._at = -1
        if time != NO_SEEK:
            self._container.seek(time, stream=self._stream, backward=True, any_frame=False)
            self._frames = self._decoded_behind_seek()
            return
        self.close()
        data = None if self._pages is None else FilmStream(self._pages, self.number, self._errors)
        self._container, self._stream = self._context.enter_context(
            opened(self._file, self._source.streams[self.number], data=data)
        )
        self._frames = self._decode()

    def _decoded_behind_seek(self) -> Iterator[Any]:
        """Decodes from a key frame on; nothing if the decoder says that it is none, whatever the container says."""
        import av

        frames, first = self._decode(), None
        with suppress(av.FFmpegError):
            first = next(frames, None)
        if first is not None and first.key_frame:
            yield first
            yield from frames

    def _decode(self) -> Iterator[Any]:
        """Decodes from the next key frame or the beginning on, until a packet is not that of the file."""
        if not len(self._marks):
            yield from self._container.decode(self._stream)
            return
        following: Iterator[Any] | None = None
        for packet in self._container.demux(self._stream):
            if packet.pts is not None:
                mark = mark_of(packet)
                if following is None:
                    if not packet.is_keyframe and mark != self._begin_mark:
                        continue
                    following = iter(self._marks[int(np.argmax(self._marks == mark)) :])
                if next(following, None) != mark:
                    return
            elif not is_end(packet):
                return
            yield from packet.decode()

    def _decoded(self, place: int) -> Any:
        """Decodes on to a frame; None if it does not come."""
        time, last = int(self._times[place]), -math.inf
        for each in self._frames:
            if not len(self._marks):
                self._at += 1
                if self._at == place:
                    return each
            elif each.pts is not None:
                if each.pts <= last:
                    raise SourceError(f"{self._file.url} is damaged: times of frames around {place} do not ascend.")
                last = each.pts
                self._at = int(np.searchsorted(self._times, each.pts, "right")) - 1
                if each.pts >= time:
                    return each if each.pts == time else None
        self._at = len(self._times)
        return None

    def _values(self, found: Any, place: int) -> Frame:
        height, width, form = self._source.height, self._source.width, self._source.form
        if not self._source.is_scaled and (found.height, found.width) != (height, width):
            raise SourceError(
                f"{self._file.url}: frame {place} is {found.height} by {found.width} pixels, and the first one is "
                f"{height} by {width}. Say to which size frames are scaled: from_videos(..., size=(240, 320))."
            )
        if (dtype := dtype_of(form)) is None:
            scaled = self._reformatter.reformat(
                found, width, height, "rgb24", interpolation="BILINEAR", **self._scaling_options
            )
            return np.asarray(scaled.to_ndarray(), np.uint8)
        if found.format.name != form:
            raise SourceError(f"{self._file.url}: frame {place} is {found.format.name}, and the first one is {form}.")
        plane = found.planes[0]
        values = np.frombuffer(plane, dtype).reshape(-1, plane.line_size // dtype.itemsize)
        rows, columns = (
            (np.arange(wanted) * 2 + 1) * there // (2 * wanted)
            for wanted, there in ((height, found.height), (width, found.width))
        )
        values = values[rows[:, None], columns, None]
        # In the byte order of this machine, as in the spec: a frame that is kept is copied as bytes.
        return values.astype(dtype.newbyteorder("="), copy=False) if self._table is None else self._table[values]
