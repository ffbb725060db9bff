"""What this pack brings; see `base/_extensions.py`."""

from penstock.base._extensions import Add


def register(add: Add) -> None:
    """Workers on other machines, and Ray Data."""
    add("penstock.sources", {"from_ray": "penstock.ray._from_ray:from_ray"})
    add("penstock.executors", {"ray": "penstock.ray._kind:KIND"})
    add("penstock.calls", {"to_ray": "penstock.ray._data:to_ray"})
