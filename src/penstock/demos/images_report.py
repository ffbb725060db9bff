"""What the demo on a folder of images measured."""

from dataclasses import dataclass
from pathlib import Path

from penstock.demos.one_pass import EPOCHS, Pass
from penstock.demos.report import Run, mib, table


@dataclass(frozen=True)
class Outcome:
    """What was measured; `str` of it is the report."""

    folder: Path
    file_nbytes: int
    """Of all files."""
    counts: tuple[int, int]
    """Images for training and validation."""
    class_names: list[str]
    image_nbytes: int
    """Of one image as it is trained on."""
    batch_size: int
    epochs: int
    epoch_batches: int
    accuracy: float
    """Of validation, after the last epoch."""
    resident_nbytes: list[int]
    """Of this process after each batch of training."""
    passes: dict[str, Pass]
    """Of readers without training: "penstock", and "keras" where there is TensorFlow."""
    run: Run

    def __str__(self) -> str:
        return table(
            {
                "Data": self._data(),
                "Speed": self._speed(),
                "Memory": self._memory(),
                "Result": self._result(),
                "Keras": self._keras(),
                "Repeatable": self.run.repeatable,
                "Picture": self.run.picture_name,
            }
        )

    def _data(self) -> str:
        train, validation = self.counts
        return (
            f"{train + validation:,} JPEGs in {self.folder.name}, {mib(self.file_nbytes)}: cut-outs of "
            f"{len(self.class_names)} photographs, a class each; {train:,} from the left of each to train, "
            f"{validation:,} from the right to validate. Training sees each flipped, rotated, scaled and brightened by "
            "chance, otherwise in every epoch."
        )

    def _speed(self) -> str:
        count, loader = self.epochs * self.epoch_batches * self.batch_size, self.run.loader
        workers = f"{loader.workers} {loader.executor if loader.workers > 1 else 'worker'}"
        return (
            f"{count / self.run.train_s:,.0f} images/s in model.fit, {self.run.train_s:.0f} s for {self.epochs} "
            f"epoch{'' if self.epochs == 1 else 's'}, decoded and distorted by {workers} beside it. {self.run.waited}"
        )

    def _memory(self) -> str:
        decoded = sum(self.counts) * self.image_nbytes
        # Once validation has begun, which has a loader of its own; with a single epoch, from its middle.
        since = "the second epoch" if self.epochs > 1 else "the middle"
        warm = self.resident_nbytes[self.epoch_batches if self.epochs > 1 else self.epoch_batches // 2 :]
        return (
            f"{self.run.memory(decoded, 'all images, decoded, would have')} From {since} to the end of training it "
            f"grew by {mib(max(warm) - warm[0])}."
        )

    def _result(self) -> str:
        return (
            f"{self.accuracy:.1%} of validation's images are given to the right photograph. Chance: "
            f"{1 / len(self.class_names):.1%}."
        )

    def _keras(self) -> str:
        ours, theirs = self.passes["penstock"], self.passes.get("keras")
        if theirs is None:
            return "not compared: its image_dataset_from_directory needs TensorFlow, which is not installed."
        return (
            f"its own image_dataset_from_directory reads the {self.counts[0]:,} images of training, without training, "
            f"in {theirs.elapsed_s:.1f} s ({theirs.processor_s:.1f} s of processor time); penstock's in "
            f"{ours.elapsed_s:.1f} s ({ours.processor_s:.1f} s). Memory grew by {mib(theirs.growth_nbytes)} and "
            f"{mib(ours.growth_nbytes)}. Each in a process of its own, the best of {EPOCHS} epochs. With other work on "
            "the machine, compare processor time alone."
        )
