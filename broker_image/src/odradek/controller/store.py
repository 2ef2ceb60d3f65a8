"""The controller's reads and writes in ZooKeeper: pipelined in batches, fenced by its epoch.

Every write is one transaction that checks the version of /controller_epoch. Once another controller
has incremented it, all writes of the old one fail with `ControllerMovedError` (row C2). A state is
also written at the version that was read. Many states go into one transaction; if one fails, each
of that batch is retried alone. After a lost connection, a write is read back and retried if needed.

Znodes that cannot be decoded are skipped with an error in the log: one bad znode, written by hand,
must not leave the cluster without a controller.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from odradek import slices
from odradek.controller import replica_assignment, state_writes
from odradek.controller.controller_znode import ControllerLease
from odradek.controller.events import (
    AssignmentsWritten,
    Leadership,
    LiveBroker,
    StatesWritten,
    WriteStates,
)
from odradek.controller.replica_assignment import ReplicaAssignment
from odradek.controller.state_writes import StateWrite
from odradek.values import BrokerId, TopicPartition
from odradek.zk import znodes
from odradek.zk.operations import Check, Create, Delete, Operation, SetData, TransactionFailedError
from odradek.zk.session import (
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Session,
    Stat,
    Watch,
)
from odradek.zk.znodes import PartitionState, TopicAssignment, ZnodeError

logger = logging.getLogger(__name__)

T = TypeVar("T")

STATES_PER_TRANSACTION = 50  # about 15 kB, far below ZooKeeper's limit of 1 MB
TRANSACTIONS_AT_ONCE = 100  # so that heartbeats and reads need not wait behind thousands
TOPICS_AT_ONCE = 100  # removed in parallel
UNCLEAN_KEY = "unclean.leader.election.enable"


class ControllerMovedError(Exception):
    """Another broker has become controller since (Kafka: ControllerMovedException)."""


class ControllerStore:
    """The reads and fenced writes of one controller."""

    def __init__(self, session: Session, lease: ControllerLease) -> None:
        self._session = session
        self._fence = Check(znodes.CONTROLLER_EPOCH_PATH, lease.epoch_zk_version)
        # The zxid of the last change of /admin/reassign_partitions, if all of that was returned.
        self._known_reassignment: int | None = None

    # --- reads ---

    async def read_brokers(self, watch: Watch) -> dict[BrokerId, LiveBroker]:
        """Return the registered brokers; the watch fires when one registers or is gone."""
        names = await self._session.children(znodes.BROKER_IDS_PATH, watch)
        paths = [f"{znodes.BROKER_IDS_PATH}/{name}" for name in names]
        found = {}
        for path, (data, stat) in (await self._session.get_all(paths)).items():
            registration = _decoded(znodes.decode_broker, path, data)
            if registration is not None:
                found[registration.broker_id] = LiveBroker(registration, stat.czxid)
        return found

    async def read_topic_names(self, watch: Watch | None = None) -> list[str]:
        """Return the names of all topics."""
        return await self._session.children(znodes.TOPICS_PATH, watch)

    async def read_topics(self, topics: Iterable[str], watch: Watch) -> dict[str, TopicAssignment]:
        """Return the assignments of topics; the watch fires when one changes."""
        paths = {znodes.topic_path(topic): topic for topic in topics}
        found = {}
        for path, (data, _) in (await self._session.get_all(paths, watch)).items():
            assignment = _decoded(znodes.decode_topic, path, data)
            if assignment is not None:
                found[paths[path]] = replica_assignment.sound(assignment)
                if found[paths[path]] is not assignment:
                    logger.error("leaving out what makes no sense in znode %s", path)
        return found

    async def read_unclean(self, topics: Iterable[str]) -> dict[str, bool]:
        """Return the topics that override unclean.leader.election.enable."""
        paths = {znodes.topic_config_path(topic): topic for topic in topics}
        found = {}
        for path, (data, _) in (await self._session.get_all(paths)).items():
            config = _decoded(znodes.decode_config, path, data)
            if config is not None and UNCLEAN_KEY in config:
                found[paths[path]] = config[UNCLEAN_KEY].strip().lower() == "true"
        return found

    async def read_states(
        self, partitions: Iterable[TopicPartition], watch: Watch | None = None
    ) -> dict[TopicPartition, Leadership]:
        """Return the states of those of the partitions that have one."""
        dated = await self.read_states_with_zxids(partitions, watch)
        return {one: leadership for one, (leadership, _) in dated.items()}

    async def read_states_with_zxids(
        self, partitions: Iterable[TopicPartition], watch: Watch | None = None
    ) -> dict[TopicPartition, tuple[Leadership, int]]:
        """Return states and the zxid at which each was written."""
        paths = {znodes.state_path(one.topic, one.partition): one for one in partitions}
        found = {}
        # Most states say the same: those of partitions with the same replicas that never moved.
        known: dict[bytes, PartitionState] = {}
        for path, (data, stat) in (await self._session.get_all(paths, watch)).items():
            state = known.get(data) or _decoded(znodes.decode_state, path, data)
            if state is not None:
                known[data] = state
                found[paths[path]] = Leadership(state, stat.version), stat.mzxid
        return found

    async def read_deletions(self, watch: Watch) -> frozenset[str]:
        """Return the topics to be deleted, from the znode's children and payload (row Z10)."""
        path = znodes.DELETE_TOPICS_PATH
        names = await self._children(path, watch)
        data, _ = await self._session.get(path, watch)
        listed = _decoded(znodes.decode_delete_topics, path, data) or ()
        return frozenset(names) | frozenset(listed)

    async def read_preferred(self, watch: Watch) -> tuple[TopicPartition, ...] | None:
        """Return the partitions of a requested preferred election; None if there is none."""
        path = znodes.PREFERRED_ELECTION_PATH
        if await self._session.exists(path, watch) is None:
            return None
        data = (await self._session.get_all([path])).get(path, (b"", None))[0]
        return _decoded(znodes.decode_preferred_election, path, data) or ()

    async def read_reassignment(
        self, watch: Watch
    ) -> dict[TopicPartition, tuple[BrokerId, ...]] | None:
        """Return the requested replicas of partitions; None if there is no request, or only what
        was returned before, of which `remove_reassignments` has left some.
        """
        path = znodes.REASSIGN_PARTITIONS_PATH
        stat = await self._session.exists(path, watch)
        if stat is None or stat.mzxid == self._known_reassignment:
            return None
        found = (await self._session.get_all([path])).get(path)
        if found is None:
            return None
        data, stat = found
        self._known_reassignment = stat.mzxid
        return _decoded(znodes.decode_reassignment, path, data)

    def forget_reassignment(self) -> None:
        """Have the next read return all that is requested."""
        self._known_reassignment = None

    async def read_isr_changes(
        self, watch: Watch
    ) -> tuple[list[str], dict[TopicPartition, Leadership]]:
        """Return the notifications' paths and the states of the partitions that they name."""
        paths = await self._notifications(znodes.ISR_CHANGES_PATH, watch)
        named: set[TopicPartition] = set()
        for path, (data, _) in (await self._session.get_all(paths)).items():
            named.update(_decoded(znodes.decode_isr_change, path, data) or ())
        return paths, await self.read_states(sorted(named))

    async def read_log_dir_events(self, watch: Watch) -> tuple[list[str], list[BrokerId]]:
        """Return the notifications' paths and the brokers that lost a log.dir."""
        paths = await self._notifications(znodes.LOG_DIR_EVENTS_PATH, watch)
        read = (await self._session.get_all(paths)).items()
        named = [_decoded(znodes.decode_log_dir_event, path, data) for path, (data, _) in read]
        return paths, sorted({one for one in named if one is not None})

    async def _notifications(self, parent: str, watch: Watch | None = None) -> list[str]:
        return [f"{parent}/{name}" for name in await self._children(parent, watch)]

    async def _children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of the children of a znode, which is made again if somebody removed it:
        nobody else makes it before a broker starts, and tools write below it.
        """
        while True:
            try:
                return await self._session.children(path, watch)
            except NoNodeError:
                logger.warning("%s was removed; making it again", path)
                await self._session.ensure(path)

    # --- writes ---

    async def remove_notifications(self, parent: str) -> None:
        """Remove all notifications below a path; a new controller reads newer states anyway."""
        await self.remove(await self._notifications(parent))

    async def remove(self, paths: Sequence[str]) -> None:
        """Remove those of the znodes that exist."""
        await asyncio.gather(*(self._commit_one(Delete(path), NoNodeError) for path in paths))

    async def _commit_one(self, operation: Operation, done: type[Exception]) -> None:
        """Apply one operation; the error `done` means that it is applied already."""
        while True:
            try:
                await self._commit([operation])
            except ConnectionLoss:
                continue
            except TransactionFailedError as failure:
                if not isinstance(failure.error, done):
                    raise
            return

    async def write_states(self, wanted: WriteStates) -> StatesWritten:
        """Create and update states. Raise ControllerMovedError."""
        jobs: list[StateWrite] = [
            # A topic's first partition first: its write makes what the others are below.
            *((one, state, None) for one, state in sorted(wanted.creates.items())),
            *((one, new.state, new.zk_version) for one, new in wanted.updates.items()),
        ]
        results: list[list[tuple[StateWrite, Leadership | None]]] = []
        for batches in slices.cut(slices.cut(jobs, STATES_PER_TRANSACTION), TRANSACTIONS_AT_ONCE):
            results += await asyncio.gather(*map(self._write_batch, batches))
        written, conflicts, missing = {}, {}, set()
        for (partition, state, _), outcome in itertools.chain(*results):
            if outcome is None:
                missing.add(partition)
            elif outcome.state == state:
                written[partition] = outcome
            else:
                conflicts[partition] = outcome
        return StatesWritten(written, conflicts, frozenset(missing))

    async def _create_parents(self, jobs: Sequence[StateWrite]) -> None:
        """Create the znodes that hold the partitions of topics, where they are missing."""
        paths = dict.fromkeys(
            znodes.partitions_path(one.topic) for one, _, version in jobs if version is None
        )
        stats = await asyncio.gather(*map(self._session.exists, paths))
        missing = [path for path, stat in zip(paths, stats, strict=True) if stat is None]
        await asyncio.gather(*map(self._create_parent, missing))

    async def _create_parent(self, path: str) -> None:
        try:
            await self._commit_one(Create(path), NodeExistsError)
        except TransactionFailedError as failure:
            if not isinstance(failure.error, NoNodeError):
                raise
            logger.info("failed to create %s: the topic was deleted", path)

    async def _write_batch(
        self, jobs: Sequence[StateWrite]
    ) -> list[tuple[StateWrite, Leadership | None]]:
        """Write states, as if nothing of new partitions existed: so it is, unless they are left
        from another attempt.
        """
        operations = state_writes.operations(jobs)
        try:
            return state_writes.outcomes(jobs, operations, await self._commit(operations))
        except (TransactionFailedError, ConnectionLoss):
            if all(version is not None for _, _, version in jobs):
                return await self._write_each(jobs)
            await self._create_parents(jobs)
            return await self._write_beside_others(jobs)

    async def _write_beside_others(
        self, jobs: Sequence[StateWrite]
    ) -> list[tuple[StateWrite, Leadership | None]]:
        """Write states, after a look at which partitions have a znode."""
        try:
            operations = await self._missing_operations(jobs)
            return state_writes.outcomes(jobs, operations, await self._commit(operations))
        except (TransactionFailedError, ConnectionLoss):
            return await self._write_each(jobs)

    async def _write_each(
        self, jobs: Sequence[StateWrite]
    ) -> list[tuple[StateWrite, Leadership | None]]:
        """Write each state alone, after they failed together."""
        if len(jobs) == 1:
            return [(jobs[0], await self._settle(jobs[0]))]
        alone = await asyncio.gather(*(self._write_beside_others([job]) for job in jobs))
        return list(itertools.chain(*alone))

    async def _settle(self, job: StateWrite) -> Leadership | None:
        """Return the present state after a single write failed or its answer was lost."""
        partition, _, version = job
        while True:
            found = (await self.read_states([partition])).get(partition)
            if found is None:
                topic = await self._session.exists(znodes.topic_path(partition.topic))
                path = znodes.state_path(partition.topic, partition.partition)
                unreadable = await self._session.exists(path) is not None
                if version is not None or topic is None or unreadable:
                    return None
            elif found.zk_version != version:
                return found  # somebody else's state, or ours whose answer was lost
            # Nothing changed: the connection broke before the write, or the topic was made anew.
            await self._create_parents([job])
            try:
                await self._commit(await self._missing_operations([job]))
            except (TransactionFailedError, ConnectionLoss):
                continue

    async def _missing_operations(self, jobs: Sequence[StateWrite]) -> list[Operation]:
        """Return the writes, and those of partitions' znodes that do not exist."""
        parents = [
            znodes.partition_path(partition.topic, partition.partition)
            for partition, _, version in jobs
            if version is None
        ]
        existing = await asyncio.gather(*map(self._session.exists, parents))
        missing = [path for path, stat in zip(parents, existing, strict=True) if stat is None]
        return [*map(Create, missing), *map(state_writes.operation, jobs)]

    async def write_assignments(
        self, wanted: Mapping[TopicPartition, ReplicaAssignment]
    ) -> AssignmentsWritten:
        """Write assignments into the topics' znodes. Raise ControllerMovedError."""
        by_topic: dict[str, dict[int, ReplicaAssignment]] = {}
        for partition, one in wanted.items():
            by_topic.setdefault(partition.topic, {})[partition.partition] = one
        written = await asyncio.gather(
            *(self._write_topic_assignments(topic, changes) for topic, changes in by_topic.items())
        )
        if sum(map(len, written)) < len(wanted):
            # Of partitions that are gone the requests stay: they are refused once that is known.
            self.forget_reassignment()
        return AssignmentsWritten(
            {
                TopicPartition(topic, number): one
                for topic, changes in zip(by_topic, written, strict=True)
                for number, one in changes.items()
            }
        )

    async def _write_topic_assignments(
        self, topic: str, changes: Mapping[int, ReplicaAssignment]
    ) -> Mapping[int, ReplicaAssignment]:
        """Write assignments of one topic; return those of partitions that exist."""
        path = znodes.topic_path(topic)
        while True:
            try:
                data, stat = await self._session.get(path)
            except NoNodeError:
                return {}
            current = _decoded(znodes.decode_topic, path, data)
            if current is None:
                return {}
            known = {number: one for number, one in changes.items() if number in current.partitions}
            wanted = replica_assignment.with_changes(current, known)
            if wanted == current:
                return known
            try:
                await self._commit([SetData(path, znodes.encode_topic(wanted), stat.version)])
            except ConnectionLoss:
                continue
            except TransactionFailedError as failure:
                if not isinstance(failure.error, BadVersionError | NoNodeError):
                    raise
                continue  # somebody else changed the topic: read it again
            return known

    async def remove_reassignments(
        self, done: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> None:
        """Remove entries from /admin/reassign_partitions; see `events.RemoveReassignments`."""
        path = znodes.REASSIGN_PARTITIONS_PATH
        while True:
            try:
                data, stat = await self._session.get(path)
            except NoNodeError:
                return
            listed = _decoded(znodes.decode_reassignment, path, data)
            if listed is None:
                return
            left = {
                one: replicas
                for one, replicas in listed.items()
                if one not in done or done[one] not in (None, replicas)
            }
            if left and len(left) == len(listed):
                return
            operation = (
                SetData(path, znodes.encode_reassignment(left), stat.version)
                if left
                else Delete(path, stat.version)
            )
            try:
                [result] = await self._commit([operation])
            except ConnectionLoss:
                continue
            except TransactionFailedError as failure:
                if not isinstance(failure.error, BadVersionError | NoNodeError):
                    raise
                continue  # a tool wrote it again: read it again
            if isinstance(result, Stat) and stat.mzxid == self._known_reassignment:
                self._known_reassignment = result.mzxid
            return

    async def remove_topics(self, topics: Mapping[str, Collection[int]]) -> None:
        """Remove all znodes of topics with these partitions, the deletion request last."""
        some = list(topics.items())
        for start in range(0, len(some), TOPICS_AT_ONCE):
            wanted = some[start : start + TOPICS_AT_ONCE]
            await asyncio.gather(*(self._remove_topic(*one) for one in wanted))
        await self.remove_deletion_payload(list(topics))

    async def _remove_topic(self, topic: str, partitions: Collection[int]) -> None:
        """Remove a topic's usual znodes in one transaction; if that fails, those that exist."""
        created = await self._creation_zxid(znodes.topic_path(topic))
        if len(partitions) <= STATES_PER_TRANSACTION:
            usual = [
                *(
                    path(topic, one)
                    for one in partitions
                    for path in (znodes.state_path, znodes.partition_path)
                ),
                znodes.partitions_path(topic),
                znodes.topic_path(topic),
                znodes.topic_config_path(topic),
                znodes.delete_topic_path(topic),
            ]
            with contextlib.suppress(TransactionFailedError, ConnectionLoss):
                await self._commit([Delete(path) for path in usual])
                return
        await self._remove_existing(topic, created)

    async def _creation_zxid(self, path: str) -> int | None:
        """Return the czxid of a znode, None if it does not exist."""
        stat = await self._session.exists(path)
        return None if stat is None else stat.czxid

    async def _remove_existing(self, topic: str, created: int | None) -> None:
        while True:
            if await self._creation_zxid(znodes.topic_path(topic)) != created:
                return  # removed, though the answer was lost; the present topic is a new one
            try:
                tree = await self._subtree(znodes.topic_path(topic))
                inner, root = tree[:-1], tree[-1:]
                for start in range(0, len(inner), STATES_PER_TRANSACTION):
                    chunk = inner[start : start + STATES_PER_TRANSACTION]
                    await self._commit([Delete(path) for path in chunk])
                last = [*root, znodes.topic_config_path(topic), znodes.delete_topic_path(topic)]
                present = await asyncio.gather(*map(self._session.exists, last))
                await self._commit(
                    [
                        Delete(path)
                        for path, stat in zip(last, present, strict=True)
                        if stat is not None
                    ]
                )
            except ConnectionLoss:
                continue
            except TransactionFailedError as failure:
                if not isinstance(failure.error, NoNodeError | NotEmptyError):
                    raise
                continue  # somebody else changed the same znodes: read them again
            return

    async def _subtree(self, path: str) -> list[str]:
        """Return the paths of a znode and all below it, children first; [] if there is none."""
        try:
            names = await self._session.children(path)
        except NoNodeError:
            return []
        below = await asyncio.gather(*(self._subtree(f"{path}/{name}") for name in names))
        return [*itertools.chain(*below), path]

    async def remove_deletions(self, topics: Sequence[str]) -> None:
        """Remove deletion requests: the children and the entries of the payload.

        The payload may name what no znode can be named, or what is the znode of all requests.
        """
        children = set(await self._children(znodes.DELETE_TOPICS_PATH))
        await self.remove([znodes.delete_topic_path(one) for one in topics if one in children])
        await self.remove_deletion_payload(topics)

    async def remove_deletion_payload(self, topics: Sequence[str]) -> None:
        """Remove topics from the payload of /admin/delete_topics."""
        path, removed = znodes.DELETE_TOPICS_PATH, frozenset(topics)
        while True:
            try:
                data, stat = await self._session.get(path)
            except NoNodeError:
                return  # somebody removed it, with all requests
            listed = _decoded(znodes.decode_delete_topics, path, data) or ()
            left = [topic for topic in listed if topic not in removed]
            if len(left) == len(listed):
                return
            try:
                wanted = znodes.encode_delete_topics(left)
                await self._commit([SetData(path, wanted, stat.version)])
            except (TransactionFailedError, ConnectionLoss):
                continue
            return

    async def _commit(self, operations: Sequence[Operation]) -> list[object]:
        """Apply a fenced transaction; return the results of `operations`."""
        if not operations:
            return []
        try:
            return (await self._session.multi([self._fence, *operations]))[1:]
        except TransactionFailedError as failure:
            if failure.index == 0:
                raise ControllerMovedError("another broker has become controller") from failure
            raise


def _decoded(decode: Callable[[str, bytes], T], path: str, data: bytes) -> T | None:
    try:
        return decode(path, data)
    except ZnodeError as error:
        logger.error("skipping a znode: %s", error)
        return None
