"""Decoding of sound files: `Decoding` and `RandomCrop`, which are values, and the function `decode`.

Everything runs without the GIL, but for some microseconds a file.
"""

import io
import logging
import os
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from penstock.audio._files import AudioError, OpenSound, Sound, opened
from penstock.base._arguments import as_float, as_int, bytes_of, needs
from penstock.base._errors import ArgumentError, SourceError
from penstock.base._files import open_file
from penstock.base._retries import retry_budget

with needs("penstock.audio.decode", "soxr", "soundfile", "scipy"):
    import soxr

Data = str | os.PathLike[str] | bytes | bytearray | memoryview | npt.NDArray[np.uint8]
"""The path of a file, or all of its bytes."""

_RATES: Final = (
    "Sounds have several rates: %d samples a second (%s), and %d (%s). Without sample_rate= each keeps its own, so a "
    "second has other numbers of samples. Say one rate for all: sample_rate=%d."
)
_log = logging.getLogger("penstock")
_MOST_RATE: Final = 10_000_000


@final
@dataclass(frozen=True)
class Decoding:
    """Converts a sound file to an array. A function for `map`, and an immutable, hashable value.

    The path or the bytes of a file become float32 in [-1, 1], `(samples,)` of one channel or with `mono`, else
    `(samples, channels)`. With `duration` the result always has `round(duration * rate)` samples: zeros follow a sound
    that is shorter.

    WAV, FLAC, OGG Vorbis, AIFF and the other formats of libsndfile are read by soundfile. MP3, AAC and Opus, also in
    MP4, Matroska and WebM, are read by PyAV (extra `video`).

    Of a path no more is read than the part that is wanted, and of the end of Vorbis some seconds before it. Of MP3, AAC
    and Opus all before it is read, and of AAC and Opus decoded, so that a part has the bits of the whole.
    Runs without the GIL. Memory: the part in float32, twice where it is resampled, and as it is stored.

    Example:
        >>> import soundfile
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
            AudioError: It is no sound, cut or damaged, or the part begins after its end.
            ModuleNotFoundError: PyAV is missing (extra `video`), and libsndfile does not read it.
        """
        return _part(data, self)


@final
@dataclass(frozen=True)
class RandomCrop:
    """Cuts a part at a random place. A function for `random_map`, and an immutable, hashable value.

    The path or the bytes of a sound file become `(round(seconds * sample_rate),)` of one channel or with `mono`, else
    with channels last; float32. Where it begins depends on the generator alone, which belongs to the seed, the epoch
    and the element. So each epoch has other places, and a resumed run has the same. Zeros follow a shorter sound.

    Reads, memory and errors are those of `Decoding`: of a WAV or FLAC of an hour no more than the part is read. Files
    of MP3, AAC and Opus are read once more to their end, and not decoded, for their length.

    Example:
        >>> import soundfile
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
        return _part(data, self._decoding(), rng)


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
        AudioError: It is no sound, cut or damaged, or the part begins after its end. The text begins with the path.
        ModuleNotFoundError: PyAV is missing (extra `video`), and libsndfile does not read it.
        ArgumentError: A number is out of its range.
    """
    return Decoding(sample_rate, mono=mono, offset=offset, duration=duration)(source)


def _part(data: Any, options: Decoding, rng: np.random.Generator | None = None) -> Sound:
    """Decodes a part of a file; at a random place, if there is a generator."""
    name = f"{os.fspath(data)}: " if isinstance(data, (str, os.PathLike)) else ""
    view = None if name else bytes_of(data, "A sound is the path or the bytes of a file")
    try:
        with open_file(data) if view is None else io.BytesIO(view) as content, opened(content) as sound:
            return _decoded(sound, options, rng)
    except AudioError as error:
        raise AudioError(f"{name}{error}") from None
    except (SourceError, ImportError):
        raise
    except OSError as error:
        raise AudioError(f"{name}cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # of the libraries
        reason = getattr(error, "error_string", None) or getattr(error, "strerror", None) or error
        raise AudioError(
            f"{name}it is no sound file, is damaged, or is of a kind that is not read here: {reason} If other programs "
            "read it, write it anew: ffmpeg -i FILE new.flac."
        ) from None


def _decoded(sound: OpenSound, options: Decoding, rng: np.random.Generator | None) -> Sound:
    rate = sound.rate
    if options.sample_rate is None and (pair := retry_budget().first_other(rate)):
        one, its_rate, other = pair
        _log.warning(_RATES, its_rate, one, rate, other, its_rate)
    wanted = options.sample_rate or rate
    size = None if options.duration is None else round(options.duration * wanted)
    count = None if size is None else -(-size * rate // wanted)
    at = round(options.offset * rate)
    if rng is not None:
        at = int(rng.integers(0, max(0, sound.sample_count() - (count or 0)), endpoint=True))
    found = sound.read(at, count)
    if not len(found):
        raise AudioError(
            f"it has {sound.sample_count() / rate:.3f} seconds, and the part begins at {at / rate:.3f}. It is empty, "
            "cut, or shorter than others."
        )
    found = found.mean(axis=1, keepdims=True) if options.mono else found
    if wanted != rate:
        found = soxr.resample(found, rate, wanted)
    if size is not None:
        found = np.pad(found[:size], ((0, max(0, size - len(found))), (0, 0)))
    return np.ascontiguousarray(found[:, 0] if found.shape[1] == 1 else found)
