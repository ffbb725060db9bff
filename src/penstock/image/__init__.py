"""Images: distortions for `map` and `random_map`, on OpenCV.

    from penstock.image import compose, one_of, rotate, scale, shear, blur, sharpen

    distort = compose(rotate(15), shear(0.2), scale(0.1), one_of(blur(1.5), sharpen(1)))
    batches = dataset.random_map(distort, seed=1).batch(32)

Distortions: `_values` draws numbers, `_frame` finds images in elements, `_warp` joins several geometric changes to
one, and `_distortion` is their base class. `_geometry`, `_pixels` and `_convert` hold the distortions, and `_compose`
combines them. They release the GIL for all but some tens of microseconds an image.

Decoding: `_decode` turns the bytes of a file into an array. `_formats` reads headers, `_codecs` and `_gif` decode, and
`_resize` with `_taps` resizes. `_scratch` is the memory of a thread for that.
"""

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
    elastic as elastic,
    flip as flip,
    resized_crop as resized_crop,
    rotate as rotate,
    scale as scale,
    shear as shear,
    sine_warp as sine_warp,
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

for _name, _value in list(globals().items()):
    # Reprs, docs and pickles say `penstock.image.Distortion`, and not the private module.
    if getattr(_value, "__module__", "").startswith("penstock.image."):
        _value.__module__ = "penstock.image"
__all__ = [_name for _name in globals() if not _name.startswith("_")]
del _name, _value
