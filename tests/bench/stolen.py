"""How much of the processor time that was wanted the host of a virtual machine gave to others.

Linux calls it *steal* (proc_stat(5)). No process's own time has it. It slows all systems, and not
all alike: a broker with one busy thread waits for it, where another one goes on with other threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

MUCH: Final = 0.02
"""The share from which ratios say little of a quiet machine."""
_STAT: Final = Path("/proc/stat")
# Of user, nice, system, idle, iowait, irq, softirq and steal, in the order of its first line.
_WANTED: Final = (0, 1, 2, 5, 6, 7)
_STOLEN: Final = 7


class Ticks(NamedTuple):
    """Processor time, in ticks of the clock: what was wanted, and what others got of it."""

    wanted: int = 0
    stolen: int = 0

    @property
    def share(self) -> float:
        """The part that others got, 0 to 1."""
        return self.stolen / self.wanted if self.wanted else 0.0

    def since(self, before: Ticks) -> Ticks:
        """Return what came after an earlier reading."""
        return Ticks(self.wanted - before.wanted, self.stolen - before.stolen)


def now() -> Ticks:
    """Return the time of all processors since the machine started."""
    return parsed(_STAT.read_text())


def parsed(stat: str) -> Ticks:
    """Return what the text of /proc/stat says of all processors."""
    fields = [int(one) for one in stat.partition("\n")[0].split()[1:]]
    return Ticks(sum(fields[one] for one in _WANTED), fields[_STOLEN])


def total(found: Mapping[str, Ticks]) -> Ticks:
    """Return the sum of measurements, which have names."""
    return Ticks(
        sum(one.wanted for one in found.values()), sum(one.stolen for one in found.values())
    )


def said(found: Mapping[str, Ticks]) -> str:
    """Return a clause on measurements, with the one that lost most."""
    clause = f"the host gave {total(found).share:.0%} of the processor time to others"
    worst = max(found, key=lambda one: found[one].share, default="")
    if not worst or not found[worst].stolen:
        return clause
    return f"{clause}, {found[worst].share:.0%} in the worst measurement ({worst})"
