"""`penstock check PATH_OR_MODULE:NAME`: finds faults of a dataset before a training does."""

import argparse

from penstock.commands._target import add_command, count, dataset_of, say

_DESCRIPTION = """\
Goes through a dataset once, on all workers and without training, and lists its faults: elements that fail, with file
and step; elements that differ from the others; functions whose results depend on the worker. Status 1 if there are any.

  penstock check photographs/                    every file of a folder
  penstock check train.py:make_dataset           the dataset that a function of yours returns
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds this command to those of `penstock`."""
    parser = add_command(commands, run, "find broken elements and unsuitable functions", _DESCRIPTION)
    parser.add_argument("--limit", type=count, metavar="N", help="only the first N elements")


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        PenstockError: There is no such dataset.
    """
    dataset, _ = dataset_of(options.target)
    result = dataset.check(options.limit)
    say(str(result))
    return 0 if result.ok else 1
