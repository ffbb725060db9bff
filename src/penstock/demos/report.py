"""What the demo measured, in plain English."""

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
            "Picture": str(self.picture),
        }
        return "\n".join(
            f"  {name if number == 0 else '':<11} {line}"
            for name, text in texts.items()
            for number, line in enumerate(textwrap.wrap(text, 96, break_long_words=False, break_on_hyphens=False))
        )

    def _data(self) -> str:
        train, validation, test = self.pairs
        part = "" if self.epoch_pairs == train else f" ({self.epoch_pairs:,} of them in each epoch)"
        spec = self.frames.spec
        return (
            f"{len(self.frames.dataset):,} frames {spec.shape} {spec.dtype}, {self._file_nbytes / MIB:,.0f} MiB in "
            f"{self.frames.path.name}. Pairs of a frame and the next: {train:,} to train{part}, {validation:,} to "
            f"validate, {test:,} to test."
        )

    def _speed(self) -> str:
        count = self.epochs * self.epoch_pairs
        return (
            f"{count / self.train_s:,.0f} pairs/s in model.fit ({self.train_s:.0f} s, all of the data shuffled in every "
            f"epoch). Training waited for data {self.loader.wait_share:.1%} of the time."
        )

    def _memory(self) -> str:
        growth_nbytes = max(0, self.peak.nbytes - self.before.nbytes)
        return (
            f"{growth_nbytes / MIB:,.0f} MiB more at the peak than before the loaders were made "
            f"({self.projected_nbytes / MIB:,.0f} MiB had been announced); the file has "
            f"{self._file_nbytes / MIB:,.0f} MiB. The peak was {self.peak.private_nbytes / MIB:,.0f} MiB private and "
            f"{self.peak.shared_nbytes / MIB:,.0f} MiB shared, most of it the framework's own."
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
