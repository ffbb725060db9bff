"""What this pack brings; see `base/_extensions.py`."""

from penstock.base._extensions import Add


def register(add: Add) -> None:
    """Pictures of elements and of reports."""
    add("penstock.sources", {"show": "penstock.pictures._show:show"})
    add(
        "penstock.calls",
        {"show": "penstock.pictures._show:show", "draw_report": "penstock.pictures._picture:draw_report"},
    )
