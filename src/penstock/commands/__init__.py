"""The commands of `penstock`, one a file: each adds its parser to `commands/cli.py`'s, and runs."""
