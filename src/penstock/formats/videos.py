"""Films: frames by index, from files of any number, decoded by PyAV (FFmpeg).

A frame is named by its time in the file. The packets of a file, which are read once and not decoded, say which times
there are and which frames can be decoded alone: the key frames. A frame is decoded from the last key frame before it.

Threads. Any number of threads may use an open source. A decoder belongs to the thread that took it.
"""

import math
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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
from penstock.plan._source import Read
from penstock.plan._source_node import SourceNode
from penstock.sources import _openfile
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
_FRAMES_OF_DECODER: Final = 20
"""Frames that a decoder holds at most: 16 that others refer to, and those under way."""
_MOST_PIXELS: Final = 1 << 27
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
    frame lie those since the last key frame, which are decoded with it. So reads at random are fast if key frames are
    frequent: `ffmpeg -i a.mp4 -g 8 b.mp4`. Order in a file costs nothing more: `shuffle(window=)` keeps it nearly.

    Random access: yes. Order: that of the given paths, and of time; the files of a pattern by name. Threads decode side
    by side. Memory: 24 bytes a frame in each process; one decoder of some 20 frames for each worker, with 4 MiB of its
    file behind a URL; and 64 MiB of others that wait, or four if they are larger. A rotation that the file asks for is
    not applied.

    PyAV before version 17, which LeRobot asks for, reads MP4, MOV, Matroska and WebM here, and no other container.

    Args:
        paths: A path, a pattern (`"train/*.mp4"`), a URL, or a list of these.
        size: Height and width to scale frames to, bilinear. Needed if files have several sizes.
        cache_dir: Where to keep what was found of files; None for beside them.
        storage_options: See `from_tar`.
        cache: Keeps what is read from URLs on a local disk; see `DiskCache`.

    Raises:
        ModuleNotFoundError: PyAV is missing: `pip install 'penstock[video]'`.
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
    with needs("from_videos", "video"):
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


def _is_old() -> bool:
    """Whether PyAV is older than 17."""
    import av

    return int(av.__version__.partition(".")[0]) < 17


@contextmanager
def _opened(file: File, *, is_read_whole: bool = False) -> Iterator[tuple[Any, Any]]:
    """Opens a film: its container, and its first stream of pictures."""
    import av

    with file.stream() if is_read_whole else file.scan() as data:
        # FFmpeg gets bytes and no name, and so opens no other file.
        options = {"format_whitelist": _SAFE_FORMATS if _is_old() else _FORMATS, "protocol_whitelist": "none"}
        with av.open(data, options=options, metadata_errors="replace") as container:
            if not container.streams.video:
                raise SourceError(f"{file.url} has no pictures, only {len(container.streams)} other streams.")
            stream = container.streams.video[0]
            if stream.codec_context is None:
                raise SourceError(f"{file.url}: its pictures are of a kind that PyAV has no decoder for.")
            stream.codec_context.options = {"max_pixels": str(_MOST_PIXELS)}
            stream.codec_context.thread_count = 1
            yield container, stream


def _head(file: File) -> tuple[int, int]:
    """The height and the width of the frames of a file."""
    with _named(file), _opened(file) as (_, stream):
        height, width = stream.codec_context.height, stream.codec_context.width
        if not 0 < height * width <= _MOST_PIXELS:
            raise SourceError(
                f"{file.url} says that its frames are {height} by {width} pixels. Between 1 and {_MOST_PIXELS:,} "
                "pixels are read."
            )
        return height, width


