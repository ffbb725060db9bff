"""What `penstock inspect` finds at a path."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

import penstock
from penstock import Dataset

MOST_LINES: Final = 30
"""The most lines that are shown of arrays, variables or columns."""


@final
@dataclass(frozen=True)
class Found:
    """The contents of a path or URL."""

    what: str
    """In words, with an article."""
    code: str = ""
    """The lines of Python that open it, after `import penstock as ps`."""
    dataset: Dataset | None = None
    """Single elements, without batches."""
    problem: str = ""
    """The reason why it cannot be opened, and the remedy."""
    facts: dict[str, list[str]] = field(default_factory=dict)
    """Other facts: a title, and lines."""
    nbytes: int = 0
    """The size of the recognised files."""


def made(what: str, constructor: str, argument: Any, unseen: Mapping[str, Any] | None = None, **options: Any) -> Found:
    """Calls a constructor of penstock. `unseen` are options that the printed code does not need."""
    given = "".join(f", {name}={quoted(value)}" for name, value in options.items())
    code = f"ds = ps.{constructor}({quoted(argument)}{given})"
    try:
        return Found(what, code, getattr(penstock, constructor)(argument, **options, **(unseen or {})))
    except (penstock.PenstockError, ImportError, OSError) as error:
        return Found(what, code, problem=str(error))


def quoted(value: Any) -> str:
    """A value as code, with double quotes."""
    if isinstance(value, tuple):
        return f"({', '.join(map(quoted, value))}{',' * (len(value) == 1)})"
    return repr(value) if value is None or isinstance(value, bool) else json.dumps(value, ensure_ascii=False)
