"""The wall clock and the monotonic clock, in milliseconds."""

import time


def wall_ms() -> int:
    """Return the wall-clock time in milliseconds since the Unix epoch; it may jump."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return a monotonic time in milliseconds; only differences are meaningful."""
    return time.monotonic_ns() // 1_000_000
