"""Sound request frames, without their size, to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from odradek.handlers.dispatch import SERVED
from odradek.log.records import records
from odradek.protocol import codec, headers, schema
from odradek.protocol.api import APIS, ApiKey
from odradek.protocol.primitives import NO_UUID, Kind
from tests.support.messages import sample

TOPIC = "fuzzed"
CAPTURES = Path(__file__).with_name("captures.txt")

# What makes a request reach the broker's parts instead of failing the first check. Names that occur
# in no request keep their kind's zero.
BY_NAME: dict[str, Any] = {
    "acks": -1,
    "allow_auto_topic_creation": False,
    "broker_epoch": -1,
    "client_software_name": "fuzz",
    "client_software_version": "1",
    "count": 1,
    "fetch_offset": 0,
    "generation_id": 1,
    "group_id": "group",
    "groups": "group",
    "groups_names": "no-group",
    "key": "group",
    "log_start_offset": -1,
    "max_bytes": 20_000,
    "max_num_offsets": 1,
    "max_wait_ms": 1,
    "member_id": "",
    "name": TOPIC,
    "num_partitions": 1,
    "partition_max_bytes": 20_000,
    "producer_id": -1,
    "protocol_type": "consumer",
    "rebalance_timeout_ms": 6000,
    "replica_id": -1,
    "replication_factor": 1,
    "resource_name": TOPIC,
    "resource_type": 2,
    "session_timeout_ms": 6000,
    "timeout_ms": 100,
    "timestamp": -1,
    "topic": TOPIC,
    "topic_names": "no-topic",
    "transaction_timeout_ms": 1000,
    "transactional_id": None,
    "validate_only": True,
}
EMPTY = frozenset({"assignments", "configuration_keys", "forgotten_topics_data", "states_filter"})
ZEROS: dict[Kind, Any] = {
    Kind.BOOL: False,
    Kind.STRING: "x",
    Kind.BYTES: b"bytes",
    **dict.fromkeys((Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64), 0),
    Kind.FLOAT64: 0.0,
    Kind.UUID: NO_UUID,
}


def captured() -> list[bytes]:
    """Return requests that real clients sent, as `python -m tests.fuzz.record` recorded them."""
    lines = CAPTURES.read_text().splitlines()
    return [bytes.fromhex(line.rpartition(" ")[2]) for line in lines]


def generated() -> list[bytes]:
    """Return a plausible and two odd requests per key and version that the broker serves."""
    return [
        frame_of(message, version)
        for served in SERVED.values()
        for version in range(served.lowest, served.highest + 1)
        for message in (
            plausible(served.api.request, version),
            sample(served.api.request, version, "full"),
            sample(served.api.request, version, "bare"),
        )
    ]


def frame_of(request: Any, version: int) -> bytes:
    """Return the bytes of a request and its header."""
    api = next(one for one in APIS.values() if one.request is type(request))
    header = headers.RequestHeader(api.key, version, 7, "fuzz")
    return headers.encode_request_header(header) + codec.encode(request, version)


def plausible(cls: type[Any], version: int) -> Any:
    """Return a request with one element in each array, about a topic that exists."""
    values = {}
    for field in schema.of(cls).fields:
        item = field.type.item
        if not field.exists_in(version):
            value = field.absent_value()
        elif not isinstance(item, Kind):
            value = plausible(item, version)
        elif item is Kind.RECORDS:
            value = records.make([(b"key", b"value")], 1_700_000_000_000)
        else:
            value = BY_NAME.get(field.name, ZEROS[item])
            if value is None and not field.nullable_in(version):
                value = ZEROS[item]
        if field.exists_in(version) and field.type.is_array:
            value = [] if field.name in EMPTY else [value]
        values[field.name] = value
    return cls(**values)


def breaks_the_cluster(frame: bytes) -> bool:
    """Return whether a broker would rightly obey a sound request and end the test.

    Without authorization a broker believes anyone who claims to be a newer controller, as Kafka
    does, and gives up its leaderships when its own shutdown is announced.
    """
    try:
        header, position = headers.decode_request_header(frame)
        served = SERVED.get(header.api_key)
        if served is None or header.api_key not in _CONTROL:
            return False
        request, _ = codec.decode(served.api.request, header.api_version, frame, position)
    except Exception:  # the broker is what is to judge it
        return False
    if header.api_key == ApiKey.CONTROLLED_SHUTDOWN:
        return request.broker_id in (1, 2, 3)
    return bool(request.controller_epoch > 0)


_CONTROL = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
    }
)
