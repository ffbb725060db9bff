"""Bytes that a loader delivers: one mapping, cut into slots, handed out as leases.

`_mapping.py` gets the memory, `_slot.py` lays out a batch in it, `_ring.py` hands slots out and takes them
back, `_budget.py` knows the sum before the first byte.
"""
