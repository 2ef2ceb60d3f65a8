"""The driver as a member of its consumer group in ZooKeeper (rows Z6, Z7, Z8, G1).

The rules are those of old consumers, so that both kinds share a group. A member registers the
ephemeral /consumers/G/ids/ID and watches the group's ids and its topics' partitions. On every
change each member works out the same assignment alone, gives up what is no longer its own, and
claims the rest with the ephemeral /consumers/G/owners/T/P; while a former owner is still there it
lets go of what it just claimed and tries again.

Three rules keep two owners apart:

- A partition is given up only when the query that read it has ended and its offsets are committed;
  that part is the driver's.
- Every commit is one ZooKeeper transaction that also checks ids/ID. That node belongs to the same
  session as the claims, so an overtaken driver cannot move an offset.
- After a lost session the member goes on with its share only if nobody owned or moved any of it
  meanwhile. Otherwise it has no share until it takes one again.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaException
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from odradek import assignment
from odradek.clock import wall_ms
from odradek.values import TopicPartition
from odradek.zk import consumers, znodes
from odradek.zk.znodes import ZnodeError
from odradek_spark.kafka_offsets import KafkaOffsets

log = logging.getLogger(__name__)

_TRANSACTION_LIMIT = 200  # partitions in one transaction, far below ZooKeeper's 1 MiB request limit
_RETRY_PAUSE_S = 0.5
# kazoo keeps calls while it is disconnected, for ever; a call that must end has a limit of its own.
_CALL_LIMIT_S = 10.0
_THREAD = 0  # the driver is one consumer thread: Spark plans all partitions in it

TRANSIENT = (
    ConnectionLoss,
    ConnectionClosedError,
    OperationTimeoutError,
    SessionExpiredError,
    KazooTimeoutError,
    KafkaException,
)
"""What passes once ZooKeeper, or the brokers, answer again."""


class OwnedElsewhereError(RuntimeError):
    """Another member owns what this one should."""


class OwnershipLostError(RuntimeError):
    """The member's session ended, and others took over before it was back."""


class CommitError(RuntimeError):
    """Offsets could not be written within the deadline."""


def connect(zookeeper: str, session_timeout_ms: int, start_timeout_s: float) -> KazooClient:
    """Return a started client of `host:port,.../chroot`; it reconnects for ever by itself.

    Raises KazooTimeoutError where no server answers in time.
    """
    client = KazooClient(
        hosts=zookeeper,
        timeout=session_timeout_ms / 1000,
        connection_retry=KazooRetry(max_tries=-1, max_delay=2.0),
        command_retry=KazooRetry(max_tries=5, max_delay=1.0),
    )
    client.start(timeout=start_timeout_s)
    return client


