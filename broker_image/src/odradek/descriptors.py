"""Division of the process's file descriptors: connections, files of the log, and a reserve.

A broker needs descriptors for things that it cannot put off, such as its ZooKeeper connection,
connections to other brokers and checkpoints. So neither clients nor partitions may take all of
them: connections get half, files of the log the other half without the reserve.
"""

import resource
from dataclasses import dataclass
from typing import Final

# ZooKeeper, listeners, brokers, metrics, checkpoints and snapshots while they are written.
_RESERVE: Final = 128
# An open index may be mapped too, and vm.max_map_count is 65530 by default.
_MOST_LOG_FILES: Final = 60_000


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """How many descriptors there are (RLIMIT_NOFILE), and how many of them each use gets."""

    limit: int
    connections: int
    log_files: int


def divide(limit: int) -> DescriptorBudget:
    """Divide `limit` descriptors. No part is less than 1."""
    connections = max(1, limit // 2)
    reserve = min(_RESERVE, limit // 8)
    log_files = max(1, min(limit - connections - reserve, _MOST_LOG_FILES))
    return DescriptorBudget(limit, connections, log_files)


def budget() -> DescriptorBudget:
    """Divide the descriptors that this process may have now (its soft limit)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return divide(soft if soft != resource.RLIM_INFINITY else 2**31 - 1)


def raise_limit() -> None:
    """Raise the soft limit to the hard limit: the usual soft limit is for small programs."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
