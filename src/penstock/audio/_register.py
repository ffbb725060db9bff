"""What this pack brings; see `base/_extensions.py`."""

from penstock.base._extensions import Add


def register(add: Add) -> None:
    """Words of torchaudio and librosa."""
    add("penstock.words", {"audio": "penstock.audio:words.toml"})