def _frames_of(file: File) -> Arrays:
    """Finds the frames of a file: `times` in units of `base`, in order; and for each the place of its key frame.

    Raises:
        SourceError: It is damaged, or frames have no times.
    """
    times: list[int] = []
    starts: list[tuple[int, int]] = []
    count = 0
    with _named(file), _opened(file, is_read_whole=True) as (container, stream):
        said, base = stream.frames, stream.time_base
        # AVI has no times: FFmpeg counts packets, which are in another order than frames.
        is_untimed = container.format.name == "avi" and stream.codec_context.has_b_frames
        for packet in container.demux(stream):
            if packet.size == 0 and packet.pts is None:
                continue  # the mark of the end
            count += 1
            if packet.pts is None or packet.is_corrupt or is_untimed:
                fault = "is damaged" if packet.is_corrupt else "does not say at which time it is shown"
                raise SourceError(
                    f"{file.url}: frame {count - 1} {fault}, so frames cannot be read by their numbers. Write it anew: "
                    "ffmpeg -i FILE new.mp4."
                )
            if packet.is_keyframe:
                starts.append((packet.pts, packet.pts if packet.dts is None else packet.dts))
            if not packet.is_discard:
                times.append(packet.pts)
    if count < said:
        raise SourceError(f"{file.url} is cut off: it has {count:,} frames, and its head says {said:,}.")
    shown, keys = np.sort(np.array(times, np.int64)), np.array(sorted(starts), np.int64).reshape(-1, 2)
    if not len(shown) or not len(keys) or not base:
        raise SourceError(f"{file.url} has no frame that can be decoded.")
    if (shown[1:] == shown[:-1]).any():
        raise SourceError(f"{file.url} has two frames at one time, so they cannot be told apart. Write it anew.")
    place = np.maximum(np.searchsorted(keys[:, 0], shown, "right") - 1, 0)
    base = np.array([base.numerator, base.denominator], np.int64)
    return {"times": shown, "seeks": keys[place, 1], "firsts": np.searchsorted(shown, keys[place, 0]), "base": base}


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
    idle_count: int = field(default=_IDLE_COUNTS[1], compare=False)
    """Decoders that wait, at most; fewer if frames are large."""

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
            return kept(file, "video", self.cache_dir, lambda: _frames_of(file))

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
        return self.most_idle * self._decoder_nbytes if "frame" in self.names else 0

    @property
    def _decoder_nbytes(self) -> int:
        return _FRAMES_OF_DECODER * self.height * self.width * 3 // 2 + self.files[0].scan_nbytes

    @property
    def most_idle(self) -> int:
        """Decoders that wait at most."""
        least, most = _IDLE_COUNTS
        return min(len(self.files), self.idle_count, max(least, min(most, _IDLE_NBYTES // self._decoder_nbytes)))

    def with_cache_limit(self, nbytes: int) -> "VideoSource":
        return replace(self, idle_count=max(1, nbytes // self._decoder_nbytes))

    def selected(self, names: Sequence[str]) -> "VideoSource":
        return replace(self, names=tuple(names))

    def describe(self, index: int) -> str:
        number, frame = placed(self.bounds, index)
        return f"{self.files[number].name} frame {frame}"

    def open(self) -> "OpenVideoSource":
        return OpenVideoSource(self)


@final
class OpenVideoSource:
    """Reads frames. Decoders stay open: the next frames of a file are often those after the last ones."""

    def __init__(self, source: VideoSource) -> None:
        self._source = source
        self._index = source.index
        self._lock = threading.Lock()
        self._idle: list[_Decoder] = []
        """The latest last."""

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
                if "frame" in outs:
                    self._decode(number, places, outs["frame"], positions_of(rows, len(outs["frame"])))

    def _decode(self, number: int, places: Indices, out: Frame, rows: Indices) -> None:
        order = np.argsort(places, kind="stable")
        wanted, starts = np.unique(places[order], return_index=True)
        decoder = self._take(number)
        try:
            for frame, taken in zip(wanted.tolist(), np.split(order, starts[1:]), strict=True):
                image = decoder.frame(frame)
                for row in rows[taken].tolist():
                    out[row] = image
        except BaseException:
            decoder.close()
            raise
        self._give_back(decoder)

    def _take(self, number: int) -> "_Decoder":
        with self._lock:
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place].number == number:
                    return self._idle.pop(place)
        return _Decoder(self._source, number, self._index.found[number])

    def _give_back(self, decoder: "_Decoder") -> None:
        with self._lock:
            self._idle.append(decoder)
            old = self._idle[: -self._source.most_idle]
            del self._idle[: -self._source.most_idle]
        for each in old:
            each.close()

    def close(self) -> None:
        """Closes the files. No thread reads any more."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.close()


@final
class _Decoder:
    """Decodes the frames of one file, for one thread at a time."""

    def __init__(self, source: VideoSource, number: int, found: Arrays) -> None:
        from av.video.reformatter import VideoReformatter

        # Older versions scale on one thread, and cannot be asked to.
        self._scaling_options: dict[str, Any] = {} if _is_old() else {"threads": 1}
        self.number = number
        self._source = source
        self._file = source.files[number]
        self._times, self._seeks, self._firsts = (found[name] for name in ("times", "seeks", "firsts"))
        self._context = _opened(self._file)
        self._reformatter = VideoReformatter()
        self._at = -1
        """The frame that was decoded last."""
        with _named(self._file):
            self._container, self._stream = self._context.__enter__()
        self._frames: Iterator[Any] = self._container.decode(self._stream)

    def close(self) -> None:
        """Closes the file."""
        del self._frames
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
                self._seek(int(self._seeks[0]))
                found = self._decoded(place)
            if found is None or found.is_corrupt:
                raise SourceError(f"{self._file.url} is damaged: its frame {place} cannot be decoded.")
            return self._as_rgb(found, place)

    def _seek(self, time: int) -> None:
        self._container.seek(time, stream=self._stream, backward=True, any_frame=False)
        self._frames, self._at = self._container.decode(self._stream), -1

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
