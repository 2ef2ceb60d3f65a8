"""The controller's reads and writes in ZooKeeper, in pipelined batches and fenced by its epoch.

Every write of a controller is one transaction with a check of /controller_epoch's znode version:
once another controller has bumped it, all writes of the old one fail (`FencedError`), whatever it
believes (row C2). State znodes are also written on the version that was read. Many states go into
one transaction; where one of them is refused, all of that batch are tried alone. Writes whose
answer was lost with the connection are looked up and, if need be, repeated.

Znodes that hold garbage are left out with an error in the log: one bad znode, written by hand, must
not keep the cluster without a controller.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from odradek.controller import placement
from odradek.controller.claim import Office
from odradek.controller.events import (
    Leadership,
    LiveBroker,
    PlacementsWritten,
    StatesWritten,
    WriteStates,
)
from odradek.controller.placement import Placement
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
TOPICS_AT_ONCE = 100  # that are removed beside each other
UNCLEAN_KEY = "unclean.leader.election.enable"


class FencedError(Exception):
    """Another controller has taken office since."""


class Store:
    """ZooKeeper as one controller reads and writes it."""

    def __init__(self, session: Session, office: Office) -> None:
        self._session = session
        self._fence = Check(znodes.CONTROLLER_EPOCH_PATH, office.fence)

    # --- reads ---

    async def read_brokers(self, watch: Watch) -> dict[BrokerId, LiveBroker]:
        """Return the registered brokers; the watch sees them come and go."""
        names = await self._session.children(znodes.BROKER_IDS_PATH, watch)
        paths = [f"{znodes.BROKER_IDS_PATH}/{name}" for name in names]
        found = {}
        for path, (data, stat) in (await self._session.get_all(paths)).items():
            registration = _decoded(znodes.decode_broker, path, data)
            if registration is not None:
                found[registration.broker_id] = LiveBroker(registration, stat.czxid)
        return found

    async def read_topic_names(self, watch: Watch | None = None) -> list[str]:
        """Return the topics that exist."""
        return await self._session.children(znodes.TOPICS_PATH, watch)

    async def read_topics(self, topics: Iterable[str], watch: Watch) -> dict[str, TopicAssignment]:
        """Return the assignments of topics; the watch sees them change."""
        paths = {znodes.topic_path(topic): topic for topic in topics}
        found = {}
        for path, (data, _) in (await self._session.get_all(paths, watch)).items():
            assignment = _decoded(znodes.decode_topic, path, data)
            if assignment is not None:
                found[paths[path]] = assignment
        return found

    async def read_unclean(self, topics: Iterable[str]) -> dict[str, bool]:
        """Return topics that override unclean election."""
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
        dated = await self.read_dated_states(partitions, watch)
        return {one: leadership for one, (leadership, _) in dated.items()}

    async def read_dated_states(
        self, partitions: Iterable[TopicPartition], watch: Watch | None = None
    ) -> dict[TopicPartition, tuple[Leadership, int]]:
        """Return states and the zxid at which each was written."""
        paths = {znodes.state_path(one.topic, one.partition): one for one in partitions}
        found = {}
        for path, (data, stat) in (await self._session.get_all(paths, watch)).items():
            state = _decoded(znodes.decode_state, path, data)
            if state is not None:
                found[paths[path]] = Leadership(state, stat.version), stat.mzxid
        return found

    async def read_deletions(self, watch: Watch) -> frozenset[str]:
        """Return the topics to be deleted: children, and the payload of the articles (row Z10)."""
        path = znodes.DELETE_TOPICS_PATH
        names = await self._session.children(path, watch)
        data, _ = await self._session.get(path, watch)
        listed = _decoded(znodes.decode_delete_topics, path, data) or ()
        return frozenset(names) | frozenset(listed)

    async def read_preferred(self, watch: Watch) -> tuple[TopicPartition, ...] | None:
        """Return the partitions of a requested preferred election; None where none is."""
        path = znodes.PREFERRED_ELECTION_PATH
        if await self._session.exists(path, watch) is None:
            return None
        data = (await self._session.get_all([path])).get(path, (b"", None))[0]
        return _decoded(znodes.decode_preferred_election, path, data) or ()

    async def read_reassignment(
        self, watch: Watch
    ) -> dict[TopicPartition, tuple[BrokerId, ...]] | None:
        """Return the replicas that partitions shall have; None where nothing is asked for."""
        path = znodes.REASSIGN_PARTITIONS_PATH
        if await self._session.exists(path, watch) is None:
            return None
        found = (await self._session.get_all([path])).get(path)
        return None if found is None else _decoded(znodes.decode_reassignment, path, found[0])

    async def read_isr_changes(
        self, watch: Watch
    ) -> tuple[list[str], dict[TopicPartition, Leadership]]:
        """Return the notices' paths and the states of the partitions that they name."""
        paths = await self._notices(znodes.ISR_CHANGES_PATH, watch)
        named: set[TopicPartition] = set()
        for path, (data, _) in (await self._session.get_all(paths)).items():
            named.update(_decoded(znodes.decode_isr_change, path, data) or ())
        return paths, await self.read_states(sorted(named))

    async def read_log_dir_events(self, watch: Watch) -> tuple[list[str], list[BrokerId]]:
        """Return the notices' paths and the brokers that lost a log.dir."""
        paths = await self._notices(znodes.LOG_DIR_EVENTS_PATH, watch)
        read = (await self._session.get_all(paths)).items()
        named = [_decoded(znodes.decode_log_dir_event, path, data) for path, (data, _) in read]
        return paths, sorted({one for one in named if one is not None})

    async def _notices(self, parent: str, watch: Watch | None = None) -> list[str]:
        return [f"{parent}/{name}" for name in await self._session.children(parent, watch)]

    # --- writes ---

    async def drop_notices(self, parent: str) -> None:
        """Remove all notices below a path: what a new controller reads is newer than they are."""
        await self.remove(await self._notices(parent))

    async def remove(self, paths: Sequence[str]) -> None:
        """Remove znodes, as far as they exist."""

        await asyncio.gather(*(self._commit_one(Delete(path), NoNodeError) for path in paths))

    async def _commit_one(self, operation: Operation, done: type[Exception]) -> None:
        """Apply one operation; the error `done` says that it is applied already."""
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
        """Create and update states. Raises FencedError."""
        topics = {znodes.partitions_path(one.topic): None for one in wanted.creates}
        missing_parents = [
            path
            for path, stat in zip(
                topics, await asyncio.gather(*map(self._session.exists, topics)), strict=True
            )
            if stat is None
        ]
        await asyncio.gather(*map(self._create_parent, missing_parents))
        jobs: list[tuple[TopicPartition, PartitionState, int | None]] = [
            *((one, state, None) for one, state in wanted.creates.items()),
            *((one, new.state, new.zk_version) for one, new in wanted.updates.items()),
        ]
        batches = [
            jobs[start : start + STATES_PER_TRANSACTION]
            for start in range(0, len(jobs), STATES_PER_TRANSACTION)
        ]
        results = await asyncio.gather(*map(self._write_batch, batches))
        written, conflicts, missing = {}, {}, set()
        for (partition, state, _), outcome in itertools.chain(*results):
            if outcome is None:
                missing.add(partition)
            elif outcome.state == state:
                written[partition] = outcome
            else:
                conflicts[partition] = outcome
        return StatesWritten(written, conflicts, frozenset(missing))

    async def _create_parent(self, path: str) -> None:
        try:
            await self._commit_one(Create(path), NodeExistsError)
        except TransactionFailedError as failure:
            if not isinstance(failure.error, NoNodeError):
                raise
            logger.info("topic of %s is gone", path)

    async def _write_batch(
        self, jobs: Sequence[tuple[TopicPartition, PartitionState, int | None]]
    ) -> list[tuple[tuple[TopicPartition, PartitionState, int | None], Leadership | None]]:
        try:
            operations = await self._operations(jobs)
            results = await self._commit(operations)
        except (TransactionFailedError, ConnectionLoss):
            if len(jobs) > 1:
                alone = await asyncio.gather(*(self._write_batch([job]) for job in jobs))
                return list(itertools.chain(*alone))
            return [(jobs[0], await self._settle(jobs[0]))]
        versions = {
            operation.path: result.version if isinstance(result, Stat) else 0
            for operation, result in zip(operations, results, strict=True)
        }
        return [
            (job, Leadership(job[1], versions[znodes.state_path(job[0].topic, job[0].partition)]))
            for job in jobs
        ]

    async def _settle(
        self, job: tuple[TopicPartition, PartitionState, int | None]
    ) -> Leadership | None:
        """Return what stands after a write alone was refused or its answer was lost."""
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
                return found  # somebody else's state, or our own whose answer was lost
            # The connection broke before the write: nothing changed, so it may be repeated.
            try:
                await self._commit(await self._operations([job]))
            except (TransactionFailedError, ConnectionLoss):
                continue

    async def _operations(
        self, jobs: Sequence[tuple[TopicPartition, PartitionState, int | None]]
    ) -> list[Operation]:
        """Return the writes, with the parents that first states need."""
        parents = [
            znodes.partition_path(partition.topic, partition.partition)
            for partition, _, version in jobs
            if version is None
        ]
        existing = await asyncio.gather(*map(self._session.exists, parents))
        operations: list[Operation] = [
            Create(path) for path, stat in zip(parents, existing, strict=True) if stat is None
        ]
        for partition, state, version in jobs:
            path = znodes.state_path(partition.topic, partition.partition)
            data = znodes.encode_state(state)
            operations.append(
                Create(path, data) if version is None else SetData(path, data, version)
            )
        return operations

    async def write_placements(
        self, wanted: Mapping[TopicPartition, Placement]
    ) -> PlacementsWritten:
        """Write placements into the topics' znodes, leaving the rest. Raises FencedError."""
        by_topic: dict[str, dict[int, Placement]] = {}
        for partition, one in wanted.items():
            by_topic.setdefault(partition.topic, {})[partition.partition] = one
        written = await asyncio.gather(
            *(self._write_placements(topic, changes) for topic, changes in by_topic.items())
        )
        return PlacementsWritten(
            {
                TopicPartition(topic, number): one
                for topic, changes in zip(by_topic, written, strict=True)
                for number, one in changes.items()
            }
        )

    async def _write_placements(
        self, topic: str, changes: Mapping[int, Placement]
    ) -> Mapping[int, Placement]:
        """Return those of the changes that the topic's znode has now."""
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
            wanted = placement.placed(current, known)
            if wanted == current:
                return known
            try:
                await self._commit([SetData(path, znodes.encode_topic(wanted), stat.version)])
            except ConnectionLoss:
                continue
            except TransactionFailedError as failure:
                if not isinstance(failure.error, BadVersionError | NoNodeError):
                    raise
                continue  # somebody else changed the topic: look again
            return known

    async def drop_reassignments(
        self, done: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> None:
        """Take entries out of /admin/reassign_partitions; see `events.DropReassignments`."""
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
                await self._commit([operation])
            except ConnectionLoss:
                continue
            except TransactionFailedError as failure:
                if not isinstance(failure.error, BadVersionError | NoNodeError):
                    raise
                continue  # a tool wrote it anew: look again
            return

    async def remove_topics(self, topics: Mapping[str, Collection[int]]) -> None:
        """Remove everything of topics with these partitions; what asked for it goes last."""
        some = list(topics.items())
        for start in range(0, len(some), TOPICS_AT_ONCE):
            wanted = some[start : start + TOPICS_AT_ONCE]
            await asyncio.gather(*(self._remove_topic(*one) for one in wanted))
        await self.drop_deletion_payload(list(topics))

    async def _remove_topic(self, topic: str, partitions: Collection[int]) -> None:
        """Remove the znodes that a topic has as a rule in one transaction; look only where there
        are others, or fewer.
        """
        born = await self._birth(znodes.topic_path(topic))
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
        await self._remove_what_is_there(topic, born)

    async def _birth(self, path: str) -> int | None:
        """Return by which znode made at a path it can be told from another; None if it is not."""
        stat = await self._session.exists(path)
        return None if stat is None else stat.czxid

    async def _remove_what_is_there(self, topic: str, born: int | None) -> None:
        while True:
            if await self._birth(znodes.topic_path(topic)) != born:
                return  # it went, though the answer was lost; what has its name now is another
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
                continue  # somebody else works on the same znodes: look again
            return

    async def _subtree(self, path: str) -> list[str]:
        """Return a znode and all below it, children before parents; [] where there is none."""
        try:
            names = await self._session.children(path)
        except NoNodeError:
            return []
        below = await asyncio.gather(*(self._subtree(f"{path}/{name}") for name in names))
        return [*itertools.chain(*below), path]

    async def drop_deletions(self, topics: Sequence[str]) -> None:
        """Remove requests for deletion, in both forms."""
        await self.remove([znodes.delete_topic_path(topic) for topic in topics])
        await self.drop_deletion_payload(topics)

    async def drop_deletion_payload(self, topics: Sequence[str]) -> None:
        """Take topics out of the payload of /admin/delete_topics, if it has any."""
        path = znodes.DELETE_TOPICS_PATH
        while True:
            data, stat = await self._session.get(path)
            listed = _decoded(znodes.decode_delete_topics, path, data) or ()
            left = [topic for topic in listed if topic not in topics]
            if len(left) == len(listed):
                return
            try:
                wanted = znodes.encode_delete_topics(left)
                await self._commit([SetData(path, wanted, stat.version)])
            except (TransactionFailedError, ConnectionLoss):
                continue
            return

    async def _commit(self, operations: Sequence[Operation]) -> list[object]:
        """Apply a fenced transaction; the results are those of `operations`."""
        if not operations:
            return []
        try:
            return (await self._session.multi([self._fence, *operations]))[1:]
        except TransactionFailedError as failure:
            if failure.index == 0:
                raise FencedError("another controller has taken office") from failure
            raise


def _decoded(decode: Callable[[str, bytes], T], path: str, data: bytes) -> T | None:
    try:
        return decode(path, data)
    except ZnodeError as error:
        logger.error("ignored: %s", error)
        return None
