"""Reads and writes one group's znodes for one member, over one ZooKeeper session (rows Z6 to Z8).

Every call has a time limit, because kazoo queues calls without limit while it is disconnected.
Watches call `on_change` in kazoo's own thread.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException
from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from odradek.values import TopicPartition
from odradek.zk import consumers, znodes
from odradek.zk.client import OPEN, Client, ZooKeeperAccess
from odradek.zk.consumers import TopicIncarnation
from odradek.zk.znodes import ZnodeError
from odradek_spark.errors import FencedError
from odradek_spark.group_assignment import THREAD

log = logging.getLogger(__name__)

_CALL_TIMEOUT_S = 10.0

TRANSIENT = (
    ConnectionLoss,
    ConnectionClosedError,
    OperationTimeoutError,
    SessionExpiredError,
    KazooTimeoutError,
    KafkaException,
)
"""Errors that end once ZooKeeper, or the brokers, answer again."""


def connect(
    zookeeper: str,
    session_timeout_ms: int,
    start_timeout_s: float,
    access: ZooKeeperAccess = OPEN,
) -> KazooClient:
    """Return a started client of `host:port,.../chroot`, which reconnects by itself.

    Raises KazooTimeoutError, which says why, if no server lets it in in time.
    """
    client = Client(
        zookeeper,
        session_timeout_ms / 1000,
        access,
        retry=KazooRetry(max_tries=-1, max_delay=2.0),
        command_retry=KazooRetry(max_tries=5, max_delay=1.0),
    )
    try:
        client.start(timeout=start_timeout_s)
    except KazooTimeoutError as error:
        raise KazooTimeoutError(client.failure or str(error)) from error
    return client


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """The topic that the group's offsets belong to, and the transaction that recorded it."""

    incarnation: TopicIncarnation
    zxid: int


@dataclass(frozen=True, slots=True)
class Epoch:
    """The number of one driver, and the version of the epoch znode that goes with it."""

    number: int
    version: int


