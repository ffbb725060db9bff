"""`penstock materialize PATH_OR_MODULE:NAME FOLDER`: all elements of a dataset, made once and kept."""

import argparse

from penstock.commands._target import add_target, count, dataset_of

_DESCRIPTION = """\
Makes all elements of a dataset, on all workers, and keeps them in a folder, from where they are read by random access
and without the work. What is there already, of an earlier call that was interrupted, is kept.
"""
_EXAMPLES = """\
  penstock materialize train.py:decoded kept/     then, in train.py, decoded().materialize("kept") finds it there
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds this command to those of `penstock`."""
    parser = commands.add_parser(
        "materialize",
        help="make all elements once, and keep them on disk",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target(parser)
    parser.add_argument("folder", metavar="FOLDER", help="where they are kept; made if it is not there")
    parser.add_argument("--executor", choices=("auto", "inline", "threads", "processes"), default="auto")
    parser.add_argument("--workers", type=count, metavar="N", help="default: as many as there are CPUs")
    parser.set_defaults(run=run, interrupted="What is made is kept, and the same command goes on from there.")


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        PenstockError: There is no such dataset, or it cannot be kept, or not all of it.
    """
    dataset, _ = dataset_of(options.target)
    workers = "auto" if options.workers is None else options.workers
    kept = dataset.materialize(options.folder, executor=options.executor, workers=workers)
    print(f"{kept!r}\nkept in {options.folder}")
    return 0
