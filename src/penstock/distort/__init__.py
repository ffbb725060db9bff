"""Distortions of images for `map` and `random_map`. Users import them from `penstock.image`.

`_values` draws numbers, `_frame` finds images in elements, and `_warp` joins several geometric changes to one.
`_distortion` has their base class, and combines them. `_geometry` and `_pixels` hold the others. They release the GIL
for all but some tens of microseconds an image.
"""

from inspect import isfunction

from penstock.base._arguments import explained
from penstock.distort._distortion import Distortion, compose, one_of, sometimes
from penstock.distort._geometry import crop, elastic, flip, resized_crop, rotate, scale, shear, sine_warp, translate
from penstock.distort._pixels import blur, brightness, contrast, erase, noise, sharpen, smooth, to_float
from penstock.distort._values import exactly

__all__ = [
    "Distortion",
    "blur",
    "brightness",
    "compose",
    "contrast",
    "crop",
    "elastic",
    "erase",
    "exactly",
    "flip",
    "noise",
    "one_of",
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
    if isfunction(globals()[_name]):
        globals()[_name] = explained(globals()[_name])
del _name
