"""Batches and offsets that come after their transaction has ended: leaders refuse them, and readers
of committed records go on (KIP-890).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from odradek.coordination.partitioning import partition_of
from odradek.handlers.groups import TRANSACTION
from odradek.log.records import records
from odradek.log.records.records import BatchOptions
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.groups import FindCoordinatorRequest
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.protocol.messages.producers import InitProducerIdRequest
from odradek.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from odradek.values import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.support import clients
from tests.support.asking import ADMIN, Connection
from tests.support.broker import STEADY, Cluster, wait_until

TOPIC, GROUP = "t", "g"
SETTING = "transaction.partition.verification.enable"
SETTINGS = {
    **STEADY,
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
RETRIED = {
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
READ_COMMITTED = 1
LATEST = -1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers, so that some ids are coordinated by another broker than the leader."""
    folder = tmp_path_factory.mktemp("late")
    with Cluster(folder, brokers=2, settings=SETTINGS) as running:
        clients.create_topic(running.bootstrap, TOPIC, 1)
        yield running


class LateProducer:
    """A transactional producer of the topic whose requests are made by hand."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._cluster = cluster
        self.transactional_id = transactional_id
        self.coordinator = self._find(transactional_id, TRANSACTION)
        self.group_coordinator = self._find(GROUP, 0)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **clients.QUIET})
        self.leader = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[0].leader
        initialized = self.ask(
            self.coordinator,
            InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000),
            4,
        )
        self.who: dict[str, Any] = {
            "transactional_id": transactional_id,
            "producer_id": initialized.producer_id,
            "producer_epoch": initialized.producer_epoch,
        }
        self._sequence = 0

    def _find(self, key: str, key_type: int) -> int:
        first = next(iter(self._cluster.brokers))
        found: int = self.ask(first, FindCoordinatorRequest(key=key, key_type=key_type), 2).node_id
        return found

    def ask(self, broker_id: int, request: Any, version: int, *, once: bool = False) -> Any:
        """Return the answer; ask again where a client would, unless `once`."""
        connection = Connection(self._cluster.brokers[broker_id].port, ADMIN)
        answers: list[Any] = []

        def answered() -> bool:
            answers[:] = [connection.ask(request, version)]
            return once or code_of(answers[0]) not in RETRIED

        wait_until(answered, f"{type(request).__name__} is answered")
        connection.close()
        return answers[0]

    def add(self, topic: str = TOPIC) -> None:
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=[0])]
        request = AddPartitionsToTxnRequest(**self.who, topics=topics)
        assert code_of(self.ask(self.coordinator, request, 3)) == ErrorCode.NONE

    def produce(self, *, sequence: int | None = None, once: bool = False) -> int:
        """Send a record with the next sequence; return the code."""
        request = self._batch(self._sequence if sequence is None else sequence)
        code = code_of(self.ask(self.leader, request, 8, once=once))
        if code == ErrorCode.NONE and sequence is None:
            self._sequence += 1
        return code

    def _batch(self, sequence: int) -> ProduceRequest:
        options = BatchOptions(
            producer_id=self.who["producer_id"],
            producer_epoch=self.who["producer_epoch"],
            base_sequence=sequence,
            transactional=True,
        )
        data = records.make([(None, b"v")], time.time_ns() // 1_000_000, options)
        place = PartitionProduceData(index=0, records=data)
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(name=TOPIC, partition_data=[place])],
        )

    def pipeline(self, count: int) -> list[int]:
        """Send records without a wait between the requests; return the offsets."""
        connection = Connection(self._cluster.brokers[self.leader].port, ADMIN)
        requests = [self._batch(self._sequence + number) for number in range(count)]
        answers = connection.ask_together(requests, 8)
        connection.close()
        assert [code_of(one) for one in answers] == [ErrorCode.NONE] * count
        self._sequence += count
        return [one.responses[0].partition_responses[0].base_offset for one in answers]

    def add_offsets(self) -> None:
        request = AddOffsetsToTxnRequest(**self.who, group_id=GROUP)
        assert code_of(self.ask(self.coordinator, request, 3)) == ErrorCode.NONE

    def commit_offset(self) -> int:
        """Send TxnOffsetCommit; return the code."""
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        topics = [TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
        request = TxnOffsetCommitRequest(**self.who, group_id=GROUP, topics=topics)
        return code_of(self.ask(self.group_coordinator, request, 3))

    def end(self, *, commits: bool = True) -> None:
        request = EndTxnRequest(**self.who, committed=commits)
        assert code_of(self.ask(self.coordinator, request, 3)) == ErrorCode.NONE
        # The answer is the same once every partition has its marker.
        wait_until(
            lambda: code_of(self.ask(self.coordinator, request, 3, once=True)) == ErrorCode.NONE,
            "the transaction is complete",
        )

    def stable_offset(self) -> int:
        """Return the last stable offset of the partition."""
        return self._latest(READ_COMMITTED)

    def end_offset(self) -> int:
        return self._latest(0)

    def _latest(self, isolation_level: int) -> int:
        partition = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[ListOffsetsTopic(name=TOPIC, partitions=[partition])],
        )
        found: int = self.ask(self.leader, request, 2).topics[0].partitions[0].offset
        return found


def code_of(answer: Any) -> int:
    """Return the only code of an answer."""
    if hasattr(answer, "responses"):
        return int(answer.responses[0].partition_responses[0].error_code)
    if hasattr(answer, "results"):
        return int(answer.results[0].results[0].error_code)
    if hasattr(answer, "topics"):
        return int(answer.topics[0].partitions[0].error_code)
    return int(answer.error_code)


def ids_of(cluster: Cluster) -> Iterator[str]:
    """Yield an id that the partition's leader coordinates, and one of another broker."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **clients.QUIET})
    leader = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[0].leader
    LateProducer(cluster, "first")  # makes the topic
    clients.await_leaders(cluster.bootstrap, TRANSACTIONS_TOPIC, 4)
    states = admin.list_topics(TRANSACTIONS_TOPIC, timeout=60).topics[TRANSACTIONS_TOPIC]
    of_leader = {n for n, one in states.partitions.items() if one.leader == leader}
    for is_own in (True, False):
        names = (f"late-{number}" for number in range(1000))
        yield next(one for one in names if (partition_of(one, 4) in of_leader) is is_own)


