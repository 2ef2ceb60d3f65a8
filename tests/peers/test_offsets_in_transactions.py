"""What Apache Kafka 2.8.2 answers to TxnOffsetCommit and OffsetFetch, and this broker, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.protocol.messages import group_offsets, groups, topics, transactions
from tests.support import zookeeper
from tests.support.asking import ADMIN, Connection
from tests.support.broker import Broker
from tests.support.kafka_broker import KafkaBroker

TOPIC, GROUP = "read", "readers"
PRODUCER, EPOCH = 1000, 3
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offset.metadata.max.bytes": "100",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    # Kafka 2.8 does not ask whether the transaction is ongoing, and there is none.
    "transaction.partition.verification.enable": "false",
}


class Asker:
    """Sends the same requests to any broker, and notes the codes."""

    def __init__(self, port: int) -> None:
        self._connection = Connection(port, ADMIN)
        self.told: dict[str, object] = {}

    def prepare(self) -> None:
        """Make a topic of two partitions, and commit offset 1 in the first one."""
        topic = topics.CreatableTopic(
            name=TOPIC, num_partitions=2, replication_factor=1, assignments=[], configs=[]
        )
        request = topics.CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        # A broker that has just started may not know itself yet.
        while self._connection.ask(request, 5).topics[0].error_code:
            assert self._connection.ask(groups.ListGroupsRequest(), 4).error_code == 0
        commit = group_offsets.OffsetCommitRequest(
            group_id=GROUP,
            topics=[
                group_offsets.OffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[
                        group_offsets.OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=1
                        )
                    ],
                )
            ],
        )
        while self._connection.ask(commit, 7).topics[0].partitions[0].error_code:
            self._connection.ask(groups.FindCoordinatorRequest(key=GROUP), 3)

    def join(self, group: str, instance_id: str) -> tuple[str, int]:
        """Become the only member of a group; return the member id and the generation."""
        joined = self._connection.ask(
            groups.JoinGroupRequest(
                group_id=group,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                member_id="",
                group_instance_id=instance_id,
                protocol_type="consumer",
                protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=b"")],
            ),
            7,
        )
        assert joined.error_code == 0
        synced = self._connection.ask(
            groups.SyncGroupRequest(
                group_id=group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                group_instance_id=instance_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[],
            ),
            5,
        )
        assert synced.error_code == 0
        return joined.member_id, joined.generation_id

    def commit(
        self,
        said: str,
        *partitions: int,
        versions: Iterator[int] | range = range(4),
        metadata: str = "mine",
        topic: str = TOPIC,
        **fields: Any,
    ) -> None:
        """Commit offset 2 in a transaction, with each version that has the fields."""
        for version in versions:
            request = transactions.TxnOffsetCommitRequest(
                **{
                    "transactional_id": "copying",
                    "group_id": GROUP,
                    "producer_id": PRODUCER,
                    "producer_epoch": EPOCH,
                    "topics": [
                        transactions.TxnOffsetCommitRequestTopic(
                            name=topic,
                            partitions=[
                                transactions.TxnOffsetCommitRequestPartition(
                                    partition_index=index,
                                    committed_offset=2,
                                    committed_metadata=metadata,
                                )
                                for index in partitions
                            ],
                        )
                    ],
                    **fields,
                }
            )
            answer = self._connection.ask(request, version)
            self.told[f"{said}, version {version}"] = _codes(answer)

    def end(self, said: str, *, commit: bool) -> None:
        """Write a marker, as a coordinator does, and ask for offsets once they are stable."""
        marker = transactions.WritableTxnMarker(
            producer_id=PRODUCER,
            producer_epoch=EPOCH,
            transaction_result=commit,
            topics=[
                transactions.WritableTxnMarkerTopic(
                    name="__consumer_offsets", partition_indexes=[0]
                )
            ],
            coordinator_epoch=0,
        )
        answer = self._connection.ask(transactions.WriteTxnMarkersRequest(markers=[marker]), 0)
        assert answer.markers[0].topics[0].partitions[0].error_code == 0
        # Kafka takes the offsets in the background.
        for _ in range(10_000):
            if not any(code for *_, code in self.fetch(said, 0, 1, stable=True)):
                return
        raise AssertionError("the offsets stay unstable")

    def fetch(self, said: str, *partitions: int, stable: bool) -> list[tuple[Any, ...]]:
        """Ask for offsets of partitions, of all where none is named."""
        asked = group_offsets.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[*partitions])
        request = group_offsets.OffsetFetchRequest(
            group_id=GROUP, topics=[asked] if partitions else None, require_stable=stable
        )
        answer = self._connection.ask(request, 7)
        found = sorted(
            (
                part.partition_index,
                part.committed_offset,
                part.committed_leader_epoch,
                part.metadata,
                part.error_code,
            )
            for topic in answer.topics
            for part in topic.partitions
        )
        self.told[said] = answer.error_code, found
        return found

    def delete(self, group: str) -> None:
        """Delete a group."""
        answer = self._connection.ask(groups.DeleteGroupsRequest(groups_names=[group]), 2)
        self.told[f"deletion of {group}"] = answer.results[0].error_code

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _codes(answer: Any) -> dict[int, int]:
    return {
        part.partition_index: part.error_code
        for topic in answer.topics
        for part in topic.partitions
    }


def asked_of(port: int) -> dict[str, object]:
    """Return what the broker answers."""
    asker = Asker(port)
    asker.prepare()
    asker.fetch("nothing pending", 0, 1, stable=True)
    asker.commit("known and unknown partitions", 0, 5)
    asker.commit("unknown topic", 0, topic="none")
    asker.commit("too much metadata", 0, metadata="x" * 101)
    asker.commit("group without a name", 0, group_id="")
    # In Kafka's memory it takes the offset away that its successor has pending in the group.
    asker.commit("former epoch", 0, group_id="of the past", producer_epoch=EPOCH - 1)
    asker.commit("group of its own", 0, group_id="unheard of")
    for name, partitions in {"one": (0,), "both": (0, 1), "all": ()}.items():
        for stable in (True, False):
            asker.fetch(f"{name}, stable {stable}", *partitions, stable=stable)
    newest = range(3, 4)
    # In Java a letter of four bytes of UTF-8 counts as two.
    for count in (50, 51):
        asker.commit(
            f"metadata of {count} wide letters",
            0,
            versions=newest,
            group_id="wide",
            metadata="\U0001f600" * count,
        )
    asker.end("after the commit", commit=True)
    asker.commit("another transaction", 1, versions=newest)
    asker.end("after the abort", commit=False)
    asker.commit("a third one", 0, 1, versions=newest)
    member_id, generation = asker.join("members", "i")
    for number, (member, instance, claimed) in enumerate(
        (
            ("", None, -1),
            (member_id, "i", generation),
            (member_id, None, generation),
            (member_id, "other", generation),
            (member_id, "i", -1),
            ("", None, generation),
            ("", "i", -1),
            ("", "other", -1),
            ("gone", "i", generation),
            ("gone", None, generation),
            ("gone", "other", generation),
            (member_id, "i", generation + 1),
            ("", None, generation - 1),
        )
    ):
        asker.commit(
            f"member {number}",
            0,
            versions=newest,
            group_id="members",
            member_id=member,
            group_instance_id=instance,
            generation_id=claimed,
        )
    for claimed in (0, 1):
        asker.commit(
            f"generation {claimed} of a new group",
            0,
            versions=newest,
            group_id=f"new {claimed}",
            generation_id=claimed,
        )
    asker.commit(
        "member of a new group",
        0,
        versions=newest,
        group_id="empty",
        member_id="a",
        generation_id=1,
    )
    asker.delete("members")
    asker.delete("unheard of")
    asker.delete(GROUP)
    asker.fetch("after the deletion", 0, 1, stable=True)
    asker.close()
    return asker.told


@pytest.mark.full(
    "tests/group/test_who_may_commit.py::test_members_and_generations_are_checked_as_kafka_does"
)
def test_answers_are_those_of_kafka(tmp_path: Path) -> None:
    told = {}
    for kind in (KafkaBroker, Broker):
        chroot = zookeeper.Chroot()
        chroot.start()
        directory = tmp_path / kind.__name__
        directory.mkdir()
        broker = kind(directory, 1, chroot.connect, SETTINGS)
        try:
            broker.start()
            told[kind] = asked_of(broker.port)
        finally:
            broker.kill()
            chroot.close()
    assert told[Broker] == told[KafkaBroker]
