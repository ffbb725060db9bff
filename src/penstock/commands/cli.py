"""The command `penstock`. Importing it imports no framework. The demo imports its own when it runs."""

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence

import penstock
from penstock.base._printable import printable
from penstock.commands import bench, check, doctor, inspect, materialize
from penstock.commands._target import count

_COMMANDS = (doctor, inspect, check, bench, materialize)
_DEMO = """\
Trains a small Keras model to predict the next frame of a film that is larger than the memory it takes, and reports
speed, memory and loss, with a picture. The film (1.2 GB) is panned over real photographs, made once, and kept in the
user's cache; --data takes a .npy file of yours instead. A minute and a half on two cores.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns its exit status.

    0: done. 1: an error, with its message on stderr, or a finding of `inspect`, `check` or `doctor`. 2: a wrong command
    line. 130: Ctrl-C. 141: the reader of the output has gone, as with `| head`.
    """
    _escape_unprintable()
    options = _parser().parse_args(arguments)
    try:
        status = int(options.run(options))
        if sys.stdout is not None:  # None after `>&-`
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print(f"\nInterrupted. {getattr(options, 'interrupted', 'Nothing is left behind.')}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The rest of the buffer goes to the null device, or Python would report it at exit.
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 141
    except (penstock.PenstockError, ImportError, OSError) as error:
        text = f"penstock {options.command}: {error}"
        print(printable(text, has_lines=True), file=sys.stderr)
        return 1


def _escape_unprintable() -> None:
    """Prints characters that the output's encoding lacks as escapes, such as undecodable bytes of a file name.

    The C locale's UTF-8 passes such bytes on unchanged. That stays.
    """
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.errors == "strict":
        out.reconfigure(errors="backslashreplace")


def _demo(options: argparse.Namespace) -> int:
    # Imported here, so that `penstock --version` does not load the demo.
    from penstock.demos import frames

    frames.run(options.data, options.epochs, options.data_dir, options.out, is_quick=options.quick)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="Feeds model training from data larger than memory.",
        epilog='"penstock COMMAND --help" describes a command and its options.',
    )
    parser.add_argument("--version", action="version", version=f"penstock {penstock.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="train on a film, and report", description=_DEMO)
    demo.add_argument("--quick", action="store_true", help="one epoch on a film of 120 MB")
    demo.add_argument("--data", metavar="FILE.npy", help="your own frames: (n, h, w), (n, c, h, w) or (n, h, w, c)")
    demo.add_argument("--epochs", type=count, metavar="N", help="default: 3, and 1 with --quick")
    demo.add_argument("--data-dir", metavar="FOLDER", help="where the film is kept (default: the user's cache)")
    demo.add_argument("--out", metavar="FILE.png", default="penstock-demo.png", help="default: %(default)s")
    demo.set_defaults(run=_demo)
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
