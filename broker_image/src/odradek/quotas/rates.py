"""Rates over a moving window, and token buckets, computed as Kafka computes them.

Source: Kafka 2.8's Rate with WindowedSum, SampledStat, TokenBucket and QuotaUtils. Times are in
milliseconds of any clock that does not go back.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

LONGEST_THROTTLE_MS: Final = 2**31 - 1


class Window(NamedTuple):
    """The time over which a rate is taken: `samples` of `size_ms`, the last one in progress."""

    samples: int = 11
    size_ms: int = 1000

    @property
    def span_s(self) -> float:
        """Return the seconds of the complete samples."""
        return (self.samples - 1) * self.size_ms / 1000


class RateSensor:
    """The rate of what one share took, and the throttle times that follow from its limit."""

    __slots__ = ("_current", "_longest_ms", "_starts", "_sums", "_window", "limit", "used_ms")

    def __init__(self, window: Window, limit: float, longest_ms: int = LONGEST_THROTTLE_MS) -> None:
        self.limit = limit
        self.used_ms = 0
        self._window = window
        self._longest_ms = longest_ms
        self._starts: list[int] = []
        self._sums: list[float] = []
        self._current = 0

    @property
    def most_per_window(self) -> float:
        """Return what can be taken at once without a throttle that is certain."""
        return self.limit * self._window.span_s

    def add(self, value: float, now_ms: int) -> None:
        """Count a value, which is negative to take back what was counted."""
        self.used_ms = now_ms
        starts, current = self._starts, self._current
        if not starts:
            starts.append(now_ms)
            self._sums.append(value)
        elif now_ms - starts[current] < self._window.size_ms:
            self._sums[current] += value
        else:
            current = self._current = (current + 1) % self._window.samples
            if current == len(starts):
                starts.append(now_ms)
                self._sums.append(value)
            else:
                starts[current] = now_ms
                self._sums[current] = value

    def rate(self, now_ms: int) -> tuple[float, int]:
        """Return the rate per second, and the milliseconds over which it was taken.

        While there are fewer samples than the window has, it counts as complete: a first request
        is no burst.
        """
        starts, (samples, size_ms) = self._starts, self._window
        expired = samples * size_ms
        for index, start in enumerate(starts):
            if now_ms - start >= expired:
                starts[index] = now_ms
                self._sums[index] = 0.0
        elapsed = now_ms - min(starts, default=now_ms)
        missing = samples - 1 - elapsed // size_ms
        if missing > 0:
            elapsed += missing * size_ms
        elapsed = max(elapsed, 1)
        return sum(self._sums) / (elapsed / 1000), elapsed

    def throttle_ms(self, now_ms: int) -> int:
        """Return how long it takes without any traffic until the rate is at the limit."""
        rate, elapsed = self.rate(now_ms)
        if rate <= self.limit:
            return 0
        # Infinite for a limit of next to nothing.
        wait = min((rate - self.limit) / self.limit * elapsed, self._longest_ms)
        return math.floor(wait + 0.5)

    def has_only(self, value: float) -> bool:
        """Return whether nothing else than this value is in the window."""
        return sum(self._sums) <= value


class BucketSensor:
    """The tokens that are left to one share: `limit` more per second, a window's worth at most."""

    __slots__ = ("_filled_ms", "_tokens", "_window", "limit", "used_ms")

    def __init__(self, window: Window, limit: float, now_ms: int) -> None:
        self.limit = limit
        self.used_ms = now_ms
        self._window = window
        self._tokens = self._burst()
        self._filled_ms = now_ms

    def _burst(self) -> float:
        return self.limit * self._window.samples * self._window.size_ms / 1000

    def tokens(self, now_ms: int) -> float:
        """Return the tokens that are left; they are negative if more were taken."""
        more = self.limit * (now_ms - self._filled_ms) / 1000
        self._tokens = min(self._burst(), self._tokens + more)
        self._filled_ms = now_ms
        return self._tokens

    def take(self, count: float, now_ms: int) -> None:
        """Take tokens, also more than are left."""
        self.used_ms = now_ms
        self._tokens = self.tokens(now_ms) - count

    def throttle_ms(self, now_ms: int) -> int:
        """Return how long it takes until no token is owed."""
        tokens = self.tokens(now_ms)
        if tokens >= 0:
            return 0
        return math.floor(min(-tokens / self.limit * 1000, LONGEST_THROTTLE_MS) + 0.5)
