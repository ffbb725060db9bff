"""Runs every benchmark, one after another: `python benchmarks [--quick] [--rounds R]`.

`shuffled_pairs` runs twice, with a warm and with a cold page cache. Arguments go to each of them. Status 1 if
one could not run; a target that is not met is printed, and is no failure: it may be the machine's.
"""

import subprocess
import sys
from pathlib import Path

_DIRECTORY = Path(__file__).parent
_COLD = "shuffled_pairs"
_NAMES = sorted(path.stem for path in _DIRECTORY.glob("*.py") if not path.stem.startswith("_"))
_RUNS = [(name,) for name in _NAMES] + [(_COLD, "--cold")]


def main() -> int:
    failed = False
    for name, *flags in _RUNS:
        command = [sys.executable, str(_DIRECTORY / f"{name}.py"), *flags, *sys.argv[1:]]
        failed |= subprocess.run(command, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
