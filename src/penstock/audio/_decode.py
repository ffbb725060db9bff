"""Decoding of sound files: `Decoding` and `RandomCrop`, which are values, and the function `decode`.

Everything runs without the GIL, but for some microseconds a file.
"""

import functools
import io
import logging
import os
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.audio._mp3 import Stretched, goes_on, says_count
from penstock.audio._ogg import MOST_PAGE_NBYTES, last_start, page_at, sample_before_last_page
from penstock.base._arguments import as_float, as_int, bytes_of, needs
from penstock.base._errors import ArgumentError, SourceError
from penstock.base._files import open_file
from penstock.base._retries import retry_budget
from penstock.base._units import size_text

with needs("penstock.audio.decode", "soundfile", "soxr", "scipy"):
    import soundfile
    import soxr

Sound = npt.NDArray[np.float32]
Data = str | os.PathLike[str] | bytes | bytearray | memoryview | npt.NDArray[np.uint8]
"""The path of a file, or all of its bytes."""

_SIZES: Final = re.compile(
    r"^\s*(?:data|SSND|BODY|Data Size|riff|Riff size)\s*:\s*(\d+) \(should be (\d+)\)", re.MULTILINE
)
"""What libsndfile notes about a header that says another size than the file has. A WAV says one more, "RIFF", which
many writers leave wrong."""
_UNKNOWN_NBYTES: Final = (range(0x7F000000, 0x80000001), range(0xFFFF0000, 1 << 32), range(1 << 62, 1 << 64))
"""Sizes in the headers of writers that did not know it, because they wrote into a pipe."""
_BLOCK_ALIGN: Final = re.compile(r"^  Block Align   : (\d+)$", re.MULTILINE)
"""The bytes of a sample of all channels, which the header of a WAV says."""
_WIDTHS: Final = {"PCM_U8": 1, "PCM_16": 2, "PCM_24": 3, "PCM_32": 4}
_OGG_STREAM: Final = re.compile(r"Stream serialno : (-?\d+)")
_OGG_OFFSET: Final = re.compile(r"PCM offset\s+: (-?\d+)")
_MOST_VORBIS_BLOCK: Final = 8192
_NIST_COUNT: Final = re.compile(rb"^sample_count -i (\d+)\s", re.MULTILINE)
_MP3_LEAD: Final = 16 * 1152
"""Samples of an MP3 that are decoded before a part. A frame needs bytes of up to 12 frames before it, and after a seek
libsndfile decodes fewer."""
_SEVERAL: Final = (
    "several streams stand behind each other in it, and libsndfile reads {:,} samples, those of the first. Join them: "
    "ffmpeg -i FILE new.flac."
)
_NOT_OPENED: Final = (
    "is no sound file, is damaged, or is of a kind that libsndfile does not read (then write it anew: ffmpeg -i FILE "
    "new.flac)"
)
_MP3_STEP: Final = 192
"""Frames of MPEG have a multiple of this."""
_RATES: Final = (
    "Sounds have several rates: %d samples a second (%s), and %d (%s). Without sample_rate= each keeps its own, so a "
    "second has other numbers of samples. Say one rate for all: sample_rate=%d."
)
_log = logging.getLogger("penstock")
_BLOCK: Final = 1 << 16
_MOST_RATE: Final = 10_000_000
_MOST_NBYTES: Final = 1 << 32


class AudioError(SourceError):
    """A sound file cannot be decoded: no sound, cut, damaged, or too large. The text has the path, if one was given.

    In `map` and `random_map` it is the cause of an `ElementError`, which names the element and, after `from_files`, its
    file.
    """

    names_element = False


