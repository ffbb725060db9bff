"""Counters of a run, the report made of them, and the pictures of plans and elements."""
