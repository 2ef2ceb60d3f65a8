"""While answers that nobody reads fill the memory, requests with large answers wait, no others."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from odradek.handlers.context import Broker
from odradek.handlers.dispatch import SERVED, Dispatcher
from odradek.net.client_info import Answer, ClientInfo
from odradek.net.memory_quotas import AnswerMemory
from odradek.protocol import codec, headers
from odradek.protocol.api import ApiKey
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.fetch import FetchRequest
from odradek.protocol.messages.metadata import MetadataRequest
from tests.support.control import state, update
from tests.support.replicas import Replicas

PEER = ClientInfo("127.0.0.1", 1, 1)
FETCH = FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0, topics=[])


class NotReading:
    """A client that reads none of its answer."""

    def answered_bytes(self) -> int:
        return 0

    def give_up_answer(self) -> None:
        """Stay: the test ends the answer."""


def frame(request: object, key: ApiKey, version: int) -> memoryview:
    header = headers.encode_request_header(headers.RequestHeader(key, version, 1, "c"))
    return memoryview(header + codec.encode(request, version))


async def dispatched(
    broker: Broker, answers: AnswerMemory, asked: memoryview
) -> asyncio.Future[Answer]:
    """Ask, and let what does not wait for other than the loop be done."""
    bounded = dataclasses.replace(broker, answers=answers)
    dispatcher = Dispatcher(bounded, "PLAINTEXT")
    asking = asyncio.ensure_future(dispatcher.dispatch(asked, PEER))
    for _ in range(20):
        await asyncio.sleep(0)
    return asking


@pytest.fixture
def informed(broker: Broker, replicas: Replicas) -> Broker:
    replicas.metadata.update(update(state()))
    return broker


async def test_large_answers_wait_until_others_are_read(informed: Broker) -> None:
    answers, slow = AnswerMemory(10), NotReading()
    answers.hold(slow, 10)
    asked = frame(MetadataRequest(topics=None), ApiKey.METADATA, 8)
    asking = await dispatched(informed, answers, asked)
    assert not asking.done()
    answers.release(slow)
    async with asyncio.timeout(60):
        assert await asking


@pytest.mark.parametrize(
    ("request_", "key", "version"),
    [
        pytest.param(ApiVersionsRequest(), ApiKey.API_VERSIONS, 0, id="small"),
        pytest.param(FETCH, ApiKey.FETCH, 4, id="regions of files"),
        pytest.param(update(state()), ApiKey.UPDATE_METADATA, 6, id="controller"),
    ],
)
async def test_others_do_not_wait(
    informed: Broker, request_: object, key: ApiKey, version: int
) -> None:
    answers, slow = AnswerMemory(10), NotReading()
    answers.hold(slow, 10)
    asking = await dispatched(informed, answers, frame(request_, key, version))
    async with asyncio.timeout(60):
        assert await asking
    answers.release(slow)


def test_nothing_between_brokers_waits() -> None:
    between_brokers = (
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.FETCH,
        ApiKey.PRODUCE,
    )
    assert not any(SERVED[key].large_answers for key in between_brokers)
