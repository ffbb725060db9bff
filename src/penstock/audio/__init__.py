"""Sound: decoding, random crops and spectrograms for `map` and `random_map`, on soundfile, soxr and scipy.

    from penstock import audio

    paths = penstock.from_source(sorted(glob.glob("words/*/*.wav")))
    crops = paths.random_map(audio.RandomCrop(1.0, sample_rate=16000), seed=1)
    batches = crops.map(audio.Spectrogram(400, 160)).batch(32)

design/0033 says why these libraries.
"""

import sys as _sys
import typing as _typing

from penstock.audio._decode import Decoding, RandomCrop, decode
from penstock.audio._files import AudioError
from penstock.audio._spectrogram import Spectrogram
from penstock.base._arguments import explained as _explained, refuse_attribute as _refuse_attribute

__all__ = ["AudioError", "Decoding", "RandomCrop", "Spectrogram", "decode"]

for _name in (AudioError, Decoding, RandomCrop, Spectrogram, decode):
    # Reprs, docs and pickles say `penstock.audio.Decoding`, and not the private module.
    _name.__module__ = "penstock.audio"
for _name in (Decoding, RandomCrop, Spectrogram):
    _name.__init__ = _explained(_name.__init__)  # type: ignore[method-assign]
del _name


def __getattr__(name: str) -> _typing.NoReturn:
    _refuse_attribute(_sys.modules[__name__], name, "penstock.audio", "sound")
