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
from tests.support.sampling import some_of

PARTITIONS = 4
FIRST, SECOND, THIRD = ([f"{part}-{number}" for number in range(100)] for part in (1, 2, 3))
PATIENCE_S = 300
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


def ways_of(library: str) -> list[tuple[str, str, str]]:
    """Return every strategy with every kind of member and every way to commit."""
    return [*itertools.product(STRATEGIES[library], ("dynamic", "static"), COMMITS[library])]


# Every choice with every library, and any two of them with some library.
SAMPLE = {
    "confluent": [
        (RANGE, "dynamic", "auto"),
        (COOPERATIVE, "static", "sync"),
        (RANGE, "static", "async"),
    ],
    "kafka-python": [
        (COOPERATIVE, "static", "auto"),
        (RANGE, "dynamic", "sync"),
        (COOPERATIVE, "dynamic", "async"),
    ],
    "aiokafka": [(RANGE, "static", "auto"), (RANGE, "dynamic", "sync")],
    "java": [
        (RANGE, "static", "auto"),
        (COOPERATIVE, "dynamic", "sync"),
        (COOPERATIVE, "static", "async"),
    ],
}

# The two that most others are made of. tests/broker/test_groups.py has groups of aiokafka and
# kafka-python.
LIBRARIES = ["confluent", "java"]


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
        self._folder = folder / library
        self._folder.mkdir()
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        self._topic = f"crash-{library}-{uuid.uuid4().hex[:8]}"
        create_topic(cluster.bootstrap, self._topic, PARTITIONS)
        ways = some_of(ways_of(library), SAMPLE[library])
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

    def check_repeated(
        self, read_by_victims: dict[str, Counter[str]], found: dict[str, Counter[str]]
    ) -> None:
        """Nothing is lost, and only what was not committed when members died came twice."""
        for group, (_, _, commit) in self.ways.items():
            twice = {value for value, times in found[group].items() if times > 1}
            assert found[group].keys() == {*FIRST, *SECOND}, group
            if commit != "auto":
                assert not twice & {*FIRST}, group
            else:
                # Everything that the dead member read was read again.
                assert twice >= read_by_victims[group].keys(), group

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
def test_members_come_die_and_leave_and_only_a_crash_repeats_what_was_not_committed(
    groups: Callable[[str], Groups],
) -> None:
    """All libraries at the same time: most of it is waiting for the dead members' sessions.

    A sample has two of them; `make chaos` has all, in every way.
    """
    kafka_peer.classpath(kafka_peer.clients(JAVA_CLIENT))  # fetched before anybody waits
    all_of = [groups(library) for library in some_of([*STRATEGIES], LIBRARIES)]
    victims = [one.start(0) for one in all_of]
    for one in all_of:
        one.await_members(1)
    survivors = [one.start(1) for one in all_of]
    # While a second member comes, the first may have read what it has not committed.
    for one in all_of:
        one.await_members(2)
    for one in all_of:
        one.produce(FIRST)
    for one in all_of:
        one.await_delivered(FIRST)
    read_by_victims = [one.values() for one in victims]
    for one, read, dying in zip(all_of, read_by_victims, victims, strict=True):
        assert read.keys() == one.ways.keys()
        dying.kill()
        one.produce(SECOND)
        one.start(0)
    for one in all_of:
        one.await_members(2)
    for one in all_of:
        one.await_delivered(SECOND)
    before = [one.delivered() for one in all_of]
    for one, read, found in zip(all_of, read_by_victims, before, strict=True):
        one.check_repeated(read, found)
    for leaving in survivors:
        leaving.leave()
    for one in all_of:
        one.await_members(1)
    for one in all_of:
        one.produce(THIRD)
    for one in all_of:
        one.await_delivered(THIRD)
    for one, earlier in zip(all_of, before, strict=True):
        for group, counts in one.delivered().items():
            assert counts - earlier[group] == Counter(THIRD), group
