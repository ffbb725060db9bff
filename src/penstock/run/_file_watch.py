"""Notices files that are written to while a loader reads them, so that an epoch gets old and new rows.

A file that shrinks or is replaced fails in the read. One that is rewritten in place does not: so the consumer's thread
compares `Stamp`s when an epoch begins and ends, and in between a few times a second.
"""

import itertools
import logging
from typing import Final, final

from penstock.base._files import Stamp
from penstock.plan._node import Node, walk

_log = logging.getLogger("penstock")

LIMIT: Final = 1_000
"""The number of files that are looked at; each look at one takes a microsecond."""


@final
class FileWatch:
    """The files that the sources of a plan keep open."""

    def __init__(self, plan: Node) -> None:
        found = (path for node in walk(plan) for path in getattr(node.opens, "local_files", ()))
        self._stamps: dict[str, Stamp | None] = dict.fromkeys(itertools.islice(found, LIMIT))

    def look(self, epoch: int) -> None:
        """Logs a warning about each file that has changed since the first look, once."""
        for path, before in [*self._stamps.items()]:
            try:
                now = Stamp.of(path)
            except OSError:  # the next read says so
                continue
            if before is None:
                self._stamps[path] = now
            elif not before.is_same(now):
                del self._stamps[path]
                _log.warning(
                    "%s was written to while a loader reads it: %s bytes before, %s now. So epoch %d may have old and "
                    "new rows of it. Write new data to another file, and make the dataset of that.",
                    path,
                    f"{before.nbytes:,}",
                    f"{now.nbytes:,}",
                    epoch,
                )
