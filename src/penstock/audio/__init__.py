"""Sound: decoding, random crops and spectrograms for `map` and `random_map`, on soundfile, soxr and scipy.

    from penstock import audio

    paths = penstock.from_source(sorted(glob.glob("words/*/*.wav")))
    crops = paths.random_map(audio.RandomCrop(1.0, sample_rate=16000), seed=1)
    batches = crops.map(audio.Spectrogram(400, 160)).batch(32)

design/0033 says why these libraries.
"""

from penstock.audio._decode import AudioError, Decoding, RandomCrop, decode
from penstock.audio._spectrogram import Spectrogram
from penstock.base._arguments import explained

__all__ = ["AudioError", "Decoding", "RandomCrop", "Spectrogram", "decode"]

for _name in (AudioError, Decoding, RandomCrop, Spectrogram, decode):
    # Reprs, docs and pickles say `penstock.audio.Decoding`, and not the private module.
    _name.__module__ = "penstock.audio"
for _name in (Decoding, RandomCrop, Spectrogram):
    _name.__init__ = explained(_name.__init__)  # type: ignore[method-assign]
del _name
