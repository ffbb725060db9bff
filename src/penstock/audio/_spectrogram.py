"""Spectrograms, by SciPy's `ShortTimeFFT`, also on the mel scale."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import numpy.typing as npt

from penstock.base._arguments import as_int, needs
from penstock.base._errors import ArgumentError

with needs("penstock.audio.Spectrogram", "soundfile", "soxr", "scipy"):
    import scipy


@final
@dataclass(frozen=True)
class Spectrogram:
    """Converts samples to the logarithm of the power of frequencies. A function for `map`, and an immutable value.

    `(samples,)` become `(1 + (samples - size) // hop, size // 2 + 1)` float32, time first: frames of `size` samples,
    `hop` apart, under a Hann window; `log(power + 1e-6)`. Frames that the samples do not fill are left out.

    With `mel_bands` the last axis has that size: before the logarithm, the power is summed in bands that are as wide as
    ears resolve. A frequency of `f` Hz is `2595 * log10(1 + f / 700)` mel (the scale of the HTK Book, section 5.6).
    Edges of bands are evenly spaced in mel from 0 to half the sample rate. The weight of a band rises evenly in Hz from
    0 at one edge to 1 at the next, and falls to 0 at the one after it, as torchaudio's does by default.

    Example:
        >>> samples = np.sin(np.arange(16000) * 440 * 2 * np.pi / 16000)
        >>> penstock.audio.Spectrogram(512, 160)(samples).shape
        (97, 257)
        >>> penstock.audio.Spectrogram(512, 160, mel_bands=80, sample_rate=16000)(samples).shape
        (97, 80)
    """

    size: int = 400
    """Samples of a frame."""
    hop: int = 160
    """Samples from a frame to the next."""
    mel_bands: int | None = None
    """Bands in place of frequencies; None for all frequencies."""
    sample_rate: int | None = None
    """Samples a second. Bands need it."""

    def __post_init__(self) -> None:
        if (as_int(self.size) or 0) < 2 or (as_int(self.hop) or 0) < 1:
            raise ArgumentError(f"Spectrogram({self.size!r}, {self.hop!r}): a frame has 2 samples or more, a hop 1.")
        if self.mel_bands is None:
            return
        if (as_int(self.mel_bands) or 0) < 1 or (as_int(self.sample_rate) or 0) < 1:
            raise ArgumentError(
                f"Spectrogram(mel_bands={self.mel_bands!r}, sample_rate={self.sample_rate!r}): bands are 1 or more, "
                "and need the samples a second: give the sample_rate= of the Decoding before."
            )
        if not self._weights.any(axis=0).all():
            empty = int(np.argmin(self._weights.any(axis=0)))
            raise ArgumentError(
                f"Spectrogram({self.size}, mel_bands={self.mel_bands}, sample_rate={self.sample_rate}): band {empty} "
                f"lies between two of the {self.size // 2 + 1} frequencies, and would have no power ever. Use fewer "
                "bands, or longer frames."
            )

    @property
    def releases_gil(self) -> bool:
        """True: the transform releases the GIL."""
        return True

    @cached_property
    def _transform(self) -> Any:
        signal = scipy.signal  # imported now, in half a second, which those who only decode need not wait
        return signal.ShortTimeFFT(signal.windows.hann(self.size, sym=False), self.hop, fs=1.0, phase_shift=None)

    @cached_property
    def _weights(self) -> npt.NDArray[np.float64]:
        """Of each frequency in each band."""
        assert self.mel_bands is not None
        assert self.sample_rate is not None
        most = 2595 * np.log10(1 + self.sample_rate / 2 / 700)
        edges = 700 * (10 ** (np.linspace(0, most, self.mel_bands + 2) / 2595) - 1)
        frequencies = np.fft.rfftfreq(self.size, 1 / self.sample_rate)[:, None]
        rises, falls = np.diff(edges[:-1]), np.diff(edges[1:])
        return np.maximum(0, np.minimum((frequencies - edges[:-2]) / rises, (edges[2:] - frequencies) / falls))

    def __call__(self, samples: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Returns the spectrogram in a new array.

        Raises:
            ArgumentError: There are several channels, or fewer samples than a frame has.
        """
        samples = np.asarray(samples)
        if samples.ndim != 1 or len(samples) < self.size:
            raise ArgumentError(
                f"Spectrogram({self.size}, {self.hop}) takes one channel of {self.size} samples or more, got the shape "
                f"{samples.shape}. Decode with mono=True, and a duration."
            )
        middle, count = self.size // 2, 1 + (len(samples) - self.size) // self.hop
        # SciPy counts frames by their middles: slice `p` has it at `p * hop`.
        padded = samples[: self.size + (count - 1) * self.hop]
        power = np.abs(self._transform.stft(padded, 0, count, k_offset=middle).T) ** 2
        if self.mel_bands is not None:
            power = power @ self._weights
        return np.asarray(np.log(power + 1e-6), np.float32)
