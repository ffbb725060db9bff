"""Films as files: opens them, reads their heads, and finds their frames.

The packets of a file, which are read once and not decoded, say which times there are and which frames can be decoded
alone: the key frames. Some containers call packets key frames that are none, so the decoder is asked at one of them. A
first packet that is not marked may be a key frame all the same.
Where times may be those of packets and not of frames, all frames are decoded once; if so, they are counted.
"""

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.base._errors import ArgumentError, PenstockError, SourceError
from penstock.files._kept import Arrays
from penstock.files._openfile import File
from penstock.films._ffmpeg import open_media

_FORMATS: Final = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,ogg,asf"
"""Containers that are read."""
_UNKNOWN_COUNT: Final = 1 << 30
"""The frames of an AVI that FFmpeg writes into a pipe."""
_MORE_NBYTES: Final = 64 << 10
"""Decoders read behind the last frame of a group, until they give it."""
NO_SEEK: Final = np.iinfo(np.int64).min
"""In place of the time of a key frame: decode from the beginning of the file."""


@contextmanager
def named(file: File, frame: int | None = None) -> Iterator[None]:
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


@contextmanager
def opened(
    file: File, number: int | None, *, is_read_whole: bool = False, data: Any = None, **options: str
) -> Iterator[tuple[Any, Any]]:
    """Opens a film, or its bytes: its container, and one of its streams of pictures."""
    from av.stream import Disposition

    source = data or (file.stream() if is_read_whole else file.scan())
    with source as data, open_media(data, _FORMATS, **options) as container:
        streams = container.streams.video
        if number is None:
            stream = container.streams.best("video")  # which is a cover only where there is no film
            if stream is None or stream.disposition & Disposition.attached_pic:
                raise SourceError(f"{file.url} has no pictures. penstock.audio reads sound.")
        elif 0 <= number < len(streams):
            stream = streams[number]
        else:
            raise ArgumentError(
                f"{file.url} has {len(streams)} streams of pictures, counted from 0, and no stream={number}."
            )
        if stream.codec_context is None:
            raise SourceError(f"{file.url}: its pictures are of a kind that PyAV has no decoder for.")
        stream.codec_context.thread_count = 1
        yield container, stream


class FilmHead(NamedTuple):
    height: int
    width: int
    form: str | None
    """The format of pixels that are measurements; None for colours."""
    stream: int
    """Its number among the streams of pictures."""
    choices: int
    """How many streams of pictures there are, without covers."""


def dtype_of(form: str | None) -> np.dtype[Any] | None:
    """The values of a format that has one channel of more than 8 bits, as FFmpeg names it; None for others."""
    found = re.fullmatch(r"gray(f?)(9|1\d|32)(le|be)", form or "")
    if found is None:
        return None
    kind, bits, order = found.groups()
    return np.dtype(f"{'<' if order == 'le' else '>'}{kind or 'u'}{4 if bits == '32' else 2}")


def head_of(file: File, number: int | None) -> FilmHead:
    from av.stream import Disposition

    with named(file), opened(file, number) as (container, stream):
        height, width, form = (getattr(stream.codec_context, name) for name in ("height", "width", "pix_fmt"))
        if not height * width:
            raise SourceError(f"{file.url} says no size of its frames. It is damaged.")
        streams = container.streams.video
        choices = sum(not each.disposition & Disposition.attached_pic for each in streams)
        return FilmHead(height, width, form if dtype_of(form) else None, list(streams).index(stream), choices)


