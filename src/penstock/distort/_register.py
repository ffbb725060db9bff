"""What this pack brings; see `base/_extensions.py`."""

from penstock.base._extensions import Add

_NAMES = (
    "Distortion", "blur", "brightness", "compose", "contrast", "crop", "elastic", "erase", "exactly", "flip", "noise",
    "one_of", "resized_crop", "rotate", "scale", "sharpen", "shear", "sine_warp", "smooth", "sometimes", "to_float",
    "translate",
)  # fmt: skip


def register(add: Add) -> None:
    """Distortions, as `penstock.image.name`."""
    add("penstock.image", {name: f"penstock.distort:{name}" for name in _NAMES})
