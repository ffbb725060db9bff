"""What this pack brings; see `base/_extensions.py`."""

from penstock.base._extensions import Add


def register(add: Add) -> None:
    """Images in files and folders, and distortions."""
    add(
        "penstock.sources",
        {name: f"penstock.image._constructors:{name}" for name in ("from_image_files", "image_dataset_from_directory")},
    )
    add(
        "penstock.files",
        dict.fromkeys((".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"), "from_image_files"),
    )
    add("penstock.words", {"image": "penstock.image:words.toml"})
