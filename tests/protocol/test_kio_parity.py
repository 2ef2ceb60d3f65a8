"""The codec against kio, an implementation of the protocol that was made from Kafka's definitions.

kio begins where Kafka 4 does, so the oldest versions and the controller's requests are not there.
"""

import dataclasses
import io
from typing import Any

import pytest
from kio import index, serial
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from odradek.protocol import codec
from odradek.protocol.api import APIS, ApiKey
from tests.support.kafka_vectors import VARIANTS
from tests.support.messages import every_message, message_id, sample

CONTROL = {
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
}
TIMES = {
    "expiry_timestamp_ms",
    "issue_timestamp_ms",
    "log_append_time_ms",
    "max_timestamp_ms",
    "transaction_start_time_ms",
}
KEYS = {entry.request: entry.key for entry in APIS.values()} | {
    entry.response: entry.key for entry in APIS.values()
}
REQUESTS = {entry.request for entry in APIS.values()}


def is_shared(cls: type[Any], version: int) -> bool:
    """Whether kio has the message. Its module is not loaded: every worker collects all tests."""
    kind = EntityType.request if cls in REQUESTS else EntityType.response
    name = api_key_map.get(int(KEYS[cls]), "")
    return kind in schema_name_map.get(name, {}).get(version, {})


SHARED = [(cls, version) for cls, version in every_message() if is_shared(cls, version)]


def plausible(value: Any) -> Any:
    """A sample whose error codes exist and whose times are after 1970: kio looks at both."""
    if isinstance(value, list):
        return [plausible(one) for one in value]
    if not dataclasses.is_dataclass(value):
        return value
    names = [field.name for field in dataclasses.fields(value)]
    fields = {name: plausible(getattr(value, name)) for name in names}
    if "error_code" in fields:
        fields["error_code"] //= 257  # by which samples count
    for name in TIMES & fields.keys():
        fields[name] = abs(fields[name])
    cls: type[Any] = type(value)
    return cls(**fields)


@pytest.mark.parametrize(("cls", "version"), SHARED, ids=message_id)
def test_kio_reads_what_is_written_and_writes_the_same_bytes(cls: type[Any], version: int) -> None:
    load = index.load_request_schema if cls in REQUESTS else index.load_response_schema
    kind = load(int(KEYS[cls]), version)
    for variant in VARIANTS:
        message = plausible(sample(cls, version, variant))
        encoded = codec.encode(message, version)
        read, size = serial.entity_reader(kind)(encoded, 0)
        assert size == len(encoded)
        written = io.BytesIO()
        serial.entity_writer(kind)(written, read)
        assert written.getvalue() == encoded
        assert codec.decode(cls, version, written.getvalue()) == (message, len(encoded))


def test_kio_lacks_only_old_versions_and_the_controllers_requests() -> None:
    newest = dict(every_message())
    reached = {cls for cls, version in SHARED if version == newest[cls]}
    assert {KEYS[cls] for cls in newest.keys() - reached} == CONTROL
