"""Opens sound files: by soundfile (libsndfile), and MP3, AAC, Opus and what else that does not know by PyAV (FFmpeg).

libsndfile decodes parts of MP3 and Opus that are not to the bit those of the whole.
"""

import contextlib
import itertools
import math
import re
from collections.abc import Iterator
from typing import Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt

from penstock.base._arguments import needs
from penstock.base._errors import SourceError
from penstock.films._ffmpeg import open_media

with needs("penstock.audio.decode", "soundfile", "soxr", "scipy"):
    import soundfile

Sound = npt.NDArray[np.float32]

_FORMATS: Final = "mp3,aac,flac,mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,ogg"
"""Containers that FFmpeg opens here."""
_GUESSED: Final = ("mp3", "aac")
"""Those of which FFmpeg guesses the length, unless an MP3 says how many samples at its beginning are none."""
_TOLERANCE: Final = 4096
"""Samples. Times of Matroska are rounded, and may count those of the first and last frame that are none."""
_ROUNDED: Final = 256
"""Samples, fewer than a packet has: the length in an MP4 is that of its packets, but may be rounded."""
_HEAD: Final = 2881
"""Bytes, of the largest frame of an MP3."""
_LEAD: Final = 16 * 1152
"""Samples of an MP3 that are decoded before a part. A frame needs bytes of up to 12 frames before it."""
_SIZES: Final = re.compile(
    r"^\s*(?:data|SSND|BODY|Data Size|riff|Riff size)\s*:\s*(\d+) \(should be (\d+)\)", re.MULTILINE
)
"""What libsndfile notes about a header that says another size than the file has, and nowhere else. A WAV says one more,
"RIFF", which many writers leave wrong."""
_PIPES: Final = (0x7F, 0x80, 0xFF)
"""The upper 8 of 32 bits of a size that its writer did not know, because it wrote into a pipe."""
_CUT: Final = ("Seems to be a truncated file", "File seems to be truncated", "Junk after the last page")
"""Other notes of libsndfile."""
_UNKNOWN_COUNT: Final = (1 << 63) - 1
"""Samples of a FLAC that was written into a pipe."""
_NO_FORMAT: Final = 1
"""The number of libsndfile's error about a file of a format that it does not know."""
_SHORT: Final = np.float32(2**-15)
"""What the lowest of 16 bits stands for."""
_MOST_OF_A_PAGE: Final = 1 << 20
"""Samples. A seek of libsndfile (1.2.2) into the last page of Ogg Vorbis ends some hundred samples away."""


class AudioError(SourceError):
    """A sound file cannot be decoded: no sound, cut, or damaged. The text has the path, if one was given.

    In `map` and `random_map` it is the cause of an `ElementError`, which names the element and, after `from_files`, its
    file.
    """

    names_element = False


class OpenSound(Protocol):
    """An open sound file."""

    rate: int
    """Samples a second."""

    def sample_count(self) -> int:
        """The samples of each channel."""

    def read(self, at: int, count: int | None) -> Sound:
        """Decodes `(samples, channels)`: `count`, or fewer where the sound ends; None for all that follow `at`."""


@contextlib.contextmanager
def opened(content: Any) -> Iterator[OpenSound]:
    """Opens a sound file by libsndfile, and by FFmpeg what that does not know, or of which it reads no exact parts."""
    if not content.read(1):
        raise AudioError("it is empty (0 bytes).")
    content.seek(0)
    try:
        with soundfile.SoundFile(content) as file:
            _require_whole(file)
            if not file.subtype.startswith(("MPEG", "OPUS")) and file.frames != _UNKNOWN_COUNT:
                yield _OfLibsndfile(file)
                return
    except soundfile.LibsndfileError as error:
        if error.code != _NO_FORMAT:
            raise
    yield _OfFFmpeg(content)


def _require_whole(file: Any) -> None:
    """Raises if libsndfile has noted that sound is missing, which is no error for it."""
    notes = file.extra_info
    for said, there in (map(int, sizes) for sizes in _SIZES.findall(notes)):
        if there < said and said >> 24 not in _PIPES and not said >> 62:
            raise AudioError(f"it is cut: its header says {said:,} bytes, and {there:,} are there.")
    if any(note in notes for note in _CUT):
        raise AudioError(
            f"it is cut after {file.frames:,} samples, or other data stand behind its sound, such as a second stream. "
            "Write it anew: ffmpeg -i FILE new.flac."
        )
    if file.subtype == "PCM_24" and f"Block Align   : {4 * file.channels}\n" in notes:
        raise AudioError(
            "it is a WAV whose samples of 24 bits take 4 bytes each, which libsndfile reads as if they took 3. Read it "
            "by scipy.io.wavfile, in a function."
        )


@final
class _OfLibsndfile:
    """See `OpenSound`."""

    def __init__(self, file: Any) -> None:
        self.rate: int = file.samplerate
        self._file = file

    def sample_count(self) -> int:
        return int(self._file.frames)

    def read(self, at: int, count: int | None) -> Sound:
        file, there = self._file, max(0, self.sample_count() - at)
        wanted = there if count is None else min(count, there)
        begin = at
        if not file.seekable():  # kinds for telephones
            begin = 0
        elif there:
            begin = max(0, min(at, at + there - _MOST_OF_A_PAGE)) if file.subtype == "VORBIS" else at
            file.seek(begin)
        # libsndfile takes four times as long for the same floats.
        is_short = file.subtype == "PCM_16"
        found: Sound = file.read(  # one call: a seek follows each
            at - begin + wanted, dtype="int16" if is_short else "float32", always_2d=True
        )
        if len(found) < at - begin + wanted:
            raise AudioError(
                f"it is cut: its header says {at + there:,} samples, and {begin + len(found):,} are there."
            )
        found = found[at - begin :]
        return np.multiply(found, _SHORT, dtype=np.float32) if is_short else found


