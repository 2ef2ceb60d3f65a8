"""Prints every sample message as JSON, the input of KafkaVectors.java.

tests/protocol/kafka_vectors.txt was made by piping this into KafkaVectors, run with kafka-clients
2.8.2 on its class path; with 3.9.1 for the APIs of KIP-664, which 2.8 lacks. It has to be made anew
when `messages.sample` or a declaration changes.
"""

import base64
import json
from typing import Any

from odradek.protocol import schema
from odradek.protocol.primitives import Kind
from tests.support.messages import every_message, sample

VARIANTS = ("full", "bare")
# Kafka 2.8 ends at version 3. Version 4 of ApiVersions has the same layout.
UNKNOWN_TO_KAFKA = {
    ("ApiVersionsRequest", 4),
    ("ApiVersionsResponse", 4),
    ("AddPartitionsToTxnRequest", 4),
    ("AddPartitionsToTxnResponse", 4),
}


def as_json(message: Any, version: int) -> dict[str, Any]:
    """Return the form that Kafka's generated JSON converters read."""
    fields = {}
    for field in schema.of(type(message)).fields:
        value = getattr(message, field.name)
        left_out = field.tag is not None and value == field.absent_value()
        if not field.exists_in(version) or left_out:
            continue
        first, *rest = field.name.split("_")
        name = first + "".join(word.capitalize() for word in rest)
        if field.type.is_array and value is not None:
            fields[name] = [_item_as_json(field.type.item, item, version) for item in value]
        else:
            fields[name] = _item_as_json(field.type.item, value, version)
    return fields


def _item_as_json(item: Kind | type, value: Any, version: int) -> Any:
    if item is Kind.UUID:
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    if isinstance(value, bytes):
        return {"binary": base64.b64encode(value).decode()}
    if value is None or isinstance(item, Kind):
        return value
    return as_json(value, version)


def main() -> None:
    """Print one line for each message, version and variant."""
    for cls, version in every_message():
        if (cls.__name__, version) in UNKNOWN_TO_KAFKA:
            continue
        for variant in VARIANTS:
            text = json.dumps(as_json(sample(cls, version, variant), version))
            print(cls.__name__, version, variant, text, sep="\t")


if __name__ == "__main__":
    main()
