"""Images: distortions for `map` and `random_map`, on OpenCV.

    from penstock.image import compose, one_of, rotate, scale, shear, blur, sharpen

    distort = compose(rotate(15), shear(0.2), scale(0.1), one_of(blur(1.5), sharpen(1)))
    batches = dataset.random_map(distort, seed=1).batch(32)

Distortions: `_values` draws numbers, `_frame` finds images in elements, and `_warp` joins several geometric changes to
one. `_distortion` has their base class, and combines them. `_geometry`, `_pixels` and `_convert` hold the others. They
release the GIL for all but some tens of microseconds an image.

Decoding: `_decode` turns the bytes of a file into an array. `_formats` reads headers, `_codecs` decodes, and
`_resize` resizes. `_scratch` is the memory of a thread for that.
"""

from penstock.image._convert import normalize, one_hot, to_float
from penstock.image._decode import Decoding, decode
from penstock.image._distortion import Distortion, compose, frozen, one_of, sometimes
from penstock.image._formats import ImageError
from penstock.image._geometry import (
    crop,
    elastic,
    flip,
    perspective,
    resized_crop,
    rotate,
    scale,
    shear,
    sine_warp,
    translate,
)
from penstock.image._mixing import Mixing, cut_mix, mix_up
from penstock.image._opencv import OpenCVMissingError, SimpleJPEGMissingError
from penstock.image._pixels import blur, brightness, contrast, erase, grayscale, hue, noise, saturation, sharpen, smooth
from penstock.image._resize import Resizing, resize
from penstock.image._values import exactly

__all__ = [
    "Decoding",
    "Distortion",
    "ImageError",
    "Mixing",
    "OpenCVMissingError",
    "Resizing",
    "SimpleJPEGMissingError",
    "blur",
    "brightness",
    "compose",
    "contrast",
    "crop",
    "cut_mix",
    "decode",
    "elastic",
    "erase",
    "exactly",
    "flip",
    "frozen",
    "grayscale",
    "hue",
    "mix_up",
    "noise",
    "normalize",
    "one_hot",
    "one_of",
    "perspective",
    "resize",
    "resized_crop",
    "rotate",
    "saturation",
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
