"""Warps in plain NumPy, slow and obvious: what the fast ones are compared with."""

import math

import numpy as np

_PAD_MODES = {"constant": "constant", "edge": "edge", "reflect": "reflect", "symmetric": "symmetric", "wrap": "wrap"}


def bilinear(image, x, y, *, border="constant", value=0.0):
    """The image at places x, y, each (height, width), interpolated between the four pixels around."""
    pad = 2 * max(image.shape[:2])
    widths = [(pad, pad), (pad, pad), *[(0, 0)] * (image.ndim - 2)]
    more = {"constant_values": value} if border == "constant" else {}
    padded = np.pad(image.astype(np.float64), widths, mode=_PAD_MODES[border], **more)
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    across, down = x - left, y - top
    if image.ndim == 3:
        across, down = across[..., None], down[..., None]
    left, top = left + pad, top + pad
    above = padded[top, left] * (1 - across) + padded[top, left + 1] * across
    below = padded[top + 1, left] * (1 - across) + padded[top + 1, left + 1] * across
    return above * (1 - down) + below * down


def grid(height, width):
    """The places of all pixels, in pixels from the centre of the image."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    return x - (width - 1) / 2, y - (height - 1) / 2


def from_centre(x, y, height, width):
    return x + (width - 1) / 2, y + (height - 1) / 2


def unrotated(x, y, degrees):
    """Where places come from that were turned anticlockwise, as one sees it: y goes down."""
    angle = math.radians(degrees)
    return x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)


def smooth_image(height, width, channel_count=0, dtype="float32", most=200.0):
    """Waves of a dozen pixels: nothing on which a small error in a place would make a large one of a pixel."""
    y, x = np.mgrid[:height, :width]
    waves = [0.5 + 0.25 * np.sin(x / (3 + k) + k) + 0.25 * np.cos(y / (4 + k)) for k in range(max(1, channel_count))]
    image = np.dstack(waves) if channel_count else waves[0]
    return (image * most).astype(dtype)
