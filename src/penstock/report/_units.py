"""Numbers as a report says them."""

from typing import Final

MIB: Final = 1 << 20


def mib(nbytes: int) -> str:
    """Whole MiB: what memory is counted in."""
    return f"{nbytes / MIB:,.0f} MiB"


def size(nbytes: int | None) -> str:
    """Bytes in the unit that leaves few digits; nothing where they are not known."""
    if nbytes is None:
        return ""
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:,.{0 if unit == 'B' or value >= 100 else 1}f} {unit}"


def ms(seconds: float) -> str:
    """Milliseconds, or microseconds where they are few."""
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def share(part: float, whole: float) -> str:
    """A part of a whole, in percent."""
    return f"{part / whole:.0%}" if whole else "0%"


def many(unit: str) -> str:
    """The plural of what is counted: `elements`, `batches`."""
    return {"element": "elements", "batch": "batches"}[unit]


def an(unit: str) -> str:
    """One of what is counted: `an element`, `a batch`."""
    return {"element": "an element", "batch": "a batch"}[unit]
