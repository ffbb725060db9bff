"""Bytes as text."""


def size_text(nbytes: int) -> str:
    """Returns bytes for people: `1.2 GiB`, `147 MiB`, `3.2 KiB`, `12 bytes`."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            value = nbytes / size
            return f"{value:,.{0 if value >= 100 or value == int(value) else 1}f} {unit}"
    return f"{nbytes} bytes"
