"""ApiVersions: what is served. Names that no client library may have are refused (KIP-511)."""

from __future__ import annotations

import pytest

from odradek.handlers.context import Broker, RequestContext
from odradek.handlers.dispatch import ADVERTISED, SERVED
from odradek.protocol.api import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse


async def asked(broker: Broker, name: str, software: str, version: int) -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=software)
    context = RequestContext(version, "c", "PLAINTEXT", "h", 1)
    answer = await SERVED[ApiKey.API_VERSIONS].handle(broker, request, context)
    assert isinstance(answer, ApiVersionsResponse)
    return answer


@pytest.mark.parametrize(
    ("name", "software"),
    [("", "1"), ("c", ""), ("c d", "1"), ("c", "1-"), (".c", "1"), ("c\n", "1"), ("\u00e9", "1")],
)
async def test_names_of_other_characters_are_refused(
    broker: Broker, name: str, software: str
) -> None:
    answer = await asked(broker, name, software, 3)
    assert (answer.error_code, answer.api_keys) == (ErrorCode.INVALID_REQUEST, [])


@pytest.mark.parametrize(
    ("name", "software", "version"),
    [
        ("apache-kafka-java", "4.1.0", 4),
        ("confluent-kafka-python", "2.16.0-rdkafka-2.16.0", 3),
        ("c", "1", 3),
        ("", "", 2),
    ],
)
async def test_others_and_clients_that_name_none_are_told_what_is_served(
    broker: Broker, name: str, software: str, version: int
) -> None:
    answer = await asked(broker, name, software, version)
    assert (answer.error_code, answer.api_keys) == (ErrorCode.NONE, list(ADVERTISED))


async def test_no_features_are_named_as_before_protocol_27_between_brokers(broker: Broker) -> None:
    answer = await asked(broker, "c", "1", 3)
    assert (answer.supported_features, answer.finalized_features) == ([], [])
    assert answer.finalized_features_epoch == -1


def test_requests_are_those_of_kafka_28_but_one_between_brokers_and_two_newer_ones() -> None:
    of_kafka = {*range(52), 56, 57, 60, 61}
    alter_isr = 56
    newer = {ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS}
    assert {one.api_key for one in ADVERTISED} == (of_kafka - {alter_isr}) | newer