@final
@dataclass(frozen=True)
class Decoding:
    """Converts a sound file to an array. A function for `map`, and an immutable, hashable value.

    The path or the bytes of a WAV, FLAC, OGG (Vorbis, Opus), MP3, AIFF or another file of libsndfile become float32 in
    [-1, 1], `(samples,)` of one channel or with `mono`, else `(samples, channels)`. With `duration` the result always
    has `round(duration * rate)` samples: zeros follow a sound that is shorter.

    Of a path no more is read than the part that is wanted (and of MP3 and Vorbis what libsndfile needs to find it). A
    part of Opus is near to that of the whole, and not equal to the bit.
    Runs without the GIL. Memory: the part in float32, twice where it is resampled. A part above what `memory_limit`
    leaves a worker, or of 4 GiB, is an `AudioError` before memory is taken, whatever its header says.

    Example:
        >>> soundfile.write("tone.wav", np.zeros((8000, 2)), 8000)
        >>> penstock.audio.Decoding(sample_rate=16000, mono=True, duration=0.5)("tone.wav").shape
        (8000,)
    """

    sample_rate: int | None = None
    """Samples a second of the result, resampled by soxr (HQ); None for that of the file. Then the log says, once a
    loader, if files have several."""
    _: KW_ONLY
    mono: bool = False
    """Whether channels are averaged."""
    offset: float = 0.0
    """Seconds before the part."""
    duration: float | None = None
    """Seconds of the part; None for all that follow."""

    def __post_init__(self) -> None:
        if self.sample_rate is not None and not 0 < (as_int(self.sample_rate) or 0) <= _MOST_RATE:
            raise ArgumentError(f"sample_rate={self.sample_rate!r}: a number of samples a second is needed, or None.")
        for name, value in (("offset", self.offset), ("duration", self.duration)):
            if value is not None and not 0 <= (-1 if (found := as_float(value)) is None else found) < 1e9:
                raise ArgumentError(f"{name}={value!r}: a number of seconds is needed, from 0 on.")

    @property
    def releases_gil(self) -> bool:
        """True: libsndfile, soxr and NumPy release the GIL."""
        return True

    def __call__(self, data: Data) -> Sound:
        """Returns the sound in a new array.

        Raises:
            AudioError: It is no sound, cut, damaged or too large, or begins after its end.
        """
        return _part(data, self, lambda frames, count, rate: round(self.offset * rate))


@final
@dataclass(frozen=True)
class RandomCrop:
    """Cuts a part at a random place. A function for `random_map`, and an immutable, hashable value.

    The path or the bytes of a sound file become `(round(seconds * sample_rate),)` of one channel or with `mono`, else
    with channels last; float32. Where it begins depends on the generator alone, which belongs to the seed, the epoch
    and the element. So each epoch has other places, and a resumed run has the same. Zeros follow a shorter sound.

    Reads, memory and errors are those of `Decoding`: of a file of an hour no more than the part is read.

    Example:
        >>> soundfile.write("tone.wav", np.zeros(8000), 8000)
        >>> penstock.audio.RandomCrop(0.5, sample_rate=8000)("tone.wav", np.random.default_rng(0)).shape
        (4000,)
    """

    seconds: float
    _: KW_ONLY
    sample_rate: int
    mono: bool = False
    """Whether channels are averaged."""

    def __post_init__(self) -> None:
        if self.sample_rate is None:
            raise ArgumentError("RandomCrop(sample_rate=None): crops have one size, so say how many samples a second.")
        self._decoding()

    def _decoding(self) -> Decoding:
        return Decoding(self.sample_rate, mono=self.mono, duration=self.seconds)

    @property
    def releases_gil(self) -> bool:
        """As that of `Decoding`."""
        return True

    def __call__(self, data: Data, rng: np.random.Generator | None = None) -> Sound:
        """Returns the part in a new array.

        Raises:
            ArgumentError: There is no generator.
            AudioError: As `Decoding`.
        """
        if rng is None:
            raise ArgumentError(
                f"{self!r} draws random numbers, and was called without a generator. Use random_map(lambda e, rng: "
                "crop(e['bytes'], rng)). For one place in all epochs: Decoding(offset=, duration=)."
            )

        def first(frames: int, count: int, rate: int) -> int:
            return int(rng.integers(0, max(0, frames - count), endpoint=True))

        return _part(data, self._decoding(), first)


def decode(
    source: Data,
    *,
    sample_rate: int | None = None,
    mono: bool = False,
    offset: float = 0.0,
    duration: float | None = None,
) -> Sound:
    """Reads one sound file: `(samples,)` or `(samples, channels)`, float32 in [-1, 1]; see `Decoding`.

    Raises:
        AudioError: It is no sound, cut, damaged or too large, or begins after its end. The text begins with the path.
        ArgumentError: A number is out of its range.
    """
    return Decoding(sample_rate, mono=mono, offset=offset, duration=duration)(source)


