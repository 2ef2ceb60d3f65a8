"""Members of groups die: nothing is lost with any client, and what was committed is not repeated.

With commits by the clock a crash repeats what was read since the last one; with synchronous ones it
repeats nothing that was committed. That is what the articles tell of Kafka.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import kafka_peer
from tests.support.broker import Cluster, wait_until
from tests.support.clients import create_topic, produce_all
from tests.support.group_member import JAVA_CLIENT

PARTITIONS = 4
FIRST = [f"first-{number}" for number in range(100)]
SECOND = [f"second-{number}" for number in range(100)]
RANGE, COOPERATIVE = "range", "cooperative-sticky"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "2",
        "group.min.session.timeout.ms": "500",
    }
    with Cluster(tmp_path_factory.mktemp("crashes"), settings=settings) as running:
        yield running


class Member:
    """One process."""

    def __init__(self, output: Path, library: str, settings: dict[str, object]) -> None:
        self._output = output
        with output.open("wb") as said:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.support.group_member"),
                    *(library, json.dumps(settings)),
                ],
                stdout=said,
                stderr=subprocess.DEVNULL,
            )

    def values(self) -> list[str]:
        """What it delivered."""
        return self._output.read_text().splitlines()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Member]]:
    made: list[Member] = []

    def make(library: str, **settings: object) -> Member:
        output = tmp_path / f"member-{len(made)}"
        made.append(Member(output, library, {"bootstrap": cluster.bootstrap, **settings}))
        return made[-1]

    yield make
    for one in made:
        one.kill()


@pytest.mark.parametrize(
    ("library", "strategy", "static", "commit"),
    [
        ("confluent", RANGE, False, "auto"),
        ("confluent", RANGE, True, "sync"),
        ("confluent", COOPERATIVE, False, "sync"),
        ("kafka-python", RANGE, False, "auto"),
        ("kafka-python", RANGE, False, "sync"),
        ("aiokafka", RANGE, True, "sync"),
        ("java", RANGE, False, "auto"),
        ("java", COOPERATIVE, False, "sync"),
        ("java", COOPERATIVE, True, "sync"),
    ],
)
def test_crash_loses_nothing_and_repeats_only_what_was_not_committed(
    cluster: Cluster,
    start: Callable[..., Member],
    library: str,
    strategy: str,
    static: bool,
    commit: str,
) -> None:
    if library == "java":
        kafka_peer.classpath(kafka_peer.clients(JAVA_CLIENT))  # fetched before anybody waits
    name = f"crash-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.bootstrap, name, PARTITIONS)

    def member(number: int) -> Member:
        return start(
            library,
            group=name,
            topic=name,
            strategy=strategy,
            commit=commit,
            instance=f"{name}-{number}" if static else None,
        )

    def produce(values: list[str]) -> None:
        produce_all(cluster.bootstrap, name, [value.encode() for value in values], PARTITIONS)

    members = [member(0), member(1)]

    def delivered() -> Counter[str]:
        return Counter(value for one in members for value in one.values())

    # While a second member comes, the first may have read what it has not committed.
    wait_until(lambda: len(owners(cluster.bootstrap, name)) == 2, "both have their share")
    produce(FIRST)
    wait_until(lambda: delivered().keys() >= set(FIRST), "all is delivered")
    if commit == "sync":
        wait_until(lambda: lag(cluster.bootstrap, name) == 0, "all is committed")
    read_by_victim = Counter(members[0].values())
    members[0].kill()
    produce(SECOND)
    members.append(member(2))
    wait_until(lambda: delivered().keys() >= {*FIRST, *SECOND}, "all is delivered")
    found = delivered()
    assert found.keys() == {*FIRST, *SECOND}
    twice = {value for value, times in found.items() if times > 1}
    if commit == "sync":
        assert not twice & {*FIRST}
    else:
        # Everything that the dead member read was read again.
        assert twice >= read_by_victim.keys()
        assert read_by_victim


def described(bootstrap: str, group: str) -> list[list[str]]:
    """The columns of each partition that the group has something to do with."""
    said = subprocess.run(
        [
            *(sys.executable, "-m", "odradek", "groups", "describe"),
            *("--bootstrap-server", bootstrap, "--group", group),
        ],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    rows = [line.split() for line in said.splitlines() if line.startswith(f"{group} ")]
    return rows if len(rows) == PARTITIONS else []


def owners(bootstrap: str, group: str) -> set[str]:
    """Members of a group that has shared out all partitions."""
    found = {row[6] for row in described(bootstrap, group)}
    return set() if "-" in found else found


def lag(bootstrap: str, group: str) -> int:
    """Records that the group has not committed, -1 where that is not known of all partitions."""
    lags = [row[5] for row in described(bootstrap, group)]
    return sum(int(each) for each in lags) if lags and "-" not in lags else -1
