"""Topic identities: no replica of a topic adopts the log of a former topic of the same name.

A broker that was away while a topic was deleted and created again finds the old log in the folder
of that name. So each log keeps the id of its topic and the czxid of the topic's znode (its
incarnation) in `partition.metadata`. Both are compared with the znode before this broker takes a
role, because LeaderAndIsr has no topic id in the versions that are spoken here. A log of another
topic is deleted. A log without the file, from a release that wrote none, is adopted as in Kafka,
unless the controller says that the partition is new.

Tools and controllers before Kafka 2.8 create topics without an id, and drop it when they write the
znode. Whoever takes a role then writes one: that of the log if the czxid is the same, else a new
one. The write is conditional on the version that was read. The znode cannot be another topic's with
the same version: while a live broker takes the role of a replica, the controller waits for it
before it removes the topic.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from odradek.log.partition.topic_identity import TopicIdentity
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
    REFUSE = "refuse"


def judge(
    kept: TopicIdentity | None, present: TopicIdentity, *, is_new: bool, in_sync: bool
) -> Verdict:
    """Return what to do with a log that says `kept`, for a replica of the topic `present`.

    `is_new` means that the partition has had no leader before. `in_sync` means that the controller
    counts on the log. If nothing but Kafka's id speaks against it, deleting it could lose the only
    copy: old tools drop ids, and Kafka's controller then makes new ones.
    """
    if kept is None:
        return Verdict.DELETE if is_new else Verdict.ADOPT
    if kept.topic_id == present.topic_id or kept.czxid == present.czxid:
        return Verdict.ADOPT
    return Verdict.REFUSE if kept.czxid is None and in_sync else Verdict.DELETE


@dataclass(slots=True)
class Findings:
    """What is to be done before roles are taken.

    `foreign` are logs of other topics, `to_record` the identities that `partition.metadata` lacks,
    `refused` the roles that this broker may not take.
    """

    foreign: list[TopicPartition] = field(default_factory=list)
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
        present = await self._read_topics({key.topic for key in due}, kept)
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
            verdict = judge(
                own,
                topic,
                is_new=state.is_new
                and log.log_end_offset > 0
                and key not in self._hosted.partitions,
                in_sync=self._broker_id in state.isr,
            )
            if verdict is Verdict.REFUSE:
                message = f"the log is of topic id {own}, the topic has {topic}"
                findings.refused[key] = KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, message)
                logger.error("%s: failed to take a role: %s", key, message)
                return
            if verdict is Verdict.DELETE:
                logger.warning(
                    "%s: deleting the log of a former topic of this name, of %s; the topic is %s",
                    key,
                    own or "an unknown one",
                    topic,
                )
                findings.foreign.append(key)
        if own != topic:
            findings.to_record[key] = topic

    async def _read_topics(
        self, topics: Iterable[str], kept: Mapping[TopicPartition, TopicIdentity | None]
    ) -> dict[str, TopicIdentity]:
        """Return the identities of those topics that exist."""
        former = {(key.topic, one.czxid): one.topic_id for key, one in kept.items() if one}
        found: dict[str, TopicIdentity] = {}
        wanted = list(topics)
        for start in range(0, len(wanted), TOPICS_AT_ONCE):
            some = wanted[start : start + TOPICS_AT_ONCE]
            paths = {znodes.topic_path(topic): topic for topic in some}
            read = await self._session.get_all(paths)
            identities = await asyncio.gather(
                *(self._identify(paths[path], *one, former) for path, one in read.items())
            )
            found.update(
                (paths[path], one)
                for path, one in zip(read, identities, strict=True)
                if one is not None
            )
        return found

    async def _identify(
        self, topic: str, data: bytes, stat: Stat, former: Mapping[tuple[str, int | None], str]
    ) -> TopicIdentity | None:
        """Return the identity of a topic, None if it is gone; give it an id if it has none."""
        path = znodes.topic_path(topic)
        try:
            while True:
                try:
                    assignment = znodes.decode_topic(path, data)
                except ZnodeError as error:
                    logger.error("failed to read the id of a topic: %s", error)
                    return None
                if znodes.is_topic_id(assignment.topic_id):
                    return TopicIdentity(assignment.topic_id, stat.czxid)
                given = former.get((topic, stat.czxid)) or self._new_id()
                try:
                    await self._write_id(path, assignment, given, stat)
                    return TopicIdentity(given, stat.czxid)
                except (BadVersionError, ConnectionLoss):
                    data, stat = await self._session.get(path)
        except NoNodeError:
            return None

    async def _write_id(
        self, path: str, assignment: TopicAssignment, given: str, stat: Stat
    ) -> None:
        data = znodes.encode_topic(replace(assignment, topic_id=given))
        await self._session.set(path, data, stat.version)
        logger.info("%s: topic id %s, incarnation %d", path, given, stat.czxid)
