"""Draws what a run did: its plan, with the times that were measured on it.

It is the picture of docs/how-to/look-inside.md: `python examples/report_picture.py docs/images/report.png`. Without a
name it is drawn and not kept. Needs Matplotlib.
"""

import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np

import penstock as ps

SHAPE = (400, 400, 3)

pattern = np.arange(np.prod(SHAPE)).reshape(SHAPE)
packed = [zlib.compress((pattern // (number + 7) % 251).astype(np.uint8).tobytes()) for number in range(10)]


def unpack(number: np.ndarray) -> np.ndarray:
    """Unpacks a picture; returns shape (400, 400, 3), uint8."""
    return np.frombuffer(zlib.decompress(packed[number % 10]), np.uint8).reshape(SHAPE)


def crop(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Cuts out a part; returns shape (128, 128, 3), uint8."""
    down, across = rng.integers(272, size=2)
    return picture[down : down + 128, across : across + 128]


pictures = ps.range(1600).map(unpack).random_map(crop, seed=1)
labels = ps.from_arrays(np.arange(1600) % 10)
train = ps.zip((pictures, labels)).shuffle(seed=1).cast(("float32", "int32")).batch(32)

with train.loader("processes", workers=2, memory_limit=256 << 20) as loader:
    for x, _ in loader:
        x.mean()
    report = loader.report()

print(report)
name = next((each for each in sys.argv[1:] if each.endswith(".png")), None)
with tempfile.TemporaryDirectory() as folder:
    path = Path(name or f"{folder}/report.png")
    report.save(path)
    drawn = path.read_bytes()
assert drawn.startswith(b"\x89PNG")
print(f"{report.batches} batches in a picture{f', in {name}' if name else ''}.")
