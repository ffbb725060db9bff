"""What the demo on frames measured."""

from dataclasses import dataclass

from penstock.demos.data import Frames
from penstock.demos.report import Run, mib, table


@dataclass(frozen=True)
class Outcome:
    """What was measured; `str` of it is the report."""

    frames: Frames
    pairs: tuple[int, int, int]
    """For training, validation and test."""
    epoch_pairs: int
    """Of those for training, so many came in an epoch."""
    epochs: int
    test_error: float
    """Mean square error of the predictions, in units of the range of values."""
    copy_error: float
    """The same, of taking the last frame for the next."""
    run: Run

    @property
    def ratio(self) -> float:
        """How many times smaller the error of the predictions is than that of copying; `inf` for no error."""
        return self.copy_error / self.test_error if self.test_error else float("inf")

    def __str__(self) -> str:
        return table(
            {
                "Data": self._data(),
                "Speed": self._speed(),
                "Memory": self.run.memory(self._file_nbytes),
                "Result": self._result(),
                "Repeatable": self.run.repeatable,
                "Picture": self.run.picture_name,
            }
        )

    def _data(self) -> str:
        frames, (train, validation, test) = self.frames, self.pairs
        part = "" if self.epoch_pairs == train else f" ({self.epoch_pairs:,} of them in each epoch)"
        return (
            f"{len(frames.dataset):,} frames {frames.shape} {frames.spec.dtype} in {frames.path.name}, "
            f"{mib(self._file_nbytes)}. Pairs of a frame and the next: {train:,} to train{part}, {validation:,} to "
            f"validate, {test:,} to test."
        )

    def _speed(self) -> str:
        count = self.epochs * self.epoch_pairs
        return (
            f"{count / self.run.train_s:,.0f} pairs/s in model.fit, {self.run.train_s:.0f} s for {self.epochs} "
            f"epoch{'' if self.epochs == 1 else 's'}, each shuffled over the whole. {self.run.waited}"
        )

    def _result(self) -> str:
        better = f"{self.ratio:.1f} times less than" if self.ratio > 1 else "not less than"
        return (
            f"mean square error {self.test_error:.5f} on pairs that training never saw, {better} that of copying the "
            f"last frame, {self.copy_error:.5f}."
        )

    @property
    def _file_nbytes(self) -> int:
        return self.frames.path.stat().st_size
