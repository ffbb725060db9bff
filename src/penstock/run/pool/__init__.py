"""Worker processes: how they are started, fed, watched and ended, and what runs in one.

`_pool.py` keeps the workers, and a loader's right to them. `_process.py` is one of them seen from the parent,
`_worker.py` runs in it. `_tasks.py` and `_task_queue.py` are the work and its way to the workers, `_payload.py` is how
plans travel, `_remote_error.py` how exceptions come back, and `_crashes.py` attributes the end of a worker to a unit.
"""
