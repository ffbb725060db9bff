"""`penstock materialize PATH_OR_MODULE:NAME FOLDER`: makes all elements of a dataset once, and keeps them."""

import argparse

from penstock.commands._target import add_command, dataset_of, say, workers
from penstock.run.executors._registry import known_names

_DESCRIPTION = """\
Makes all elements of a dataset, on all workers, and keeps them in a folder. From there they are read by random access
and without the work. After an interruption the same command continues.

  penstock materialize train.py:decoded kept/     then, in train.py, decoded().materialize("kept") finds it there
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds this command to those of `penstock`."""
    parser = add_command(commands, run, "make all elements once, and keep them on disk", _DESCRIPTION)
    parser.add_argument("folder", metavar="FOLDER", help="for the elements; made if it is missing")
    parser.add_argument("--executor", choices=("auto", *known_names()), default="auto")
    parser.add_argument("--workers", type=workers, metavar="N", default="auto", help="default: one a CPU")
    parser.set_defaults(interrupted="The elements made so far are kept. The same command continues.")


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        PenstockError: There is no such dataset, or it cannot be kept, or not all of it.
    """
    dataset, _ = dataset_of(options.target)
    kept = dataset.materialize(options.folder, executor=options.executor, workers=options.workers)
    say(f"{kept!r}\nkept in {options.folder}")
    return 0