def frames_of(file: File, number: int) -> Arrays:
    """Finds the frames of a file.

    Returns:
        `times` in units of `base`, in order; for each the time to seek, the place of its key frame, and the first and
        last byte that its decoder reads, of which the first is -1 if it is not known; the marks of all packets, as they
        follow one another, which is empty if frames are counted; and the packet at which decoding from the beginning
        begins.

    Raises:
        SourceError: It is damaged.
    """
    times: list[int] = []
    starts: list[tuple[int, int, int]] = []
    marks: list[int] = []
    begin: int | None = None
    packets = 0
    with named(file), opened(file, number, is_read_whole=True) as (container, stream):
        said, base, kind = stream.frames, stream.time_base, container.format.name
        for packet in container.demux(stream):
            if is_end(packet):
                continue
            if packet.is_corrupt:
                raise SourceError(
                    f"{file.url}: frame {packets} is damaged, so frames cannot be read by their numbers. Write it "
                    "anew: ffmpeg -i FILE new.mp4."
                )
            packets += 1
            if packet.pts is None:
                continue
            marks.append(mark_of(packet))
            if packet.is_keyframe:
                begin = len(marks) - 1 if begin is None else begin
                offset = -1 if packet.pos is None else packet.pos
                starts.append((packet.pts, packet.pts if packet.dts is None else packet.dts, offset))
            if not packet.is_discard:
                times.append(packet.pts)
        has_palette, is_reordered = stream.codec_context.pix_fmt == "pal8", stream.codec_context.has_b_frames
    starts.sort()
    inner = starts[1:] if begin == 0 else starts
    # A frame that cannot be decoded says nothing: later ones may be sound.
    second = _first_frame(file, number, seek=inner[0][1]) if inner else None
    has_keys = second is None or bool(second.key_frame and second.pict_type)
    count = packets
    if count < said and kind == "avi":
        # Frames that were dropped have times, and no packets. Of a film that is written into a pipe nothing is known.
        count = said if said == _UNKNOWN_COUNT else max(times, default=-1) + 1
    if count < said and kind.startswith("mov"):
        count = _packet_count(file, number)
    if count < said:
        raise SourceError(f"{file.url} is cut off: it has {count:,} frames, and its head says {said:,}.")
    if begin != 0:
        first = _first_frame(file, number, needs_key=False)
        if first is not None and first.key_frame and (not starts or first.pts < starts[0][0]):
            begin, starts = 0, [(first.pts, NO_SEEK, -1), *starts]
    shown, keys = np.sort(np.array(times, np.int64)), np.array(starts, np.int64).reshape(-1, 3)
    is_unclear = len(marks) < packets or bool((shown[1:] == shown[:-1]).any())
    # Some containers number packets, such as AVI, and frames have another order.
    is_doubtful = is_reordered and (kind == "avi" or times == shown.tolist())
    if is_unclear or is_doubtful:
        counted = _counted(file, number, None if is_unclear else shown)
        if counted is not None:
            return counted
    if len(keys) and len(shown) and shown[0] < keys[0, 0]:
        # Frames before the first key frame need others that are not there if the film was cut out of a longer one.
        first = _first_frame(file, number)
        shown = shown[shown >= (keys[0, 0] if first is None else min(first.pts, keys[0, 0]))]
    if not len(shown) or not len(keys) or not base:
        raise SourceError(f"{file.url} has no frame that can be decoded.")
    if has_palette or not has_keys:
        keys = np.array([[keys[0, 0], NO_SEEK, -1]])
    place = np.maximum(np.searchsorted(keys[:, 0], shown, "right") - 1, 0)
    lasts = np.minimum(np.append(keys[1:, 2], file.nbytes) + _MORE_NBYTES, file.nbytes - 1)
    return {
        "times": shown,
        "seeks": keys[place, 1],
        "bytes": np.stack([keys[:, 2], lasts], axis=1)[place],
        "firsts": np.searchsorted(shown, keys[place, 0]),
        "marks": np.array(marks, np.int64),
        "begin": np.array(begin),
        "base": np.array([base.numerator, base.denominator], np.int64),
    }


def _counted(file: File, number: int, shown: npt.NDArray[np.int64] | None) -> Arrays | None:
    """Finds the frames of a file by decoding all; see `frames_of`. None if they have the times of packets, `shown`."""
    import av

    times, problem = [], None
    with named(file), opened(file, number, is_read_whole=True) as (container, stream):
        for packet in container.demux(stream):
            try:
                times += [frame.pts for frame in packet.decode()]
            except av.FFmpegError as error:
                problem = error
        base, rate = stream.time_base, stream.guessed_rate
        ascend = None not in times and sorted(set(times)) == times
        if shown is not None and ascend and np.isin(times, shown).all():
            return None
        if problem is not None:
            raise problem
    if not times or not base:
        raise SourceError(f"{file.url} has no frame that can be decoded.")
    if not ascend:
        step = 1 / (base * rate) if rate else 1
        times = [round(place * step) for place in range(len(times))]
    return {
        "times": np.array(times, np.int64),
        "seeks": np.full(len(times), NO_SEEK),
        "bytes": np.full((len(times), 2), -1),
        "firsts": np.zeros(len(times), np.int64),
        "marks": np.empty(0, np.int64),
        "begin": np.array(0),
        "base": np.array([base.numerator, base.denominator], np.int64),
    }


def is_end(packet: Any) -> bool:
    """Whether a packet is the mark of the end."""
    return packet.size == 0 and packet.pts is None


def mark_of(packet: Any) -> int:
    """What tells a packet from those around it: its time and its size, in 63 bits."""
    return int((packet.pts << 24 ^ packet.size) & (1 << 63) - 1)


def _packet_count(file: File, number: int) -> int:
    """The packets of an MP4 or MOV, with those that its edit list leaves out."""
    with named(file), opened(file, number, is_read_whole=True, ignore_editlist="1") as (container, stream):
        return sum(not is_end(packet) for packet in container.demux(stream))


def _first_frame(file: File, number: int, *, seek: int | None = None, needs_key: bool = True) -> Any:
    """The first frame from a new decoder; None if that fails, or says no time.

    Args:
        file: The film.
        number: Its stream.
        seek: Where to begin; None for the beginning.
        needs_key: Whether packets before a key frame are passed over.
    """
    import av

    with named(file), opened(file, number) as (container, stream), suppress(av.FFmpegError):
        if seek is not None:
            container.seek(seek, stream=stream)
        packets = itertools.dropwhile(lambda packet: needs_key and not packet.is_keyframe, container.demux(stream))
        first = next((frame for packet in packets for frame in packet.decode()), None)
        return None if first is None or first.pts is None else first
    return None
