"""What the demo on characters measured."""

from dataclasses import dataclass

import penstock as ps
from penstock.demos.characters import TRAINING_SIZES, VALIDATION_SIZES, Characters
from penstock.demos.report import Run, mib, table


@dataclass(frozen=True)
class Accuracy:
    """The share of validation's characters that a model names right."""

    distorted: float
    plain: float


@dataclass(frozen=True)
class Outcome:
    """What was measured; `str` of it is the report."""

    characters: Characters
    counts: tuple[int, int]
    """Renderings for training and validation."""
    batch_size: int
    epochs: int
    epoch_batches: int
    fit_s: float
    """In `fit`, validation included."""
    worker_cpu_s: tuple[float, ...]
    """Processor time of each worker process in it; empty for threads."""
    serial_s: float
    """To distort half a batch on one core, with the images in memory and nothing else to do."""
    alone: ps.Report
    """Of a loader whose batches nobody trains on."""
    plain_train_s: float
    """In `fit` of the model that was trained without distortion, for the same number of batches."""
    augmented: Accuracy
    unaugmented: Accuracy
    """Of that model."""
    run: Run

    def __str__(self) -> str:
        return table(
            {
                "Data": self._data(),
                "Speed": self._speed(),
                "Workers": self._workers(),
                "Memory": self.run.memory(self.characters.path.stat().st_size),
                "Result": self._result(),
                "Repeatable": self.run.repeatable,
                "Picture": self.run.picture_name,
            }
        )

    def _data(self) -> str:
        (train, validation), names, path = self.counts, self.characters.names, self.characters.path
        return (
            f"{train + validation:,} images (64, 64) uint8 of {len(names)} characters in {path.name}, "
            f"{mib(path.stat().st_size)}: {train:,} in {len(TRAINING_SIZES)} sizes to train, {validation:,} in "
            f"{len(VALIDATION_SIZES)} other sizes to validate. Of each batch of {self.batch_size}, half are distorted "
            "and half are as they are."
        )

    def _speed(self) -> str:
        batches = self.epochs * self.epoch_batches
        return (
            f"{batches * self.batch_size / self.run.train_s:,.0f} characters/s in model.fit, {self.run.train_s:.0f} s "
            f"for {self.epochs} epoch{'' if self.epochs == 1 else 's'}. {self.run.waited} A batch took "
            f"{self.run.train_s / batches * 1e3:.0f} ms, and "
            f"{self.plain_train_s / batches * 1e3:.0f} ms in the run that distorts nothing."
        )

    def _workers(self) -> str:
        loader, batch_s = self.run.loader, self.alone.elapsed_s / max(1, self.alone.batches - 1)
        kind = {"processes": "process", "threads": "thread"}.get(loader.executor, "worker")
        plural = "" if loader.workers == 1 else "es" if kind == "process" else "s"
        shares = [f"{used / self.fit_s:.0%}" for used in sorted(self.worker_cpu_s)]
        shares = list(dict.fromkeys((shares[0], shares[-1]))) if shares else []
        busy = f", each at work for {' to '.join(shares)} of model.fit" if shares else ""
        return (
            f"{loader.workers} {kind}{plural}{busy}. One core in a plain loop distorts half a batch in "
            f"{self.serial_s * 1e3:.0f} ms; the loader, while nobody trained, gave a whole batch every "
            f"{batch_s * 1e3:.0f} ms, {self.serial_s / batch_s:.1f} times as fast."
        )

    def _result(self) -> str:
        with_, without = self.augmented, self.unaugmented
        return (
            f"of validation's characters, distorted, {with_.distorted:.1%} are named right; {without.distorted:.1%} by "
            f"the same model trained as long without distortion. As they are: {with_.plain:.1%} and "
            f"{without.plain:.1%}. Chance: {1 / len(self.characters.names):.1%}."
        )
