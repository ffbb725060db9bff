"""`penstock check PATH_OR_MODULE:NAME`: what is wrong with a dataset, before anything is trained on it."""

import argparse

from penstock.commands._target import add_target, count, dataset_of

_DESCRIPTION = """\
Goes through a dataset once, on all workers and without training, and lists what is wrong with it: elements that fail,
with file and step; elements that are not as the others; functions whose results depend on who runs them. Status 1 if
there is anything.
"""
_EXAMPLES = """\
  penstock check photographs/                    every file of a folder
  penstock check train.py:make_dataset           the dataset that a function of yours returns
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds this command to those of `penstock`."""
    parser = commands.add_parser(
        "check",
        help="find broken elements, and functions that are not what they should be",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target(parser)
    parser.add_argument("--limit", type=count, metavar="N", help="only the first so many elements")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        PenstockError: There is no such dataset.
    """
    dataset, _ = dataset_of(options.target)
    result = dataset.check(options.limit)
    print(result)
    return 0 if result.ok else 1
