"""What this pack brings; see `base/_extensions.py`."""

from penstock.base._extensions import Add


def register(add: Add) -> None:
    """Films and episodes of robots."""
    add("penstock.sources", {f"from_{name}": f"penstock.films.{name}:from_{name}" for name in ("lerobot", "videos")})
    add(
        "penstock.files",
        {
            **dict.fromkeys((".mp4", ".mov", ".mkv", ".webm", ".avi", ".flv", ".mpg", ".ts"), "from_videos"),
            "/meta/info.json": "from_lerobot",
        },
    )
