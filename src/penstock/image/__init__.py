"""Images: distortions for `map` and `random_map`, on OpenCV.

    from penstock.image import compose, one_of, rotate, scale, shear, blur, sharpen

    distort = compose(rotate(15), shear(0.2), scale(0.1), one_of(blur(1.5), sharpen(1)))
    batches = dataset.random_map(distort, seed=1).batch(32)

Decoding: `_decode` turns the bytes of a file into an array, by the libraries of `_codecs`, and `_resize` resizes it.
`_scratch` is the memory of a thread for that. The distortions stand in `distort/`, which is imported when one is asked
for.
"""

import sys as _sys
import typing as _typing

from penstock.base._arguments import refuse_attribute as _refuse_attribute
from penstock.base._extensions import IMAGE as _IMAGE, lookup as _lookup, own as _own
from penstock.base._foreign_words import words as _words
from penstock.image._codecs import ImageError
from penstock.image._decode import Decoding, decode
from penstock.image._opencv import OpenCVMissingError, SimpleJPEGMissingError
from penstock.image._resize import Resizing, resize

if _typing.TYPE_CHECKING:  # at run time `__getattr__` imports these when they are asked for
    from penstock.distort import *  # noqa: F403

__all__ = [
    "Decoding",
    "ImageError",
    "OpenCVMissingError",
    "Resizing",
    "SimpleJPEGMissingError",
    "decode",
    "resize",
]
__all__.extend(_own()[_IMAGE])
__all__.sort()

for _name in (Decoding, ImageError, OpenCVMissingError, Resizing, SimpleJPEGMissingError, decode, resize):
    # Reprs, docs and pickles say `penstock.image.Decoding`, and not the private module.
    _name.__module__ = "penstock.image"
del _name


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> _typing.Any:
    """Imports the distortions when one is first asked for, also those of other packages."""
    value = None if name.startswith("_") else _lookup(_IMAGE, name)
    if value is None:
        plain = name.replace("_", "").lower().removeprefix("random")
        ours = next((known for known in __all__ if known.replace("_", "") == plain), None)
        cure = f"{ours}()" if ours else _words("images").get(plain, "")
        _refuse_attribute(_sys.modules[__name__], name, "penstock.image", "images", cure=cure)
    globals()[name] = value
    return value
