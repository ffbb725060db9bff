"""`penstock demo`: trains a next-frame model on a film of 1.2 GB, and says what that took."""

import gc
import hashlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.demos import film, picture
from penstock.demos.film import DemoError
from penstock.demos.memory import Memory, MemoryWatch, memory_now
from penstock.demos.model import choose_backend, next_frame_model, warm_up

SEED = 1
MIB = 1 << 20
EPOCH_PIXELS = 12_000 * 50 * 50
"""An epoch of the demo is as many frames as have so many pixels: that of its own film, or a part of yours."""
BATCH_PIXELS = 1 << 21
CHECKED_BATCHES = 8
"""So many are compared between two loaders."""
PICTURE_ROWS = 5


@dataclass(frozen=True)
class Frames:
    """A file of frames, and how to look at one."""

    path: Path
    dataset: ps.Dataset
    """Single frames, as they are in the file."""
    channels_axis: int | None
    """Which axis of a frame holds channels: 0, 2, or None where there is none."""
    low: float
    """The darkest value, of those looked at."""
    high: float
    """The brightest."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one frame."""
        return tuple(self.dataset.element_spec.shape)

    @property
    def pixels(self) -> int:
        """Height times width."""
        return int(np.prod([size for axis, size in enumerate(self.shape) if axis != self.channels_axis]))

    def images(self, frames: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """`(n, height, width, 1 or 3)` in 0 to 1, for the eye, of `(n, *shape)` in the file's own units."""
        frames = (np.asarray(frames, np.float64) - self.low) / (self.high - self.low)
        if self.channels_axis is None:
            return frames[..., None]
        last = np.moveaxis(frames, self.channels_axis + 1, -1)
        return last[..., :3] if last.shape[-1] >= 3 else last[..., :1]


@dataclass(frozen=True)
class Outcome:
    """What was measured."""

    title: str
    frames: Frames
    pairs: tuple[int, int, int]
    """For training, validation and test."""
    epoch_pairs: int
    """Of those for training, so many came in an epoch."""
    epochs: int
    fit_s: float
    loader: ps.Report
    test_error: float
    """Mean square error of the predictions, in units of the range of values."""
    copy_error: float
    """The same, of taking the last frame for the next."""
    before: Memory
    """Framework loaded and warm, model made, no loader yet."""
    peak: Memory
    projected_nbytes: int
    """What the loaders of `fit` said that they would take."""
    fingerprints: tuple[str, str]
    """SHA-256 of the first batches, of two loaders."""
    picture: Path

    def __str__(self) -> str:
        file_nbytes = self.frames.path.stat().st_size
        growth_nbytes = self.peak.nbytes - self.before.nbytes
        train, validation, test = self.pairs
        part = "" if self.epoch_pairs == train else f" ({self.epoch_pairs:,} of them an epoch)"
        ratio = self.copy_error / self.test_error if self.test_error else float("inf")
        better = f"{ratio:.1f} times less than" if ratio > 1 else "no better than"
        same = self.fingerprints[0] == self.fingerprints[1]
        lines = {
            "Data": f"{len(self.frames.dataset):,} frames {self.frames.shape} {self.frames.dataset.element_spec.dtype}, "
            f"{file_nbytes / MIB:,.0f} MiB in one file; pairs (frame, next frame): {train:,} to train{part}, "
            f"{validation:,} to validate, {test:,} to test.",
            "Speed": f"{self.epochs * self.epoch_pairs / self.fit_s:,.0f} pairs/s through model.fit, validation "
            f"included, globally shuffled; training waited for data {self.loader.wait_share:.1%} of the time.",
            "Result": f"mean square error {self.test_error:.5f} on the test pairs, {better} copying the last "
            f"frame ({self.copy_error:.5f}).",
            "Memory": f"peak {self.peak.private_nbytes / MIB:,.0f} MiB private + {self.peak.shared_nbytes / MIB:,.0f} "
            f"MiB shared, nearly all of it Keras and its backend: {growth_nbytes / MIB:,.0f} MiB more than before the "
            f"loaders were made, {growth_nbytes / file_nbytes:.1%} of the file. The loaders had announced "
            f"{self.projected_nbytes / MIB:,.0f} MiB.",
            "Repeatable": (
                f"a second loader with the same seed, without threads, gave the same first {CHECKED_BATCHES} "
                f"batches to the bit (SHA-256 {self.fingerprints[0][:12]}). The next run will, too."
                if same
                else "FAILED: a second loader with the same seed gave other batches. Please report this."
            ),
            "Picture": str(self.picture),
        }
        return "\n".join(f"  {name:<11} {text}" for name, text in _wrapped(lines))


def _wrapped(lines: dict[str, str]) -> list[tuple[str, str]]:
    """Cuts texts into lines of 90 characters; the name stands at the first."""
    import textwrap

    return [
        (name if number == 0 else "", piece)
        for name, text in lines.items()
        for number, piece in enumerate(textwrap.wrap(text, 90, break_long_words=False, break_on_hyphens=False))
    ]