def test_record_that_comes_behind_the_marker_is_refused(cluster: Cluster) -> None:
    coordinators = set()
    for name in ids_of(cluster):
        producer = LateProducer(cluster, name)
        coordinators.add(producer.coordinator)
        for commits in (True, False):
            producer.add()
            assert producer.produce() == ErrorCode.NONE
            assert producer.produce() == ErrorCode.NONE
            producer.end(commits=commits)
            assert producer.produce() == ErrorCode.INVALID_TXN_STATE
            assert producer.stable_offset() == producer.end_offset()
        producer.add()
        assert producer.produce() == ErrorCode.NONE
        producer.end()
    assert len(coordinators) == 2


def test_requests_that_come_behind_the_first_of_a_transaction_stay_in_order(
    cluster: Cluster,
) -> None:
    for name in ids_of(cluster):
        producer = LateProducer(cluster, name)
        for _ in range(3):
            producer.add()
            first = producer.end_offset()
            assert producer.pipeline(5) == [*range(first, first + 5)]
            producer.end()


def test_record_of_an_unknown_or_former_producer_is_refused(cluster: Cluster) -> None:
    producer = LateProducer(cluster, "fenced")
    producer.add()
    LateProducer(cluster, "fenced")
    assert producer.produce() == ErrorCode.INVALID_PRODUCER_EPOCH
    producer.transactional_id = "nobody"
    assert producer.produce() in (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    )
    assert producer.stable_offset() == producer.end_offset()


