"""The driver's membership of its consumer group in ZooKeeper: assignment, ownership and commits.

The rules are those of old consumers, so that both kinds share a group. A member registers the
ephemeral /consumers/G/ids/ID and watches the group's ids and its topics' partitions. On every
change each member works out the same assignment alone, releases what is no longer assigned to it,
and claims the rest with the ephemeral /consumers/G/owners/T/P. While a former owner is still there,
the member releases what it just claimed and tries again.

Four rules prevent two owners of one partition:

- The driver releases a partition only after the query that read it has ended and its offsets are
  committed.
- Every commit is one ZooKeeper transaction that also checks ids/ID. That znode belongs to the same
  session as the claims, so a member that lost its session cannot change an offset.
- A driver raises /consumers/G/epoch when it starts, and each of its commits checks that, too. So a
  driver that was paused cannot go on beside its successor.
- After a lost session the member keeps its partitions only if nobody owned any of them or changed
  an offset meanwhile. Otherwise it owns nothing until it acquires its assignment again.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
)
from kazoo.handlers.threading import KazooTimeoutError

from odradek.clock import wall_ms
from odradek.values import TopicPartition
from odradek.zk import consumers
from odradek.zk.consumers import TopicIncarnation
from odradek.zk.znodes import ZnodeError
from odradek_spark import group_assignment
from odradek_spark.group_znodes import TRANSIENT, GroupZnodes, TopicRecord
from odradek_spark.kafka_offsets import KafkaOffsets

log = logging.getLogger(__name__)

_TRANSACTION_LIMIT = 200  # partitions per transaction, far below ZooKeeper's 1 MiB request limit
_RETRY_PAUSE_S = 0.5


class OwnedElsewhereError(RuntimeError):
    """Another member owns a partition that is assigned to this one."""


class OwnershipLostError(RuntimeError):
    """The member's session ended, and others took over before it was back."""


class CommitError(RuntimeError):
    """The offsets could not be committed within the deadline."""


