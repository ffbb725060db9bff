"""How it happens: a plan cut into units, and the executors that run them.

`_lower.py` is the bridge from a plan to units; `_pipeline.py` decides what runs when, and delivers in order;
`_stage.py` says what it takes to run a plan, which for a stream may be several pipelines, each over a `_feed.py`.
`_executor.py` is all that an executor has to be, and then one executor a file; `_workers/` is behind `_processes.py`.
"""
