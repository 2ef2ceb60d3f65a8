"""Refuses to read where records would be skipped: in topics made anew, and in truncated logs.

An offset means nothing in another topic of the same name. The znode /consumers/G/incarnations/T
therefore records which topic T the group's offsets belong to, wherever these are stored: every
driver is a member in ZooKeeper, and the znode outlives a lost checkpoint. It is written before the
first offset of that topic is committed, in a transaction that checks the registration like a commit
does.

`admit` decides at each start. It reads the topics first, then offsets and logs, and the query
records the topics as they were read: if one is made anew in between, the next look differs from the
record. `require_unchanged` compares again before each batch, at the end of an availableNow job, and
when a query fails; it raises TopicChangedError, and the next `admit` decides.

The operator notes each reset of offsets in /consumers/G/incarnations. A reset covers the topics
that existed then: ZooKeeper's transactions are in order, so a topic that was made anew after the
reset has the later one.
"""

import logging
import threading
import time
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime

from odradek.values import TopicPartition
from odradek.zk.consumers import TopicIncarnation
from odradek_spark import membership
from odradek_spark.broker_client import DriverClient
from odradek_spark.errors import JobError, JobStalledError
from odradek_spark.group_znodes import TRANSIENT, TopicRecord

log = logging.getLogger(__name__)

TOPIC_RECREATED = "TopicRecreated"
DATA_TRUNCATED = "DataTruncated"

LOG_PATIENCE_S = 120.0
_RETRY_PAUSE_S = 2.0
_FROM_START = (
    "apply spec.reset to go on (strategy Earliest reads all topics of the group from their start)"
)

Offsets = Mapping[TopicPartition, int]


class TopicChangedError(RuntimeError):
    """A topic is no longer what the running query was started on; start it again."""


@dataclass(frozen=True, slots=True)
class AdmittedStart:
    """What a start may rely on.

    `committed` has the group's offsets of the assigned partitions. The checkpoint's offsets of the
    partitions `lost` mean nothing any more. Topics in `known` were read before: their partitions
    without an offset are new.
    """

    committed: Offsets
    lost: Set[TopicPartition]
    known: Set[str]


@dataclass(frozen=True, slots=True)
class _Look:
    """The topics as they are, as they are recorded, and the transaction of the last reset."""

    now: Mapping[str, TopicIncarnation]
    records: Mapping[str, TopicRecord]
    reset_zxid: int

    def is_reset(self, topic: str) -> bool:
        """Return whether a reset came after this topic was created and after its record."""
        record = self.records.get(topic)
        recorded = 0 if record is None else record.zxid
        return self.reset_zxid > max(self.now[topic].czxid, recorded)


def is_same(before: TopicIncarnation, now: TopicIncarnation) -> bool:
    """Return whether these are the same topic, which may have got partitions.

    Where both have a topic id it decides. A znode restored from a backup has another czxid and its
    old id: it is the same topic, since brokers keep the logs of that id (ADR 18). And in another
    ZooKeeper another topic may have the same czxid. Without ids, a topic that was restored counts
    as made anew: nothing tells the two apart. Partitions are never taken away from a topic.
    """
    if now.partitions < before.partitions:
        return False
    if before.topic_id is not None and now.topic_id is not None:
        return before.topic_id == now.topic_id
    return before.czxid == now.czxid


