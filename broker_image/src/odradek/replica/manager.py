"""The replica manager: the partitions of this broker, their roles, and the work on them.

LeaderAndIsr and StopReplica requests of the controller change roles. They are applied one after
another, and refused if they come from a deposed controller. A role of a partition whose log is
being truncated is taken right after that, because the others would wait long on a slow disk.
Produces and fetches go through `append` and `fetch` (modules `appends` and `reads`), copying from
leaders through `fetcher`, changed in-sync sets through `isr_writer`. `run` owns the background
work: fetchers, ISR checks, high watermark checkpoints.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from odradek import slices
from odradek.clock import monotonic_ms
from odradek.log.manager import LogManager, NewLog
from odradek.long_lived import LongLived
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quarantine import Quarantines, Work
from odradek.replica.appends import Appender
from odradek.replica.directory_moves import DirectoryMoves
from odradek.replica.fetcher import Connect, FetcherPool, SourceFetcher
from odradek.replica.hosted import HostedPartitions
from odradek.replica.isr_writer import IsrWriter
from odradek.replica.metadata import MetadataCache
from odradek.replica.partition import NO_EPOCH, LagLimits, Partition, PostponedRole
from odradek.replica.quota import ReplicationQuota
from odradek.replica.reads import FetchReader
from odradek.replica.registrations import FollowerRegistrations
from odradek.replica.stray_replicas import StrayReplicas
from odradek.replica.topic_identities import TopicIdentities
from odradek.values import TopicPartition
from odradek.zk import admin
from odradek.zk.session import SessionExpiredError

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.dynamic_config import LayeredConfig
    from odradek.log.partition.log import Log
    from odradek.protocol.messages.control import (
        LeaderAndIsrPartitionState,
        LeaderAndIsrRequest,
        StopReplicaRequest,
        UpdateMetadataPartitionState,
    )
    from odradek.replica.topic_configs import TopicConfigs
    from odradek.zk.session import Session

logger = logging.getLogger(__name__)

# Each takes a fifth of a millisecond.
ROLES_PER_SLICE = 50
# Requests for moves between log directories that may be answered without a pause.
_REQUESTS_AT_ONCE = 100
# The logs of so many are made together: objects of more would keep the garbage collector long.
ROLES_AT_ONCE = 500


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
        self.controller_epoch = 0
        self._logs = logs
        self._session = session
        self._topic_configs = topic_configs
        self._clock_ms = clock_ms
        self.quarantines = quarantines or Quarantines()
        self._on_replica_failed = on_replica_failed
        self._long_lived = LongLived()
        self._roles = asyncio.Lock()
        # Two waits of a follower that finds nothing, plus the time that its fetches take.
        self._longest_fetch_pause_ms = 2 * config.replica_fetch_wait_max_ms + 500
        # For reading or decompressing much data.
        self.in_thread = logs.readers.run
        self.checkpoint_start_offsets = logs.checkpoint_start_offsets
        self._limits = LagLimits(config.replica_lag_time_max_ms, config.replica_lag_max_messages)
        self._hosted = HostedPartitions(metadata)
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
        self._identities = TopicIdentities(
            config.broker_id, logs, session, self._hosted, new_topic_id
        )
        self._moves = DirectoryMoves(
            config,
            logs,
            self._hosted,
            topic_configs,
            lambda: self.settings.effective.replica_alter_log_dirs_io_max_bytes_per_second,
            self._roles.locked,
            clock_ms,
            self.quarantines,
        )
        # The data path: callers reach the parts without another coroutine in between.
        self.append = appender.append
        self.fetch = self._reader.fetch
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
        if partition.isr.maximal == {self.config.broker_id}:
            return self.leadership_confirmed(partition)
        return partition.is_followed(self._clock_ms() - self._longest_fetch_pause_ms)

    # --- roles --------------------------------------------------------------------------------

    def accept_controller(self, epoch: int) -> bool:
        """Return whether to obey a request of this controller epoch; remember a higher one."""
        if epoch < self.controller_epoch:
            logger.warning(
                "rejected a request of controller epoch %d: the present one is %d",
                epoch,
                self.controller_epoch,
            )
            return False
        self.controller_epoch = epoch
        return True

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

    async def become_leader_or_follower(
        self, request: LeaderAndIsrRequest
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Take the roles of a request; return its error, and one error per partition.

        The request is for the registration that the caller compared its broker epoch with. If the
        broker registers anew before its turn comes, others may lead by now.
        """
        generation = self._session.generation
        async with self._roles:
            if not self.accept_controller(request.controller_epoch):
                return ErrorCode.STALE_CONTROLLER_EPOCH, {}
            errors: dict[TopicPartition, ErrorCode] = {}
            try:
                for part in slices.cut(_states(request), ROLES_AT_ONCE):
                    with slices.collector_paused():
                        errors |= await self._take_roles(dict(part), generation)
                        self._long_lived.freeze_if_due()
            except SessionExpiredError:
                # Once registered again, this broker receives all its roles.
                return ErrorCode.STALE_BROKER_EPOCH, {}
            return ErrorCode.NONE, errors

    async def _take_roles(
        self, states: Mapping[TopicPartition, LeaderAndIsrPartitionState], generation: int
    ) -> dict[TopicPartition, ErrorCode]:
        refused = await self._prepare_logs(states)
        if self._session.generation != generation:
            raise SessionExpiredError
        errors: dict[TopicPartition, ErrorCode] = {}
        for number, (key, state) in enumerate(states.items(), 1):
            refusal = refused.get(key)
            try:
                errors[key] = refusal or self._assign_role(key, state, generation)
            except Exception as failure:
                errors[key] = self._role_failed(key, failure)
            if number % ROLES_PER_SLICE == 0:
                await slices.pause()
        return errors

    async def _prepare_logs(
        self, states: Mapping[TopicPartition, LeaderAndIsrPartitionState]
    ) -> dict[TopicPartition, ErrorCode]:
        """Give each partition a log, of this topic; return the errors of those that have none."""
        findings = await self._identities.check(states)
        refused = {key: refusal.code for key, refusal in findings.refused.items()}
        for former, keep_records in ((findings.foreign, False), (findings.set_aside, True)):
            stopped = []
            for key in former:
                error = await self._stop(key, NO_EPOCH, delete=True)
                if error is ErrorCode.NONE:
                    stopped.append(key)
                else:
                    refused[key] = error
            refused |= await self._delete_logs(stopped, keep_records=keep_records)
        wanted = {key: state for key, state in states.items() if key not in refused}
        refused |= _codes(await self._make_missing_logs(wanted))
        return refused | _codes(
            await self._logs.record_topic_identities(
                {key: one for key, one in findings.to_record.items() if key not in refused}
            )
        )

    async def _make_missing_logs(
        self, states: Mapping[TopicPartition, LeaderAndIsrPartitionState]
    ) -> Mapping[TopicPartition, KafkaError]:
        """Create the logs of new partitions; return the errors of those that failed."""
        missing = {
            key: state
            for key, state in states.items()
            if self.config.broker_id in state.replicas
            and key not in self._hosted.partitions
            and self._logs.get(key.topic, key.partition) is None
        }
        if not missing:
            return {}
        await self._topic_configs.read({key.topic for key in missing})
        refused = await self._logs.create_missing(
            {
                key: NewLog(self._topic_configs(key.topic), one.is_new)
                for key, one in missing.items()
            }
        )
        for key, refusal in refused.items():
            logger.error("%s: failed to create the log: %s", key, refusal)
        return refused

    def _assign_role(
        self, key: TopicPartition, state: LeaderAndIsrPartitionState, generation: int
    ) -> ErrorCode:
        if self.config.broker_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = self._hosted.partitions.get(key)
        if partition is not None and partition.offline:
            # In any epoch: the controller asks again to learn which replicas are offline.
            return ErrorCode.KAFKA_STORAGE_ERROR
        if partition is not None and _is_stale(partition, state.leader_epoch):
            if state.leader_epoch == partition.leader_epoch:
                partition.told_in_session = generation
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if partition is None:
            partition = self._host(key)
        if partition.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._fetchers.unfollow(key)
        if partition.truncation_lock.locked():
            partition.postponed = PostponedRole(
                state.leader_epoch, lambda: self._take_postponed(partition, state, generation)
            )
            return ErrorCode.NONE
        return self._take_role(partition, state, generation)

    def _take_postponed(
        self, partition: Partition, state: LeaderAndIsrPartitionState, generation: int
    ) -> None:
        if partition.offline:
            return
        if self._take_role(partition, state, generation) is not ErrorCode.NONE:
            # The controller was told of success: have it ask again.
            self._on_replica_failed()

    def _take_role(
        self, partition: Partition, state: LeaderAndIsrPartitionState, generation: int
    ) -> ErrorCode:
        """Take a role whole, or have none until a request for this epoch or a later one."""
        key = partition.key
        error = ErrorCode.NONE
        try:
            if state.leader == self.config.broker_id:
                partition.lead(state)
            else:
                partition.follow(state)
                self._fetchers.follow(partition)
            partition.told_in_session = generation
            partition.role_failed = False
        except KafkaError as refusal:
            error = refusal.code
            logger.error(
                "%s: failed to take the role of leader epoch %d: %s",
                key,
                state.leader_epoch,
                refusal,
            )
        except Exception as failure:
            error = self._role_failed(key, failure)
            partition.role_failed = True
        if error is not ErrorCode.NONE:
            self._fetchers.unfollow(key)
            partition.retire()
            self._hosted.wake_all(key)
            return error
        self.quarantines.release(Work.ROLE, key)
        logger.info(
            "%s: %s in leader epoch %d, leader %d, ISR %s, log end %d, high watermark %d",
            key,
            "leader" if partition.is_leader else "follower",
            state.leader_epoch,
            state.leader,
            state.isr,
            partition.log.log_end_offset,
            partition.high_watermark,
        )
        self._hosted.wake_all(key)
        return ErrorCode.NONE

    def _role_failed(self, key: TopicPartition, failure: Exception) -> ErrorCode:
        """Quarantine a partition; for the same error as of a failed disk, the controller elects
        another leader.
        """
        self.quarantines.put(Work.ROLE, key, failure, "waiting for another LeaderAndIsr")
        return ErrorCode.KAFKA_STORAGE_ERROR

    def _host(self, key: TopicPartition) -> Partition:
        log = self._logs.get(key.topic, key.partition)
        assert log is not None, f"{key} has no log"
        partition = Partition(
            key,
            self.config.broker_id,
            log,
            log.high_watermark,
            self._limits,
            self._clock_ms,
        )
        partition.offline = log.failure is not None
        self._hosted.partitions[key] = partition
        self._long_lived.made()
        self._moves.resume(partition)
        return partition

    async def stop_replicas(
        self, request: StopReplicaRequest
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Stop replicas, and delete their logs if the controller says so.

        As with roles, not if the broker registered anew before its turn came: the replicas may be
        wanted again by now.
        """
        generation = self._session.generation
        await self._truncations_over(key for key, _, delete in _stops(request) if delete)
        async with self._roles:
            if self._session.generation != generation:
                return ErrorCode.STALE_BROKER_EPOCH, {}
            if not self.accept_controller(request.controller_epoch):
                return ErrorCode.STALE_CONTROLLER_EPOCH, {}
            errors: dict[TopicPartition, ErrorCode] = {}
            to_delete: list[TopicPartition] = []
            for number, (key, leader_epoch, delete) in enumerate(_stops(request), 1):
                if number % slices.STEPS_PER_SLICE == 0:
                    await slices.pause()
                try:
                    errors[key] = await self._stop(key, leader_epoch, delete)
                except Exception as failure:
                    errors[key] = self._role_failed(key, failure)
                if delete and errors[key] is ErrorCode.NONE:
                    to_delete.append(key)
            return ErrorCode.NONE, errors | await self._delete_logs(to_delete)

    async def _truncations_over(self, keys: Iterable[TopicPartition]) -> None:
        """Wait while logs that are to be deleted are truncated, so that roles do not wait."""
        for key in keys:
            partition = self._hosted.partitions.get(key)
            if partition is not None:
                async with partition.truncation_lock:
                    pass

    async def _stop(self, key: TopicPartition, leader_epoch: int, delete: bool) -> ErrorCode:
        """Stop a replica; before its log is deleted, remove everything but the log."""
        partition = self._hosted.partitions.get(key)
        if partition is not None:
            if 0 <= leader_epoch < partition.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if partition.offline:
                return ErrorCode.KAFKA_STORAGE_ERROR
        self._fetchers.unfollow(key)
        if partition is not None:
            partition.postponed = None
        if not delete:
            # As in Kafka the replica keeps its role until the controller changes it.
            return ErrorCode.NONE
        await self._moves.stop(key)
        self._hosted.partitions.pop(key, None)
        if partition is not None:
            async with partition.truncation_lock:
                partition.retire()
            self._hosted.wake_all(key)
        return ErrorCode.NONE

    async def _delete_logs(
        self, keys: Collection[TopicPartition], *, keep_records: bool = False
    ) -> dict[TopicPartition, ErrorCode]:
        """Delete the logs of partitions that are not in use any more; return the errors."""
        if not keys:
            return {}
        refused = await self._logs.delete(keys, keep_records=keep_records)
        self._long_lived.deleted(len(keys))
        errors: dict[TopicPartition, ErrorCode] = {}
        for key in keys:
            refusal = refused.get(key)
            if refusal is None:
                logger.info("%s: deleted the replica", key)
            else:
                logger.error("%s: failed to delete the log: %s", key, refusal)
                errors[key] = refusal.code
        remaining = {topic for topic, _ in self._logs.logs()}
        self._topic_configs.forget({key.topic for key in keys} - remaining)
        return errors

    async def _delete_stray_replicas(self, keys: Collection[TopicPartition]) -> None:
        await self._truncations_over(keys)
        async with self._roles:
            to_delete: list[TopicPartition] = []
            for key in keys:
                info = self._stray_replicas.owner(key)
                if info is None:
                    continue
                if await self._stop(key, info.leader_epoch, delete=True) is not ErrorCode.NONE:
                    continue
                logger.info(
                    "%s: deleting a stray replica: the replicas are on brokers %s",
                    key,
                    ", ".join(map(str, info.replicas)),
                )
                to_delete.append(key)
            await self._delete_logs(to_delete)

    async def resize_fetchers(self, per_source: int) -> None:
        """Copy with so many fetchers per source broker (`num.replica.fetchers`)."""
        async with self._roles:
            await self._fetchers.resize(per_source)

    # --- storage ------------------------------------------------------------------------------

    async def alter_log_dirs(
        self, wanted: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, ErrorCode]:
        """Begin moves of replicas to other log directories; return one error per partition."""
        errors = dict.fromkeys(wanted, ErrorCode.NONE)
        refused: list[str] = []
        for number, (key, path) in enumerate(wanted.items()):
            if number % _REQUESTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                async with self._roles:  # per partition: roles need not wait for all of them
                    await self._moves.request(key, path)
            except KafkaError as refusal:
                errors[key] = refusal.code
                refused.append(f"{key} to {path}: {refusal}")
        if refused:
            logger.warning(
                "failed to begin %d of %d moves to log directories, first: %s",
                len(refused),
                len(wanted),
                refused[0],
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

    async def checkpoint_high_watermarks(self) -> None:
        """Write every high watermark to the checkpoint of its directory."""
        await self._logs.write_high_watermarks(
            {
                key: partition.high_watermark
                for key, partition in tuple(self._hosted.partitions.items())
            }
        )

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
        for key, partition in tuple(self._hosted.partitions.items()):
            with self.quarantines.guard(Work.ISR_CHECK, key):
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


def _is_stale(partition: Partition, leader_epoch: int) -> bool:
    """Return whether a request for this epoch is older than, or the same as, the one in force."""
    if partition.postponed is not None and leader_epoch < partition.postponed.leader_epoch:
        return True
    if partition.role_failed:
        return leader_epoch < partition.leader_epoch
    return leader_epoch <= partition.leader_epoch


def _states(
    request: LeaderAndIsrRequest,
) -> Iterable[tuple[TopicPartition, LeaderAndIsrPartitionState]]:
    for state in request.ungrouped_partition_states:
        yield TopicPartition(state.topic_name, state.partition_index), state
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield TopicPartition(topic.topic_name, state.partition_index), state


def _codes(refused: Mapping[TopicPartition, KafkaError]) -> dict[TopicPartition, ErrorCode]:
    return {key: refusal.code for key, refusal in refused.items()}


def _stops(request: StopReplicaRequest) -> Iterable[tuple[TopicPartition, int, bool]]:
    """Yield (partition, leader epoch or -1, whether to delete), in every version's layout."""
    delete = request.delete_partitions
    for one in request.ungrouped_partitions:
        yield TopicPartition(one.topic_name, one.partition_index), -1, delete
    for topic in request.topics:
        for index in topic.partition_indexes:
            yield TopicPartition(topic.name, index), -1, delete
    for state in request.topic_states:
        for one_state in state.partition_states:
            yield (
                TopicPartition(state.topic_name, one_state.partition_index),
                one_state.leader_epoch,
                one_state.delete_partition,
            )
