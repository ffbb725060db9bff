"""Workers on other machines, and Ray Data. `_executor.py` first."""
