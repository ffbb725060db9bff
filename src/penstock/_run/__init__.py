"""How it happens: a plan cut into units, and the executors that run them.

`_lower.py` is the bridge from a plan to units; `_pipeline.py` decides what runs when, and delivers in
order; `_executor.py` is all that an executor has to be, and then one executor a file.
"""
