"""The numbers of a distortion: their ranges, and the drawing.

One rule holds for all arguments. A pair `(low, high)` is the range, and `exactly(value)` is always that value. A single
number is the largest distance from no change: `rotate(15)` is -15 to 15, `scale(0.2)` is 0.8 to 1.2, `blur(1.5)` is 0
to 1.5. For places and sizes, such as a period, a single number is that number.
"""

import math
from collections.abc import Callable
from functools import partial
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
    return Range(*[_number("exactly()", value)] * 2)


Check = Callable[[str], Any]
"""Checks an argument, and returns its value. Takes the function and the name of the argument, for messages."""


def spread(
    value: Amount,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    around: float | None = None,
    above: float | None = None,
) -> Check:
    """Returns a check of an argument that is a range.

    The check raises `ArgumentError` if it is no range or out of bounds, and `ArgumentTypeError` if it holds no numbers.

    Args:
        value: The argument.
        least: The lowest allowed number.
        most: The highest allowed number.
        around: A single number `r` means `around - r` to `around + r`. None: it means itself.
        above: In place of `around`, for an amount with one direction: `r` means `above` to `above + r`.
    """

    def check(what: str) -> Range:
        if isinstance(value, list | tuple):
            if len(value) != 2:
                raise ArgumentError(
                    f"{what} takes a number or a pair (low, high), but has {len(value)} numbers: {value!r}."
                )
            low, high = _number(what, value[0]), _number(what, value[1])
        else:
            low = high = _number(what, value)
            if around is not None:
                if high < 0:
                    raise ArgumentError(f"{what}={high:g} is a distance, so it is not negative. Or give (low, high).")
                low, high = around - high, around + high
            elif above is not None:
                low, high = above, above + high
        if low > high:
            raise ArgumentError(f"{what}={value!r} goes from {low:g} down to {high:g}: give (low, high).")
        if low < least or high > most:
            bounds = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            said = f"exactly({low:g})" if isinstance(value, Range) else repr(value)
            raise ArgumentError(f"{what}={said} is the range {low:g} to {high:g}; it can be {bounds}.")
        return Range(low, high)

    return check


def _number(what: str, value: Any) -> float:
    number = as_float(value)
    if number is None:
        raise ArgumentTypeError(f"{what} takes a number, a pair (low, high) or exactly(value), not {type_of(value)}.")
    if not math.isfinite(number):
        raise ArgumentError(f"{what} takes finite numbers, not {value}.")
    return number


def chance(value: Any, what: str) -> float:
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


def numbers(value: Any, what: str) -> tuple[float, ...]:
    """Returns a number, or one for each channel.

    Raises:
        ArgumentError: There is none, or one is not finite.
        ArgumentTypeError: They are no numbers.
    """
    try:
        found = tuple(np.asarray(value, np.float64).reshape(-1).tolist())
    except (TypeError, ValueError, OverflowError):
        raise ArgumentTypeError(f"{what} takes a number, or one for each channel, not {value!r}.") from None
    if not found or not np.isfinite(found).all():
        raise ArgumentError(f"{what} takes finite numbers, not {value!r}.")
    return found


def whole(value: Any, what: str, most: float = math.inf) -> int:
    """Returns a count: an integer from 1 to `most`.

    Raises:
        ArgumentError: It is below 1, or above `most`.
        ArgumentTypeError: It is no integer.
    """
    number = as_int(value)
    if number is None:
        raise ArgumentTypeError(f"{what} takes an integer, not {type_of(value)}.")
    if number < 1:
        raise ArgumentError(f"{what}={value} has to be at least 1.")
    if number > most:
        raise ArgumentError(f"{what} can be at most {most}, and is more.")
    return number


@final
class Draws:
    """The random numbers of one element, in the order of the calls.

    Args:
        rng: The generator; None if no number may be drawn.
        asker: The distortion, for the message.
    """

    __slots__ = ("_asker", "_rng", "unit")

    def __init__(self, rng: np.random.Generator | None, asker: object) -> None:
        self._rng = rng
        self._asker = asker
        # One by one: drawing an array releases the GIL, and another thread's turn costs more than the numbers.
        self.unit: Callable[[], float] = partial(_refuse, asker) if rng is None else rng.random
        """Draws a number in [0, 1)."""

    @property
    def rng(self) -> np.random.Generator:
        """The generator, for whole arrays of numbers.

        Raises:
            ArgumentError: There is no generator.
        """
        return self._rng or _refuse(self._asker)

    def between(self, range_: Range) -> float:
        """Draws a number of a range. A range of one number draws nothing."""
        low, high = range_
        return low if low == high else low + (high - low) * self.unit()

    def happens(self, probability: float) -> bool:
        """Draws whether an event of this probability happens. 0 and 1 draw nothing."""
        return probability >= 1 or (probability > 0 and self.unit() < probability)


def _refuse(asker: object) -> NoReturn:
    raise ArgumentError(
        f"{asker!r} draws random numbers, and was called without a generator. Use random_map(), which gives each "
        "element one; for map(), fix its numbers, as in rotate(exactly(15)), or frozen(distortion)."
    )
