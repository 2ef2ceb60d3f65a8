"""Requests of transactions with fields at their edges, and what brokers answer.

Each case has a transactional id of its own, which must work afterwards. The same works with Apache
Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import groups, producers, transactions
from tests.support.asking import ADMIN, Connection
from tests.support.authorization_asker import codes
from tests.support.authorization_requests import creation

TOPIC, PARTITIONS = "edges", 3
GROUP = "readers"
MAX_TIMEOUT_MS = 900_000
TIMEOUT_MS = 60_000
LONGEST = 32_767
LONGEST_TEXT = 200
INT_MAX, LONG_MAX, SHORT_MAX = 2**31 - 1, 2**63 - 1, 2**15 - 1
SETTINGS = {
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "zookeeper.session.timeout.ms": "30000",
}
RETRIED = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class Producer:
    """One transactional id, and what the coordinator says that it is."""

    def __init__(self, connection: Connection, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.producer_id = self.epoch = -1
        self.connection = connection

    def begin(self) -> None:
        """Ask for a producer id and an epoch, as a new producer does, until there are some."""
        found = self.initialize(4)
        while found.error_code in RETRIED:
            found = self.initialize(4)
        assert found.error_code == ErrorCode.NONE, (self.transactional_id[:80], found)
        self.producer_id, self.epoch = found.producer_id, found.producer_epoch

    def initialize(
        self,
        version: int,
        timeout_ms: int = TIMEOUT_MS,
        producer_id: int = -1,
        epoch: int = -1,
    ) -> Any:
        """Send InitProducerId once."""
        return self.connection.ask(
            producers.InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=producer_id,
                producer_epoch=epoch,
            ),
            version,
        )

    def named(self, by_id: int, by_epoch: int, version: int = 4) -> str:
        """Name a producer in InitProducerId; return the code, and the epoch behind the known."""
        found = self.initialize(version, producer_id=by_id, epoch=by_epoch)
        if found.error_code:
            return f"{found.error_code}"
        same = "same" if found.producer_id == self.producer_id else "another"
        return f"0 {same} id, epoch {found.producer_epoch}"

    def add(
        self,
        *topics: tuple[str, list[int]],
        version: int = 3,
        producer_id: int | None = None,
        epoch: int | None = None,
    ) -> str:
        """Send AddPartitionsToTxn; return the codes."""
        return self._asked(
            transactions.AddPartitionsToTxnRequest(
                topics=[
                    transactions.AddPartitionsToTxnTopic(name=name, partitions=partitions)
                    for name, partitions in topics
                ],
                **self._who(producer_id, epoch),
            ),
            version,
        )

    def add_offsets(
        self,
        group: str,
        version: int = 3,
        producer_id: int | None = None,
        epoch: int | None = None,
    ) -> str:
        """Send AddOffsetsToTxn; return the code."""
        who = self._who(producer_id, epoch)
        return self._asked(transactions.AddOffsetsToTxnRequest(group_id=group, **who), version)

    def end(
        self,
        *,
        commits: bool = True,
        version: int = 3,
        producer_id: int | None = None,
        epoch: int | None = None,
    ) -> str:
        """Send EndTxn; return the code."""
        who = self._who(producer_id, epoch)
        return self._asked(transactions.EndTxnRequest(committed=commits, **who), version)

    def _asked(self, request: Any, version: int) -> str:
        """Return the codes; ask again while the markers of a former transaction are written."""
        while True:
            found = codes(self.connection.ask(request, version))
            if f"={int(ErrorCode.CONCURRENT_TRANSACTIONS)}" not in found:
                return found

    def _who(self, producer_id: int | None, epoch: int | None) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id if producer_id is None else producer_id,
            "producer_epoch": self.epoch if epoch is None else epoch,
        }


def _ids(producer: Producer) -> Iterator[tuple[str, Any]]:
    connection = producer.connection
    for said, name in {
        "empty": "",
        "long": "i" * LONGEST,
        "odd": "a\0b/../\u00e4 ",
        "of 249 emojis": "\U0001f600" * 249,
    }.items():
        one = Producer(connection, name)
        found = connection.ask(groups.FindCoordinatorRequest(key=name, key_type=1), 3)
        yield f"FindCoordinator, {said} id", found.error_code
        for version in range(5):
            answer = one.initialize(version)
            while answer.error_code in RETRIED:
                answer = one.initialize(version)
            yield f"InitProducerId v{version}, {said} id", answer.error_code
        if not name:
            for version in range(4):
                yield (
                    f"AddPartitionsToTxn v{version}, {said} id",
                    one.add((TOPIC, [0]), version=version),
                )
                yield f"AddOffsetsToTxn v{version}, {said} id", one.add_offsets(GROUP, version)
                yield f"EndTxn v{version}, {said} id", one.end(version=version)
            continue
        one.begin()
        yield f"AddPartitionsToTxn, {said} id", one.add((TOPIC, [0]))
        yield f"AddOffsetsToTxn, {said} id", one.add_offsets(GROUP)
        yield f"EndTxn, {said} id", one.end()
        one.begin()


def _timeouts(producer: Producer) -> Iterator[tuple[str, Any]]:
    for timeout_ms in (0, -1, -(2**31), 1, MAX_TIMEOUT_MS, MAX_TIMEOUT_MS + 1, INT_MAX):
        for version in (0, 4):
            said = f"InitProducerId v{version}, timeout {timeout_ms}"
            yield said, producer.initialize(version, timeout_ms).error_code
    nobody = Producer(producer.connection, None)  # type: ignore[arg-type]
    for timeout_ms in (0, -1, INT_MAX):
        said = f"InitProducerId without an id, timeout {timeout_ms}"
        yield said, nobody.initialize(4, timeout_ms).error_code


def _named_pairs(producer: Producer) -> Iterator[tuple[str, Any]]:
    connection = producer.connection
    for number, (by_id, by_epoch) in enumerate(
        [
            (-1, 0), (0, -1), (5_000_000, 0), (5_000_000, SHORT_MAX), (LONG_MAX, SHORT_MAX - 1),
            (-2, 0), (0, -2), (-2, -2), (-(2**63), -(2**15)), (-1, SHORT_MAX), (LONG_MAX, -1),
        ]
    ):  # fmt: skip
        for version in (3, 4):
            unknown = Producer(connection, f"unknown-{number}-{version}")
            said = f"InitProducerId v{version}, names {by_id}, {by_epoch}"
            yield f"{said}, of an unknown id", unknown.named(by_id, by_epoch, version)
            yield f"{said}, of a known id", producer.named(by_id, by_epoch, version)
    nobody = Producer(connection, None)  # type: ignore[arg-type]
    for by_id, by_epoch in ((-1, 0), (0, -1), (5, 5), (-2, -2)):
        said = f"InitProducerId without an id, names {by_id}, {by_epoch}"
        yield said, nobody.initialize(4, 0, by_id, by_epoch).error_code
    producer.begin()
    current, epoch = producer.producer_id, producer.epoch
    yield "epoch that no producer had", producer.named(current, epoch + 1)
    yield "former epoch, not asked for by name", producer.named(current, epoch - 1)
    first = producer.named(current, epoch)
    yield "current producer", first.replace(str(epoch + 1), "+1")
    yield "current producer, again", producer.named(current, epoch).replace(str(epoch + 1), "+1")
    yield "current producer, v3", producer.named(current, epoch - 1, 3)
    producer.begin()
    yield "former producer that asked by name", producer.named(current, epoch)
    producer.begin()
    yield "beginning", producer.add((TOPIC, [0]))
    current, epoch = producer.producer_id, producer.epoch
    yield "another producer in an open transaction", producer.named(current + 1, epoch)
    yield "current producer in an open transaction", producer.named(current, epoch)
    producer.begin()
    yield "fenced producer, after it", producer.named(current, epoch)


def _callers(producer: Producer) -> Iterator[tuple[str, Any]]:
    """Whoever is not the producer."""
    known, epoch = producer.producer_id, producer.epoch
    for by_id, by_epoch, said in (
        (-1, -1, "nobody"),
        (known, -1, "epoch -1"),
        (known, epoch + 1, "next epoch"),
        (known, SHORT_MAX, "highest epoch"),
        (known, -(2**15), "lowest epoch"),
        (-1, epoch, "id -1"),
        (LONG_MAX, epoch, "highest id"),
        (-(2**63), epoch, "lowest id"),
    ):
        who: dict[str, Any] = {"producer_id": by_id, "epoch": by_epoch}
        for version in (0, 1, 2, 3):
            yield (
                f"AddPartitionsToTxn v{version}, {said}",
                producer.add((TOPIC, [0]), version=version, **who),
            )
            yield (
                f"AddOffsetsToTxn v{version}, {said}",
                producer.add_offsets(GROUP, version=version, **who),
            )
            yield f"EndTxn v{version}, {said}", producer.end(version=version, **who)
    stranger = Producer(producer.connection, "nobody's")
    yield "AddPartitionsToTxn, unknown id", stranger.add((TOPIC, [0]))
    yield "AddOffsetsToTxn, unknown id", stranger.add_offsets(GROUP)
    yield "EndTxn, unknown id", stranger.end()


def _partitions(producer: Producer) -> Iterator[tuple[str, Any]]:
    cases: dict[str, list[tuple[str, list[int]]]] = {
        "unknown topic": [("none", [0])],
        "unknown partition": [(TOPIC, [PARTITIONS])],
        "unknown partition beside a known one": [(TOPIC, [0, PARTITIONS])],
        "negative partition": [(TOPIC, [-1])],
        "lowest partition": [(TOPIC, [-(2**31)])],
        "highest partition": [(TOPIC, [INT_MAX])],
        "topic without a name": [("", [0])],
        "topic with a long name": [("t" * LONGEST, [0])],
        "topic with an odd name": [("../\0", [0])],
        "offsets topic": [("__consumer_offsets", [0])],
        "transactions topic": [("__transaction_state", [0])],
        "unknown partition of an internal topic": [("__transaction_state", [-5])],
        "internal topic without partitions": [("__transaction_state", [])],
        "unknown topic without partitions": [("none", [])],
        "topic without partitions": [(TOPIC, [])],
        "nothing": [],
        "repeated partition": [(TOPIC, [0] * 5_000)],
        "repeated topic": [(TOPIC, [0]), (TOPIC, [1, 0])],
        "many unknown partitions": [(TOPIC, [*range(10_000)])],
        "many unknown topics": [(f"none-{number}", [0]) for number in range(3_000)],
    }
    for said, topics in cases.items():
        producer.begin()
        for version in (0, 3):
            yield f"AddPartitionsToTxn v{version}, {said}", producer.add(*topics, version=version)
        yield f"EndTxn, {said}", producer.end()
        yield f"EndTxn again, {said}", producer.end()


def _groups(producer: Producer) -> Iterator[tuple[str, Any]]:
    for said, group in {"no name": "", "long name": "g" * LONGEST, "odd name": "\0/.."}.items():
        for version in range(4):
            yield f"AddOffsetsToTxn v{version}, {said}", producer.add_offsets(group, version)
    yield "EndTxn, of three groups", producer.end(commits=False)


def _ends(producer: Producer) -> Iterator[tuple[str, Any]]:
    for commits in (True, False):
        producer.begin()
        yield f"EndTxn {commits} of nothing", producer.end(commits=commits)
        yield "AddPartitionsToTxn", producer.add((TOPIC, [0, 1]))
        yield f"EndTxn {commits}", producer.end(commits=commits)
        yield f"EndTxn {commits}, again", producer.end(commits=commits)
        yield f"EndTxn {not commits} after it", producer.end(commits=not commits)
        for version in range(4):
            yield f"AddPartitionsToTxn v{version}", producer.add((TOPIC, [0]), version=version)
            yield f"EndTxn {commits} v{version}", producer.end(commits=commits, version=version)


def _marker(
    topics: list[tuple[str, list[int]]],
    producer_id: int = 900_000,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    *,
    commits: bool = True,
) -> transactions.WritableTxnMarker:
    return transactions.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commits,
        topics=[
            transactions.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in topics
        ],
        coordinator_epoch=coordinator_epoch,
    )


def _markers(producer: Producer) -> Iterator[tuple[str, Any]]:
    """From a client, which brokers without an authorizer believe."""
    here = [(TOPIC, [2])]
    for said, markers in {
        "none": [],
        "unknown topic": [_marker([("none", [0])])],
        "no name": [_marker([("", [0])])],
        "unknown, negative and known partition": [_marker([(TOPIC, [PARTITIONS, -1, 2, INT_MAX])])],
        "again": [_marker(here)],
        "twice in a request": [_marker(here), _marker(here)],
        "abort and commit in a request": [_marker(here, commits=False), _marker(here)],
        "newer coordinator": [_marker(here, coordinator_epoch=5)],
        "older coordinator": [_marker(here, coordinator_epoch=4)],
        "coordinator -1": [_marker(here, coordinator_epoch=-1)],
        "lowest coordinator": [_marker(here, coordinator_epoch=-(2**31))],
        "coordinator -1 of a new producer": [_marker(here, 900_001, coordinator_epoch=-1)],
        "highest coordinator": [_marker(here, coordinator_epoch=INT_MAX)],
        "newer producer": [_marker(here, epoch=3, coordinator_epoch=INT_MAX)],
        "older producer": [_marker(here, epoch=2, coordinator_epoch=INT_MAX)],
        "highest producer epoch": [_marker(here, 900_002, SHORT_MAX)],
        "producer epoch -1": [_marker(here, 900_003, -1)],
        "producer -1": [_marker(here, -1, 0)],
        "producer -1 and epoch -1": [_marker(here, -1, -1)],
        "lowest producer": [_marker(here, -(2**63), -(2**15))],
        "highest producer": [_marker(here, LONG_MAX)],
        "offsets topic": [_marker([("__consumer_offsets", [0, 1, 2])])],
        "transactions topic": [_marker([("__transaction_state", [0, 1, 2])])],
        "many producers": [_marker(here, 910_000 + number) for number in range(2_000)],
        "many unknown partitions": [_marker([(TOPIC, [*range(3, 10_003)])])],
    }.items():
        for version in (0, 1):
            answer = producer.connection.ask(
                transactions.WriteTxnMarkersRequest(markers=markers), version
            )
            yield f"WriteTxnMarkers v{version}, {said}", codes(answer)


CASES: dict[str, Callable[[Producer], Iterator[tuple[str, Any]]]] = {
    "ids": _ids,
    "timeouts": _timeouts,
    "pairs": _named_pairs,
    "callers": _callers,
    "partitions": _partitions,
    "groups": _groups,
    "ends": _ends,
    "markers": _markers,
}


def results(port: int) -> dict[str, str]:
    """Return what a broker answers; fail if a transactional id is of no use afterwards."""
    connection = Connection(port, ADMIN)
    made = connection.ask(creation(TOPIC, partitions=PARTITIONS), 5)
    while made.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR:
        made = connection.ask(creation(TOPIC, partitions=PARTITIONS), 5)  # it knows no brokers yet
    assert made.topics[0].error_code == ErrorCode.NONE, made
    for key, key_type in ((GROUP, 0), ("edges", 1)):
        while connection.ask(
            groups.FindCoordinatorRequest(key=key, key_type=key_type), 3
        ).error_code:
            pass
    found = {}
    for name, case in CASES.items():
        producer = Producer(connection, f"edges-{name}")
        producer.begin()
        for number, (said, answer) in enumerate(case(producer)):
            text = str(answer)
            if len(text) > LONGEST_TEXT:
                text = f"{text[:LONGEST_TEXT]}... ({len(text)} characters)"
            found[f"{name} {number}: {said}"] = text
        producer.begin()
        found[f"{name}: afterwards"] = f"{producer.add((TOPIC, [0, 1, 2]))}, {producer.end()}"
    connection.close()
    return found
