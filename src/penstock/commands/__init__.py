"""The commands of `penstock`, one a file: each adds its parser to `cli.py`'s, and runs."""
