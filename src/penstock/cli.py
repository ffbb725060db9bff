"""The command `penstock`. Importing this brings no framework; the demo brings its own when it runs."""

import argparse
import sys
from collections.abc import Sequence

import penstock

_DEMO = """\
Trains a small next-frame model with Keras on frames that are read from disk as they are needed, and reports
speed, memory and what was learnt, with a picture. Without --data the frames are a film of 1.2 GB, panned over
real photographs; it is made once, and kept in the user's cache. Takes about a minute and a half on two cores.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status.

    0: done. 1: it could not be done, and why is on stderr. 2: the command line makes no sense. 130: Ctrl-C.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        # Here, so that `penstock --version` does not load what only the demo needs.
        from penstock.demos import frames

        frames.run(options.data, options.epochs, options.data_dir, options.out)
    except KeyboardInterrupt:
        print("\nInterrupted. Nothing is left behind.", file=sys.stderr)
        return 130
    except (penstock.PenstockError, OSError) as error:
        print(f"penstock {options.command}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="Feeds model training from data larger than memory.",
        epilog='"penstock demo --help" says what the demo does, and its options.',
    )
    parser.add_argument("--version", action="version", version=f"penstock {penstock.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="train on a film, and report", description=_DEMO)
    demo.add_argument("name", nargs="?", choices=["frames"], default="frames", help="which demo (there is one)")
    demo.add_argument("--data", metavar="FILE.npy", help="your own frames: (n, h, w), (n, c, h, w) or (n, h, w, c)")
    demo.add_argument("--epochs", type=_positive, default=3, metavar="N", help="default: %(default)s")
    demo.add_argument("--data-dir", metavar="FOLDER", help="where the film is kept (default: the user's cache)")
    demo.add_argument(
        "--out", default="penstock-demo.png", metavar="FILE.png", help="the picture (default: %(default)s)"
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no integer from 1 on")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
