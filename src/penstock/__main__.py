"""`python -m penstock`, the same as the command `penstock`."""

import sys

from penstock.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
