"""`penstock bench PATH_OR_MODULE:NAME`: how fast a dataset is, what the limit is, and what would help."""

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, final

import numpy as np

import penstock
from penstock import Dataset, Loader, Report
from penstock.base import _tree
from penstock.commands._target import add_target, count, dataset_of
from penstock.memory._budget import mib
from penstock.report._picture import SUFFIXES
from penstock.report._progress import Progress
from penstock.report._report import WhatIf

BATCH_SIZE: Final = 32
MODEL_RATIO: Final = 1.2
"""A model that is further off what was measured is not to be trusted with what was not."""
WARM_UP_S: Final = 3.0
"""An epoch that takes longer is left so early."""

_PADDED: Final = ("padded_batch", "bucket_by_length")

_DESCRIPTION = """\
Runs a dataset for some seconds, and says how many elements a second it gives, what the limit is, and what other numbers
of workers would do. Every byte of every batch is read, and nothing else is done with it. Before, an epoch warms up,
or 3 seconds of one, and is not counted: so data that fit into memory are measured as from the second epoch on.
"""
_EXAMPLES = """\
  penstock bench frames.npy --shuffle            batches of 32 of what `penstock inspect` would open
  penstock bench train.py:make_dataset           the dataset that a function of yours returns, as it is
  penstock bench mypackage.data:train --workers 4
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds this command to those of `penstock`."""
    parser = commands.add_parser(
        "bench",
        help="measure how fast data are read, and say what the limit is",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target(parser)
    parser.add_argument("--seconds", type=_seconds, default=10.0, metavar="S", help="default: 10")
    parser.add_argument("--executor", choices=("auto", "inline", "threads", "processes"), default="auto")
    parser.add_argument("--workers", type=_workers, default="auto", metavar="N", help="default: auto")
    parser.add_argument(
        "--batch-size", type=count, metavar="N", help=f"default: {BATCH_SIZE} for a path, and none for module:name"
    )
    parser.add_argument("--shuffle", action="store_true", help="in random order, over the whole dataset")
    parser.add_argument(
        "--picture",
        type=_picture,
        metavar="FILE.png",
        help="draw the plan with its times; needs penstock[show]",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        PenstockError: There is no such dataset, it cannot be run in this way, an element failed, or no picture can be
            made.
    """
    dataset, code = dataset_of(options.target)
    batch_size = options.batch_size
    if batch_size is None and os.path.exists(options.target):
        batch_size = BATCH_SIZE
    plan = _prepared(dataset, batch_size, is_shuffled=options.shuffle)
    measured = measure(plan, options.seconds, options.executor, options.workers)
    if options.json:
        print(json.dumps({"target": options.target, "code": code, **measured.as_json()}, indent=2))
    else:
        print(measured)
    if options.picture is not None:
        try:
            measured.report.save(options.picture)
        except ImportError as error:
            raise penstock.ArgumentError(f"--picture {options.picture}: {error}") from None
    return 0


@final
@dataclass(frozen=True)
class Measured:
    """What a run gave."""

    plan: str
    seconds: float
    """Of the run, as the clock says."""
    batches: int
    elements: int
    """In these batches; the batches themselves where they are none."""
    nbytes: int
    """Of all batches."""
    epochs: float
    """Epochs that were run, parts included; `nan` where nobody knows how long one is."""
    warm_up: str
    """What was run before, and not counted."""
    report: Report

    @property
    def elements_per_s(self) -> float:
        """Elements a second, as the clock says."""
        return self.elements / self.seconds

    @property
    def nbytes_per_s(self) -> float:
        """Bytes a second, as the clock says."""
        return self.nbytes / self.seconds

    @property
    def what_if(self) -> list[WhatIf]:
        """What other numbers of workers would do."""
        now = self.report.workers or 1
        if self.report.batches < 2 or not self.report.lanes:
            return []
        return [self.report.what_if(workers=each) for each in sorted({1, 2, 4, now, 2 * now})]

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs; bytes, seconds."""
        report = asdict(self.report) | {
            "elements_per_s": self.report.elements_per_s,
            "wait_share": self.report.wait_share,
            "limit": self.report.limit,
            "sentence": self.report.sentence,
        }
        return {
            "plan": self.plan.splitlines(),
            "warm_up": self.warm_up,
            "seconds": self.seconds,
            "batches": self.batches,
            "nbytes": self.nbytes,
            "elements": self.elements,
            "elements_per_s": self.elements_per_s,
            "nbytes_per_s": self.nbytes_per_s,
            "epochs": self.epochs if self.epochs == self.epochs else None,
            "report": report,
            "what_if": [asdict(each) for each in self.what_if],
        }

    def __str__(self) -> str:
        epochs = f", {self.epochs:.1f} epochs" if self.epochs == self.epochs else ""
        lines = [
            *(f"  {line}" for line in self.plan.splitlines()),
            "",
            f"{self.elements_per_s:,.0f} elements/s, {mib(int(self.nbytes_per_s))}/s",
            f"  measured   {self.elements:,} elements, {mib(self.nbytes)}, in {self.seconds:.1f} s{epochs}",
            f"  before it  {self.warm_up}, to warm up",
            "  consumer   reads every byte, and does nothing else",
            "",
            str(self.report),
            *self._what_if_lines(),
        ]
        return "\n".join(lines)

    def _what_if_lines(self) -> Iterator[str]:
        if not self.what_if:
            return
        yield ""
        now = self.report.workers or 1
        for each in self.what_if:
            yield f"  {each}{' (as now)' if each.workers == now else ''}"
        model, measured = self.report.what_if(workers=now).elements_per_s, self.report.elements_per_s
        if not 1 / MODEL_RATIO < model / max(measured, 1e-9) < MODEL_RATIO:
            bound = "an upper bound" if model > measured else "a lower bound"
            yield f"  As now, this model says {model:,.0f} where {measured:,.0f} were measured: {bound} for others."


def measure(
    dataset: Dataset,
    seconds: float,
    executor: Literal["auto", "inline", "threads", "processes"] = "auto",
    workers: int | Literal["auto"] = "auto",
) -> Measured:
    """Runs a dataset for some seconds, after an epoch, or 3 s of one, that warms up."""
    # A loader of its own, so that its times are not in the report. It is open until the other has its first batch, for
    # loaders that live at the same time share their worker processes.
    with dataset.loader(executor, workers) as loader:
        with dataset.loader(executor, workers) as warm:
            warm_up = _warm_up(warm, min(WARM_UP_S, seconds))
            batches = _endlessly(loader)
            _read(next(batches))
        is_batched = bool(dataset._node.part_count(0, 0)) or dataset._node.verb in _PADDED
        batch_count = elements = nbytes = 0
        started_s = time.perf_counter()
        with Progress("Measuring", unit="batches" if is_batched else "elements") as progress:
            while (elapsed_s := time.perf_counter() - started_s) < seconds:
                batch = next(batches)
                nbytes += _read(batch)
                elements += _element_count(batch) if is_batched else 1
                batch_count += 1
                progress.advance()
        report, length = loader.report(), loader.length
    epochs = (batch_count + 1) / length if isinstance(length, int) else float("nan")
    return Measured(repr(dataset), elapsed_s, batch_count, elements, nbytes, epochs, warm_up, report)


def _warm_up(loader: Loader, seconds: float) -> str:
    """Runs an epoch, or its first seconds; returns which, in words."""
    end_s = time.perf_counter() + seconds
    with Progress("Warming up", unit="batches") as progress:
        for batch in loader:
            _read(batch)
            progress.advance()
            if time.perf_counter() > end_s:
                return f"{seconds:g} s of an epoch"
    return "an epoch"


def _endlessly(loader: Loader) -> Iterator[Any]:
    """Yields the batches of one epoch after the other.

    Raises:
        ArgumentError: There are none.
    """
    while True:
        is_empty = True
        for batch in loader:
            is_empty = False
            yield batch
        if is_empty:
            raise penstock.ArgumentError(
                "An epoch gave nothing: every element was left out. So there is nothing to measure."
            )


def _element_count(batch: Any) -> int:
    """The size of the first axis, if all leaves have the same."""
    sizes = {len(leaf) for leaf in _tree.flatten(batch)[0]}
    return sizes.pop() if len(sizes) == 1 else 1


def _read(batch: Any) -> int:
    """Reads every byte; returns how many there were."""
    nbytes = 0
    for leaf in _tree.flatten(batch)[0]:
        array = np.ascontiguousarray(leaf)
        words = array.reshape(-1).view(np.uint8)
        if words.size % 8 == 0:
            words = words.view(np.uint64)
        np.bitwise_xor.reduce(words)
        nbytes += array.nbytes
    return nbytes


def _prepared(dataset: Dataset, batch_size: int | None, *, is_shuffled: bool) -> Dataset:
    """Adds what the command line asks for."""
    if is_shuffled:
        dataset = dataset.shuffle(seed=0)
    if batch_size is None:
        return dataset
    if any(None in leaf.shape for leaf in dataset._node.spec.leaves):
        return dataset.padded_batch(batch_size)
    return dataset.batch(batch_size)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def _picture(text: str) -> str:
    if not text.lower().endswith(SUFFIXES):
        raise argparse.ArgumentTypeError(f"{text!r} ends in neither .png nor .svg")
    return text


def _workers(text: str) -> int | str:
    return text if text == "auto" else count(text)
