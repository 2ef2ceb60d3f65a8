"""Transactions that are decided, and stay so until a partition of theirs gets a leader.

No client leaves one like that at will, so its requests are made by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient

from odradek.log.records import records
from odradek.log.records.records import BatchOptions
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
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
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from odradek.values import NO_LEADER, BrokerId, ControllerEpoch, LeaderEpoch
from odradek.zk import znodes
from odradek.zk.znodes import PartitionState, TopicAssignment
from tests.support.asking import ADMIN, Connection
from tests.support.broker import wait_until
from tests.support.open_transactions import TIMEOUT_MS

NOBODY = BrokerId(9)
NOT_YET = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}


class LeaderlessTopic:
    """A topic of a broker that never was. No broker may run while it is changed."""

    def __init__(self, client: KazooClient, name: str, partitions: int) -> None:
        self.name = name
        self._client = client
        self._replicas = dict.fromkeys(range(partitions), (NOBODY,))
        client.create(znodes.topic_path(name), self._assignment, makepath=True)
        for partition in range(partitions):
            path = znodes.state_path(name, partition)
            client.create(path, _state_of(NOBODY), makepath=True)

    @property
    def _assignment(self) -> bytes:
        return znodes.encode_topic(TopicAssignment(self._replicas))

    def give(self, partition: int, broker_id: int) -> None:
        """Have a broker lead a partition when it starts."""
        self._replicas[partition] = (BrokerId(broker_id),)
        self._client.set(znodes.topic_path(self.name), self._assignment)
        path = znodes.state_path(self.name, partition)
        self._client.set(path, _state_of(BrokerId(broker_id)))


def _state_of(broker_id: BrokerId) -> bytes:
    return znodes.encode_state(
        PartitionState(NO_LEADER, LeaderEpoch(0), (broker_id,), ControllerEpoch(1))
    )


class PreparedProducer:
    """A producer of the only broker, which outlives its brokers with its id and epoch. It commits
    the offset of a group of its name.
    """

    def __init__(self, port: int, name: str, topic: str, *, commits: bool) -> None:
        self.name = name
        self.commits = commits
        self.values: list[str] = []
        self._port = port
        self._topic = topic
        self._producer_id, self._epoch = -1, -1
        self._offset, self._committed = 0, -1

    def initialize(self) -> None:
        """Get the next epoch of the same producer id, once the last transaction is complete."""
        request = InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=TIMEOUT_MS,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
        )
        answer = self._ask(request, 4, lambda one: one.error_code)
        if self._producer_id >= 0:
            wanted = self._producer_id, self._epoch + 1
            assert (answer.producer_id, answer.producer_epoch) == wanted
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch

    def prepare(self, leaderless: LeaderlessTopic, partition: int) -> None:
        """Decide a transaction that the leaderless partition holds up: a record and an offset."""
        who: dict[str, Any] = {
            "transactional_id": self.name,
            "producer_id": self._producer_id,
            "producer_epoch": self._epoch,
        }
        self._offset += 1
        value = f"{self.name} {self._offset}"
        topics = [
            AddPartitionsToTxnTopic(name=self._topic, partitions=[0]),
            AddPartitionsToTxnTopic(name=leaderless.name, partitions=[partition]),
        ]
        self._ask(AddPartitionsToTxnRequest(**who, topics=topics), 3, _first_error)
        self._write(value)
        self._ask(AddOffsetsToTxnRequest(**who, group_id=self.name), 3, lambda one: one.error_code)
        offset = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=self._offset)
        offsets = [TxnOffsetCommitRequestTopic(name=self._topic, partitions=[offset])]
        commit = TxnOffsetCommitRequest(**who, group_id=self.name, topics=offsets)
        self._ask(commit, 3, lambda one: one.topics[0].partitions[0].error_code)
        end = EndTxnRequest(**who, committed=self.commits)
        self._ask(end, 3, lambda one: one.error_code)
        if self.commits:
            self.values.append(value)
            self._committed = self._offset

    def _write(self, value: str) -> None:
        options = BatchOptions(
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=0,
            transactional=True,
        )
        data = records.make([(None, value.encode())], time.time_ns() // 1_000_000, options)
        place = PartitionProduceData(index=0, records=data)
        request = ProduceRequest(
            transactional_id=self.name,
            acks=-1,
            timeout_ms=60_000,
            topic_data=[TopicProduceData(name=self._topic, partition_data=[place])],
        )
        self._ask(request, 8, lambda one: one.responses[0].partition_responses[0].error_code)

    def check_offset(self) -> None:
        """The group's offset is that of the last committed transaction."""
        asked = OffsetFetchRequestTopic(name=self._topic, partition_indexes=[0])
        request = OffsetFetchRequest(group_id=self.name, topics=[asked], require_stable=True)
        answer = self._ask(
            request, 7, lambda one: one.error_code or one.topics[0].partitions[0].error_code
        )
        assert answer.topics[0].partitions[0].committed_offset == self._committed

    def _ask(self, request: Any, version: int, error_of: Callable[[Any], int]) -> Any:
        """Return the answer; ask again where a client would."""
        connection = Connection(self._port, ADMIN)
        answers: list[Any] = []

        def answered() -> bool:
            answers[:] = [connection.ask(request, version)]
            code = error_of(answers[0])
            assert code in {ErrorCode.NONE, *NOT_YET}, (self.name, request, ErrorCode(code))
            return code == ErrorCode.NONE

        wait_until(answered, f"{type(request).__name__} of {self.name} is answered")
        connection.close()
        return answers[0]


def _first_error(answer: Any) -> int:
    codes = [one.error_code for topic in answer.results for one in topic.results]
    return next((code for code in codes if code), ErrorCode.NONE)
