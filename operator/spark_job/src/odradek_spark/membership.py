"""The driver as a member of its consumer group in ZooKeeper (rows Z6, Z7, Z8).

The driver registers the ephemeral /consumers/G/ids/ID and owns every partition it reads with the
ephemeral /consumers/G/owners/T/P, as old consumers do, before its query starts. Three rules keep
two drivers apart:

- An owner that is not this member is waited for, as long as a dead member's session may last; then
  the driver gives up what it claimed and fails with the owner's name.
- Every commit is one ZooKeeper transaction that also checks ids/ID. That node belongs to the same
  session as the claims, so an overtaken driver cannot move an offset.
- After a lost session the member registers again under its old id; if another one owns a
  partition by then, this driver ends.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping

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

from odradek.zk import consumers
from odradek.zk.znodes import TopicPartition, ZnodeError

log = logging.getLogger(__name__)

_TRANSACTION_LIMIT = 200  # partitions in one transaction, far below ZooKeeper's 1 MiB request limit
_RETRY_PAUSE_S = 0.5
# kazoo keeps calls while it is disconnected, for ever; a call that must end has a limit of its own.
_CALL_LIMIT_S = 10.0
_THREAD = 0  # the driver is one consumer thread: Spark plans all partitions in it

_TRANSIENT = (
    ConnectionLoss,
    ConnectionClosedError,
    OperationTimeoutError,
    SessionExpiredError,
    KazooTimeoutError,
)


class OwnedElsewhereError(RuntimeError):
    """Another live member owns a partition of this job."""


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


class Member:
    """One member of `group`. Methods may be called from any thread.

    `subscription` is what ids/ID announces; `failed` is called once, from a thread of its own, with
    the reason why this member may not go on.
    """

    def __init__(
        self,
        client: KazooClient,
        group: str,
        host: str,
        subscription: Mapping[str, int],
        pattern: str,
        failed: Callable[[Exception], None],
    ) -> None:
        now_ms = int(time.time() * 1000)
        self.consumer_id = consumers.new_consumer_id(group, host, now_ms, uuid.uuid4())
        self._client = client
        self._group = group
        self._registration = consumers.encode_consumer(
            consumers.ConsumerRegistration(dict(subscription), pattern, now_ms)
        )
        self._failed = failed
        self._lock = threading.RLock()
        self._claimed: set[TopicPartition] = set()
        self._known_offsets: dict[TopicPartition, int] = {}
        self._closed = threading.Event()
        self._lost = False
        self._reconnected = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="group-member", daemon=True)

    def join(self, partitions: Iterable[TopicPartition], patience_s: float) -> None:
        """Register and own `partitions`, waiting `patience_s` for a dead owner's session to end.

        Raises OwnedElsewhereError; nothing stays claimed then.
        """
        self._client.add_listener(self._on_state)
        try:
            with self._lock:
                self._register()
                self._claim(partitions, time.monotonic() + patience_s)
        except OwnedElsewhereError:
            self.leave()
            raise
        self._keeper.start()

    def claim_new(self, partitions: Iterable[TopicPartition], patience_s: float) -> None:
        """Own partitions that appeared since; those owned already cost nothing."""
        with self._lock:
            fresh = [partition for partition in partitions if partition not in self._claimed]
            if fresh:
                self._claim(fresh, time.monotonic() + patience_s)

    def commit(self, ends: Mapping[TopicPartition, int], deadline_s: float) -> None:
        """Set the group's offsets, checked against this member's registration.

        Waits through lost connections and sessions until `deadline_s` have passed, then raises
        CommitError. Raises OwnedElsewhereError where another member took over.
        """
        deadline = time.monotonic() + deadline_s
        while True:
            try:
                if not self._client.connected:
                    raise ConnectionLoss("not connected")
                with self._lock:
                    self._commit_changed(ends)
                return
            except _TRANSIENT as error:
                if time.monotonic() >= deadline:
                    raise CommitError(f"ZooKeeper did not take the offsets: {error!r}") from error
            except NoNodeError:
                # The registration is gone with its session, or somebody removed an offset node.
                with self._lock:
                    self._known_offsets.clear()
                self._rejoin_when_connected(deadline)
            except NodeExistsError:
                with self._lock:
                    self._known_offsets.clear()
            if self._closed.wait(_RETRY_PAUSE_S):
                raise CommitError("the member left its group before the offsets were written")

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's committed offsets; partitions without one are left out."""
        return read_offsets(self._client, self._group, partitions)

    def members(self) -> int:
        """Return how many members the group has now."""
        try:
            return len(self._client.get_children(consumers.consumer_ids_path(self._group)))
        except NoNodeError:
            return 0

    def leave(self) -> None:
        """Give up claims and registration; a closed connection leaves them to the session's end."""
        self._closed.set()
        self._reconnected.set()
        self._client.remove_listener(self._on_state)
        paths = [
            consumers.owner_path(self._group, partition.topic, partition.partition)
            for partition in sorted(self._claimed)
        ]
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

    def _commit_changed(self, ends: Mapping[TopicPartition, int]) -> None:
        changed = sorted(
            partition
            for partition, offset in ends.items()
            if self._known_offsets.get(partition) != offset
        )
        for start in range(0, len(changed), _TRANSACTION_LIMIT):
            chunk = changed[start : start + _TRANSACTION_LIMIT]
            self._commit_transaction({partition: ends[partition] for partition in chunk})

    def _commit_transaction(self, ends: Mapping[TopicPartition, int]) -> None:
        transaction = self._client.transaction()
        transaction.check(consumers.consumer_id_path(self._group, self.consumer_id), 0)
        for partition, offset in ends.items():
            path = consumers.offset_path(self._group, partition.topic, partition.partition)
            data = consumers.encode_offset(offset)
            if partition in self._known_offsets or self._client.exists(path):
                transaction.set_data(path, data)
            else:
                self._client.ensure_path(path.rpartition("/")[0])
                transaction.create(path, data)
        for result in transaction.commit_async().get(timeout=_CALL_LIMIT_S):
            # The operation that failed carries its own error, all others RolledBackError.
            if isinstance(result, Exception) and not isinstance(result, RolledBackError):
                raise result
        self._known_offsets.update(ends)

    def _register(self) -> None:
        self._client.ensure_path(consumers.consumer_ids_path(self._group))
        path = consumers.consumer_id_path(self._group, self.consumer_id)
        if not self._create_mine(path, self._registration):
            raise OwnedElsewhereError(f"member {self.consumer_id} is registered by another session")

    def _claim(self, partitions: Iterable[TopicPartition], deadline: float) -> None:
        for partition in sorted(partitions):
            path = consumers.owner_path(self._group, partition.topic, partition.partition)
            self._client.ensure_path(consumers.owners_path(self._group, partition.topic))
            data = consumers.encode_owner(self.consumer_id, _THREAD)
            waiting = False
            while not self._create_mine(path, data):
                if time.monotonic() >= deadline or self._closed.is_set():
                    raise OwnedElsewhereError(
                        f"partition {partition} of group {self._group} "
                        f"is owned by {self._owner(path)}"
                    )
                if not waiting:
                    log.info(
                        "group %s: waiting for %s to leave %s", self._group, self._owner(path), path
                    )
                waiting = True
                time.sleep(_RETRY_PAUSE_S)
            self._claimed.add(partition)

    def _create_mine(self, path: str, data: bytes) -> bool:
        """Create an ephemeral node of this session; False where another member has it.

        A node with this member's data but an older session is what ZooKeeper has not cleared away
        yet. It is replaced, or it would vanish under a living member (KAFKA-7165).
        """
        for _ in range(3):
            try:
                self._client.create(path, data, ephemeral=True)
                return True
            except NodeExistsError:
                pass
            try:
                found, stat = self._client.get(path)
            except NoNodeError:
                continue
            if found != data:
                return False
            if stat.ephemeralOwner == self._session_id():
                return True
            try:
                self._client.delete(path, version=stat.version)
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

    def _session_id(self) -> int | None:
        identity = self._client.client_id
        return int(identity[0]) if identity else None

    def _owner(self, path: str) -> str:
        try:
            data, _ = self._client.get(path)
            return consumers.decode_owner(path, data)[0]
        except (NoNodeError, ZnodeError):
            return "an unknown member"

    def _on_state(self, state: str) -> None:
        # kazoo calls this in its own thread, which must not wait for an answer: only tell the
        # keeper.
        if state == KazooState.LOST:
            self._lost = True
        elif state == KazooState.CONNECTED and self._lost:
            self._reconnected.set()

    def _keep(self) -> None:
        while True:
            self._reconnected.wait()
            self._reconnected.clear()
            if self._closed.is_set():
                return
            try:
                self._rejoin()
            except _TRANSIENT as error:
                log.warning("group %s: cannot register again yet: %r", self._group, error)
                if not self._closed.wait(_RETRY_PAUSE_S):
                    self._reconnected.set()
            except (OwnedElsewhereError, KazooException) as error:
                self._failed(error)
                return

    def _rejoin(self) -> None:
        with self._lock:
            self._register()
            # Whoever owns a partition now came while this member was away, so there is no waiting.
            self._claim(sorted(self._claimed), time.monotonic())
            self._lost = False
        log.info("group %s: member %s registered again", self._group, self.consumer_id)

    def _rejoin_when_connected(self, deadline: float) -> None:
        while True:
            try:
                self._rejoin()
                return
            except _TRANSIENT as error:
                if time.monotonic() >= deadline or self._closed.wait(_RETRY_PAUSE_S):
                    raise CommitError(f"ZooKeeper did not answer: {error!r}") from error


def read_offsets(
    client: KazooClient, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return committed offsets of a group from /consumers/G/offsets."""
    found = {}
    for partition in partitions:
        path = consumers.offset_path(group, partition.topic, partition.partition)
        try:
            data, _ = client.get(path)
            found[partition] = consumers.decode_offset(path, data)
        except NoNodeError:
            continue
        except ZnodeError as error:
            log.warning("group %s: %s", group, error)
    return found
