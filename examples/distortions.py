"""Draws every distortion of `penstock.image` on a photograph.

It is the picture of docs/how-to/distortions.md: `python examples/distortions.py docs/images/distortions.png`. Without a
name it is drawn and not kept. Needs scikit-image, whose photograph it is, Matplotlib, Pillow and OpenCV.
"""

import io
import sys

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from skimage import data

import penstock as ps
from penstock.image import (
    blur,
    brightness,
    compose,
    contrast,
    crop,
    elastic,
    erase,
    exactly,
    flip,
    noise,
    resized_crop,
    rotate,
    scale,
    sharpen,
    shear,
    sine_warp,
    smooth,
    translate,
)

photograph = data.chelsea()[10:290, 90:370]  # (280, 280, 3) uint8, a cat called Chelsea, by Stefan van der Walt
SHOWN = [
    (None, "as it is"),
    (rotate(exactly(20)), "rotate(exactly(20))"),
    (shear(exactly(0.3)), "shear(exactly(0.3))"),
    (scale(exactly(0.7)), "scale(exactly(0.7))"),
    (scale(x=exactly(1.4), y=exactly(0.8)), "scale(x=exactly(1.4),\ny=exactly(0.8))"),
    (translate(exactly(50), exactly(-30)), "translate(exactly(50),\nexactly(-30))"),
    (flip(1), "flip(1)"),
    (crop(160, 160, down=0.3, across=0.5), "crop(160, 160,\ndown=0.3, across=0.5)"),
    (resized_crop(200, 200, area=0.3), "resized_crop(\n200, 200, area=0.3)"),
    (sine_warp(exactly(12), 90), "sine_warp(\nexactly(12), 90)"),
    (sine_warp(exactly(12), 90, along="rows"), 'sine_warp(exactly(12),\n90, along="rows")'),
    (elastic(exactly(7), 35), "elastic(\nexactly(7), 35)"),
    (blur(exactly(4)), "blur(exactly(4))"),
    (smooth(exactly(0.9)), "smooth(exactly(0.9))"),
    (sharpen(exactly(4)), "sharpen(exactly(4))"),
    (brightness(exactly(1.5)), "brightness(exactly(1.5))"),
    (contrast(exactly(1.8)), "contrast(exactly(1.8))"),
    (noise(exactly(40)), "noise(exactly(40))"),
    (erase(area=0.12, value=(80, 80, 80)), "erase(area=0.12,\nvalue=(80, 80, 80))"),
    *(
        (compose(rotate(exactly(20)), border=border, value=90), f'rotate(exactly(20)),\nborder="{border}"')
        for border in ("constant", "edge", "reflect", "symmetric", "wrap")
    ),
]

figure, axes = plt.subplots(4, 6, figsize=(10.5, 8.4), dpi=80, layout="constrained")
for place, (distortion, title) in zip(axes.flat, SHOWN, strict=True):
    image = photograph
    if distortion is not None:
        image = ps.from_arrays(photograph[None]).random_map(distortion, seed=3)[0]
        assert image.dtype == np.uint8
        assert not np.array_equal(image, photograph)
    place.imshow(image)
    place.set_title(title, fontsize=7.5, family="monospace")
    place.axis("off")

target = next((each for each in sys.argv[1:] if each.endswith(".png")), None)
drawn = io.BytesIO()
figure.savefig(drawn, format="png")
if target:
    Image.open(drawn).convert("RGB").quantize(256).save(target, optimize=True)  # a third of the bytes
print(f"{len(SHOWN) - 1} distortions of a photograph{f', in {target}' if target else ''}.")
