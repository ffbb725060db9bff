"""Parts of sources that are decoded once, ahead, for all workers of a plan.

`_plan.py` decides, `_order.py` knows what the batches want, and `_feed.py` has workers do it.
"""
