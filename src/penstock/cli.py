"""The command `penstock`. Importing this brings no framework; the demo brings its own when it runs."""

import argparse
import codecs
import contextlib
import importlib.util
import io
import os
import sys
from collections.abc import Sequence

import penstock
from penstock.base._arguments import lost_folder
from penstock.commands import bench, check, doctor, inspect, materialize
from penstock.commands._target import count

_COMMANDS = (doctor, inspect, check, bench, materialize)
"""Each in a file of its own, but for the demo."""
_DEMO = """\
Trains a small model with Keras on data that are read from disk as they are needed, and reports speed, memory and
what was learnt, with a picture.

  penstock demo           The next frame of a film, for data larger than memory: 1.2 GB, panned over real
                          photographs, or a .npy of yours (--data). A minute and a half on two cores.
  penstock demo augment   Characters of which half of each batch are distorted by Python functions, in worker
                          processes: 286 hiragana and kanji. A minute and a half on two cores.
  penstock demo images    A folder of 3,000 JPEGs, cut out of real photographs, decoded and distorted as they are
                          needed; compared with Keras's own way to read it. A minute and a half on two cores.

What they make is made once, and kept in the user's cache.
"""
_EPOCHS = {"frames": 3, "augment": 6, "images": 3}
_PICTURES = {
    "frames": "penstock-demo.png",
    "augment": "penstock-demo-augment.png",
    "images": "penstock-demo-images.png",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status.

    0: done. 1: it could not be done, and why is on stderr; or what a command looked at is not as it should be, and why
    is in what it prints. 2: the command line makes no sense. 130: Ctrl-C. 141: nobody reads on, as with `| head`.
    """
    _let_anything_be_printed()
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "demo" and options.name != "frames" and options.data is not None:
        parser.error(f"--data is for the film; `penstock demo {options.name}` makes its own data")
    try:
        status = int(options.run(options))
        if sys.stdout is not None:  # nobody has a stdout after `>&-`
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print(f"\nInterrupted. {getattr(options, 'interrupted', 'Nothing is left behind.')}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # What is still in the buffer goes nowhere, or Python would complain of it at the end.
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 141
    except (penstock.PenstockError, OSError) as error:
        print(f"penstock {options.command}: {lost_folder(error) or error}", file=sys.stderr)
        return 1


def _let_anything_be_printed() -> None:
    """Has what the terminal lacks, and what no encoding has, as bytes in the name of a file, printed by its number.

    UTF-8 of a locale that says nothing passes such bytes on as they are, which is left so.
    """
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and (out.errors == "strict" or codecs.lookup(out.encoding).name != "utf-8"):
        out.reconfigure(errors="backslashreplace")


def _demo(options: argparse.Namespace) -> int:
    name = options.name
    epochs, out = options.epochs or _EPOCHS[name], options.out or _PICTURES[name]
    # Imported here, so that `penstock --version` does not load what only a demo needs.
    if name == "frames":
        from penstock.demos import frames

        frames.run(options.data, epochs, options.data_dir, out)
    elif name == "images":
        from penstock.demos import images

        images.run(epochs, options.data_dir, out)
    else:
        if importlib.util.find_spec("PIL") is None:
            raise penstock.PenstockError(
                'The demo distorts with Pillow, which is not installed: pip install "penstock[demo,tensorflow]"'
            )
        from penstock.demos import augment

        augment.run(epochs, options.data_dir, out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="Feeds model training from data larger than memory.",
        epilog='"penstock COMMAND --help" says what a command does, and its options.',
    )
    parser.add_argument("--version", action="version", version=f"penstock {penstock.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="train on a film, on characters or on photographs, and report",
        description=_DEMO,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument(
        "name", nargs="?", choices=list(_EPOCHS), default="frames", help="which demo (default: %(default)s, the film)"
    )
    demo.add_argument(
        "--data", metavar="FILE.npy", help="your own frames for the film: (n, h, w), (n, c, h, w) or (n, h, w, c)"
    )
    demo.add_argument("--epochs", type=count, metavar="N", help="default: 3, and 6 for characters")
    demo.add_argument("--data-dir", metavar="FOLDER", help="where data are kept (default: the user's cache)")
    demo.add_argument(
        "--out", metavar="FILE.png", help="the picture (default: penstock-demo.png, penstock-demo-augment.png, ...)"
    )
    demo.set_defaults(run=_demo)
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
