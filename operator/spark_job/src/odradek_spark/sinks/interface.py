"""What a sink needs to know about its query, and what it promises.

A driver may be paused anywhere (SIGSTOP, a frozen node), and go on when its successor has been
running for long. A check before a write therefore does not suffice: the sink's commit itself must
fail, or change nothing, for a driver whose epoch is over.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame

from odradek_spark.broker_access import BrokerAccess

WriteBatch = Callable[[DataFrame, int], None]
"""Writes the rows of a batch with Spark's number, and returns when the sink has them.

A batch that the sink has already must be dropped; all its rows are computed nevertheless, because
the query's state depends on it. Raises FencedError if a later driver has started.
"""


class Fence(Protocol):
    """The right of one driver to write for its group."""

    @property
    def epoch(self) -> int:
        """This driver's number. Each start of a driver of the group has a higher one."""

    def require(self) -> None:
        """Raise FencedError if a later driver has started, OwnershipLostError if others took over.

        It asks ZooKeeper. Call it directly before a commit, which must be conditional nevertheless.
        """


@dataclass(frozen=True, slots=True)
class SinkContext:
    """One query: its output mode, and its id, which its checkpoint has.

    `group` and `brokers` are the consumer group and its own cluster.
    """

    mode: str
    query_id: str
    group: str
    brokers: BrokerAccess
    fence: Fence