def _part(data: Any, options: Decoding, first: Callable[[int, int, int], int]) -> Sound:
    """Decodes a part of a file, whose first sample `first(samples, wanted, rate)` gives."""
    name = f"{os.fspath(data)}: " if isinstance(data, (str, os.PathLike)) else ""
    opened, view = False, None if name else bytes_of(data, "A sound is the path or the bytes of a file")
    try:
        with open_file(data) if view is None else io.BytesIO(view) as content:
            if not (nbytes := content.seek(0, os.SEEK_END)):
                raise AudioError("it is empty (0 bytes).")
            content.seek(0)
            with soundfile.SoundFile(content) as file:
                opened = True
                if not _is_mp3(file) or says_count(functools.partial(_bytes_at, content)):
                    return _decoded(file, content, nbytes, int(file.frames), options, first)
            frames = _counted(content, nbytes)
            with soundfile.SoundFile(Stretched(content, nbytes)) as file:
                return _decoded(file, content, nbytes, frames, options, first)
    except AudioError as error:
        raise AudioError(f"{name}{error}") from None
    except OSError as error:
        if isinstance(error, SourceError):
            raise
        raise AudioError(f"{name}cannot be read: {error.strerror or error}.") from error
    except (soundfile.SoundFileError, RuntimeError, ValueError) as error:
        raise AudioError(
            f"{name}it {'is damaged' if opened else _NOT_OPENED}: {str(error).partition(': ')[2] or error}"
        ) from None


def _counted(content: Any, nbytes: int) -> int:
    """The samples of each channel of an MP3, which does not say them. A last frame that is not whole is left out."""
    frames = 0
    for size in (384 * _MP3_STEP, _MP3_STEP):  # where the last block has an error, its samples before that
        stretched = Stretched(content, nbytes)
        with soundfile.SoundFile(stretched) as file:
            file.seek(frames)
            try:
                while count := len(file.read(size, dtype="float32")):
                    frames += count
                break
            except soundfile.SoundFileError:
                if not stretched.is_at_end:
                    raise
    return frames


def _bytes_at(content: Any, at: int, nbytes: int) -> bytes:
    """Reads bytes of a file that libsndfile is reading."""
    place = content.tell()
    content.seek(at)
    found: bytes = content.read(nbytes)
    content.seek(place)
    return found


def _refuse_part(file: Any, content: Any, nbytes: int, frames: int) -> None:
    """Raises if sound is missing behind `frames`, or left out by libsndfile without an error."""
    notes = file.extra_info
    for said, there in (map(int, sizes) for sizes in _SIZES.findall(notes)):
        if there < said and not any(said in unknown for unknown in _UNKNOWN_NBYTES):
            raise AudioError(f"it is cut: its header says {said:,} bytes, and {there:,} are there.")
    width, block = _WIDTHS.get(file.subtype), _BLOCK_ALIGN.search(notes)
    if width and block and int(block[1]) > width * file.channels:
        raise AudioError(
            f"it is a WAV whose samples of {8 * width} bits take {int(block[1]) // file.channels} bytes each, which "
            "libsndfile reads as if they took no more than they need. Read it by scipy.io.wavfile, in a function."
        )
    if file.format == "NIST" and (count := _NIST_COUNT.search(_bytes_at(content, 0, 1024))) and int(count[1]) > frames:
        raise AudioError(f"it is cut: its header says {int(count[1]):,} samples, and {frames:,} are there.")
    if "Seems to be a truncated file" in notes or "File seems to be truncated" in notes:
        raise AudioError(f"it is cut: it ends amid its sound, after {frames:,} samples.")
    if _is_mp3(file) and goes_on(functools.partial(_bytes_at, content), nbytes):
        raise AudioError(_SEVERAL.format(frames))
    if "Junk after the last page" in notes and (stream := _stream_of(file)) is not None:
        tail = _bytes_at(content, max(0, nbytes - MOST_PAGE_NBYTES), MOST_PAGE_NBYTES)
        start = last_start(tail)
        page = None if start is None else page_at(tail, start)
        if start is not None and (page is None or page[0] > len(tail)):
            raise AudioError(f"it is cut: it ends amid a page of Ogg, after {frames:,} samples.")
        if page is not None and page[2] != stream:
            raise AudioError(_SEVERAL.format(frames))