class TopicGuard:
    """Guards the offsets of one member, with `client` for the logs. Not thread-safe."""

    def __init__(
        self, member: membership.GroupMembership, client: DriverClient, stop: threading.Event
    ) -> None:
        self._member = member
        self._client = client
        self._stop = stop
        self._admitted: Mapping[str, TopicIncarnation] = {}
        self._unrecorded: Mapping[str, TopicIncarnation] = {}
        self._orphans: Collection[TopicPartition] = ()

    def is_forgotten(self, topics: Collection[str]) -> bool:
        """Return whether the group knows none of these topics, of which a checkpoint has offsets.

        Topics are recorded before their first batch, so somebody deleted the group since.
        """
        return bool(topics) and not (
            self._member.topic_records(topics)
            or any(self._member.stored_partitions(one) for one in topics)
            or any(self._member.has_offsets(one) for one in topics)
        )

    def admit(self, assigned: Collection[TopicPartition], own: Offsets) -> AdmittedStart:
        """Check a start over the partitions `assigned`; `own` are the checkpoint's offsets.

        Raises JobStalledError if it would skip records, OwnershipLostError if a topic is gone, and
        JobError if a log is not served for too long.
        """
        topics = {partition.topic for partition in assigned}
        # Read before the topics: others may commit to partitions that are created meanwhile.
        stored = {topic: self._member.stored_partitions(topic) for topic in topics}
        look = self._look(topics | {partition.topic for partition in own})
        committed = self._member.committed(assigned)
        anew = {
            topic
            for topic, record in look.records.items()
            if topic in look.now and not is_same(record.incarnation, look.now[topic])
        }
        orphans: set[TopicPartition] = set()
        for topic in sorted(topics):
            if topic not in look.now:
                raise membership.OwnershipLostError(f"topic {topic} was deleted")
            count = look.now[topic].partitions
            removed = {partition for partition in stored[topic] if partition.partition >= count}
            self._require_same_or_reset(look, topic, topic in anew, own, removed)
            if topic in anew or topic not in look.records:
                orphans |= removed
        kept = {
            partition: offset
            for partition, offset in own.items()
            if partition.topic in look.now and partition.topic not in anew
        }
        positions = {
            partition: offset
            for partition, offset in {**kept, **committed}.items()
            if partition in assigned
        }
        begins, ends = self._await_logs(positions, look)
        begins |= _known(self._client.start_offsets(kept.keys() - positions.keys()))
        for partition, offset in list(kept.items()):
            if not begins.get(partition, offset) <= offset <= ends.get(partition, offset):
                del kept[partition]
        self._admitted = {topic: look.now[topic] for topic in topics}
        self._unrecorded = {
            topic: now
            for topic, now in self._admitted.items()
            if topic not in look.records or look.records[topic].incarnation != now
        }
        self._orphans = orphans
        return AdmittedStart(
            committed, frozenset(own.keys() - kept.keys()), frozenset(look.records)
        )

    def record(self) -> None:
        """Record the admitted topics; call it before the first commit to them."""
        self._member.record_topics(self._unrecorded, self._orphans)

    def changed(self) -> str | None:
        """Return which admitted topic was deleted or made anew, and None if there is none.

        Raises TRANSIENT errors and ZnodeError.
        """
        found = self._member.incarnations(self._admitted)
        for topic, admitted in self._admitted.items():
            if topic not in found:
                return f"topic {topic} was deleted"
            if not is_same(admitted, found[topic]):
                return f"topic {topic} was made anew at {_time(found[topic].created_ms)}"
        return None

    def require_unchanged(self, starts: Offsets, patience_s: float) -> None:
        """Raise TopicChangedError if a topic is another or gone, or a log begins after its start.

        Raises TRANSIENT errors after `patience_s`. A log that no leader serves is left to Spark,
        which fails if it cannot read a record.
        """
        deadline = time.monotonic() + patience_s
        while True:
            try:
                reason = self.changed()
                break
            except TRANSIENT:
                if self._stop.is_set() or time.monotonic() >= deadline:
                    raise
            self._stop.wait(_RETRY_PAUSE_S)
        begins = self._client.start_offsets(starts) if reason is None else {}
        for partition, begin in sorted(begins.items()):
            if begin is not None and begin > starts[partition]:
                reason = f"the log of {partition} begins at {begin}, after {starts[partition]}"
        if reason is not None:
            raise TopicChangedError(reason)

    def _look(self, topics: Collection[str]) -> _Look:
        reset_zxid = self._member.last_reset_zxid()
        now = self._member.incarnations(topics)
        return _Look(now, self._member.topic_records(topics), reset_zxid)

    def _require_same_or_reset(
        self,
        look: _Look,
        topic: str,
        anew: bool,
        own: Offsets,
        removed: Collection[TopicPartition],
    ) -> None:
        """Raise JobStalledError if the topic was made anew after records of it were read.

        Without a record, offsets of partitions that do not exist (`removed`) show that.
        """
        now, record = look.now[topic], look.records.get(topic)
        if look.is_reset(topic) or not (anew or (record is None and removed)):
            return
        every = [TopicPartition(topic, number) for number in range(now.partitions)]
        read = {
            **{partition: offset for partition, offset in own.items() if partition.topic == topic},
            **self._member.committed(every),
        }
        if not removed and not any(read.values()):
            log.info("topic %s was made anew, and nothing of it was read", topic)
            return
        what = f"topic {topic} was made anew at {_time(now.created_ms)}"
        before = max(removed).partition + 1 if removed else 0
        if record is not None:
            before = record.incarnation.partitions
        if now.partitions < before:
            what = f"{what} with {now.partitions} partitions, where it had {before}"
        raise JobStalledError(TOPIC_RECREATED, f"{what}; {_FROM_START}")

    def _await_logs(
        self, positions: Offsets, look: _Look
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return start and end of each log, once every position lies within its log.

        A new leader may know the end of its log late, so a position beyond it is refused only after
        LOG_PATIENCE_S.
        """
        deadline = time.monotonic() + LOG_PATIENCE_S
        while True:
            begins = _known(self._client.start_offsets(positions))
            ends = _known(self._client.end_offsets(positions))
            _require_begun(positions, begins)
            missing = sorted(positions.keys() - (begins.keys() & ends.keys()))
            beyond = sorted(p for p, end in ends.items() if positions[p] > end)
            if not missing and not beyond:
                return begins, ends
            if self._stop.is_set() or time.monotonic() >= deadline:
                break
            self._stop.wait(_RETRY_PAUSE_S)
        if missing or self._stop.is_set():
            partition = (missing or beyond)[0]
            raise JobError(f"failed to find the log of partition {partition}: no leader")
        first = beyond[0]
        raise _refusal_beyond(first, positions[first], ends[first], first.topic in look.records)


def _known(offsets: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
    return {partition: offset for partition, offset in offsets.items() if offset is not None}


def _require_begun(positions: Offsets, begins: Offsets) -> None:
    for partition, begin in sorted(begins.items()):
        offset = positions[partition]
        if begin > offset:
            raise JobStalledError(
                DATA_TRUNCATED,
                f"the log of {partition} begins at {begin}, and the group's offset is {offset}: "
                f"{begin - offset} records are gone; apply spec.reset to go on (strategy Shift "
                "with value 0 goes on where the log begins)",
            )


def _refusal_beyond(
    partition: TopicPartition, offset: int, end: int, is_recorded: bool
) -> JobStalledError:
    what = f"the log of {partition} ends at {end}, and the group's offset is {offset}"
    if is_recorded:
        advice = "strategy Shift with value 0 goes on where the log ends"
        return JobStalledError(
            DATA_TRUNCATED, f"{what}: records are gone; apply spec.reset to go on ({advice})"
        )
    return JobStalledError(TOPIC_RECREATED, f"{what}: the topic was made anew; {_FROM_START}")


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
