"""From Apache Kafka to this broker and back, by Kafka's own reassignment tool (O, C10).

Two brokers, one of each side, and partitions with one replica: at every moment all data is on one
side or on its way to the other. A producer with acks=all and a consumer of a group notice nothing.
Groups of Java clients, eager and cooperative, go on with the other side's coordinator: nobody joins
anew, nothing is read twice, and each coordinator knows what was committed with the one before.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import kafka_peer
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.clients import QUIET
from tests.support.group_members import COOPERATIVE, JAVA_CLIENT, RANGE, Members, MemberSpec
from tests.support.kafka_broker import OldKafkaBroker
from tests.support.kafka_peer import Tools
from tests.support.traffic import Traffic

KAFKA, OURS = 1, 2
# No member is to be left out, however long a busy machine keeps it from being heard.
SESSION_MS = 60_000
TOPIC = "moving"
OFFSETS = "__consumer_offsets"
SETTINGS = {
    **STEADY,
    # Kafka takes it for the number of partitions if it started before there was the topic.
    "offsets.topic.num.partitions": "1",
    "group.min.session.timeout.ms": "500",
}


def replicas(cluster: Cluster) -> dict[str, list[list[int]]]:
    """Where each topic's partitions are and who leads them, as the brokers that run tell it."""
    [address, *_] = [one.address for one in cluster.brokers.values() if one.running]
    topics = AdminClient({"bootstrap.servers": address, **QUIET}).list_topics(timeout=30).topics
    return {
        name: [[one.leader, *one.replicas] for _, one in sorted(topic.partitions.items())]
        for name, topic in topics.items()
    }


def move_everything(cluster: Cluster, tools: Tools, target: int) -> None:
    """Have one broker lead and hold every partition alone, and the other one none."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": [target]}
        for topic, found in replicas(cluster).items()
        for number in range(len(found))
    ]
    plan = tools.file(f"to-{target}.json", json.dumps({"version": 1, "partitions": partitions}))
    at = ("kafka.admin.ReassignPartitionsCommand", "--bootstrap-server", cluster.bootstrap)
    said = tools.run(*at, "--reassignment-json-file", plan, "--execute")
    assert "Successfully started partition reassignments" in said
    there = [target, target]
    wait_until(
        lambda: all(one == there for found in replicas(cluster).values() for one in found),
        f"everything is on broker {target}",
        180,
    )
    wait_until(
        lambda: (
            not any(
                one.partition_folders(topic)
                for one in cluster.brokers.values()
                if one.broker_id != target
                for topic in (TOPIC, OFFSETS)
            )
        ),
        f"nothing is left but on broker {target}",
    )


class Groups:
    """Groups of two Java members each, as they join and commit in every way."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        kafka_peer.classpath(kafka_peer.clients(JAVA_CLIENT))  # fetched before anybody waits
        self._bootstrap = cluster.bootstrap
        # Not static: Kafka that speaks as 2.1 refuses such members.
        wishes = [
            MemberSpec(f"{strategy}-{commit}", strategy, None, commit, SESSION_MS)
            for strategy in (RANGE, COOPERATIVE)
            for commit in ("sync", "auto")
        ]
        self.names = [one.group for one in wishes]
        self.processes = [
            Members(folder / f"readers-{number}", "java", cluster.bootstrap, TOPIC, wishes)
            for number in (1, 2)
        ]
        self._at_first: dict[str, int] = {}

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()

    def await_members(self) -> None:
        """Wait until everybody is in. Nothing should be there to be read before: a cooperative Java
        member that commits by the clock gives partitions up to one that comes without committing
        what it has read of them last.
        """

        def are_in() -> bool:
            self._at_first = self._members()
            return len(self._at_first) == 2 * len(self.names)

        wait_until(are_in, "everybody is in", 120)

    def _members(self) -> dict[str, int]:
        """The coordinator of each member, by the member's id."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap, **QUIET})
        found: dict[str, int] = {}
        for answer in admin.describe_consumer_groups(self.names, request_timeout=60).values():
            with contextlib.suppress(KafkaException):  # a coordinator that is just moving
                group = answer.result(120)
                if group.state is ConsumerGroupState.STABLE:
                    found |= {one.member_id: group.coordinator.id for one in group.members}
        return found

    def await_coordinator(self, broker_id: int) -> None:
        """Wait until a broker coordinates every group, with the same members as ever."""
        wanted = dict.fromkeys(self._at_first, broker_id)
        wait_until(lambda: self._members() == wanted, f"{broker_id} coordinates the groups", 120)

    def await_read(self, values: set[str]) -> None:
        """Wait until each group got all of these; nothing was read twice."""

        def read() -> dict[str, Counter[str]]:
            found = {name: Counter[str]() for name in self.names}
            for process in self.processes:
                for name, some in process.values().items():
                    found[name] += some
            return found

        wait_until(lambda: all(one.keys() >= values for one in read().values()), "all is read", 120)
        for name, found in read().items():
            assert {found[value] for value in values} == {1}, name

    def leave(self) -> None:
        """Everybody leaves, which commits what nobody had committed yet."""
        for process in self.processes:
            process.leave()

    def committed(self) -> dict[str, int]:
        """How many records each group has committed, as its coordinator tells it."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap, **QUIET})
        found = {}
        for name in self.names:
            asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])
            found[name] = sum(one.offset for one in asked[name].result(120).topic_partitions)
        return found


def stop(cluster: Cluster, broker_id: int) -> None:
    cluster.brokers[broker_id].signal(signal.SIGTERM)
    cluster.brokers[broker_id].wait()


@pytest.mark.timeout(1200)
@pytest.mark.full(
    "tests/peers/test_secured_migration.py::test_secured_cluster_rolls_from_kafka_to_us_and_back"
)
def test_a_cluster_moves_from_kafka_to_us_and_back(tmp_path: Path, tools: Tools) -> None:
    with Cluster(tmp_path, 2, SETTINGS, {KAFKA: OldKafkaBroker}) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        shapes = [
            NewTopic(TOPIC, 2, replica_assignment=[[KAFKA], [KAFKA]]),
            NewTopic(
                OFFSETS, 1, replica_assignment=[[KAFKA]], config={"cleanup.policy": "compact"}
            ),
        ]
        for made in admin.create_topics(shapes).values():
            made.result(120)
        with Groups(cluster, tmp_path) as groups:
            groups.await_members()
            with Traffic(cluster, TOPIC) as traffic:
                traffic.await_progress("at first")
                groups.await_coordinator(KAFKA)
                move_everything(cluster, tools, OURS)
                groups.await_coordinator(OURS)
                traffic.await_progress("from us")
                stop(cluster, KAFKA)
                traffic.await_progress("without Kafka")
                cluster.brokers[KAFKA].start()
                cluster.wait_for_members()
                move_everything(cluster, tools, KAFKA)
                groups.await_coordinator(KAFKA)
                # A client that never heard that Kafka is back asks for it after five minutes only.
                traffic.await_progress("from Kafka")
                stop(cluster, OURS)
                traffic.await_progress("without us")
                traffic.end()
                groups.await_read({value.decode() for value in traffic.acknowledged})
                groups.leave()
        assert sum(traffic.read.values()) == len(traffic.acknowledged)
        assert groups.committed() == dict.fromkeys(groups.names, len(traffic.acknowledged))
