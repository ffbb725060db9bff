"""The requests of a run to servers: their number, bytes, and times."""

from dataclasses import astuple, dataclass
from typing import final

from penstock.base._units import size_text


@final
@dataclass(frozen=True)
class Traffic:
    """What workers asked of servers, and how long they waited for it."""

    requests: int = 0
    """Requests, with those that were repeated or made twice."""
    repeats: int = 0
    """Those that were made again after a temporary failure."""
    nbytes: int = 0
    """Bytes of all answers."""
    needed_nbytes: int = 0
    """Bytes that elements were made of."""
    request_s: float = 0.0
    """Seconds of all answered requests together; many are under way at once."""
    waited_s: float = 0.0
    """Seconds for which workers waited for answers, all together."""

    @property
    def amplification(self) -> float:
        """Bytes of answers over needed bytes. Below 1 where elements were read twice from one answer."""
        return self.nbytes / self.needed_nbytes if self.needed_nbytes else 0.0

    @property
    def latency_s(self) -> float:
        """The average time of a request, from its start to its last byte."""
        return self.request_s / self.requests if self.requests else 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "Traffic") -> "Traffic":
        return Traffic(*(mine - its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        name = "request" if self.requests == 1 else "requests"
        again = f", {self.repeats:,} of them repeated" if self.repeats else ""
        return (
            f"{self.requests:,} {name}{again}, {self.latency_s * 1e3:.1f} ms each; {size_text(self.nbytes)} read, "
            f"{self.amplification:.2f} times what elements need"
        )
