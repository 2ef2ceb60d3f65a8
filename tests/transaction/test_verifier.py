"""What leaders learn of coordinators: of this broker, of others, and of those that do not know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from odradek.log.partition.verification import Verification
from odradek.protocol.api import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from odradek.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from odradek.transaction.verifier import TransactionVerifier
from odradek.values import NO_LEADER, TRANSACTIONS_TOPIC, TopicPartition
from tests.support.one_partition import OnePartition

US, OTHER = 1, 2
ID = "a"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
E = ErrorCode


class Coordinator:
    """Broker 2, which answers `code` for each partition."""

    host, port = "other", 1

    def __init__(self) -> None:
        self.code: int = E.NONE
        self.error: int = E.NONE
        self.version = 4
        self.failure: type[Exception] | None = None
        self.asked: list[AddPartitionsToTxnRequest] = []
        self.release = asyncio.Event()
        self.release.set()

    async def call(self, request: Any, version: int, timeout_ms: int) -> Any:
        if self.failure is not None:
            raise self.failure
        if isinstance(request, ApiVersionsRequest):
            key = ApiVersion(
                api_key=ApiKey.ADD_PARTITIONS_TO_TXN, min_version=0, max_version=self.version
            )
            return ApiVersionsResponse(api_keys=[key])
        assert version == 4
        self.asked.append(request)
        await self.release.wait()
        if self.error:
            return AddPartitionsToTxnResponse(error_code=self.error)
        results = [
            AddPartitionsToTxnResult(
                transactional_id=one.transactional_id,
                topic_results=[
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results=[
                            AddPartitionsToTxnPartitionResult(
                                partition_index=index, error_code=self.code
                            )
                            for index in topic.partitions
                        ],
                    )
                    for topic in one.topics
                ],
            )
            for one in request.transactions
        ]
        return AddPartitionsToTxnResponse(results_by_transaction=results)

    async def close(self) -> None:
        return


class Own:
    """This broker's coordinator."""

    partition_count: Any = OnePartition()

    def verify_partitions(self, _: str, __: object, partitions: set[TopicPartition]) -> Any:
        return dict.fromkeys(partitions, E.INVALID_TXN_STATE)


class Asking:
    """A verifier of broker 1, and the leader that it knows."""

    def __init__(self) -> None:
        self.leader: int | None = OTHER
        self.other = Coordinator()
        self._tasks: set[asyncio.Task[None]] = set()
        self.verifier = TransactionVerifier(
            US,
            Own(),  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            lambda broker_id: self.other,  # type: ignore[arg-type,return-value]
            self._spawn,
        )

    def leader_of(self, partition: TopicPartition) -> int | None:
        assert partition == TopicPartition(TRANSACTIONS_TOPIC, 0)
        return self.leader

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def verify(
        self, *partitions: TopicPartition, transactional_id: str = ID, epoch: int = 0
    ) -> list[ErrorCode]:
        waiting = {key: Verification(7, epoch, 0, 0) for key in partitions or (T0,)}
        async with asyncio.timeout(60):
            return [*(await self.verifier.verify(transactional_id, waiting)).values()]


@pytest.fixture
async def asking() -> Asking:
    return Asking()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (E.NONE, E.NONE),
        (E.INVALID_TXN_STATE, E.INVALID_TXN_STATE),
        (E.INVALID_PRODUCER_ID_MAPPING, E.INVALID_PRODUCER_ID_MAPPING),
        (E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH),
        (E.CONCURRENT_TRANSACTIONS, E.NOT_ENOUGH_REPLICAS),
        (E.NOT_COORDINATOR, E.NOT_ENOUGH_REPLICAS),
        (E.COORDINATOR_NOT_AVAILABLE, E.NOT_ENOUGH_REPLICAS),
        (E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_ENOUGH_REPLICAS),
        (E.UNKNOWN_SERVER_ERROR, E.NOT_ENOUGH_REPLICAS),
    ],
)
async def test_producers_are_told_codes_that_they_know(
    asking: Asking, said: ErrorCode, code: ErrorCode
) -> None:
    asking.other.code = said
    assert await asking.verify(T0, T1) == [code, code]
    [request] = asking.other.asked
    [transaction] = request.transactions
    assert transaction.verify_only
    assert [topic.partitions for topic in transaction.topics] == [[0, 1]]


async def test_coordinator_on_this_broker_is_asked_without_a_request(asking: Asking) -> None:
    asking.leader = US
    assert await asking.verify() == [E.INVALID_TXN_STATE]
    assert not asking.other.asked


@pytest.mark.parametrize("leader", [None, NO_LEADER])
async def test_without_a_coordinator_nothing_is_known(asking: Asking, leader: int | None) -> None:
    asking.leader = leader
    assert await asking.verify() == [E.NOT_ENOUGH_REPLICAS]


@pytest.mark.parametrize("failure", [ConnectionError, TimeoutError])
async def test_without_an_answer_nothing_is_known_and_the_next_time_it_is(
    asking: Asking, failure: type[Exception]
) -> None:
    asking.other.failure = failure
    assert await asking.verify() == [E.NOT_ENOUGH_REPLICAS]
    asking.other.failure = None
    assert await asking.verify() == [E.NONE]


async def test_broker_that_may_not_ask_takes_no_transaction(asking: Asking) -> None:
    asking.other.error = E.CLUSTER_AUTHORIZATION_FAILED
    assert await asking.verify() == [E.INVALID_TXN_STATE]


async def test_coordinator_of_an_old_broker_is_not_asked_until_it_is_a_newer_one(
    asking: Asking,
) -> None:
    asking.other.version, asking.other.code = 3, E.INVALID_TXN_STATE
    assert await asking.verify() == [E.NONE]
    assert not asking.other.asked
    asking.other.version = 4
    assert await asking.verify() == [E.INVALID_TXN_STATE]


async def test_questions_go_out_together_behind_those_under_way(asking: Asking) -> None:
    await asking.verify()
    asking.other.release.clear()
    names = [f"id-{number}" for number in range(20)]
    waiting = []
    for name in names:
        waiting.append(asyncio.ensure_future(asking.verify(transactional_id=name)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await until(lambda: len(asking.other.asked) == 6)
    asking.other.release.set()
    assert await asyncio.gather(*waiting) == [[E.NONE]] * 20
    assert len(asking.other.asked) == 7
    asked = [one.transactional_id for it in asking.other.asked[1:] for one in it.transactions]
    assert sorted(asked) == sorted(names)


async def test_two_producers_of_one_id_are_not_in_one_request(asking: Asking) -> None:
    both = await asyncio.gather(asking.verify(epoch=0), asking.verify(T1, epoch=1))
    assert sorted(map(tuple, both)) in (
        [(E.NONE,), (E.NONE,)],
        [(E.NONE,), (E.NOT_ENOUGH_REPLICAS,)],
    )
    for request in asking.other.asked:
        names = [one.transactional_id for one in request.transactions]
        assert len(names) == len(set(names))


async def test_nobody_waits_once_the_broker_stops(asking: Asking) -> None:
    await asking.verifier.close()
    assert await asking.verify() == [E.NOT_ENOUGH_REPLICAS]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)
