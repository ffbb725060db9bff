"""`penstock bench PATH_OR_MODULE:NAME`: measures a dataset's speed, its limit, and what would help."""

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

import numpy as np

import penstock
from penstock import Dataset, Report
from penstock.base import _tree
from penstock.base._units import size_text
from penstock.commands._target import add_command, count, dataset_of, say, workers
from penstock.run.executors._registry import known_names

BATCH_SIZE: Final = 32
WARM_UP_S: Final = 3.0
"""The most of an epoch that warms up."""

_DESCRIPTION = """\
Runs a dataset for some seconds, and prints its elements a second, the limit, and what other numbers of workers would
do. Reads every byte of every batch, and does nothing else. Before that an epoch warms up, or 3 seconds of one, so data
that fit into memory are measured as from the second epoch on.

  penstock bench frames.npy --shuffle            batches of 32 of what `penstock inspect` would open
  penstock bench https://server/shard.tar        the same behind a URL
  penstock bench train.py:make_dataset           the dataset that a function of yours returns, as it is
  penstock bench mypackage.data:train --workers 4
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds this command to those of `penstock`."""
    parser = add_command(commands, run, "measure the speed of a dataset, and its limit", _DESCRIPTION)
    parser.add_argument("--seconds", type=_seconds, default=10.0, metavar="S", help="default: 10")
    parser.add_argument("--executor", choices=("auto", *known_names()), default="auto")
    parser.add_argument("--workers", type=workers, default="auto", metavar="N", help="default: auto")
    size_help = f"default: {BATCH_SIZE} for a path, and none for module:name"
    parser.add_argument("--batch-size", type=count, metavar="N", help=size_help)
    parser.add_argument("--shuffle", action="store_true", help="in random order, over the whole dataset")
    picture_help = "draw the plan with its times; needs Matplotlib"
    parser.add_argument("--picture", type=_picture, metavar="FILE.png", help=picture_help)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        PenstockError: There is no such dataset, an element failed, or no picture can be made.
    """
    dataset, code = dataset_of(options.target)
    if options.shuffle:
        dataset = dataset.shuffle(seed=0)
    if size := options.batch_size or (BATCH_SIZE if code != options.target else 0):  # a path or URL
        is_ragged = any(None in leaf.shape for leaf in dataset._node.spec.leaves)
        dataset = dataset.padded_batch(size) if is_ragged else dataset.batch(size)
    measured, report = measure(dataset, options.seconds, options.executor, options.workers)
    if options.json:
        names = ("elements_per_s", "wait_share", "limit", "sentence")
        about = asdict(report) | {name: getattr(report, name) for name in names}
        about["what_if"] = [asdict(each) for each in _what_if(report)]
        say(json.dumps({"target": options.target, "code": code, **measured, "report": about}, indent=2))
    else:
        say("\n".join(_lines(measured, report)))
    if options.picture is not None:
        report.save(options.picture)
    return 0


def measure(
    dataset: Dataset, seconds: float, executor: Any = "auto", workers: Any = "auto"
) -> tuple[dict[str, Any], Report]:
    """Runs a dataset for some seconds, after an epoch, or 3 s of one, that warms up."""
    # The warm-up has a loader of its own, so that its times are not in the report. It stays open until the measured one
    # has its first batch, because loaders that live at the same time share their worker processes.
    with dataset.loader(executor, workers) as loader:
        with dataset.loader(executor, workers) as warm:
            ends_s, is_empty = time.perf_counter() + min(WARM_UP_S, seconds), True
            for batch in warm:
                _read(batch)
                is_empty = False
                if time.perf_counter() > ends_s:
                    break
            if is_empty:
                raise penstock.ArgumentError("An epoch gave nothing, because every element was left out.")
            batches = itertools.chain.from_iterable(itertools.repeat(loader))
            _read(next(batches))
        batch_count = element_count = nbytes = 0
        started_s = time.perf_counter()
        while (elapsed_s := time.perf_counter() - started_s) < seconds:
            batch = next(batches)
            first = _tree.flatten(batch)[0][0]
            element_count += len(first) if dataset._node.batch_size != 1 and np.ndim(first) else 1
            nbytes += _read(batch)
            batch_count += 1
        report, length = loader.report(), loader.length
    return {
        "plan": repr(dataset).splitlines(),
        "seconds": elapsed_s,
        "batches": batch_count,
        "elements": element_count,
        "elements_per_s": element_count / elapsed_s,
        "nbytes": nbytes,
        "nbytes_per_s": nbytes / elapsed_s,
        "epochs": (batch_count + 1) / length if isinstance(length, int) else None,
    }, report


def _lines(measured: dict[str, Any], report: Report) -> Iterator[str]:
    epochs = f", {measured['epochs']:.1f} epochs" if measured["epochs"] is not None else ""
    yield from (f"  {line}" for line in measured["plan"])
    size = f"{measured['elements']:,} elements, {size_text(measured['nbytes'])}"
    yield f"\n{measured['elements_per_s']:,.0f} elements/s, {size_text(int(measured['nbytes_per_s']))}/s"
    yield f"  measured   {size}, in {measured['seconds']:.1f} s{epochs}"
    yield f"  before it  an epoch, or {WARM_UP_S:g} s of one, to warm up"
    yield f"  consumer   reads every byte, and does nothing else\n\n{report}"
    for number, each in enumerate(_what_if(report)):
        now = " (as now)" if each.workers == (report.workers or 1) else ""
        yield f"{'' if number else chr(10)}  {each}{now}"


def _what_if(report: Report) -> list[Any]:
    now = report.workers or 1
    if report.batches < 2 or not report.lanes:
        return []
    return [report.what_if(workers=each) for each in sorted({1, 2, 4, now, 2 * now})]


def _read(batch: Any) -> int:
    """Reads every byte. Returns their number."""
    return sum(len(np.asarray(leaf).tobytes()) for leaf in _tree.flatten(batch)[0])


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (seconds := float(text)) <= 86_400:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")


def _picture(text: str) -> str:
    if not text.lower().endswith((".png", ".svg")):
        raise argparse.ArgumentTypeError(f"{text!r} ends in neither .png nor .svg")
    return text
