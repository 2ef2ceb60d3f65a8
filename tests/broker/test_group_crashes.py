"""Members of groups come, die and leave, with every client in every way that it can be a member.

Nothing is lost, and what was committed is not repeated. With commits by the clock a crash repeats
what was read since the last one; with commits by hand it repeats nothing that was committed. That
is what the articles tell of Kafka. A member that leaves commits what it has read, so nothing is
repeated then.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
)
from confluent_kafka.admin import AdminClient

from tests.support import kafka_peer
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.clients import QUIET, create_topic, produce_all
from tests.support.group_members import COOPERATIVE, JAVA_CLIENT, RANGE, Members, MemberSpec

PARTITIONS = 4
FIRST, SECOND, THIRD = ([f"{part}-{number}" for number in range(100)] for part in (1, 2, 3))
PATIENCE_S = 120
# A living member that is not heard for so long would read again what nobody has committed. Less
# than aiokafka waits for the answer to its join, which is held up for as long by a dead one.
SESSION_MS = 20_000
STRATEGIES = {
    "confluent": (RANGE, COOPERATIVE),
    "kafka-python": (RANGE, COOPERATIVE),
    "aiokafka": (RANGE,),
    "java": (RANGE, COOPERATIVE),
}
COMMITS = {
    "confluent": ("auto", "sync", "async"),
    "kafka-python": ("auto", "sync", "async"),
    "aiokafka": ("auto", "sync"),
    "java": ("auto", "sync", "async"),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {
        **STEADY,
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "2",
        "group.min.session.timeout.ms": "500",
    }
    with Cluster(tmp_path_factory.mktemp("crashes"), settings=settings) as running:
        yield running


class Groups:
    """Groups that read one topic, each with other members, and the processes of these."""

    def __init__(self, cluster: Cluster, library: str, folder: Path) -> None:
        self._bootstrap = cluster.bootstrap
        self._library = library
        self._folder = folder
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        self._topic = f"crash-{uuid.uuid4().hex[:8]}"
        create_topic(cluster.bootstrap, self._topic, PARTITIONS)
        ways = itertools.product(STRATEGIES[library], ("dynamic", "static"), COMMITS[library])
        self.ways = {f"{self._topic}-{'-'.join(way)}": way for way in ways}
        self.processes: list[Members] = []

    def start(self, place: int) -> Members:
        """One more member in each group; a static one has the name of this place."""
        wishes = [
            MemberSpec(
                group, strategy, f"place-{place}" if kind == "static" else None, commit, SESSION_MS
            )
            for group, (strategy, kind, commit) in self.ways.items()
        ]
        output = self._folder / f"members-{len(self.processes)}"
        self.processes.append(Members(output, self._library, self._bootstrap, self._topic, wishes))
        return self.processes[-1]

    def produce(self, values: list[str]) -> None:
        produce_all(self._bootstrap, self._topic, [value.encode() for value in values], PARTITIONS)

    def delivered(self) -> dict[str, Counter[str]]:
        """What each group got, all its members together."""
        found = {group: Counter[str]() for group in self.ways}
        for process in self.processes:
            for group, values in process.values().items():
                found[group] = found[group] + values
        return found

    def await_members(self, count: int) -> None:
        """Wait until so many members of each group have shared out all partitions."""
        wait_until(lambda: self._not_shared(count) == [], f"{count} in each group", PATIENCE_S)

    def _not_shared(self, count: int) -> list[str]:
        described = self._admin.describe_consumer_groups([*self.ways], request_timeout=60)
        found = []
        for group, answer in described.items():
            try:
                seen = answer.result(120)
            except KafkaException:
                found.append(group)  # the topic of the groups is only just made
                continue
            shares = [len(one.assignment.topic_partitions) for one in seen.members]
            settled = seen.state is ConsumerGroupState.STABLE
            if not settled or len(shares) != count or sum(shares) != PARTITIONS:
                found.append(group)
        return found

    def await_delivered(self, values: list[str]) -> None:
        """Wait until each group got these, and has committed them where a member does that."""
        wait_until(
            lambda: all(found.keys() >= {*values} for found in self.delivered().values()),
            "all is delivered",
            PATIENCE_S,
        )
        ends = int(values[0].split("-")[0]) * len(values)
        by_hand = [group for group, way in self.ways.items() if way[2] != "auto"]
        wait_until(
            lambda: all(self._committed(group) == ends for group in by_hand),
            "all is committed",
            PATIENCE_S,
        )

    def _committed(self, group: str) -> int:
        """The sum of a group's positions, that is how many records it has committed."""
        asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        return sum(one.offset for one in asked[group].result(120).topic_partitions)


@pytest.fixture
def groups(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[[str], Groups]]:
    made: list[Groups] = []

    def make(library: str) -> Groups:
        made.append(Groups(cluster, library, tmp_path))
        return made[-1]

    yield make
    for one in made:
        for process in one.processes:
            process.kill()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("library", STRATEGIES)
def test_members_come_die_and_leave_and_only_a_crash_repeats_what_was_not_committed(
    groups: Callable[[str], Groups], library: str
) -> None:
    if library == "java":
        kafka_peer.classpath(kafka_peer.clients(JAVA_CLIENT))  # fetched before anybody waits
    all_of = groups(library)
    victims = all_of.start(0)
    all_of.await_members(1)
    survivors = all_of.start(1)
    # While a second member comes, the first may have read what it has not committed.
    all_of.await_members(2)
    all_of.produce(FIRST)
    all_of.await_delivered(FIRST)
    read_by_victims = victims.values()
    assert read_by_victims.keys() == all_of.ways.keys()
    victims.kill()
    all_of.produce(SECOND)
    all_of.start(0)
    all_of.await_members(2)
    all_of.await_delivered(SECOND)
    before = all_of.delivered()
    for group, (_, _, commit) in all_of.ways.items():
        twice = {value for value, times in before[group].items() if times > 1}
        assert before[group].keys() == {*FIRST, *SECOND}, group
        if commit != "auto":
            assert not twice & {*FIRST}, group
        else:
            # Everything that the dead member read was read again.
            assert twice >= read_by_victims[group].keys(), group
    survivors.leave()
    all_of.await_members(1)
    all_of.produce(THIRD)
    all_of.await_delivered(THIRD)
    for group, found in all_of.delivered().items():
        assert found - before[group] == Counter(THIRD), group