@final
class _OfFFmpeg:
    """See `OpenSound`. Each call reads the file anew, from its beginning.

    A part has the bits of the same part of the whole. So decoding begins where a decoder remembers nothing of before:
    some frames before a part of an MP3, and at the beginning of others.
    """

    def __init__(self, content: Any) -> None:
        with needs("sound that libsndfile does not read, such as MP3, AAC and Opus,", "av"):
            import av  # noqa: F401
        self._content = content
        with self._stream() as (_, stream):
            self.rate: int = stream.rate

    @contextlib.contextmanager
    def _stream(self) -> Iterator[tuple[Any, Any]]:
        """Opens the file: its container, and the stream of sound that FFmpeg finds best."""
        self._content.seek(0)
        with open_media(self._content, _FORMATS) as container:
            stream = container.streams.best("audio")
            if stream is None:
                raise AudioError("it has no sound.")
            yield container, stream

    def _samples(self, stream: Any, time: int) -> int:
        count: int = round(time * stream.time_base * self.rate)
        return count

    def sample_count(self) -> int:
        with self._stream() as (container, stream):
            packets = self._packets(container, stream)
            ends = [packet.pts + (packet.duration or 0) for packet in packets if packet.pts is not None]
            begin = stream.start_time or 0
            count = self._samples(stream, max(ends, default=begin) - begin)
            # An MP3 of LAME says how many samples of its last frame are none.
            return min(count, self._samples(stream, stream.duration)) if begin and stream.duration else count

    def _packets(self, container: Any, stream: Any) -> Iterator[Any]:
        """Yields the packets and the empty one behind them, but not a last one of which bytes are missing.

        A decoder makes wrong samples of that, and no error.
        """
        for packet, after in itertools.pairwise(itertools.chain(container.demux(stream), [None])):
            if (after and after.size) or not packet.size or self._is_whole(packet, container, stream):
                yield packet

    def _is_whole(self, packet: Any, container: Any, stream: Any) -> bool:
        import av

        if container.format.name not in _GUESSED:
            return not packet.is_corrupt
        # These tell nothing about it. A parser gives a frame out as soon as it has all bytes that its head says.
        parser = av.CodecContext.create(stream.codec_context.name, "r")
        return bool(parser.parse(bytes(packet)))

    def read(self, at: int, count: int | None) -> Sound:
        import av

        end = math.inf if count is None else at + count
        place, flaw = 0, None
        packets, first = 0, None
        times: list[int] = []  # the first packet's, and the end of the last one
        parts: list[Sound] = []
        with self._stream() as (container, stream):
            resampler = av.AudioResampler(format="fltp")  # whatever the decoder gives
            lead = _LEAD if stream.codec_context.name.startswith("mp3") else math.inf
            for packet in self._packets(container, stream):
                packets += bool(packet.size)
                first = packet.pos if first is None else first
                if packet.pts is not None:
                    times = [times[0] if times else packet.pts, packet.pts + (packet.duration or 0)]
                if not parts and packet.pts is not None:
                    begin = self._samples(stream, packet.pts - (stream.start_time or 0))
                    if begin + lead < at:
                        place = begin + self._samples(stream, packet.duration)
                        continue
                try:
                    frames = packet.decode()
                except av.InvalidDataError as error:
                    flaw = flaw or error  # no fault behind the sound, such as a tag
                    continue
                for frame in frames:
                    if flaw is not None:
                        raise flaw
                    for each in resampler.resample(frame):
                        samples = each.to_ndarray().T
                        parts.append(samples[max(0, at - place) : max(0, min(end, place + len(samples)) - place)])
                        place += len(samples)
                if place >= end:
                    break
            else:
                said = self._seconds_said(container, stream)
                if container.format.name == "mp3":  # FFmpeg guesses the length if tags stand behind the sound
                    is_cut = said > 0 and packets < self._frames_said(first or 0)
                elif "mp4" in container.format.name and stream.duration and times:
                    there = self._samples(stream, times[1] - max(times[0], 0))
                    is_cut = there + _ROUNDED < said * self.rate
                else:
                    is_cut = place + _TOLERANCE < said * self.rate
                if is_cut:
                    raise AudioError(f"it is cut: it says {said:.3f} seconds, and {place / self.rate:.3f} are there.")
        if not parts and flaw is not None:
            raise flaw
        return np.concatenate(parts) if parts else np.empty((0, 1), np.float32)

    def _frames_said(self, first: int) -> int:
        """The number of frames that LAME has written before the first one; 0 if it has not."""
        begin = max(0, first - _HEAD)
        self._content.seek(begin)
        head = self._content.read(first - begin)
        at = max(head.rfind(b"Xing"), head.rfind(b"Info"))
        return int.from_bytes(head[at + 8 : at + 12]) if at >= 0 and head[at + 7] & 1 else 0

    def _seconds_said(self, container: Any, stream: Any) -> float:
        """The length in the head of the file; 0 if it says none."""
        if container.format.name in _GUESSED and not (container.format.name == "mp3" and stream.start_time):
            return 0.0
        if stream.duration:
            return float(stream.duration * stream.time_base)
        return (container.duration or 0) / 1e6
