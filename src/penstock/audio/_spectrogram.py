"""Spectrograms, by SciPy's `ShortTimeFFT`."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import numpy.typing as npt

from penstock.base._arguments import as_int, needs
from penstock.base._errors import ArgumentError

with needs("penstock.audio.Spectrogram", "audio"):
    from scipy.signal import ShortTimeFFT
    from scipy.signal.windows import hann


@final
@dataclass(frozen=True)
class Spectrogram:
    """Converts samples to the logarithm of the power of frequencies. A function for `map`, and an immutable value.

    `(samples,)` become `(1 + (samples - size) // hop, size // 2 + 1)` float32, time first: frames of `size` samples,
    `hop` apart, under a Hann window; `log(power + 1e-6)`. Frames that the samples do not fill are left out.
    """

    size: int = 400
    """Samples of a frame."""
    hop: int = 160
    """Samples from a frame to the next."""

    def __post_init__(self) -> None:
        if (as_int(self.size) or 0) < 2 or (as_int(self.hop) or 0) < 1:
            raise ArgumentError(f"Spectrogram({self.size!r}, {self.hop!r}): a frame has 2 samples or more, a hop 1.")

    @property
    def releases_gil(self) -> bool:
        """True: the transform releases the GIL."""
        return True

    @cached_property
    def _transform(self) -> Any:
        return ShortTimeFFT(hann(self.size, sym=False), self.hop, fs=1.0, phase_shift=None)

    def __call__(self, samples: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns the spectrogram in a new array.

        Raises:
            ArgumentError: There are several channels, or fewer samples than a frame has.
        """
        if samples.ndim != 1 or len(samples) < self.size:
            raise ArgumentError(
                f"Spectrogram({self.size}, {self.hop}) takes one channel of {self.size} samples or more, got the shape "
                f"{samples.shape}. Decode with mono=True, and a duration."
            )
        middle, count = self.size // 2, 1 + (len(samples) - self.size) // self.hop
        # SciPy counts frames by their middles: slice `p` has it at `p * hop`.
        padded = samples[: self.size + (count - 1) * self.hop]
        found = self._transform.stft(padded, 0, count, k_offset=middle)
        return np.asarray(np.log(np.abs(found.T) ** 2 + 1e-6), np.float32)
