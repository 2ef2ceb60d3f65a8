"""Changes of roles: what LeaderAndIsr and StopReplica requests of the controller do.

They are applied one after another, and refused if they come from a deposed controller. A role of a
partition whose log is being truncated is taken right after that, because the others would wait long
on a slow disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from odradek import slices
from odradek.log.manager import LogManager, NewLog
from odradek.log.partition.producers import UNKNOWN_FORMER
from odradek.long_lived import LongLived
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quarantine import Quarantines, Work
from odradek.replica.directory_moves import DirectoryMoves
from odradek.replica.fetcher_pool import FetcherPool
from odradek.replica.former_topics import FormerTopics
from odradek.replica.hosted import HostedPartitions
from odradek.replica.partition import NO_EPOCH, LagLimits, Partition, PostponedRole
from odradek.replica.topic_identities import TopicIdentities
from odradek.values import TopicPartition
from odradek.zk.session import SessionExpiredError

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.protocol.messages.control import (
        LeaderAndIsrPartitionState,
        LeaderAndIsrRequest,
        StopReplicaRequest,
    )
    from odradek.replica.quota import ReplicationQuota
    from odradek.replica.topic_configs import TopicConfigs
    from odradek.zk.session import Session

logger = logging.getLogger(__name__)

# Each may write the leader epochs of its log: in half a millisecond on a disk that is not busy.
ROLES_PER_SLICE = 10
# The logs of so many are made together: objects of more would keep the garbage collector long.
ROLES_AT_ONCE = 200


class RoleChanges:
    """Gives the partitions of this broker their roles. Only the event loop may call its methods.

    `lock` is held while roles change. Who holds it may call `stop` and `delete_logs`.
    """

    def __init__(
        self,
        lock: asyncio.Lock,
        config: BrokerConfig,
        logs: LogManager,
        session: Session,
        hosted: HostedPartitions,
        identities: TopicIdentities,
        topic_configs: TopicConfigs,
        quotas: Collection[ReplicationQuota],
        moves: DirectoryMoves,
        fetchers: FetcherPool,
        clock_ms: Callable[[], int],
        quarantines: Quarantines,
        on_replica_failed: Callable[[], None],
    ) -> None:
        self.lock = lock
        self.controller_epoch = 0
        self.refused = 0  # new replicas whose log could not be created
        self._config = config
        self._logs = logs
        self._session = session
        self._hosted = hosted
        self._identities = identities
        self._topic_configs = topic_configs
        self._quotas = quotas
        self._moves = moves
        self._fetchers = fetchers
        self._clock_ms = clock_ms
        self._quarantines = quarantines
        self._on_replica_failed = on_replica_failed
        self._limits = LagLimits(config.replica_lag_time_max_ms, config.replica_lag_max_messages)
        self._long_lived = LongLived()
        self.former_topics = FormerTopics()

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

    async def become_leader_or_follower(
        self, request: LeaderAndIsrRequest
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Take the roles of a request; return its error, and one error per partition.

        The request is for the registration that the caller compared its broker epoch with. If the
        broker registers anew before its turn comes, others may lead by now.
        """
        generation = self._session.generation
        async with self.lock:
            if not self.accept_controller(request.controller_epoch):
                return ErrorCode.STALE_CONTROLLER_EPOCH, {}
            errors: dict[TopicPartition, ErrorCode] = {}
            try:
                for part in slices.cut(_states(request), ROLES_AT_ONCE):
                    with slices.collector_paused():
                        errors |= await self._take_roles(dict(part), generation)
                        self._long_lived.freeze_if_due(len(self._hosted.partitions))
            except SessionExpiredError:
                # Once registered again, this broker receives all its roles.
                return ErrorCode.STALE_BROKER_EPOCH, {}
            self._fetchers.end_idle()
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
                error = await self.stop(key, NO_EPOCH, delete=True)
                if error is ErrorCode.NONE:
                    stopped.append(key)
                else:
                    refused[key] = error
            refused |= await self.delete_logs(stopped, keep_records=keep_records)
        wanted = {key: state for key, state in states.items() if key not in refused}
        made_anew = {*findings.foreign, *findings.set_aside}
        refused |= _codes(await self._make_missing_logs(wanted, made_anew))
        return refused | _codes(
            await self._logs.record_topic_identities(
                {key: one for key, one in findings.to_record.items() if key not in refused}
            )
        )

    async def _make_missing_logs(
        self,
        states: Mapping[TopicPartition, LeaderAndIsrPartitionState],
        made_anew: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, KafkaError]:
        """Create the logs of new partitions; return the errors of those that failed. The logs of
        `made_anew` were of a former topic.
        """
        missing = {
            key: state
            for key, state in states.items()
            if self._config.broker_id in state.replicas
            and key not in self._hosted.partitions
            and self._logs.get(key.topic, key.partition) is None
        }
        if not missing:
            return {}
        await self._topic_configs.read({key.topic for key in missing})
        refused = await self._logs.create_missing(
            {
                key: NewLog(
                    self._topic_configs(key.topic),
                    one.is_new,
                    had_former=key in made_anew or self._had_former(key, one),
                )
                for key, one in missing.items()
            }
        )
        self.refused += len(refused)
        for key, refusal in refused.items():
            logger.error("%s: failed to create the log: %s", key, refusal)
        return refused

    def _assign_role(
        self, key: TopicPartition, state: LeaderAndIsrPartitionState, generation: int
    ) -> ErrorCode:
        if self._config.broker_id not in state.replicas:
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

    def _had_former(self, key: TopicPartition, state: LeaderAndIsrPartitionState) -> bool:
        """Return whether a former topic had the name of this new one: no other begins above leader
        epoch 0.

        Replicas that a reassignment adds are new, too, but not in sync yet.
        """
        return (
            state.is_new
            and self._config.broker_id in state.isr
            and (state.leader_epoch > 0 or key in self.former_topics)
        )

    def _go_on_from_former(self, partition: Partition, leader_epoch: int) -> None:
        """Let producers of a former topic go on in a new partition.

        Replicas that a reassignment adds are new, too, but not in sync yet.
        """
        former = self.former_topics.take(partition.key)
        if former is not None:
            partition.log.producers.go_on_from(former)
        elif leader_epoch > 0:
            # A former topic had this name, no other begins above epoch 0. It was not here.
            partition.log.producers.go_on_from(UNKNOWN_FORMER)

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
            if state.is_new and self._config.broker_id in state.isr:
                self._go_on_from_former(partition, state.leader_epoch)
            if state.leader == self._config.broker_id:
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
        self._quarantines.release(Work.ROLE, key)
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
        self._quarantines.put(Work.ROLE, key, failure, "waiting for another LeaderAndIsr")
        return ErrorCode.KAFKA_STORAGE_ERROR

    def _host(self, key: TopicPartition) -> Partition:
        log = self._logs.get(key.topic, key.partition)
        assert log is not None, f"{key} has no log"
        partition = Partition(
            key,
            self._config.broker_id,
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
        for few in slices.cut(_stops(request), slices.KEYS_AT_ONCE):
            await self.truncations_over(key for key, _, delete in few if delete)
            if len(few) == slices.KEYS_AT_ONCE:
                await slices.pause()
        async with self.lock:
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
                    errors[key] = await self.stop(key, leader_epoch, delete)
                except Exception as failure:
                    errors[key] = self._role_failed(key, failure)
                if delete and errors[key] is ErrorCode.NONE and self._has_log(key):
                    to_delete.append(key)
            self._fetchers.end_idle()
            await self._remember_former(to_delete)
            errors.update(await self.delete_logs(to_delete))
            return ErrorCode.NONE, errors

    async def truncations_over(self, keys: Iterable[TopicPartition]) -> None:
        """Wait while logs that are to be deleted are truncated, so that roles do not wait."""
        for key in keys:
            partition = self._hosted.partitions.get(key)
            if partition is not None:
                async with partition.truncation_lock:
                    pass

    async def stop(self, key: TopicPartition, leader_epoch: int, delete: bool) -> ErrorCode:
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

    async def delete_logs(
        self, keys: Collection[TopicPartition], *, keep_records: bool = False
    ) -> dict[TopicPartition, ErrorCode]:
        """Delete the logs of partitions that are not in use any more; return the errors."""
        if not keys:
            return {}
        refused = await self._logs.delete(keys, keep_records=keep_records)
        self._long_lived.deleted(len(keys))
        errors: dict[TopicPartition, ErrorCode] = {}
        for number, key in enumerate(keys, 1):
            refusal = refused.get(key)
            if refusal is None:
                logger.info("%s: deleted the replica", key)
            else:
                logger.error("%s: failed to delete the log: %s", key, refusal)
                errors[key] = refusal.code
            if number % slices.STEPS_PER_SLICE == 0:
                await slices.pause()
        gone = {key.topic for key in keys if not self._logs.has_topic(key.topic)}
        self._topic_configs.forget(gone)
        for quota in self._quotas:
            quota.forget(gone)
        return errors

    async def _remember_former(self, keys: Iterable[TopicPartition]) -> None:
        """Remember the producers of topics that are deleted, not of a replica that moved away."""
        steps = 0
        for key in keys:
            log = self._logs.get(*key)
            if log is None or key.topic in self._hosted.metadata.topics:
                continue
            producers = log.former_producers()
            self.former_topics.remember(key, producers)
            steps += 1 + len(producers.last)
            if steps >= slices.STEPS_PER_SLICE:
                steps = 0
                await slices.pause()

    def _has_log(self, key: TopicPartition) -> bool:
        return self._logs.get(*key) is not None or self._logs.futures.get(key) is not None


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
