"""What runs units: threads and worker processes, one a file, and Ray. `inline` has no units: `run/_inline.py`."""