def test_offset_that_comes_behind_the_marker_is_refused(cluster: Cluster) -> None:
    producer = LateProducer(cluster, "offsets")
    producer.add_offsets()
    assert producer.commit_offset() == ErrorCode.NONE
    assert producer.commit_offset() == ErrorCode.NONE
    producer.end()
    assert producer.commit_offset() == ErrorCode.INVALID_TXN_STATE
    producer.add_offsets()
    assert producer.commit_offset() == ErrorCode.NONE
    producer.end()


def test_broker_is_told_what_is_in_a_transaction(cluster: Cluster) -> None:
    producer = LateProducer(cluster, "asked")
    producer.add()

    def asked(topic: str) -> int:
        transaction = AddPartitionsToTxnTransaction(
            **producer.who,
            verify_only=True,
            topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
        )
        request = AddPartitionsToTxnRequest(transactions=[transaction])
        answer = producer.ask(producer.coordinator, request, 4, once=True)
        assert answer.error_code == ErrorCode.NONE
        return int(answer.results_by_transaction[0].topic_results[0].results[0].error_code)

    assert asked(TOPIC) == ErrorCode.NONE
    assert asked(OFFSETS_TOPIC) == ErrorCode.INVALID_TXN_STATE
    producer.end()
    assert asked(TOPIC) == ErrorCode.INVALID_TXN_STATE


def test_producer_tries_again_while_the_coordinator_is_down(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=2, settings=SETTINGS) as cluster:
        clients.create_topic(cluster.bootstrap, TOPIC, 1)
        *_, name = ids_of(cluster)
        producer = LateProducer(cluster, name)
        producer.add()
        cluster.brokers[producer.coordinator].kill()
        assert producer.produce(once=True) == ErrorCode.NOT_ENOUGH_REPLICAS
        assert producer.end_offset() == 0
        cluster.brokers[producer.coordinator].start()
        assert producer.produce() == ErrorCode.NONE
        producer.end()
        assert producer.stable_offset() == producer.end_offset() == 2


def test_verification_is_turned_off_while_brokers_run(tmp_path: Path) -> None:
    with Cluster(tmp_path, settings=SETTINGS) as cluster:
        clients.create_topic(cluster.bootstrap, TOPIC, 1)
        producer = LateProducer(cluster, "t")
        assert producer.produce() == ErrorCode.INVALID_TXN_STATE
        entry = ConfigEntry(SETTING, "false", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **clients.QUIET})
        admin.incremental_alter_configs([resource])[resource].result(60)
        wait_until(lambda: producer.produce() == ErrorCode.NONE, "the record is taken")
        assert producer.stable_offset() == 0


def test_who_hung_up_before_the_broker_read_its_request_ends_no_transaction(tmp_path: Path) -> None:
    """It may have asked again, and the next transaction have begun, in the same epoch."""
    with Cluster(tmp_path, settings=SETTINGS) as cluster:
        clients.create_topic(cluster.bootstrap, TOPIC, 1)
        producer = LateProducer(cluster, "t")
        producer.add()
        assert producer.produce() == ErrorCode.NONE
        marker = WritableTxnMarker(
            producer_id=producer.who["producer_id"],
            producer_epoch=producer.who["producer_epoch"],
            transaction_result=True,
            topics=[WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])],
            coordinator_epoch=0,
        )
        late = [
            (EndTxnRequest(**producer.who, committed=True), 3),
            (WriteTxnMarkersRequest(markers=[marker]), 0),
        ]
        broker = cluster.brokers[1]
        connections = [Connection(broker.port, ADMIN) for _ in late]
        for connection in connections:
            connection.ask(ApiVersionsRequest(), 0)  # it is accepted
        broker.signal(signal.SIGSTOP)
        for connection, (request, version) in zip(connections, late, strict=True):
            connection.send([request], version)
            connection.close()
        broker.signal(signal.SIGCONT)
        # On a connection that is accepted after the broker has read the others.
        assert producer.produce() == ErrorCode.NONE
        assert producer.stable_offset() == 0
        producer.end()
        assert producer.stable_offset() == producer.end_offset() == 3
