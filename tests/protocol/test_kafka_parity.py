"""The codec against bytes that Kafka and kafka-python write for the same messages."""

import importlib
import pkgutil
import warnings
from pathlib import Path
from typing import Any, cast

import pytest

from odradek.protocol import codec, interpreter
from odradek.protocol.api import APIS
from tests.support.kafka_vectors import UNKNOWN_TO_KAFKA, VARIANTS
from tests.support.messages import every_message, message_id, sample

# See tests/support/kafka_vectors.py for how this was made.
VECTORS = {
    (name, int(version), variant): bytes.fromhex(encoded)
    for name, version, variant, encoded in (
        line.split(" ")
        for line in Path(__file__).with_name("kafka_vectors.txt").read_text().splitlines()
    )
}
KNOWN_TO_KAFKA = [
    (cls, version)
    for cls, version in every_message()
    if (cls.__name__, version) not in UNKNOWN_TO_KAFKA
]


@pytest.mark.parametrize(("cls", "version"), KNOWN_TO_KAFKA, ids=message_id)
def test_bytes_are_those_of_kafka_clients(cls: type[Any], version: int) -> None:
    for variant in VARIANTS:
        message = sample(cls, version, variant)
        expected = VECTORS[cls.__name__, version, variant]
        assert codec.encode(message, version) == expected
        parts = cast("list[bytes]", interpreter.encode(message, version))
        assert b"".join(parts) == expected
        assert codec.decode(cls, version, expected) == (message, len(expected))


def test_every_vector_is_used() -> None:
    used = {(cls.__name__, version) for cls, version in KNOWN_TO_KAFKA}
    assert {(name, version) for name, version, _ in VECTORS} == used


def kafka_python_classes() -> dict[str, Any]:
    """Return kafka-python's message classes by name."""
    with warnings.catch_warnings():
        # kafka-python reads its definitions with importlib.resources.read_text.
        warnings.simplefilter("ignore", DeprecationWarning)
        package = importlib.import_module("kafka.protocol")
        for module in pkgutil.walk_packages(package.__path__, "kafka.protocol."):
            if not module.name.startswith(("kafka.protocol.old", "kafka.protocol.generate")):
                importlib.import_module(module.name)
    base = importlib.import_module("kafka.protocol.api_message").ApiMessage
    return {cls.__name__: cls for cls in base.__subclasses__()}


THEIRS = kafka_python_classes()
# kafka-python's definitions are those of Kafka 4, which has forgotten the oldest versions.
# Two classes do not write what they read: answers with an error are taken for version 0, and names
# of topics are moved to a field of later versions.
ASYMMETRIC = {"ApiVersionsResponse", "DeleteTopicsRequest"}
SHARED = [
    (cls, version)
    for cls, version in every_message()
    if cls.__name__ in THEIRS.keys() - ASYMMETRIC
    and THEIRS[cls.__name__].json["validVersions"] != "none"
    and version >= int(THEIRS[cls.__name__].json["validVersions"].partition("-")[0])
]


@pytest.mark.parametrize(("cls", "version"), SHARED, ids=message_id)
def test_kafka_python_reads_and_writes_the_same_bytes(cls: type[Any], version: int) -> None:
    message = sample(cls, version, "full")
    encoded = codec.encode(message, version)
    read = THEIRS[cls.__name__].decode(encoded, version=version)
    written = read.encode()
    assert codec.decode(cls, version, written) == (message, len(written))


def test_kafka_python_knows_most_apis() -> None:
    shared = {cls.__name__ for cls, _ in SHARED}
    assert len(shared) >= len(APIS)
