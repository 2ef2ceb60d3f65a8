"""The two clocks in milliseconds: of the calendar, and of what passes."""

import time


def wall_ms() -> int:
    """Return the time since the epoch, in milliseconds; it may jump."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return a time in milliseconds that never goes back; only differences mean something."""
    return time.monotonic_ns() // 1_000_000
