"""DescribeConfigs: what is in force, whatever stands in ZooKeeper, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from odradek.handlers import configs
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from odradek.replica.metadata import PartitionInfo
from odradek.zk import znodes
from tests.support.replicas import TOPIC, Replicas

CONTEXT = RequestContext(4, "c", "PLAINTEXT", "h", 1)
LONGEST_STRING = 2**15 - 1


async def describe(
    broker: Broker, resources: list[DescribeConfigsResource]
) -> list[DescribeConfigsResult]:
    """The results as a client reads them."""
    request = DescribeConfigsRequest(resources=resources)
    answer = await configs.describe_configs(broker, request, CONTEXT)
    body = answer if isinstance(answer, bytes) else codec.encode(answer, CONTEXT.version)
    return codec.decode(DescribeConfigsResponse, CONTEXT.version, body)[0].results


async def described(
    broker: Broker, kind: int, name: str, *keys: str
) -> tuple[DescribeConfigsResult, dict[str, str | None]]:
    """The answer about one resource, and its settings by name."""
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    [result] = await describe(broker, [resource])
    return result, {one.name: one.value for one in result.configs}


def store(replicas: Replicas, broker: Broker, data: bytes) -> None:
    """The topic exists, with these bytes as its entries."""
    broker.metadata.topics[TOPIC] = {0: PartitionInfo(1, 0, (1,), (1,), ())}
    replicas.session.znodes[znodes.topic_config_path(TOPIC)] = data, 0


@pytest.mark.parametrize(
    ("data", "segment_ms"),
    [
        (znodes.encode_config({"retention.ms": "-2", "segment.ms": "7"}), "7"),
        (znodes.encode_config({"remote.storage.enable": "true", "segment.ms": "7"}), "7"),
        (b"no json", "604800000"),
        (b'{"version":9,"config":{}}', "604800000"),
    ],
    ids=["impossible value", "unknown name", "no JSON", "unknown version"],
)
async def test_entries_that_make_no_sense_are_left_out_as_they_are_from_what_is_in_force(
    replicas: Replicas, broker: Broker, data: bytes, segment_ms: str
) -> None:
    store(replicas, broker, data)
    result, found = await described(broker, configs.TOPIC, TOPIC)
    assert result.error_code == ErrorCode.NONE
    assert found["retention.ms"] == "604800000"
    assert found["segment.ms"] == segment_ms
    assert "remote.storage.enable" not in found


@pytest.mark.parametrize(
    "name", ["9" * LONGEST_STRING, "x" * LONGEST_STRING, "2", "-1", "\N{SUPERSCRIPT ONE}"]
)
async def test_no_other_broker_is_described(broker: Broker, name: str) -> None:
    result, found = await described(broker, configs.BROKER, name)
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert not found


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("not a name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * LONGEST_STRING, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_topic_that_is_not_there_is_told(broker: Broker, name: str, code: ErrorCode) -> None:
    result, found = await described(broker, configs.TOPIC, name)
    assert result.error_code == code
    assert not found


async def test_what_is_asked_for_twice_is_answered_once(broker: Broker) -> None:
    whole = DescribeConfigsResource(resource_type=configs.BROKER, resource_name="1")
    part = DescribeConfigsResource(
        resource_type=configs.BROKER, resource_name="1", configuration_keys=["broker.id"]
    )
    results = await describe(broker, [whole, part] * 5000)
    assert [len(one.configs) > 1 for one in results] == [True, False]


async def test_many_resources_hold_up_nobody_else(broker: Broker) -> None:
    resources = [
        DescribeConfigsResource(
            resource_type=configs.BROKER, resource_name="1", configuration_keys=["broker.id", other]
        )
        for other in map(str, range(100))
    ]
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(count_turns())
    results = await describe(broker, resources)
    other.cancel()
    assert len(results) == len(resources)
    assert turns >= len(resources) - 1