def _stream_of(file: Any) -> int | None:
    """The number of the stream of Ogg; None for other files."""
    found = _OGG_STREAM.search(file.extra_info)
    return int(found[1]) % (1 << 32) if found else None


def _lead(file: Any, content: Any, nbytes: int, at: int) -> int:
    """The samples that are decoded before a part, for libsndfile to find it.

    A seek of libsndfile into the last page of Vorbis ends some hundred samples away, as many as that page leaves out.
    """
    if _is_mp3(file):
        return min(at, _MP3_LEAD)
    stream = _stream_of(file)
    if file.subtype != "VORBIS" or stream is None or not at:
        return 0
    tail = _bytes_at(content, max(0, nbytes - 2 * MOST_PAGE_NBYTES), 2 * MOST_PAGE_NBYTES)
    offset = _OGG_OFFSET.search(file.extra_info)
    last = sample_before_last_page(tail, stream) - (int(offset[1]) if offset else 0)
    return at - min(at, max(0, last - _MOST_VORBIS_BLOCK))


def _is_mp3(file: Any) -> bool:
    """Whether it is MPEG of layer 1, 2 or 3."""
    return str(file.subtype).startswith("MPEG")


def _decoded(
    file: Any, content: Any, file_nbytes: int, frames: int, options: Decoding, first: Callable[[int, int, int], int]
) -> Sound:
    rate, channels = file.samplerate, file.channels
    _refuse_part(file, content, file_nbytes, frames)
    if frames == (1 << 63) - 1:
        raise AudioError(
            "its header does not say how many samples it has, as if it was written into a pipe. Write it anew: ffmpeg "
            "-i FILE new.flac."
        )
    if not 0 < frames < 1 << 62 or not 0 < rate <= _MOST_RATE:
        raise AudioError(f"it has {frames:,} samples, {rate:,} a second. It is empty, damaged or cut.")
    if options.sample_rate is None and (pair := retry_budget().first_other(rate)):
        one, its_rate, other = pair
        _log.warning(_RATES, its_rate, one, rate, other, its_rate)
    wanted = options.sample_rate or rate
    size = None if options.duration is None else round(options.duration * wanted)
    count = frames if size is None else -(-size * rate // wanted)
    at = first(frames, count, rate)
    if at >= frames:
        raise AudioError(f"it has {frames / rate:.3f} seconds, and the part begins at {at / rate:.3f}.")
    present = min(count, frames - at)
    lead = _lead(file, content, file_nbytes, at)
    nbytes = 4 * channels * (lead + present * (1 + wanted / rate))
    room_nbytes = min(_MOST_NBYTES, retry_budget().room_nbytes)
    if nbytes > room_nbytes:
        raise AudioError(
            f"its part takes {size_text(int(nbytes))}, above {size_text(int(room_nbytes))}, which is 4 GiB or what "
            "memory_limit leaves to each worker. Give duration=, or raise memory_limit."
        )
    if file.seekable():
        file.seek(at - lead)
    else:  # kinds for telephones
        for left in range(at, 0, -_BLOCK):
            file.read(min(left, _BLOCK))
    found: Sound = file.read(lead + present, dtype="float32", always_2d=True)[lead:]  # one call: a seek follows each
    if len(found) < present:
        raise AudioError(f"it is cut: its header says {frames:,} samples, and it ends after {at + len(found):,}.")
    found = found.mean(axis=1, keepdims=True) if options.mono else found
    if wanted != rate:
        found = soxr.resample(found, rate, wanted)
    if size is not None:
        found = np.pad(found[:size], ((0, max(0, size - len(found))), (0, 0)))
    return np.ascontiguousarray(found[:, 0] if found.shape[1] == 1 else found)
