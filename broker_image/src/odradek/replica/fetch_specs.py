"""What a fetch asks of partitions, its limits, and what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from odradek.protocol.errors import ErrorCode
from odradek.replica.partition import NO_EPOCH
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.log.segment.transaction_index import AbortedTxn
    from odradek.protocol.regions import FileRegion


NO_PREFERENCE: Final = -1
"""In place of a broker id: the reader goes on with the broker that it asked."""


class FetchSpec(NamedTuple):
    """The fetch of one partition. `start_offset` is the log start of a follower.

    This and the limits are named tuples, not dataclasses: every fetch builds them.
    """

    key: TopicPartition
    offset: int
    max_bytes: int
    leader_epoch: int = NO_EPOCH
    start_offset: int = -1
    last_fetched_epoch: int = NO_EPOCH


@dataclass(slots=True)
class FetchResult:
    """The result for one partition; its receiver owns `region`."""

    key: TopicPartition
    error: ErrorCode
    high_watermark: int = -1
    log_start_offset: int = -1
    last_stable_offset: int = -1
    # Those among the records of the region, for readers of committed records.
    aborted: Sequence[AbortedTxn] = ()
    region: FileRegion | None = None
    # KIP-595: where the reader's log diverges from ours, as (epoch, end offset)
    diverging: tuple[int, int] | None = None
    # KIP-392: the broker that the reader is to fetch from instead
    preferred_read_replica: int = NO_PREFERENCE


class ConsumerLocation(NamedTuple):
    """Where a consumer is: its rack, and the name of the listener that it uses."""

    rack: str
    listener: str


class FetchLimits(NamedTuple):
    """Bounds of one fetch request. `strict`: even the first batch obeys them (Fetch before v3).
    `committed`: only records whose transactions are decided (isolation level 1). `any_replica`:
    followers serve it, too (KIP-392). `location`: leaders name a replica that is nearer to it.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    strict: bool = False
    committed: bool = False
    any_replica: bool = False
    location: ConsumerLocation | None = None
