"""File regions that count how often they were closed."""

from dataclasses import dataclass


@dataclass(slots=True)
class CountedRegion:
    """A `FileRegion` of a file that the test keeps open."""

    fd: int
    position: int
    length: int
    closed: int = 0

    def close(self) -> None:
        """Count the call."""
        self.closed += 1
