"""What a demo measured, in plain English: the part that all demos share."""

import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import penstock as ps
from penstock.report._memory import Memory

MIB = 1 << 20


@dataclass(frozen=True)
class Run:
    """What is measured whatever is trained; each property is the text of one part of the report."""

    train_s: float
    """In `fit`, without validation."""
    loader: ps.Report
    before: Memory
    """Framework loaded and warm, model made, no loader yet."""
    peak: Memory
    """From there to the end of training and evaluation."""
    projected_nbytes: int
    """What the loaders said that they would take."""
    fingerprints: tuple[str, str]
    """SHA-256 of the first batches, of a second loader and of one without workers."""
    compared_batches: int
    picture: Path

    @property
    def waited(self) -> str:
        """How long training stood still."""
        return f"Training waited for data {self.loader.wait_share:.1%} of the time."

    def memory(self, data_nbytes: int, what: str = "the file has") -> str:
        """What it took, before and with loaders, beside the size of the data."""
        growth_nbytes = max(0, self.peak.here_nbytes - self.before.here_nbytes)
        workers, shared = self.peak.worker_nbytes, f"{mib(self.peak.shared_nbytes)} shared"
        if workers:
            several = f"{len(workers)} workers together" if len(workers) > 1 else "the worker"
            peak = f"here {mib(self.peak.private_nbytes)}, in {several} {mib(sum(workers))}, and {shared}"
        else:
            peak = f"{mib(self.peak.private_nbytes)} private and {shared}"
        return (
            f"at its peak {mib(growth_nbytes)} more than before the loaders were made, which had announced "
            f"{mib(self.projected_nbytes)}; {what} {mib(data_nbytes)}. The peak: {peak}, of which Keras and its "
            f"backend took {mib(self.before.here_nbytes)} before."
        )

    @property
    def repeatable(self) -> str:
        """Whether another loader gave the same."""
        first, second = self.fingerprints
        if first != second:
            return f"NO. Two loaders with one seed gave other batches: SHA-256 {first[:12]}, {second[:12]}."
        return (
            f"a second loader with the same seed, without workers, gave the same first {self.compared_batches} batches "
            f"to the bit: SHA-256 {first[:12]}."
        )

    @property
    def picture_name(self) -> str:
        """Where the picture is, as short as it can be said."""
        return os.path.relpath(self.picture) if self.picture.is_relative_to(Path.cwd()) else str(self.picture)


def table(texts: Mapping[str, str]) -> str:
    """Sets texts beside their names, wrapped."""
    return "\n".join(
        f"  {name if number == 0 else '':<11} {line}"
        for name, text in texts.items()
        for number, line in enumerate(textwrap.wrap(text, 96, break_long_words=False, break_on_hyphens=False))
    )


def heading(backend: str, elapsed_s: float) -> str:
    """The line above the table."""
    return f"penstock {ps.__version__}, Keras on {backend}, {elapsed_s:.0f} s in all"


def mib(nbytes: int) -> str:
    """A number of bytes for people."""
    return f"{nbytes / MIB:,.0f} MiB"