class GroupZnodes:
    """The znodes of `group` as the member `consumer_id` uses them. Raises `TRANSIENT` errors."""

    def __init__(
        self,
        client: KazooClient,
        group: str,
        consumer_id: str,
        on_change: Callable[[], None],
    ) -> None:
        self._client = client
        self._group = group
        self._consumer_id = consumer_id
        self._on_change = on_change
        # The offset znodes that existed at the last look.
        self._offset_nodes: set[TopicPartition] = set()
        # Only drivers have one: old consumers of the group write offsets without.
        self._epoch: Epoch | None = None

    @property
    def connected(self) -> bool:
        """Whether the client has a connection now."""
        return bool(self._client.connected)

    def require_connection(self) -> None:
        """Raise ConnectionLoss if the client has no connection now."""
        if not self.connected:
            raise ConnectionLoss("not connected")

    # --- registration -----------------------------------------------------------------------------

    @property
    def registration_path(self) -> str:
        """The znode that registers this member."""
        return consumers.consumer_id_path(self._group, self._consumer_id)

    def register(self, registration: consumers.ConsumerRegistration) -> bool:
        """Register the member. Return False if another session has its id."""
        self._ensure(consumers.consumer_ids_path(self._group))
        return self._create_ephemeral(
            self.registration_path, consumers.encode_consumer(registration)
        )

    def require_registration(self) -> None:
        """Raise NoNodeError unless this session holds the member's registration."""
        stat = self._stat(self.registration_path)
        if stat is None or stat.ephemeralOwner != self._session_id():
            raise NoNodeError(self.registration_path)

    def member_count(self) -> int:
        """Return the number of registered members."""
        path = consumers.consumer_ids_path(self._group)
        try:
            return len(self._client.get_children_async(path).get(timeout=_CALL_TIMEOUT_S))
        except NoNodeError:
            return 0

    # --- epoch of drivers -------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of this driver; 0 before `raise_epoch`."""
        return 0 if self._epoch is None else self._epoch.number

    def raise_epoch(self, floor: int) -> None:
        """Make this member the group's latest driver: no earlier one can write from now on.

        Its number is one more than that of the driver before, and at least `floor`.
        Raises ZnodeError.
        """
        path = consumers.epoch_path(self._group)
        while True:
            try:
                data, stat = self._client.get_async(path).get(timeout=_CALL_TIMEOUT_S)
                number = max(consumers.decode_epoch(path, data) + 1, floor)
                call = self._client.set_async(
                    path, consumers.encode_epoch(number), version=stat.version
                )
                stat = call.get(timeout=_CALL_TIMEOUT_S)
                self._epoch = Epoch(number, stat.version)
                return
            except BadVersionError:
                continue  # another driver starts at the same time
            except NoNodeError:
                pass
            try:
                self._client.create_async(path, consumers.encode_epoch(floor), makepath=True).get(
                    timeout=_CALL_TIMEOUT_S
                )
                self._epoch = Epoch(floor, 0)
                return
            except NodeExistsError:
                continue

    def require_epoch(self) -> None:
        """Raise FencedError if a later driver has started, or if the group was deleted since."""
        if self._epoch is None:
            return
        path = consumers.epoch_path(self._group)
        # A server that lags behind the others would show a former epoch.
        self._client.sync_async(path).get(timeout=_CALL_TIMEOUT_S)
        try:
            data, stat = self._client.get_async(path).get(timeout=_CALL_TIMEOUT_S)
        except NoNodeError:
            raise FencedError(f"group {self._group} was deleted while its driver ran") from None
        if (
            data != consumers.encode_epoch(self._epoch.number)
            or stat.version != self._epoch.version
        ):
            raise FencedError(
                f"a later driver of group {self._group} has started: "
                f"its epoch is {data.decode(errors='replace')}, this one's {self._epoch.number}"
            )

    def _fenced_transaction(self) -> TransactionRequest:
        """Return a transaction that changes nothing unless the member may still write."""
        transaction = self._client.transaction()
        transaction.check(self.registration_path, 0)
        if self._epoch is not None:
            transaction.check(consumers.epoch_path(self._group), self._epoch.version)
        return transaction

    # --- subscriptions and topics -----------------------------------------------------------------

    def subscriptions(self) -> dict[str, dict[str, int]]:
        """Return topic -> threads per member, and watch for changes. Raises ZnodeError."""
        try:
            ids_path = consumers.consumer_ids_path(self._group)
            members = self._watch(self._client.get_children_async, ids_path)
        except NoNodeError:
            return {}  # the group was deleted
        registrations = {}
        for member in members:
            path = consumers.consumer_id_path(self._group, member)
            try:
                data, _ = self._watch(self._client.get_async, path)
            except NoNodeError:
                continue
            registrations[member] = consumers.decode_consumer(path, data)
        existing: list[str] = []
        if any(each.pattern != "static" for each in registrations.values()):
            existing = self._watch(self._client.get_children_async, znodes.TOPICS_PATH)
        return {
            member: consumers.topics_read(
                consumers.consumer_id_path(self._group, member), registration, existing
            )
            for member, registration in registrations.items()
        }

    def partitions(self, topic: str) -> tuple[int, ...]:
        """Return a topic's partitions, and watch for changes. Raises ZnodeError."""
        path = znodes.topic_path(topic)
        try:
            data, _ = self._watch(self._client.get_async, path)
        except NoNodeError:
            # The topic may be created later.
            self._watch(self._client.exists_async, path)
            return ()
        return tuple(znodes.decode_topic(path, data).partitions)

    # --- partition ownership ----------------------------------------------------------------------

    def owner_path(self, partition: TopicPartition) -> str:
        """Return the znode that names the partition's owner."""
        return consumers.owner_path(self._group, partition.topic, partition.partition)

    def claim(self, partition: TopicPartition) -> bool:
        """Make this member the partition's owner. Return False if another member owns it."""
        path = self.owner_path(partition)
        self._ensure(path.rpartition("/")[0])
        return self._create_ephemeral(path, consumers.encode_owner(self._consumer_id, THREAD))

    def owner(self, partition: TopicPartition) -> str:
        """Return the id of the partition's owner, for messages."""
        path = self.owner_path(partition)
        try:
            data, _ = self._client.get_async(path).get(timeout=_CALL_TIMEOUT_S)
            return consumers.decode_owner(path, data)[0]
        except (NoNodeError, ZnodeError):
            return "an unknown member"

    def delete_own(self, path: str) -> None:
        """Delete a znode if this session created it."""
        try:
            _, stat = self._client.get_async(path).get(timeout=_CALL_TIMEOUT_S)
            if stat.ephemeralOwner == self._session_id():
                self._client.delete_async(path).get(timeout=_CALL_TIMEOUT_S)
        except NoNodeError:
            pass

    # --- offsets ----------------------------------------------------------------------------------

    def write_offsets(self, ends: Mapping[TopicPartition, int]) -> None:
        """Set offsets in one transaction that also checks the member's registration and epoch.

        Raises BadVersionError if the epoch is over, NoNodeError if the registration or an offset
        znode is gone, and NodeExistsError if an offset znode is new; after the last two call
        `forget_offset_nodes` and try again.
        """
        transaction = self._fenced_transaction()
        for partition, offset in ends.items():
            path = consumers.offset_path(self._group, partition.topic, partition.partition)
            data = consumers.encode_offset(offset)
            if partition in self._offset_nodes or self._stat(path) is not None:
                transaction.set_data(path, data)
            else:
                self._ensure(path.rpartition("/")[0])
                transaction.create(path, data)
        _commit(transaction)
        self._offset_nodes.update(ends)

    def forget_offset_nodes(self) -> None:
        """Look again which offset znodes exist before the next write."""
        self._offset_nodes.clear()

    def read_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets in ZooKeeper; partitions without one are left out."""
        return read_offsets(self._client, self._group, partitions)

    def former_offsets(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions whose offset was written before their topic was created."""
        asked = list(partitions)
        names = {part.topic for part in asked}
        topics = {topic: self._stat(znodes.topic_path(topic)) for topic in names}
        found = set()
        for part in asked:
            topic = topics[part.topic]
            path = consumers.offset_path(self._group, part.topic, part.partition)
            offset = self._stat(path) if topic is not None else None
            if offset is not None and offset.mzxid < topic.czxid:
                found.add(part)
        return found

    # --- incarnations of topics -------------------------------------------------------------------

    def incarnations(self, topics: Iterable[str]) -> dict[str, TopicIncarnation]:
        """Return the topics as they are now, without those that do not exist. Raises ZnodeError."""
        # A server that lags behind the others would show a former topic.
        self._client.sync_async(znodes.TOPICS_PATH).get(timeout=_CALL_TIMEOUT_S)
        calls = {topic: self._client.get_async(znodes.topic_path(topic)) for topic in topics}
        found = {}
        for topic, call in calls.items():
            try:
                data, stat = call.get(timeout=_CALL_TIMEOUT_S)
            except NoNodeError:
                continue
            now = znodes.decode_topic(znodes.topic_path(topic), data)
            topic_id = now.topic_id if znodes.is_topic_id(now.topic_id) else None
            found[topic] = TopicIncarnation(
                stat.czxid, topic_id, len(now.partitions), created_ms=stat.ctime
            )
        return found

    def records(self, topics: Iterable[str]) -> dict[str, TopicRecord]:
        """Return the topics that the group's offsets belong to. Raises ZnodeError."""
        found = {}
        for topic in topics:
            path = consumers.incarnation_path(self._group, topic)
            try:
                data, stat = self._client.get_async(path).get(timeout=_CALL_TIMEOUT_S)
            except NoNodeError:
                continue
            found[topic] = TopicRecord(consumers.decode_incarnation(path, data), stat.mzxid)
        return found

    def last_reset_zxid(self) -> int:
        """Return the transaction of the last reset of the group's offsets, 0 without one."""
        path = consumers.incarnations_path(self._group)
        self._ensure(path)
        data, stat = self._client.get_async(path).get(timeout=_CALL_TIMEOUT_S)
        return int(stat.mzxid) if data else 0

    def offset_partitions(self, topic: str) -> set[TopicPartition]:
        """Return the partitions with an offset in ZooKeeper, whether they still exist or not."""
        path = consumers.offsets_path(self._group, topic)
        try:
            names = self._client.get_children_async(path).get(timeout=_CALL_TIMEOUT_S)
        except NoNodeError:
            return set()
        return {
            TopicPartition(topic, partition)
            for name in names
            if (partition := consumers.partition_of(name)) is not None
        }

    def record(
        self, incarnations: Mapping[str, TopicIncarnation], orphans: Sequence[TopicPartition]
    ) -> None:
        """Record topics, and delete offsets of former ones, while the member is registered.

        All in one transaction. Raises BadVersionError if the epoch is over, and NoNodeError if the
        registration or an orphan is gone.
        """
        transaction = self._fenced_transaction()
        for partition in orphans:
            path = consumers.offset_path(self._group, partition.topic, partition.partition)
            transaction.delete(path)
        for topic, incarnation in incarnations.items():
            path = consumers.incarnation_path(self._group, topic)
            data = consumers.encode_incarnation(incarnation)
            if self._stat(path) is not None:
                transaction.set_data(path, data)
            else:
                transaction.create(path, data)
        _commit(transaction)
        self._offset_nodes.difference_update(orphans)

    # --- calls ------------------------------------------------------------------------------------

    def _watch(self, call: Callable[..., Any], path: str) -> Any:
        """Read one znode and watch it."""
        # Always the same watch: kazoo keeps each other one until the znode changes.
        return call(path, watch=self._tell_change).get(timeout=_CALL_TIMEOUT_S)

    def _tell_change(self, _: object) -> None:
        self._on_change()

    def _stat(self, path: str) -> Any:
        """Return a znode's stat, None if it does not exist. Leaves no watch."""
        return self._client.exists_async(path).get(timeout=_CALL_TIMEOUT_S)

    def _ensure(self, path: str) -> None:
        self._client.ensure_path_async(path).get(timeout=_CALL_TIMEOUT_S)

    def _create_ephemeral(self, path: str, data: bytes) -> bool:
        """Create an ephemeral znode of this session. Return False if another member has it.

        A znode with this member's data but an older session is one that ZooKeeper has not deleted
        yet. Replace it: it would vanish while the member lives (KAFKA-7165).
        """
        for _ in range(3):
            try:
                self._client.create_async(path, data, ephemeral=True).get(timeout=_CALL_TIMEOUT_S)
                return True
            except NodeExistsError:
                pass
            try:
                found, stat = self._client.get_async(path).get(timeout=_CALL_TIMEOUT_S)
            except NoNodeError:
                continue
            if found != data:
                return False
            if stat.ephemeralOwner == self._session_id():
                return True
            try:
                self._client.delete_async(path, version=stat.version).get(timeout=_CALL_TIMEOUT_S)
            except NoNodeError:
                continue
        return False

    def _session_id(self) -> int | None:
        identity = self._client.client_id
        return int(identity[0]) if identity else None


def _commit(transaction: TransactionRequest) -> None:
    for result in transaction.commit_async().get(timeout=_CALL_TIMEOUT_S):
        # The operation that failed carries its own error, all others RolledBackError.
        if isinstance(result, Exception) and not isinstance(result, RolledBackError):
            raise result


def read_offsets(
    client: KazooClient, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return a group's committed offsets from /consumers/GROUP/offsets."""
    found = {}
    for partition in partitions:
        path = consumers.offset_path(group, partition.topic, partition.partition)
        try:
            data, _ = client.get_async(path).get(timeout=_CALL_TIMEOUT_S)
            found[partition] = consumers.decode_commit(path, data)
        except NoNodeError:
            continue
        except ZnodeError as error:
            log.warning("group %s: ignoring an unreadable offset: %s", group, error)
    return found