class GroupMembership:
    """One member of `group`. Thread-safe. Methods raise the errors of `group_znodes.TRANSIENT`.

    `changed` is set whenever the assignment may have changed. With `kafka` the offsets are stored
    there, and in ZooKeeper too only with `dual_commit`.
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
        self._znodes = GroupZnodes(client, group, self.consumer_id, self.changed.set)
        self._kafka = kafka
        self._in_zookeeper = kafka is None or dual_commit
        self._registration = consumers.ConsumerRegistration(dict(subscription), pattern, now_ms)
        self._lock = threading.RLock()
        self._topics: tuple[str, ...] = ()
        self._others_own = False
        self._claimed: set[TopicPartition] = set()
        # Claims without an answer: the member owns the partition, or does not.
        self._unanswered: set[TopicPartition] = set()
        self._last_known: dict[TopicPartition, int] = {}
        self._closed = threading.Event()
        # How often the registration was lost, and how many of these losses `_restore` handled.
        self._losses = 0
        self._restored = 0

    # --- assignment -------------------------------------------------------------------------------

    def join(self) -> None:
        """Register the member. Raises OwnedElsewhereError if another session has its id.

        If ZooKeeper does not answer, `target_assignment` registers the member later.
        """
        self._client.add_listener(self._on_state)
        try:
            with self._lock:
                self._register()
        except TRANSIENT as error:
            log.warning("group %s: failed to register: %r; retrying", self._group, error)
            self._losses += 1

    def take_over(self) -> None:
        """Become the group's latest driver, before `join`: earlier ones are fenced from now on.

        Raises TRANSIENT errors and ZnodeError.
        """
        # A group that was made anew, or came back from a backup of ZooKeeper, goes on above the
        # epochs that its sinks have seen.
        self._znodes.raise_epoch(floor=wall_ms() // 1000)

    @property
    def epoch(self) -> int:
        """The number of this driver's start, higher with each start; 0 for other members."""
        return self._znodes.epoch

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that this member owns."""
        with self._lock:
            return frozenset(self._claimed)

    @property
    def topics(self) -> tuple[str, ...]:
        """The subscribed topics; with a pattern, those that matched at the last look."""
        return self._topics

    @property
    def others_own(self) -> bool:
        """Whether the last `target_assignment` gave any partition to another member."""
        return self._others_own

    def target_assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this member should own now, and watch for changes.

        Raises ZnodeError if a member's registration or a topic is unreadable: the assignment is
        unknown then. Raises ConnectionLoss if this member is not registered; the next call
        registers it again. Raises FencedError if a later driver has started.
        """
        self._znodes.require_connection()
        self._znodes.require_epoch()  # a driver that is over takes no share from its successor
        self._restore()
        self.changed.clear()
        subscriptions = self._znodes.subscriptions()
        if self.consumer_id not in subscriptions:
            self._losses += 1
            raise ConnectionLoss("the registration is gone")
        self._topics = tuple(sorted(subscriptions[self.consumer_id]))
        partitions = {topic: self._znodes.partitions(topic) for topic in self._topics}
        target = group_assignment.assign_member(self.consumer_id, subscriptions, partitions)
        self._others_own = target.others_own
        return target.partitions

    def is_assignment_current(self) -> bool:
        """Return whether this member owns exactly the partitions that it should own now."""
        return self.target_assignment() == self.owned

    def acquire_assignment(
        self, patience_s: float, stop: threading.Event
    ) -> frozenset[TopicPartition]:
        """Own exactly the assigned partitions, waiting for their former owners to release them.

        Releases the partitions that are no longer assigned, so no query may be running. Raises
        OwnedElsewhereError if it could not claim the same assignment for `patience_s`; the member
        owns nothing then. Set `stop` to end the waiting early.
        """
        target: frozenset[TopicPartition] | None = None
        deadline = time.monotonic() + patience_s
        logged = ""
        while not stop.is_set():
            try:
                now_assigned = self.target_assignment()
                if now_assigned != target:
                    target, deadline = now_assigned, time.monotonic() + patience_s
                self._release_but(target)
                reason = self.claim(target)
                if reason is None:
                    return target
                reason = f"partition {reason}"
            except ZnodeError as error:
                reason = str(error)
            except TRANSIENT as error:
                reason = f"ZooKeeper does not answer: {error!r}"
                deadline = time.monotonic() + patience_s
            if time.monotonic() >= deadline:
                self._release_but(frozenset())
                raise OwnedElsewhereError(reason)
            if reason != logged:
                log.info("group %s: failed to claim partitions: %s; retrying", self._group, reason)
                logged = reason
            stop.wait(_RETRY_PAUSE_S)
        return frozenset()

    def claim(self, partitions: Iterable[TopicPartition]) -> str | None:
        """Own all of these partitions too, or none of them; then return the reason."""
        claimed: list[TopicPartition] = []
        with self._lock:
            for partition in sorted(set(partitions) - self._claimed):
                self._unanswered.add(partition)
                is_mine = self._znodes.claim(partition)
                self._unanswered.discard(partition)
                if not is_mine:
                    self.release(claimed)
                    owner = self._znodes.owner(partition)
                    return f"{partition} of group {self._group} is owned by {owner}"
                claimed.append(partition)
                self._claimed.add(partition)
        return None

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Let other members own these partitions. No query may still read them."""
        with self._lock:
            for partition in sorted(partitions):
                self._znodes.delete_own(self._znodes.owner_path(partition))
                self._claimed.discard(partition)
                self._unanswered.discard(partition)
                self._last_known.pop(partition, None)

    def _release_but(self, kept: frozenset[TopicPartition]) -> None:
        with self._lock:
            self.release((self._claimed | self._unanswered) - kept)

    def member_count(self) -> int:
        """Return the number of the group's members."""
        return self._znodes.member_count()

    def leave(self) -> None:
        """Delete claims and registration; without a connection they stay until the session ends."""
        self._closed.set()
        self._client.remove_listener(self._on_state)
        paths = [self._znodes.owner_path(partition) for partition in sorted(self._claimed)]
        for path in [*paths, self._znodes.registration_path]:
            try:
                if self._znodes.connected:
                    self._znodes.delete_own(path)
            except (KazooException, KazooTimeoutError) as error:
                log.warning(
                    "group %s: failed to delete %s: %r; it stays until the session ends",
                    self._group,
                    path,
                    error,
                )
        self._claimed.clear()

    # --- offsets ----------------------------------------------------------------------------------

    def commit(self, ends: Mapping[TopicPartition, int], deadline_s: float) -> None:
        """Commit the group's offsets, checked against this member's registration and epoch.

        Retries through lost connections and sessions for `deadline_s`, then raises CommitError.
        Raises OwnershipLostError if this member does not own one of the partitions, and FencedError
        if a later driver has started.
        """
        self._while_owned(ends, lambda: self._commit_changed(ends), deadline_s)

    def require_owned(self, partitions: Iterable[TopicPartition], deadline_s: float) -> None:
        """Raise what `commit` would raise, but commit nothing."""
        self._while_owned(partitions, self._znodes.require_registration, deadline_s)

    def _while_owned(
        self, partitions: Iterable[TopicPartition], action: Callable[[], None], deadline_s: float
    ) -> None:
        needed = frozenset(partitions)
        deadline = time.monotonic() + deadline_s
        while True:
            try:
                self._znodes.require_connection()
                self._znodes.require_epoch()
                with self._lock:
                    self._restore()
                    if not self._claimed.issuperset(needed):
                        raise OwnershipLostError(
                            f"group {self._group}: others took over its partitions"
                        )
                    action()
                return
            except TRANSIENT as error:
                if time.monotonic() >= deadline:
                    raise CommitError(f"failed to commit offsets: {error!r}") from error
            except NoNodeError:
                # The registration is gone with its session, or an offset znode was deleted.
                self._losses += 1
                with self._lock:
                    self._znodes.forget_offset_nodes()
            except NodeExistsError:
                with self._lock:
                    self._znodes.forget_offset_nodes()
            except BadVersionError as error:
                # A later driver started just now, and the next look says which.
                if time.monotonic() >= deadline:
                    raise CommitError(f"failed to commit offsets: {error!r}") from error
            if self._closed.wait(_RETRY_PAUSE_S):
                raise CommitError("the member left its group before the offsets were committed")

    def renew_offsets(self) -> None:
        """Commit again at the coordinator what would expire there, unless somebody changed it.

        The coordinator sees no members of a group whose members are in ZooKeeper, so an offset
        expires offsets.retention.minutes after its last commit.
        """
        with self._lock:
            if self._kafka is None:
                return
            self._znodes.require_registration()
            self._znodes.require_epoch()
            stored = self._kafka.committed(self._last_known)
            self._kafka.commit(group_assignment.renewable(self._last_known, stored))

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's committed offsets; partitions without one are left out.

        With two stores the higher offset counts, as for old consumers during a migration.
        """
        asked = list(partitions)
        found = self._znodes.read_offsets(asked) if self._in_zookeeper else {}
        if self._kafka is None:
            return found
        return group_assignment.higher_offsets(found, self._kafka.committed(asked))

    def former_commits(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions whose commit is older than their topic.

        A coordinator deletes the offsets of a topic with it, and ZooKeeper does not.
        """
        return self._znodes.former_offsets(partitions) if self._in_zookeeper else set()

    def has_offsets(self, topic: str) -> bool:
        """Return whether the group has a committed offset in any partition of a topic."""
        partitions = self._znodes.partitions(topic)
        return bool(self.committed(TopicPartition(topic, number) for number in partitions))

    # --- incarnations of topics -------------------------------------------------------------------

    def incarnations(self, topics: Iterable[str]) -> dict[str, TopicIncarnation]:
        """Return the topics as they are now, without those that do not exist. Raises ZnodeError."""
        return self._znodes.incarnations(topics)

    def topic_records(self, topics: Iterable[str]) -> dict[str, TopicRecord]:
        """Return the topics that the group's offsets belong to, where known. Raises ZnodeError."""
        return self._znodes.records(topics)

    def last_reset_zxid(self) -> int:
        """Return the ZooKeeper transaction of the group's last reset, 0 without one."""
        return self._znodes.last_reset_zxid()

    def stored_partitions(self, topic: str) -> set[TopicPartition]:
        """Return the partitions with an offset in ZooKeeper, whether they still exist or not."""
        return self._znodes.offset_partitions(topic)

    def record_topics(
        self, incarnations: Mapping[str, TopicIncarnation], orphans: Iterable[TopicPartition]
    ) -> None:
        """Record which topics the group's offsets belong to; delete the offsets of `orphans`.

        Only while the member is registered, like a commit.
        """
        gone, topics = sorted(orphans), list(incarnations)
        try:
            with self._lock:
                for first in range(0, len(gone), _TRANSACTION_LIMIT):
                    self._znodes.record({}, gone[first : first + _TRANSACTION_LIMIT])
                for first in range(0, len(topics), _TRANSACTION_LIMIT):
                    chunk = topics[first : first + _TRANSACTION_LIMIT]
                    self._znodes.record({topic: incarnations[topic] for topic in chunk}, ())
        except BadVersionError:
            self._znodes.require_epoch()
            raise
        except (NoNodeError, NodeExistsError) as error:
            self._losses += 1
            raise ConnectionLoss("the registration is gone, or others recorded topics") from error

    # --- commits ----------------------------------------------------------------------------------

    def _commit_changed(self, ends: Mapping[TopicPartition, int]) -> None:
        changed = group_assignment.changed_offsets(ends, self._last_known)
        if self._kafka is not None and changed:
            self._znodes.require_registration()
            self._kafka.commit(changed)
        if not self._in_zookeeper:
            self._last_known.update(ends)
            return
        for chunk in group_assignment.in_chunks(changed, _TRANSACTION_LIMIT):
            self._znodes.write_offsets(chunk)
            self._last_known.update(chunk)

    # --- registration -----------------------------------------------------------------------------

    def _on_state(self, state: str) -> None:
        # kazoo calls this in its own thread, which must not wait for an answer.
        if state == KazooState.LOST:
            self._losses += 1
        elif state == KazooState.CONNECTED and self._losses != self._restored:
            self.changed.set()

    def _register(self) -> None:
        if not self._znodes.register(self._registration):
            raise OwnedElsewhereError(f"member {self.consumer_id} is registered by another session")

    def _restore(self) -> None:
        """After a lost session: register again, and keep the partitions if nobody touched them."""
        with self._lock:
            losses = self._losses
            if losses == self._restored:
                return
            before, last_known = frozenset(self._claimed), dict(self._last_known)
            self._register()
            self._claimed.clear()
            try:
                refusal = self.claim(before)
                committed = {} if refusal else self.committed(before)
            except BaseException:
                self._claimed.update(before)
                raise
            moved = group_assignment.moved_partition(committed, last_known)
            if moved is not None:
                refusal = f"another member committed an offset of {moved}"
            if refusal is not None:
                self.release(before)
                committed = {}
            self._last_known = committed
            self._restored = losses
        if refusal is None:
            log.info("group %s: member %s is registered again", self._group, self.consumer_id)
        else:
            log.warning("group %s: lost its partitions: %s", self._group, refusal)
