"""The replica manager: the partitions of this broker, their roles, and the work on them.

LeaderAndIsr and StopReplica requests of the controller change roles (`role_changes`). Produces and
fetches go through `append` and `fetch` (modules `appends` and `reads`), copying from leaders
through `fetcher`, changed in-sync sets through `isr_writer`. `run` owns the background work:
fetchers, ISR checks, high watermark checkpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Callable, Collection, Generator, Mapping
from random import Random
from typing import TYPE_CHECKING

from odradek import slices
from odradek.clock import monotonic_ms
from odradek.log.manager import LogManager
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quarantine import Quarantines, Work
from odradek.replica.appends import Appender
from odradek.replica.directory_moves import DirectoryMoves
from odradek.replica.fetch_sessions import FetchSessions
from odradek.replica.fetcher import Connect, SourceFetcher
from odradek.replica.fetcher_pool import FetcherPool
from odradek.replica.hosted import HostedPartitions
from odradek.replica.isr_writer import IsrWriter
from odradek.replica.metadata import LEADER_DURING_DELETE, MetadataCache
from odradek.replica.partition import Partition
from odradek.replica.quota import ReplicationQuota
from odradek.replica.reads import FetchReader
from odradek.replica.registrations import FollowerRegistrations
from odradek.replica.role_changes import RoleChanges
from odradek.replica.stray_replicas import StrayReplicas
from odradek.replica.topic_identities import TopicIdentities
from odradek.replica.verified_appends import VerifyingAppender
from odradek.values import TopicPartition
from odradek.zk import admin

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.dynamic_config import LayeredConfig
    from odradek.log.partition.log import Log
    from odradek.protocol.messages.control import (
        UpdateMetadataPartitionState,
    )
    from odradek.replica.topic_configs import TopicConfigs
    from odradek.zk.session import Session

logger = logging.getLogger(__name__)

# Requests for moves between log directories that may be answered without a pause.
_REQUESTS_AT_ONCE = 100
# Between two looks for fetches that confirm a leadership.
_LOOK_S = 0.02


class ReplicaManager:
    """Owns the partitions of this broker. Only the event loop may call its methods."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        session: Session,
        metadata: MetadataCache,
        connect: Connect,
        topic_configs: TopicConfigs,
        clock_ms: Callable[[], int] = monotonic_ms,
        quarantines: Quarantines | None = None,
        on_replica_failed: Callable[[], None] = lambda: None,
        new_topic_id: Callable[[], str] = admin.new_topic_id,
    ) -> None:
        self.config = config
        self.metadata = metadata
        self._logs = logs
        self._session = session
        self._topic_configs = topic_configs
        self._clock_ms = clock_ms
        self.quarantines = quarantines or Quarantines()
        self._on_replica_failed = on_replica_failed
        self._loop = asyncio.get_running_loop()
        roles_lock = asyncio.Lock()
        # Two waits of a follower that finds nothing, plus the time that its fetches take.
        self._longest_fetch_pause_ms = 2 * config.replica_fetch_wait_max_ms + 500
        # For reading or decompressing much data.
        self.in_thread = logs.readers.run
        self.checkpoint_start_offsets = logs.checkpoint_start_offsets
        self._hosted = HostedPartitions(metadata)
        # The logs and their high watermarks that the checkpoints have.
        self._checkpointed_marks: tuple[list[Log], list[int]] | None = None
        registrations = FollowerRegistrations(session)
        self.isr_writer = IsrWriter(
            session, self._hosted, registrations, clock_ms, self.quarantines
        )
        appender = Appender(
            self._hosted,
            lambda log, data, origin: self.in_thread(log.prepare, data, origin),
            lambda log: logs.disk.run(log.flush),
            self.leadership_confirmed,
            self.end_offset_confirmed,
        )
        leader_quota = ReplicationQuota(
            config.broker_id,
            lambda: self.settings.effective.leader_replication_throttled_rate,
            lambda topic: topic_configs(topic).leader_replication_throttled_replicas,
            clock_ms,
        )
        follower_quota = ReplicationQuota(
            config.broker_id,
            lambda: self.settings.effective.follower_replication_throttled_rate,
            lambda topic: topic_configs(topic).follower_replication_throttled_replicas,
            clock_ms,
        )
        self._reader = FetchReader(
            self._hosted,
            self.isr_writer,
            registrations,
            clock_ms,
            self.in_thread,
            self.end_offset_confirmed,
            leader_quota,
        )
        self._stray_replicas = StrayReplicas(
            config.broker_id, logs, self._hosted, self._delete_stray_replicas, self.quarantines
        )
        self._moves = DirectoryMoves(
            config,
            logs,
            self._hosted,
            topic_configs,
            lambda: self.settings.effective.replica_alter_log_dirs_io_max_bytes_per_second,
            roles_lock.locked,
            clock_ms,
            self.quarantines,
        )
        # The data path: callers reach the parts without another coroutine in between.
        self.append = appender.append
        self.begin_append = appender.begin
        self.begin_verified_append = VerifyingAppender(appender).begin
        self.fetch = self._reader.fetch
        self.fetch_session = self._reader.fetch_session
        self.settle_fetch = self._reader.settle_fetch
        self.fetch_sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots,
            self._hosted.sessions,
            clock_ms,
            Random(),  # noqa: S311 (an id is no secret: a session is of one principal)
            lambda: sum(len(one.followers) for one in self._hosted.partitions.values()),
        )
        logs.on_start_raised = self._log_start_raised
        self.leader_or_error = self._hosted.leader_or_error
        self.wait_for_low_watermark = self._hosted.for_low_watermark.wait
        self._fetchers = FetcherPool(
            config.num_replica_fetchers,
            lambda source: SourceFetcher(
                source,
                config,
                connect,
                self._hosted,
                follower_quota,
                logs.disk.run,
                logs.checkpoint_start_offsets,
                clock_ms,
                self.quarantines,
                self.truncation_failed,
            ),
            self.quarantines,
        )
        self.resize_fetchers = self._fetchers.resize
        self._hosted.on_change = self._fetchers.look_at
        self._roles = RoleChanges(
            roles_lock,
            config,
            logs,
            session,
            self._hosted,
            TopicIdentities(config.broker_id, logs, session, self._hosted, new_topic_id),
            topic_configs,
            (leader_quota, follower_quota),
            self._moves,
            self._fetchers,
            clock_ms,
            self.quarantines,
            on_replica_failed,
        )
        self.accept_controller = self._roles.accept_controller
        self.become_leader_or_follower = self._roles.become_leader_or_follower
        self.stop_replicas = self._roles.stop_replicas

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """Return every partition that has a replica here."""
        return self._hosted.partitions

    @property
    def settings(self) -> LayeredConfig:
        """Return the present settings of the broker."""
        return self._topic_configs.broker

    @property
    def damaged_reads(self) -> int:
        """Return how many times a fetch was answered with CORRUPT_MESSAGE."""
        return self._reader.damaged

    @property
    def refused_replicas(self) -> int:
        """Return how many times a new replica was refused because it could get no log."""
        return self._roles.refused

    def role_confirmed(self, partition: Partition) -> bool:
        """Return whether the controller confirmed the role in the present, live session.

        A broker that was stopped or partitioned off has no confirmed role until the controller has
        seen it again.
        """
        session = self._session
        return (
            self._clock_ms() < session.deadline * 1000
            and partition.told_in_session == session.generation
        )

    def leadership_confirmed(self, partition: Partition) -> bool:
        """Return whether no other broker can be leader of a partition that this broker leads.

        Without ZooKeeper it is enough that the whole in-sync set still fetches from us.
        """
        return self.role_confirmed(partition) or partition.is_followed(
            self._clock_ms() - self._longest_fetch_pause_ms
        )

    def end_offset_confirmed(self, partition: Partition) -> bool:
        """Return whether no other replica can hold records beyond this log's end.

        A controller that cannot reach us may have elected another replica of the in-sync set. Our
        session then tells us nothing of it, but that set stops fetching from us.
        """
        return self._end_offset_confirmed_since(
            partition, self._clock_ms() - self._longest_fetch_pause_ms
        )

    async def confirm_end_offset(self, partition: Partition) -> bool:
        """Return whether no other replica held records beyond this log's end when this was called.

        `end_offset_confirmed` knows what was so a moment ago. Here the next fetches of the in-sync
        replicas have to tell, which may take two of their waits; who leads no more waits for none.
        """
        # A fetch of the same millisecond may be from before.
        since_ms = self._clock_ms() + 1
        while not self._end_offset_confirmed_since(partition, since_ms):
            too_late = self._clock_ms() > since_ms + self._longest_fetch_pause_ms
            if too_late or not partition.is_leader:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    def _end_offset_confirmed_since(self, partition: Partition, since_ms: int) -> bool:
        if partition.isr.maximal == {self.config.broker_id}:
            return self.leadership_confirmed(partition)
        return partition.is_followed(since_ms)

    # --- roles --------------------------------------------------------------------------------

    def drop_moved_replicas(
        self, states: Collection[tuple[str, UpdateMetadataPartitionState]]
    ) -> None:
        """Step down from partitions with a newer leader elsewhere; delete stray replicas.

        The controller assigns no role to a broker whose replica moved away while it was down.
        """
        self._stray_replicas.look_for(states)
        # A deletion of records waits for live brokers only.
        self._hosted.for_low_watermark.wake_all()
        for topic, state in states:
            key = TopicPartition(topic, state.partition_index)
            partition = self._hosted.partitions.get(key)
            if partition is None and state.leader != LEADER_DURING_DELETE:
                # Made anew, but elsewhere: what is known here is out of date.
                self._roles.former_topics.take(key)
            if partition is None or state.leader == self.config.broker_id:
                continue
            postponed = partition.postponed
            if postponed is not None and state.leader_epoch > postponed.leader_epoch:
                partition.postponed = None
            if partition.is_leader and state.leader_epoch > partition.leader_epoch:
                logger.info(
                    "%s: stepping down: broker %d is leader of epoch %d",
                    key,
                    state.leader,
                    state.leader_epoch,
                )
                partition.retire()
                self._hosted.wake_all(key)

    def forget_departed(self, departed: Collection[int]) -> Generator[None, None, None]:
        """Let no append wait for followers on brokers that are gone, unless they are in sync. In
        slices: all partitions are looked at. One that is retired meanwhile has no followers.
        """
        for few in slices.cut([*self._hosted.partitions.items()]):
            for key, partition in few:
                if partition.forget_departed(departed):
                    self._hosted.wake_high_watermark(key)
            yield

    async def _delete_stray_replicas(self, keys: Collection[TopicPartition]) -> None:
        await self._roles.truncations_over(keys)
        async with self._roles.lock:
            to_delete: list[TopicPartition] = []
            for key in keys:
                info = self._stray_replicas.owner(key)
                if info is None:
                    continue
                if (
                    await self._roles.stop(key, info.leader_epoch, delete=True)
                    is not ErrorCode.NONE
                ):
                    continue
                logger.info(
                    "%s: deleting a stray replica: the replicas are on brokers %s",
                    key,
                    ", ".join(map(str, info.replicas)),
                )
                to_delete.append(key)
            await self._roles.delete_logs(to_delete)

    # --- storage ------------------------------------------------------------------------------

    async def alter_log_dirs(
        self, wanted: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, ErrorCode]:
        """Begin moves of replicas to other log directories; return one error per partition."""
        errors: dict[TopicPartition, ErrorCode] = {}
        failed, first = 0, ""
        for number, (key, path) in enumerate(wanted.items()):
            if number % _REQUESTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                errors[key] = ErrorCode.NONE
                async with self._roles.lock:  # per partition: roles need not wait for all of them
                    await self._moves.request(key, path)
            except KafkaError as refusal:
                errors[key] = refusal.code
                failed += 1
                first = first or f"{key} to {path}: {refusal}"
        if failed:
            logger.warning(
                "failed to begin %d of %d moves to log directories, first: %s",
                failed,
                len(wanted),
                first,
            )
        return errors

    def future_log(self, key: TopicPartition) -> Log | None:
        """Return the log that a partition is moving to, None if it does not move."""
        return self._logs.futures.get(key)

    def directory_failed(self, directory: str) -> None:
        """Take the partitions of a failed log directory offline (KIP-112)."""
        for partition in self._hosted.partitions.values():
            if os.path.dirname(partition.log.directory) == directory:
                partition.offline = True
                self._fetchers.unfollow(partition.key)
                self._hosted.wake_all(partition.key)
        self._fetchers.end_idle()
        self._moves.drop_failed()

    def truncation_failed(self, partition: Partition, error: Exception) -> None:
        """Take a partition offline whose truncation broke off, as if its disk had failed.

        Nobody knows how much of it is done. The next start recovers the log.
        """
        key = partition.key
        self.quarantines.note(Work.TRUNCATION, key, error, "offline until the broker starts again")
        partition.log.fail(OSError(errno.EIO, f"a truncation broke off: {error!r}"))
        partition.offline = True
        self._fetchers.unfollow(key)
        self._hosted.wake_all(key)
        self._on_replica_failed()

    @property
    def online_directories(self) -> list[str]:
        """Paths of the log directories that work."""
        return self._logs.online_directories

    def log_directories(self) -> dict[str, list[tuple[TopicPartition, Log]] | None]:
        """Return the logs of each configured log directory, future ones too; None for a failed
        one.
        """
        online = self._logs.online_directories
        found: dict[str, list[tuple[TopicPartition, Log]] | None] = {
            path: [] if path in online else None
            for path in map(os.path.abspath, self.config.log_dirs)
        }
        for key, partition in self._hosted.partitions.items():
            contents = found.get(os.path.dirname(partition.log.directory))
            if contents is not None:
                contents.append((key, partition.log))
        for key, log in self._logs.futures.all_logs().items():
            contents = found.get(os.path.dirname(log.directory))
            if contents is not None:
                contents.append((key, log))
        return found

    def _log_start_raised(self, key: TopicPartition) -> None:
        """Have readers, or our leader, learn of a higher log start. Any thread may call this."""
        with contextlib.suppress(RuntimeError):  # the event loop is over
            self._loop.call_soon_threadsafe(self._tell_of_log_start, key)

    def _tell_of_log_start(self, key: TopicPartition) -> None:
        self._hosted.sessions.changed(key, wakes=False)
        if self.config.replica_selector_class is not None:
            # The leader sends consumers here as long as it does not know.
            self._fetchers.look_at(key)

    async def checkpoint_high_watermarks(self) -> None:
        """Write every high watermark to the checkpoint of its directory, if one has moved."""
        # Lists compare faster than dictionaries are made. Of logs, because a new one of the same
        # partition may have the mark of the last, which its checkpoint does not have.
        logs = [one.log for one in self._hosted.partitions.values()]
        marks = [one.high_watermark for one in logs]
        if (logs, marks) != self._checkpointed_marks:
            self._checkpointed_marks = None
            if await self._logs.write_high_watermarks():
                self._checkpointed_marks = logs, marks

    # --- background ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch, check in-sync sets and write checkpoints, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._fetchers.run())
            tasks.create_task(self._moves.run())
            tasks.create_task(self.isr_writer.run())
            tasks.create_task(self._stray_replicas.run())
            tasks.create_task(self._check_in_sync_sets())
            tasks.create_task(self._checkpoint_periodically())

    async def _check_in_sync_sets(self) -> None:
        while True:
            await asyncio.sleep(self.config.replica_lag_time_max_ms / 2000)
            self.check_in_sync_sets()

    def check_in_sync_sets(self) -> None:
        """Remove followers that lag from the in-sync sets of the partitions that they lead."""
        followed = [one for one in self._hosted.partitions.values() if one.followers]
        for partition in followed:
            with self.quarantines.guard(Work.ISR_CHECK, partition.key):
                change = partition.propose_shrink()
                if change is not None:
                    self.isr_writer.submit(change)

    async def _checkpoint_periodically(self) -> None:
        while True:
            await asyncio.sleep(self.config.replica_high_watermark_checkpoint_interval_ms / 1000)
            with self.quarantines.guard(Work.CHECKPOINT, "high watermarks"):
                await self.checkpoint_high_watermarks()

    def close(self) -> None:
        """End every waiting produce and fetch: the server stops."""
        self._hosted.close()
        self.fetch_sessions.end()
