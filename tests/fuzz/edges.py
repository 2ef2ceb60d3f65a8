"""Values at the edges of each field, and plausible ones that let the other fields be looked at.

Names come from small pools: what a broker may rightly keep (topics, groups, producers, members) is
bounded by them, so memory that grows with the frames is a leak.
"""

from __future__ import annotations

from random import Random
from typing import Any

from odradek.protocol.api import ApiKey
from odradek.protocol.primitives import FIXED, MAX_STRING, Kind, write_uvarint
from tests.fuzz import corpus

STEADY_TOPIC = "steady"
"""What the producer that must not notice anything writes to."""

BROKERS = (1, 2, 3)
FUZZED_PARTITIONS = 3
NOW_MS = 1_700_000_000_000
# `fuzzed` stays; the others come and go. With 215 characters and more, a name is too long for a
# folder once the mark of deletion is behind it.
LONGEST_TOPIC = "l" * 249
PASSING_TOPICS = ("passing", "p" * 215, LONGEST_TOPIC)
KEPT_TOPICS = (corpus.TOPIC, "__consumer_offsets", "__transaction_state")
TOPICS = (*(corpus.TOPIC,) * 12, *PASSING_TOPICS, "__consumer_offsets", "no-topic")
GROUPS = ("group", "group", "group", "other", "g" * 249)
CONFIGS = {
    "cleanup.policy": ("compact", "delete", "compact,delete", "", "neither"),
    "segment.bytes": ("14", "100", "1073741824", "-1"),
    "segment.ms": ("1", "9223372036854775807", "0"),
    "retention.ms": ("0", "-1", "1", "9223372036854775807", "9223372036854775808"),
    "retention.bytes": ("0", "-1", "1"),
    "max.message.bytes": ("0", "100", "2147483647"),
    "min.insync.replicas": ("1", "2", "3", "2147483647", "0"),
    "flush.messages": ("1", "9223372036854775807", "0"),
    "index.interval.bytes": ("0", "1", "2147483647"),
    "segment.index.bytes": ("4", "8", "2147483647"),
    "message.format.version": ("0.8.2", "0.10.2", "2.8", "9.9"),
    "message.timestamp.type": ("LogAppendTime", "CreateTime", "x"),
    "message.timestamp.difference.max.ms": ("0", "9223372036854775807"),
    "compression.type": ("zstd", "gzip", "producer", "uncompressed", "x"),
    "leader.replication.throttled.replicas": ("*", "0:1", "0:1,,", ":", "2147483648:-1"),
    "unclean.leader.election.enable": ("true", "false", "TRUE", "1"),
    "x" * 249: ("x",),
    "": ("",),
}

_INTS = (
    -1,
    0,
    1,
    2,
    2**31 - 1,
    -2,
    -(2**31),
    2**63 - 1,
    -(2**63),
    2**32,
    127,
    128,
    32_767,
    -32_768,
)
# What is to be obeyed at all must not be a number that is rightly obeyed and takes hours.
MOST_NEW_PARTITIONS = 10_000
_SMALL_OR_REFUSED = (-2, -1, 0, 1, 2, 3, 2 * MOST_NEW_PARTITIONS, 2**31 - 1, -(2**31))
_TIMES = (0, -1, -2, 1, 2**63 - 1, -(2**63), 2**63 - 2, NOW_MS + 604_800_000)
_INTS_BY_NAME: dict[str, tuple[int, ...]] = {
    "num_partitions": _SMALL_OR_REFUSED,
    "count": _SMALL_OR_REFUSED,
    "replication_factor": (-2, -1, 0, 1, 3, 4, 32_767, -32_768),
    "timestamp": _TIMES,
    "commit_timestamp": _TIMES,
    "retention_time_ms": _TIMES,
    "offset": (-2, -1, 0, 1, 2**63 - 1, -(2**63), 2**31 - 1),
    "resource_type": (0, 1, 2, 3, 4, 8, 16, 127, -1, -128),
    "acks": (-2, -1, 0, 1, 2, 32_767, -32_768),
}