class GroupMembership:
    """One member of `group`. Methods may be called from any thread; `TRANSIENT` errors come out.

    `changed` is set whenever the share may be another one than before. With `kafka` offsets are
    kept there, and in ZooKeeper only with `dual_commit`, too.
    """

    def __init__(
        self,
        client: KazooClient,
        group: str,
        host: str,
        subscription: Mapping[str, int],
        pattern: str,
        kafka: KafkaOffsets | None = None,
        dual_commit: bool = False,
    ) -> None:
        now_ms = wall_ms()
        self.consumer_id = consumers.new_consumer_id(group, host, now_ms, uuid.uuid4())
        self.changed = threading.Event()
        self._client = client
        self._group = group
        self._kafka = kafka
        self._in_zookeeper = kafka is None or dual_commit
        self._registration = consumers.ConsumerRegistration(dict(subscription), pattern, now_ms)
        self._lock = threading.RLock()
        self._topics: tuple[str, ...] = ()
        self._others_own = False
        self._claimed: set[TopicPartition] = set()
        self._known_offsets: dict[TopicPartition, int] = {}
        self._offset_nodes: set[TopicPartition] = set()  # those that were there at the last look
        self._closed = threading.Event()
        self._losses = 0  # how often the registration was lost, and how many of them are dealt with
        self._restored = 0

    # --- membership -------------------------------------------------------------------------------

    def join(self) -> None:
        """Register. Raises OwnedElsewhereError where another session has this member's id.

        Where ZooKeeper does not answer, `wanted` registers the member.
        """
        self._client.add_listener(self._on_state)
        try:
            with self._lock:
                self._register()
        except TRANSIENT as error:
            log.warning("group %s: not registered yet: %r", self._group, error)
            self._losses += 1

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that this member owns."""
        with self._lock:
            return frozenset(self._claimed)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that this member subscribes to, with a pattern those that were there last."""
        return self._topics

    @property
    def others_own(self) -> bool:
        """Whether any partition was another member's when `wanted` was asked last."""
        return self._others_own

    def target_assignment(self) -> frozenset[TopicPartition]:
        """Return what this member shall own as things are, and watch for changes of that.

        Raises ZnodeError where a member's registration or a topic is garbage: then nobody can tell
        the shares. Raises ConnectionLoss where this member is not registered (any more); the next
        call registers it again.
        """
        if not self._client.connected:
            raise ConnectionLoss("not connected")
        self._restore()
        self.changed.clear()
        subscriptions = self._subscriptions()
        if self.consumer_id not in subscriptions:
            self._losses += 1
            raise ConnectionLoss("the registration is gone")
        self._topics = tuple(sorted(subscriptions[self.consumer_id]))
        partitions = {topic: self._partitions(topic) for topic in self._topics}
        owned_by = assignment.assign_group(
            {
                member: {topic: threads for topic, threads in read.items() if topic in partitions}
                for member, read in subscriptions.items()
            },
            partitions,
        )
        mine = f"{self.consumer_id}-{_THREAD}"
        wanted = frozenset(partition for partition, thread in owned_by.items() if thread == mine)
        self._others_own = len(wanted) < len(owned_by)
        return wanted

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Let others own these partitions; nobody may read them for this member any more."""
        with self._lock:
            for partition in sorted(partitions):
                self._delete_if_mine(self._owner_path(partition))
                self._claimed.discard(partition)
                self._known_offsets.pop(partition, None)

    def claim(self, partitions: Iterable[TopicPartition]) -> str | None:
        """Own all of these too, or none of them; then the answer says who is in the way."""
        taken: list[TopicPartition] = []
        with self._lock:
            for partition in sorted(set(partitions) - self._claimed):
                path = self._owner_path(partition)
                self._ensure(path.rpartition("/")[0])
                owner = consumers.encode_owner(self.consumer_id, _THREAD)
                if not self._create_mine(path, owner):
                    self.release(taken)
                    return f"{partition} of group {self._group} is owned by {self._owner(path)}"
                taken.append(partition)
                self._claimed.add(partition)
        return None

    def acquire_assignment(
        self, patience_s: float, stop: threading.Event
    ) -> frozenset[TopicPartition]:
        """Own exactly what is wanted, waiting for former owners to let go.

        Whatever of the present share is wanted no more is given up, so nothing may be reading now.
        Raises OwnedElsewhereError once the same share could not be had for `patience_s`; the group
        is left then as if this member had no share. `stop` ends the waiting early.
        """
        wanted: frozenset[TopicPartition] | None = None
        deadline = time.monotonic() + patience_s
        told = ""
        while not stop.is_set():
            try:
                now_wanted = self.target_assignment()
                if now_wanted != wanted:
                    wanted, deadline = now_wanted, time.monotonic() + patience_s
                self.release(self.owned - wanted)
                reason = self.claim(wanted)
                if reason is None:
                    return wanted
                reason = f"partition {reason}"
            except ZnodeError as error:
                reason = str(error)
            except TRANSIENT as error:
                reason = f"ZooKeeper does not answer: {error!r}"
                deadline = time.monotonic() + patience_s
            if time.monotonic() >= deadline:
                self.release(self.owned)
                raise OwnedElsewhereError(reason)
            if reason != told:
                log.info("group %s: waiting: %s", self._group, reason)
                told = reason
            stop.wait(_RETRY_PAUSE_S)
        return frozenset()

    def is_assignment_current(self) -> bool:
        """Tell whether the share is still the right one, now that something changed."""
        return self.target_assignment() == self.owned

    def members(self) -> int:
        """Return how many members the group has now."""
        try:
            path = consumers.consumer_ids_path(self._group)
            return len(self._client.get_children_async(path).get(timeout=_CALL_LIMIT_S))
        except NoNodeError:
            return 0

    def leave(self) -> None:
        """Give up claims and registration; a closed connection leaves them to the session's end."""
        self._closed.set()
        self._client.remove_listener(self._on_state)
        paths = [self._owner_path(partition) for partition in sorted(self._claimed)]
        paths.append(consumers.consumer_id_path(self._group, self.consumer_id))
        for path in paths:
            try:
                if self._client.connected:
                    self._delete_if_mine(path)
            except (KazooException, KazooTimeoutError) as error:
                log.warning(
                    "group %s: %s stays until its session ends: %r", self._group, path, error
                )
        self._claimed.clear()

    # --- offsets ----------------------------------------------------------------------------------

    def commit(self, ends: Mapping[TopicPartition, int], deadline_s: float) -> None:
        """Set the group's offsets, checked against this member's registration.

        Waits through lost connections and sessions until `deadline_s` have passed, then raises
        CommitError. Raises OwnershipLostError where a partition is not this member's (any more).
        """
        deadline = time.monotonic() + deadline_s
        while True:
            try:
                if not self._client.connected:
                    raise ConnectionLoss("not connected")
                with self._lock:
                    self._restore()
                    if not self._claimed.issuperset(ends):
                        raise OwnershipLostError(f"group {self._group}: others took over the share")
                    self._commit_changed(ends)
                return
            except TRANSIENT as error:
                if time.monotonic() >= deadline:
                    raise CommitError(f"ZooKeeper did not take the offsets: {error!r}") from error
            except NoNodeError:
                # The registration is gone with its session, or somebody removed an offset node.
                self._losses += 1
                with self._lock:
                    self._offset_nodes.clear()
            except NodeExistsError:
                with self._lock:
                    self._offset_nodes.clear()
            if self._closed.wait(_RETRY_PAUSE_S):
                raise CommitError("the member left its group before the offsets were written")

    def renew_offsets(self) -> None:
        """Commit at the coordinator again what would expire there, unless somebody moved it.

        A group whose members are in ZooKeeper has none at its coordinator, so an offset lives for a
        time (offsets.retention.minutes) from its last commit.
        """
        with self._lock:
            if self._kafka is None:
                return
            self._require_registration()
            stored = self._kafka.committed(self._known_offsets)
            kept = {
                partition: offset
                for partition, offset in self._known_offsets.items()
                if stored.get(partition, offset) == offset
            }
            self._kafka.commit(kept)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's committed offsets; partitions without one are left out.

        Of two stores the one that is ahead counts, as it does for old consumers that migrate.
        """
        asked = list(partitions)
        found = read_offsets(self._client, self._group, asked) if self._in_zookeeper else {}
        if self._kafka is not None:
            for partition, offset in self._kafka.committed(asked).items():
                found[partition] = max(offset, found.get(partition, offset))
        return found

    def has_offsets(self, topic: str) -> bool:
        """Tell whether the group has read any of a topic."""
        return bool(self.committed(TopicPartition(topic, each) for each in self._partitions(topic)))

    def _commit_changed(self, ends: Mapping[TopicPartition, int]) -> None:
        changed = sorted(
            partition
            for partition, offset in ends.items()
            if self._known_offsets.get(partition) != offset
        )
        if self._kafka is not None and changed:
            self._require_registration()
            self._kafka.commit({partition: ends[partition] for partition in changed})
        if not self._in_zookeeper:
            self._known_offsets.update(ends)
            return
        for start in range(0, len(changed), _TRANSACTION_LIMIT):
            chunk = changed[start : start + _TRANSACTION_LIMIT]
            self._commit_transaction({partition: ends[partition] for partition in chunk})

    def _require_registration(self) -> None:
        """Raise NoNodeError where this session is not (any more) the registered member's."""
        path = consumers.consumer_id_path(self._group, self.consumer_id)
        stat = self._stat(path)
        if stat is None or stat.ephemeralOwner != self._session_id():
            raise NoNodeError(path)

    def _commit_transaction(self, ends: Mapping[TopicPartition, int]) -> None:
        transaction = self._client.transaction()
        transaction.check(consumers.consumer_id_path(self._group, self.consumer_id), 0)
        for partition, offset in ends.items():
            path = consumers.offset_path(self._group, partition.topic, partition.partition)
            data = consumers.encode_offset(offset)
            if partition in self._offset_nodes or self._stat(path) is not None:
                transaction.set_data(path, data)
            else:
                self._ensure(path.rpartition("/")[0])
                transaction.create(path, data)
        for result in transaction.commit_async().get(timeout=_CALL_LIMIT_S):
            # The operation that failed carries its own error, all others RolledBackError.
            if isinstance(result, Exception) and not isinstance(result, RolledBackError):
                raise result
        self._offset_nodes.update(ends)
        self._known_offsets.update(ends)

    # --- what the group looks like ----------------------------------------------------------------

    def _subscriptions(self) -> dict[str, dict[str, int]]:
        """Return topic -> threads of every member."""
        try:
            ids_path = consumers.consumer_ids_path(self._group)
            members = self._ask(self._client.get_children_async, ids_path)
        except NoNodeError:
            return {}  # somebody deleted the group
        registrations = {}
        for member in members:
            path = consumers.consumer_id_path(self._group, member)
            try:
                data, _ = self._ask(self._client.get_async, path)
            except NoNodeError:
                continue
            registrations[member] = consumers.decode_consumer(path, data)
        existing: list[str] = []
        if any(each.pattern != "static" for each in registrations.values()):
            existing = self._ask(self._client.get_children_async, znodes.TOPICS_PATH)
        return {
            member: consumers.topics_read(
                consumers.consumer_id_path(self._group, member), registration, existing
            )
            for member, registration in registrations.items()
        }

    def _partitions(self, topic: str) -> tuple[int, ...]:
        path = znodes.topic_path(topic)
        try:
            data, _ = self._ask(self._client.get_async, path)
        except NoNodeError:
            # It may come yet.
            self._ask(self._client.exists_async, path)
            return ()
        return tuple(znodes.decode_topic(path, data).partitions)

    def _stat(self, path: str) -> Any:
        """Return a znode's stat, None where there is no such znode; no watch is left."""
        return self._client.exists_async(path).get(timeout=_CALL_LIMIT_S)

    def _ask(self, call: Callable[..., Any], path: str) -> Any:
        """Read one znode and watch it."""
        return call(path, watch=self._on_event).get(timeout=_CALL_LIMIT_S)

    def _on_event(self, _: object) -> None:
        self.changed.set()

    def _on_state(self, state: str) -> None:
        # kazoo calls this in its own thread, which must not wait for an answer.
        if state == KazooState.LOST:
            self._losses += 1
        elif state == KazooState.CONNECTED and self._losses != self._restored:
            self.changed.set()

    # --- znodes of this session -------------------------------------------------------------------

    def _register(self) -> None:
        self._ensure(consumers.consumer_ids_path(self._group))
        path = consumers.consumer_id_path(self._group, self.consumer_id)
        if not self._create_mine(path, consumers.encode_consumer(self._registration)):
            raise OwnedElsewhereError(f"member {self.consumer_id} is registered by another session")

    def _restore(self) -> None:
        """After a lost session: register again, and keep the share if nobody touched it."""
        with self._lock:
            losses = self._losses
            if losses == self._restored:
                return
            share, before = frozenset(self._claimed), dict(self._known_offsets)
            self._register()
            self._claimed.clear()
            try:
                in_the_way = self.claim(share)
                now = {} if in_the_way else self.committed(share)
            except BaseException:
                self._claimed.update(share)
                raise
            moved = [part for part, offset in now.items() if offset != before.get(part)]
            if moved:
                in_the_way = f"{moved[0]} was read on by another member"
            if in_the_way is not None:
                self.release(share)
                now = {}
            self._known_offsets = now
            self._restored = losses
        if in_the_way is None:
            log.info("group %s: member %s is registered again", self._group, self.consumer_id)
        else:
            log.warning("group %s: the share is lost: %s", self._group, in_the_way)

    def _ensure(self, path: str) -> None:
        self._client.ensure_path_async(path).get(timeout=_CALL_LIMIT_S)

    def _create_mine(self, path: str, data: bytes) -> bool:
        """Create an ephemeral node of this session; False where another member has it.

        A node with this member's data but an older session is what ZooKeeper has not cleared away
        yet. It is replaced, or it would vanish under a living member (KAFKA-7165).
        """
        for _ in range(3):
            try:
                self._client.create_async(path, data, ephemeral=True).get(timeout=_CALL_LIMIT_S)
                return True
            except NodeExistsError:
                pass
            try:
                found, stat = self._client.get_async(path).get(timeout=_CALL_LIMIT_S)
            except NoNodeError:
                continue
            if found != data:
                return False
            if stat.ephemeralOwner == self._session_id():
                return True
            try:
                self._client.delete_async(path, version=stat.version).get(timeout=_CALL_LIMIT_S)
            except NoNodeError:
                continue
        return False

    def _delete_if_mine(self, path: str) -> None:
        try:
            _, stat = self._client.get_async(path).get(timeout=_CALL_LIMIT_S)
            if stat.ephemeralOwner == self._session_id():
                self._client.delete_async(path).get(timeout=_CALL_LIMIT_S)
        except NoNodeError:
            pass

    def _owner_path(self, partition: TopicPartition) -> str:
        return consumers.owner_path(self._group, partition.topic, partition.partition)

    def _session_id(self) -> int | None:
        identity = self._client.client_id
        return int(identity[0]) if identity else None

    def _owner(self, path: str) -> str:
        try:
            data, _ = self._client.get_async(path).get(timeout=_CALL_LIMIT_S)
            return consumers.decode_owner(path, data)[0]
        except (NoNodeError, ZnodeError):
            return "an unknown member"


def read_offsets(
    client: KazooClient, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return committed offsets of a group from /consumers/G/offsets."""
    found = {}
    for partition in partitions:
        path = consumers.offset_path(group, partition.topic, partition.partition)
        try:
            data, _ = client.get_async(path).get(timeout=_CALL_LIMIT_S)
            found[partition] = consumers.decode_offset(path, data)
        except NoNodeError:
            continue
        except ZnodeError as error:
            log.warning("group %s: %s", group, error)
    return found
