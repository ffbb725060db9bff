"""Worker processes: what starts, feeds and buries them, and what runs in one.

`_pool.py` keeps the workers, `_tenant.py` is a loader's right to them, `_child.py` is one of them seen from here,
`_worker.py` is what runs in it, `_board.py` is how units get there, `_parcel.py` how plans do, `_remote_error.py` how
exceptions come back, and `_blame.py` says what killed one.
"""