_WORDS = (
    "", "x" * 249, "x" * 250, "..", ".", "../x", "../../../../etc/passwd", "a/b", "a\0b", "/",
    "\u00e4" * 100, "\U0001f600", "a b", "%s%n", "__consumer_offsets", "x" * MAX_STRING,
    "-1", "2147483648", "0", "true", corpus.TOPIC + "-0", "fuzzed.delete", "a.b_c",
)  # fmt: skip
NOT_UTF8 = (b"\xff\xfe", b"\xed\xa0\x80", b"a\xc3", b"\xf8" * 249)
LENGTHS16 = (-2, -1, 0, 1, 32_767, -32_768)
LENGTHS32 = (-2, -1, 0, 1, 2**31 - 1, -(2**31), 1_000_001, 65_536)
# Of compact lengths 0 is null, and each is one more than it says.
COMPACT_LENGTHS = (0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 1_000_002)


# They make topics come and go; `fuzzed` would only be refused.
_ABOUT_PASSING_TOPICS = (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_TOPICS)


def plausible(key: ApiKey, name: str, kind: Kind, random: Random) -> Any:
    """Return a value with which a request of this key gets past the first checks."""
    match name:
        case "name" | "topic" | "topic_name" | "topic_names" | "resource_name":
            about_passing = key in _ABOUT_PASSING_TOPICS and random.random() < 0.8
            return random.choice(PASSING_TOPICS if about_passing else TOPICS)
        case "group_id" | "groups" | "groups_names" | "key":
            return random.choice(GROUPS)
        case "partition" | "partition_index" | "index" | "partition_indexes" | "partition_id":
            return random.randrange(FUZZED_PARTITIONS)
        case "broker_ids" | "replicas" | "leader" | "isr":
            return random.choice(BROKERS)
        case "configuration_keys":
            return random.choice([*CONFIGS])
        case "member_id":
            return random.choice(("", "", "member"))
        case "transactional_id":
            # Null is for producers without transactions, and few requests take it.
            may_be_null = key in (ApiKey.PRODUCE, ApiKey.INIT_PRODUCER_ID)
            return random.choice((None, None, "ours")) if may_be_null else "ours"
        case "group_instance_id":
            return random.choice((None, None, "instance"))
        case "controller_epoch":
            return random.choice((-1, 0))
        case "validate_only":
            return random.random() < 0.5
        case "acks":
            return random.choice((-1, -1, 1, 0))
        case "controller_id" | "num_partitions" | "replication_factor":
            return random.choice((1, 2, 3))
        case "count":
            return random.choice((2, 3, 4))
        case "min_bytes" | "generation_id" | "fetch_offset":
            return random.choice((0, 1, 100))
        case "broker_id":
            return 9
    if name in corpus.BY_NAME:
        return corpus.BY_NAME[name]
    return corpus.ZEROS[kind]


def number(name: str, kind: Kind, random: Random) -> int:
    """Return a number at an edge, which fits into its kind."""
    bits = 8 * FIXED[kind][1]
    chosen = random.choice(_INTS_BY_NAME.get(name, _INTS))
    return max(-(1 << bits - 1), min(chosen, (1 << bits - 1) - 1))


def word(random: Random) -> bytes:
    """Return a text at an edge, sometimes no UTF-8."""
    if random.random() < 0.1:
        return random.choice(NOT_UTF8)
    return random.choice(_WORDS).encode()


def config(random: Random) -> tuple[str, str | None]:
    """Return a setting of a topic and a value at its edges."""
    name = random.choice([*CONFIGS])
    return name, random.choice((*CONFIGS[name], None, "x", "2147483648", "1e3"))


def tags(random: Random, known: int | None = None) -> bytes:
    """Return a section of tagged fields: unknown, many, empty, huge, twice, or cut off."""
    body = random.choice((b"", b"\0", b"x" * 100, b"x" * 5000))
    number = random.choice((0, 1, 77, 2**31, 2**32 - 1) if known is None else (known, known, 5))
    one = write_uvarint(number) + write_uvarint(len(body)) + body
    match random.randrange(7):
        case 0:
            return write_uvarint(2**32 - 1) + one
        case 1:
            return write_uvarint(2) + one + one
        case 2:
            count = random.choice((127, 128, 10_000, 10_001, 100_000))
            return write_uvarint(count) + b"\x05\0" * count
        case 3:
            size = random.choice((len(body) + 1, 2**31 - 1, 2**32 - 1))
            return write_uvarint(1) + write_uvarint(number) + write_uvarint(size) + body
        case 4:
            return b"\x01\xff\xff\xff\xff\xff\x01\0"
        case _:
            return write_uvarint(1) + one
