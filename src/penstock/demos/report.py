"""What the demo measured, in plain English."""

import os
import textwrap
from dataclasses import dataclass
from pathlib import Path

import penstock as ps
from penstock.demos.data import Frames
from penstock.demos.memory import Memory

MIB = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """What was measured; `str` of it is the report."""

    frames: Frames
    pairs: tuple[int, int, int]
    """For training, validation and test."""
    epoch_pairs: int
    """Of those for training, so many came in an epoch."""
    epochs: int
    train_s: float
    """In `fit`, without validation."""
    loader: ps.Report
    test_error: float
    """Mean square error of the predictions, in units of the range of values."""
    copy_error: float
    """The same, of taking the last frame for the next."""
    before: Memory
    """Framework loaded and warm, model made, no loader yet."""
    peak: Memory
    """From there to the end of training and evaluation."""
    projected_nbytes: int
    """What the loaders said that they would take."""
    fingerprints: tuple[str, str]
    """SHA-256 of the first batches, of two loaders."""
    compared_batches: int
    picture: Path

    @property
    def ratio(self) -> float:
        """How many times smaller the error of the predictions is than that of copying; `inf` for no error."""
        return self.copy_error / self.test_error if self.test_error else float("inf")

    def __str__(self) -> str:
        texts = {
            "Data": self._data(),
            "Speed": self._speed(),
            "Memory": self._memory(),
            "Result": self._result(),
            "Repeatable": self._repeatable(),
            "Picture": os.path.relpath(self.picture) if self.picture.is_relative_to(Path.cwd()) else str(self.picture),
        }
        return "\n".join(
            f"  {name if number == 0 else '':<11} {line}"
            for name, text in texts.items()
            for number, line in enumerate(textwrap.wrap(text, 96, break_long_words=False, break_on_hyphens=False))
        )

    def _data(self) -> str:
        frames, (train, validation, test) = self.frames, self.pairs
        part = "" if self.epoch_pairs == train else f" ({self.epoch_pairs:,} of them in each epoch)"
        return (
            f"{len(frames.dataset):,} frames {frames.shape} {frames.spec.dtype} in {frames.path.name}, "
            f"{_mib(self._file_nbytes)}. Pairs of a frame and the next: {train:,} to train{part}, {validation:,} to "
            f"validate, {test:,} to test."
        )

    def _speed(self) -> str:
        count = self.epochs * self.epoch_pairs
        return (
            f"{count / self.train_s:,.0f} pairs/s in model.fit, {self.train_s:.0f} s for {self.epochs} epochs, each "
            f"shuffled over the whole. Training waited for data {self.loader.wait_share:.1%} of the time."
        )

    def _memory(self) -> str:
        growth_nbytes = max(0, self.peak.nbytes - self.before.nbytes)
        return (
            f"at its peak {_mib(growth_nbytes)} more than before the loaders were made, which had announced "
            f"{_mib(self.projected_nbytes)}; the file has {_mib(self._file_nbytes)}. The peak: "
            f"{_mib(self.peak.private_nbytes)} private and {_mib(self.peak.shared_nbytes)} shared, of which Keras and "
            f"its backend took {_mib(self.before.nbytes)} before."
        )

    def _result(self) -> str:
        better = f"{self.ratio:.1f} times less than" if self.ratio > 1 else "not less than"
        return (
            f"mean square error {self.test_error:.5f} on pairs that training never saw, {better} that of copying the "
            f"last frame, {self.copy_error:.5f}."
        )

    def _repeatable(self) -> str:
        first, second = self.fingerprints
        if first != second:
            return f"NO. Two loaders with one seed gave other batches: SHA-256 {first[:12]}, {second[:12]}."
        return (
            f"a second loader with the same seed, without threads, gave the same first {self.compared_batches} batches "
            f"to the bit: SHA-256 {first[:12]}."
        )

    @property
    def _file_nbytes(self) -> int:
        return self.frames.path.stat().st_size


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:,.0f} MiB"
