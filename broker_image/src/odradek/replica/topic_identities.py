"""Topic identities: no replica of a topic adopts the log of a former topic of the same name.

A broker that was away while a topic was deleted and created again finds the old log in the folder
of that name. So each log keeps the id and the incarnation of its topic in `partition.metadata`.
Both are compared with the topic's znode before this broker takes a role, because LeaderAndIsr has
no topic id in the versions that are spoken here. A log of a former topic is deleted. A log without
the file is adopted, as in Kafka: an older release or an older protocol version wrote it.

Tools and controllers before Kafka 2.8 create topics without an id, and drop it when they write the
znode. Whoever takes a role then writes one: that of the log if the incarnation is the same, else a
new one. The write is conditional on the version that was read. The znode cannot be another topic's
with the same version: while a live broker takes the role of a replica, the controller waits for it
before it removes the topic.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from odradek.log.partition.topic_identity import Incarnation, TopicIdentity
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import TopicPartition
from odradek.zk import znodes
from odradek.zk.session import BadVersionError, ConnectionLoss, NoNodeError
from odradek.zk.znodes import ZnodeError

if TYPE_CHECKING:
    from odradek.log.manager import LogManager
    from odradek.protocol.messages.control import LeaderAndIsrPartitionState
    from odradek.replica.hosted import HostedPartitions
    from odradek.zk.session import Session, Stat
    from odradek.zk.znodes import TopicAssignment

logger = logging.getLogger(__name__)

# Topics whose znodes are read at once; other work of the event loop runs in between.
TOPICS_AT_ONCE = 500


class Verdict(enum.Enum):
    """What becomes of a log that this broker has."""

    ADOPT = "adopt"
    DELETE = "delete"
    SET_ASIDE = "set aside"
    REFUSE = "refuse"


def judge(kept: TopicIdentity | None, present: TopicIdentity, *, in_sync: bool) -> Verdict:
    """Return what to do with a log that says `kept`, for a replica of the topic `present`.

    `in_sync` means that the controller counts on the log. If nothing but Kafka's id speaks against
    it, deleting it could lose the only copy: old tools drop ids, and Kafka's controller then makes
    new ones. In a ZooKeeper that replaces a lost one, or went back to a backup, topics are created
    again for the logs that exist; the czxids of one ZooKeeper only rise. But an ensemble that went
    back to a backup may have elected a new leader, and then they are higher, too. So a log that the
    controller counts on is kept beside the new one.
    """
    if kept is None or kept.topic_id == present.topic_id:
        return Verdict.ADOPT
    former, now = kept.incarnation, present.incarnation
    if former is None or now is None:
        return Verdict.REFUSE if in_sync else Verdict.SET_ASIDE
    created_later = former.zookeeper_ms == now.zookeeper_ms and former.czxid < now.czxid
    if not created_later:
        return Verdict.ADOPT
    return Verdict.SET_ASIDE if in_sync else Verdict.DELETE


@dataclass(slots=True)
class Findings:
    """What is to be done before roles are taken.

    `foreign` are logs of other topics, `set_aside` those whose records are to be kept, `to_record`
    the identities that `partition.metadata` lacks, `refused` the roles that this broker may not
    take.
    """

    foreign: list[TopicPartition] = field(default_factory=list)
    set_aside: list[TopicPartition] = field(default_factory=list)
    to_record: dict[TopicPartition, TopicIdentity] = field(default_factory=dict)
    refused: dict[TopicPartition, KafkaError] = field(default_factory=dict)


class TopicIdentities:
    """Compares the logs of this broker with the topics in ZooKeeper."""

    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        session: Session,
        hosted: HostedPartitions,
        new_id: Callable[[], str],
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._session = session
        self._hosted = hosted
        self._new_id = new_id

    async def check(self, states: Mapping[TopicPartition, LeaderAndIsrPartitionState]) -> Findings:
        """Compare the logs of assigned partitions with their topics, where that may be news."""
        due = {key: state for key, state in states.items() if self._is_due(key, state)}
        if not due:
            return Findings()
        kept, refused = await self._logs.topic_identities(due)
        findings = Findings(refused=refused)
        present = await self._read_topics({key.topic for key in due})
        for key, state in due.items():
            topic = present.get(key.topic)
            if topic is not None and key not in refused:
                self._note(findings, key, state, topic, kept)
        return findings

    def _is_due(self, key: TopicPartition, state: LeaderAndIsrPartitionState) -> bool:
        """Return whether the topic may have been created again since this broker compared last.

        The leader epoch of a topic never falls, and in one session this broker sees each deletion.
        """
        if self._broker_id not in state.replicas:
            return False
        partition = self._hosted.partitions.get(key)
        return (
            partition is None
            or partition.told_in_session != self._session.generation
            or state.leader_epoch < partition.leader_epoch
            or (state.is_new and state.leader_epoch == partition.leader_epoch)
        )

    def _note(
        self,
        findings: Findings,
        key: TopicPartition,
        state: LeaderAndIsrPartitionState,
        topic: TopicIdentity,
        kept: Mapping[TopicPartition, TopicIdentity | None],
    ) -> None:
        log = self._logs.get(*key)
        if log is not None and log.failure is not None:
            return
        own = kept.get(key)
        if log is not None:
            verdict = judge(own, topic, in_sync=self._broker_id in state.isr)
            if verdict is Verdict.REFUSE:
                message = f"the log is of {own}, the topic is {topic}"
                findings.refused[key] = KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, message)
                logger.error("%s: failed to take a role: %s", key, message)
                return
            if verdict in (Verdict.DELETE, Verdict.SET_ASIDE):
                logger.warning(
                    "%s: the log is of a former topic of this name, %s; the topic is %s",
                    key,
                    own,
                    topic,
                )
                is_kept = verdict is Verdict.SET_ASIDE
                (findings.set_aside if is_kept else findings.foreign).append(key)
            elif own is not None and own.topic_id != topic.topic_id:
                logger.warning("%s: adopting the log of %s: the topic is %s now", key, own, topic)
        if own != topic:
            findings.to_record[key] = topic

    async def _read_topics(self, topics: Iterable[str]) -> dict[str, TopicIdentity]:
        """Return the identities of those topics that exist; give ids to those that have none."""
        # This broker's server may be behind that of the controller, and still have a former topic.
        await self._session.sync()
        cluster = await self._session.exists(znodes.CLUSTER_ID_PATH)
        zookeeper_ms = 0 if cluster is None else cluster.created_ms
        wanted = list(topics)
        found: dict[str, TopicIdentity] = {}
        nameless: dict[str, _Read] = {}
        for start in range(0, len(wanted), TOPICS_AT_ONCE):
            paths = {
                znodes.topic_path(topic): topic for topic in wanted[start : start + TOPICS_AT_ONCE]
            }
            for path, (data, stat) in (await self._session.get_all(paths)).items():
                read = _read(path, data, stat, zookeeper_ms)
                if read is None:
                    continue
                if znodes.is_topic_id(read.assignment.topic_id):
                    found[paths[path]] = TopicIdentity(read.assignment.topic_id, read.incarnation)
                else:
                    nameless[paths[path]] = read
        return found | await self._give_ids(nameless)

    async def _give_ids(self, topics: Mapping[str, _Read]) -> dict[str, TopicIdentity]:
        if not topics:
            return {}
        kept, _ = await self._logs.topic_identities(
            [key for key in self._logs.logs() if key.topic in topics]
        )
        former = {(key.topic, one.incarnation): one.topic_id for key, one in kept.items() if one}
        found: dict[str, TopicIdentity] = {}
        wanted = list(topics)
        for start in range(0, len(wanted), TOPICS_AT_ONCE):
            some = wanted[start : start + TOPICS_AT_ONCE]
            given = await asyncio.gather(
                *(
                    self._give_id(topics[one], former.get((one, topics[one].incarnation)))
                    for one in some
                )
            )
            found |= {topic: one for topic, one in zip(some, given, strict=True) if one is not None}
        return found

    async def _give_id(self, read: _Read, former: str | None) -> TopicIdentity | None:
        """Write the id of a topic; return who it is then, None if it is gone."""
        path, given = read.path, former or self._new_id()
        present: _Read | None = read
        while present is not None:
            if znodes.is_topic_id(present.assignment.topic_id):
                return TopicIdentity(present.assignment.topic_id, present.incarnation)
            if present.incarnation != read.incarnation:
                given = self._new_id()
            data = znodes.encode_topic(replace(present.assignment, topic_id=given))
            try:
                await self._session.set(path, data, present.version)
                logger.info("%s had no topic id; wrote %s", path, given)
                return TopicIdentity(given, present.incarnation)
            except NoNodeError:
                return None
            except (BadVersionError, ConnectionLoss):
                found = await self._session.get_all([path])
            present = (
                _read(path, *found[path], read.incarnation.zookeeper_ms) if path in found else None
            )
        return None


@dataclass(frozen=True, slots=True)
class _Read:
    """A topic's znode."""

    path: str
    assignment: TopicAssignment
    version: int
    incarnation: Incarnation


def _read(path: str, data: bytes, stat: Stat, zookeeper_ms: int) -> _Read | None:
    try:
        assignment = znodes.decode_topic(path, data)
    except ZnodeError as error:
        logger.error("failed to read the id of a topic: %s", error)
        return None
    return _Read(path, assignment, stat.version, Incarnation(stat.czxid, zookeeper_ms))
