"""`python -m tests.fuzz`: damages small files of every format, and reads them.

Cases run in worker processes with a limit of memory, and end no more than themselves. Checks of each case: an exception
is one of penstock's and names the file, and rows are right where that can be known. `make fuzz` runs it.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

if "PENSTOCK_ENGINE" in os.environ:
    import tests.native.sanitized  # noqa: F401  # before penstock

from tests.fuzz import runner
from tests.fuzz.formats import FORMATS


def main() -> int:
    """Runs the command. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long, of all formats together")
    parser.add_argument("--formats", default="", help=f"of {', '.join(FORMATS)}; separated by ;")
    parser.add_argument("--seed", default=time.strftime("%Y-%m-%d-%H-%M-%S"), help="another one has other cases")
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where failing files are kept")
    options = parser.parse_args()
    names = options.formats.split(";") if options.formats else list(FORMATS)
    for name in [name for name in names if FORMATS[name].missing]:
        print(f"{name} is left out: {', '.join(FORMATS[name].missing)} is not installed")
        names.remove(name)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        if options.case is not None:
            bench = runner.Bench(names[0], FORMATS[names[0]], Path(folder, "files"), options.seed)
            print(bench.run(options.case))
            return 0
        seconds, keep = options.seconds, options.keep.absolute()
        ran = runner.fuzz(names, seconds, options.seed, keep, Path(folder))
    print("\n".join(runner.table(ran)))
    failures = [each for ran_of in ran.values() for each in ran_of.failures.values()]
    for each in failures:
        print(f"\n{each.format}: {each.kind}, {each.count} times\n    {each.text}")
        for number in each.cases:
            print(f"    {runner.command(each.format, options.seed, number)}")
    if failures:
        print(f"\nThe files are in {keep}.")
    return min(1, len(failures))


if __name__ == "__main__":
    sys.exit(main())
