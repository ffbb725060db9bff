"""Images: distortions for `map` and `random_map`, on OpenCV.

    from penstock.image import compose, one_of, rotate, scale, shear, blur, sharpen

    distort = compose(rotate(15), shear(0.2), scale(0.1), one_of(blur(1.5), sharpen(1)))
    batches = dataset.random_map(distort, seed=1).batch(32)

Distortions: `_values` draws numbers, `_frame` finds images in elements, `_warp` joins several geometric changes to
one, and `_distortion` is their base class. `_geometry`, `_bends`, `_pixels` and `_convert` hold the distortions, and
`_compose` combines them. They release the GIL for all but some tens of microseconds an image.

Decoding: `_decode` turns the bytes of a file into an array. `_formats` reads headers, `_codecs` and `_gif` decode, and
`_resize` with `_taps` resizes. `_scratch` is the memory of a thread for that.
"""

from penstock.image._bends import elastic as elastic, sine_warp as sine_warp
from penstock.image._compose import (
    compose as compose,
    frozen as frozen,
    one_of as one_of,
    sometimes as sometimes,
)
from penstock.image._convert import normalize as normalize, one_hot as one_hot, to_float as to_float
from penstock.image._decode import Decoding as Decoding, decode as decode
from penstock.image._distortion import Distortion as Distortion
from penstock.image._formats import ImageError as ImageError
from penstock.image._geometry import (
    crop as crop,
    flip as flip,
    resized_crop as resized_crop,
    rotate as rotate,
    scale as scale,
    shear as shear,
    translate as translate,
)
from penstock.image._opencv import OpenCVMissingError as OpenCVMissingError
from penstock.image._pixels import (
    blur as blur,
    brightness as brightness,
    contrast as contrast,
    erase as erase,
    noise as noise,
    sharpen as sharpen,
    smooth as smooth,
)
from penstock.image._resize import Resizing as Resizing, resize as resize
from penstock.image._simplejpeg import SimpleJPEGMissingError as SimpleJPEGMissingError
from penstock.image._values import exactly as exactly

__all__ = [
    "Decoding",
    "Distortion",
    "ImageError",
    "OpenCVMissingError",
    "Resizing",
    "SimpleJPEGMissingError",
    "blur",
    "brightness",
    "compose",
    "contrast",
    "crop",
    "decode",
    "elastic",
    "erase",
    "exactly",
    "flip",
    "frozen",
    "noise",
    "normalize",
    "one_hot",
    "one_of",
    "resize",
    "resized_crop",
    "rotate",
    "scale",
    "sharpen",
    "shear",
    "sine_warp",
    "smooth",
    "sometimes",
    "to_float",
    "translate",
]

for _name in __all__:
    # Reprs, docs and pickles say `penstock.image.Distortion`, and not the private module.
    globals()[_name].__module__ = "penstock.image"
del _name
