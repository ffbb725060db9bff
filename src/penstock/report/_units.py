"""Numbers as text."""

from typing import Final

MIB: Final = 1 << 20


def mib(nbytes: int) -> str:
    """Returns whole MiB."""
    return f"{nbytes / MIB:,.0f} MiB"


def ms(seconds: float) -> str:
    """Returns milliseconds, or microseconds below one."""
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def share(part: float, whole: float) -> str:
    """Returns a part of a whole, in percent."""
    return f"{part / whole:.0%}" if whole else "0%"


def plural(count: int, name: str, one: str = "", more: str = "") -> str:
    """Returns a count with its noun and, where given, its verb: `1 worker`, `2 workers`, `2 workers are`."""
    return f"{count:,} {name}{one}" if count == 1 else f"{count:,} {plural_of(name)}{more}"


def plural_of(name: str) -> str:
    """Returns `elements` or `batches`."""
    return f"{name}{'es' if name.endswith('ch') else 's'}"


def an(unit: str) -> str:
    """Returns `an element` or `a batch`."""
    return f"{'an' if unit == 'element' else 'a'} {unit}"
