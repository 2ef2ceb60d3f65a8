"""How far a ratio may be from that of another run: what a report states beside each ratio. Pure.

A run has few rounds, and its brokers were started once. So an interval has two parts: the 95 %
confidence interval of the rounds' own ratios (Student's t, of logarithms), and twice the factor by
which the same broker, started a second time, differs as a rule. The same system measured again has
an interval that overlaps, in 999 of 1000 rows: two intervals must both be wrong. The first part
alone is apart in 11 of 1000 with five rounds, not in 6 as two means would be, for a median is less
certain than a mean; the second part hides that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

# Two-sided 95 % quantiles of Student's t, for 1 degree of freedom and more.
_T: Final = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
# A normal distribution's standard deviation, in medians of absolute values.
_DEVIATIONS: Final = 1.4826


class Spread(NamedTuple):
    """A ratio of two medians, and the interval around it; None for one round, or one that was 0."""

    value: float
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        if self.interval is None:
            return plain(self.value)
        return f"{plain(self.value)} ({plain(self.interval[0])}-{plain(self.interval[1])})"


def plain(value: float) -> str:
    """Return a number with two digits at least that say something, without an exponent."""
    if value <= 0:
        return "0.00"
    return f"{value:.{max(2, 1 - math.floor(math.log10(value)))}f}"


def spread(above: Sequence[float], below: Sequence[float], noise: float) -> Spread:
    """Return the ratio of what was measured in the same rounds; `noise` is of `noise_of`."""
    value = statistics.median(above) / statistics.median(below)
    rounds = len(above)
    if rounds < 2 or min(*above, *below) <= 0:
        return Spread(value, None)
    each = [math.log(one / other) for one, other in zip(above, below, strict=True)]
    of_rounds = _T[min(rounds - 1, len(_T)) - 1] * statistics.stdev(each) / math.sqrt(rounds)
    factor = math.exp(math.hypot(of_rounds, 2 * noise))
    return Spread(value, (value / factor, value * factor))


def noise_of(ratios: Iterable[float]) -> float:
    """Return the logarithm of the factor by which one broker differs from itself, as a rule.

    The ratios are those of its two runs, one of each row. 0 without any.
    """
    found = [abs(math.log(one)) for one in ratios if one > 0]
    return _DEVIATIONS * statistics.median(found) if found else 0.0


def overlap(one: Spread, other: Spread) -> bool:
    """Return whether two runs agree on a ratio; True where one states no interval."""
    if one.interval is None or other.interval is None:
        return True
    return one.interval[0] <= other.interval[1] and other.interval[0] <= one.interval[1]
