"""Agreement with a leader: a follower's log is truncated where it diverges from the leader's.

A partition asks for that before it is fetched (OffsetForLeaderEpoch, see `truncation`), and again
where the leader's log does not contain the end of ours.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from odradek.log.segment.files import FileRetiredError
from odradek.protocol.errors import NO_ERROR, ErrorCode, KafkaError
from odradek.replica import leader_requests, truncation
from odradek.replica.followed_partitions import FollowedPartition, FollowedPartitions
from odradek.replica.partition import Partition
from odradek.replica.truncation import EpochEnd
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.net.client import PeerClient

logger = logging.getLogger(__name__)

# Runs in a thread what may wait for the disk.
InThread = Callable[[Callable[[], object]], Awaitable[object]]
# Takes a partition offline whose truncation broke off.
TruncationFailed = Callable[[Partition, Exception], None]


class LeaderAgreement:
    """Truncates the logs of `followed` as their leader, the broker `source`, answers."""

    def __init__(
        self,
        source: int,
        config: BrokerConfig,
        followed: FollowedPartitions,
        in_thread: InThread,
        truncation_failed: TruncationFailed,
    ) -> None:
        self._source = source
        self._config = config
        self._followed = followed
        self._in_thread = in_thread
        self._truncation_failed = truncation_failed

    async def truncate(self, client: PeerClient, some: list[FollowedPartition]) -> None:
        """Ask where the logs diverge, and truncate ours; `truncating` says what is still to do."""
        asking: dict[TopicPartition, tuple[FollowedPartition, int]] = {}
        for one in some:
            try:
                latest = one.partition.log.latest_epoch
                if latest == truncation.UNDEFINED:
                    # The log has no epoch: keep what is committed.
                    await self.cut(
                        one, truncation.Truncation(one.partition.high_watermark, complete=True)
                    )
                else:
                    asking[one.partition.key] = (one, latest)
            except Exception as error:
                self._followed.leave_out(one, error)
        if not asking:
            return
        epochs = {key: (one.leader_epoch, latest) for key, (one, latest) in asking.items()}
        response = await client.call(
            leader_requests.end_offsets(self._config.broker_id, epochs),
            leader_requests.OFFSET_FOR_LEADER_EPOCH_VERSION,
            self._config.replica_socket_timeout_ms,
        )
        for answered in response.topics:
            for end in answered.partitions:
                asked = asking.get(TopicPartition(answered.topic, end.partition))
                if asked is None or not self._followed.is_current(asked[0]):
                    continue
                if end.error_code != NO_ERROR:
                    self._followed.refused(asked[0], end.error_code)
                    continue
                try:
                    await self._cut_by(asked[0], EpochEnd(end.leader_epoch, end.end_offset))
                except Exception as error:
                    self._followed.leave_out(asked[0], error)

    async def _cut_by(self, one: FollowedPartition, leaders: EpochEnd) -> None:
        partition = one.partition
        own = EpochEnd(*partition.log.end_offset_for_epoch(leaders.epoch))
        await self.cut(
            one,
            truncation.decide(leaders, own, partition.log.log_end_offset, partition.high_watermark),
        )

    async def cut(self, one: FollowedPartition, cut: truncation.Truncation) -> None:
        """Truncate a log, unless the partition has another role by now."""
        partition = one.partition
        try:
            async with partition.truncating():
                if not self._followed.is_current(one):
                    return
                log = partition.log  # not before: it may have moved to another directory meanwhile
                if cut.offset < log.log_end_offset:
                    logger.info(
                        "%s: truncating the log from %d to %d, as leader %d of epoch %d",
                        partition.key,
                        log.log_end_offset,
                        cut.offset,
                        self._source,
                        one.leader_epoch,
                    )
                # Even if nothing is truncated: this removes epochs that wrote no records.
                await self._change(partition, lambda: log.truncate_to(cut.offset))
                partition.follow_high_watermark(partition.high_watermark)
        except (KafkaError, FileRetiredError) as refusal:
            self._followed.reject(one, refusal)
            return
        one.truncating = not cut.complete

    async def _change(self, partition: Partition, truncate: Callable[[], object]) -> None:
        try:
            await self._in_thread(truncate)
        except (KafkaError, FileRetiredError):
            raise
        except Exception as error:
            self._truncation_failed(partition, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the truncation broke off") from error

    async def find_range(self, client: PeerClient, one: FollowedPartition) -> None:
        """Start over within the leader's log, which does not contain our log end (R5).

        If our log ends below the leader's log start, it is of no use any more. If it ends above the
        leader's log end, there was an unclean election: the leader's log counts.
        """
        partition = one.partition
        leaders_end = await self._leaders_offset(client, one, leader_requests.LATEST_TIMESTAMP)
        if leaders_end is None:
            return
        if leaders_end < partition.log.log_end_offset:
            await self.cut(one, truncation.Truncation(leaders_end, complete=True))
            return
        leaders_start = await self._leaders_offset(client, one, leader_requests.EARLIEST_TIMESTAMP)
        if leaders_start is None or leaders_start <= partition.log.log_end_offset:
            return
        logger.warning(
            "%s: truncating the whole log, restarting at log start %d of leader %d",
            partition.key,
            leaders_start,
            self._source,
        )
        try:
            async with partition.truncating():
                if self._followed.is_current(one):
                    log = partition.log
                    await self._change(
                        partition, lambda: log.truncate_fully_and_start_at(leaders_start)
                    )
                    partition.follow_high_watermark(leaders_start)
        except (KafkaError, FileRetiredError) as refusal:
            self._followed.reject(one, refusal)

    async def _leaders_offset(
        self, client: PeerClient, one: FollowedPartition, timestamp: int
    ) -> int | None:
        response = await client.call(
            leader_requests.offset(
                self._config.broker_id, one.partition.key, one.leader_epoch, timestamp
            ),
            leader_requests.LIST_OFFSETS_VERSION,
            self._config.replica_socket_timeout_ms,
        )
        found = response.topics[0].partitions[0]
        if not self._followed.is_current(one):
            return None
        if found.error_code != NO_ERROR:
            self._followed.refused(one, found.error_code)
            return None
        return int(found.offset)
