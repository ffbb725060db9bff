"""The numbers of a distortion: their ranges, and the drawing.

One rule holds for all arguments. A pair `(low, high)` is the range, and `exactly(value)` is always that value. A single
number is the largest distance from no change: `rotate(15)` is -15 to 15, `scale(0.2)` is 0.8 to 1.2, `blur(1.5)` is 0
to 1.5. For places and sizes, such as a period, a single number is that number.
"""

import math
from typing import Any, NamedTuple, NoReturn, final

import numpy as np

from penstock.base._arguments import as_float, as_int
from penstock.base._errors import ArgumentError, ArgumentTypeError, type_of

Amount = float | tuple[float, float] | list[float]
"""A number, a pair `(low, high)`, or `exactly(value)`."""


@final
class Range(NamedTuple):
    """The range of an evenly drawn number; one value if both ends are equal."""

    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.low:g}"
        return f"±{self.high:g}" if self.low == -self.high else f"{self.low:g} to {self.high:g}"


def exactly(value: float) -> Range:
    """Fixes a number of a distortion, so that it is not drawn.

    A distortion with only exact numbers needs no `rng`: it is a function of its element alone, for `map`.

    Example:
        >>> from penstock.image import exactly, rotate
        >>> penstock.from_arrays(np.eye(3, dtype="uint8")[None]).map(rotate(exactly(90)))[0]
        array([[0, 0, 1],
               [0, 1, 0],
               [1, 0, 0]], dtype=uint8)
    """
    number = _number("exactly()", value)
    return Range(number, number)


def spread(
    what: str,
    value: Amount,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    around: float | None = None,
    above: float | None = None,
) -> Range:
    """Returns an argument as a range.

    Args:
        what: The function and the name of the argument, for messages.
        value: The argument.
        least: The lowest allowed number.
        most: The highest allowed number.
        around: A single number `r` means `around - r` to `around + r`. None: it means itself.
        above: A single number `r` means `above` to `above + r`.

    Raises:
        ArgumentError: It is no range, or out of bounds.
        ArgumentTypeError: It holds no numbers.
    """
    if isinstance(value, list | tuple) and len(value) == 2:
        low, high = _number(what, value[0]), _number(what, value[1])
    else:
        low = high = _number(what, value)
        if around is not None:
            low, high = around - high, around + high
        elif above is not None:
            low = above
    if not least <= low <= high <= most:
        raise ArgumentError(
            f"{what}={value} is the range {low:g} to {high:g}; it goes up, and lies within {least:g} and {most:g}."
        )
    return Range(low, high)


def _number(what: str, value: Any) -> float:
    number = as_float(value)
    if number is None:
        raise ArgumentTypeError(f"{what} takes a number, a pair (low, high) or exactly(value), not {type_of(value)}.")
    if not math.isfinite(number):
        raise ArgumentError(f"{what} takes finite numbers, not {value}.")
    return number


def chance(what: str, value: Any) -> float:
    """Returns a probability. True means 1.

    Raises:
        ArgumentError: It is below 0 or above 1.
        ArgumentTypeError: It is no number.
    """
    number = float(value) if isinstance(value, bool) else as_float(value)
    if number is None:
        raise ArgumentTypeError(f"{what} takes a number from 0 to 1, not {type_of(value)}.")
    if not 0 <= number <= 1:
        raise ArgumentError(f"{what}={value} is a probability: from 0 to 1.")
    return number


def numbers(what: str, value: Any) -> tuple[float, ...]:
    """Returns a number, or one for each channel.

    Raises:
        ArgumentTypeError: They are no numbers.
    """
    try:
        return tuple(np.asarray(value, np.float64).reshape(-1).tolist())
    except (TypeError, ValueError, OverflowError):
        raise ArgumentTypeError(f"{what} takes a number, or one for each channel, not {value!r}.") from None


def whole(what: str, value: Any) -> int:
    """Returns a count of pixels, at least 1.

    Raises:
        ArgumentError: It is below 1, or no integer.
    """
    number = as_int(value)
    if number is None or number < 1:
        raise ArgumentError(f"{what} takes an integer of at least 1, not {value!r}.")
    return number


@final
class Draws:
    """The random numbers of one element, in the order of the calls.

    Args:
        rng: The generator; None if no number may be drawn.
        asker: The distortion, for the message.
    """

    __slots__ = ("rng",)

    def __init__(self, rng: np.random.Generator | None, asker: object) -> None:
        self.rng: Any = _NoGenerator(asker) if rng is None else rng
        """The generator. Single numbers are drawn one by one, because drawing an array releases the GIL."""

    def between(self, range_: Range) -> float:
        """Draws a number of a range. A range of one number draws nothing."""
        low, high = range_
        return low if low == high else low + (high - low) * self.rng.random()

    def happens(self, probability: float) -> bool:
        """Draws whether an event of this probability happens. 0 and 1 draw nothing."""
        return probability >= 1 or (probability > 0 and self.rng.random() < probability)


@final
class _NoGenerator:
    """Stands in for a generator where no number may be drawn."""

    def __init__(self, asker: object) -> None:
        self._asker = asker

    def __getattr__(self, name: str) -> NoReturn:
        raise ArgumentError(
            f"{self._asker!r} draws random numbers, and was called without a generator. Use random_map(), which gives "
            "each element one; for map(), fix its numbers, as in rotate(exactly(15))."
        )
