"""Znodes of consumer groups that balance through ZooKeeper (rows Z6, Z7, Z8).

A member of group G creates the ephemeral /consumers/G/ids/ID, owns each partition it reads by the
ephemeral /consumers/G/owners/T/P, and commits offsets to /consumers/G/offsets/T/P. Pure, like
`znodes`: old Kafka consumers, the Spark job, the operator and the broker share these znodes.

Only Odradek has /consumers/G/incarnations. Its child T says which topic T the offsets of the group
belong to, wherever they are stored; its own data names the last reset of offsets. Who deletes a
group in ZooKeeper deletes it, too. /consumers/G/epoch is for Spark jobs: the number of the driver
that started last, as decimal text.
"""

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from odradek.values import INTERNAL_TOPICS
from odradek.zk.payload import Fields, ZnodeError, dump, parse_integer, parse_text

CONSUMERS_PATH = "/consumers"
PATTERNS = ("static", "white_list", "black_list")
MOST_THREADS = 100_000
"""Threads of a member for one topic. Whoever works out an assignment makes a list of all."""
_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ConsumerRegistration:
    """Topics a member reads and with how many threads each; `pattern` is one of PATTERNS."""

    subscription: Mapping[str, int]
    pattern: str = "static"
    timestamp_ms: int = 0


def group_path(group: str) -> str:
    """Return /consumers/G."""
    return f"{CONSUMERS_PATH}/{group}"


def is_path(group: str) -> bool:
    """Return whether /consumers/G is a path below /consumers: ZooKeeper refuses empty and relative
    parts. Characters that it refuses, too, are left to it.
    """
    return all(part not in ("", ".", "..") for part in group.split("/"))


def consumer_ids_path(group: str) -> str:
    """Return /consumers/G/ids."""
    return f"{group_path(group)}/ids"


def consumer_id_path(group: str, consumer_id: str) -> str:
    """Return /consumers/G/ids/ID."""
    return f"{consumer_ids_path(group)}/{consumer_id}"


def new_consumer_id(group: str, host: str, timestamp_ms: int, source: uuid.UUID) -> str:
    """Return G_host-milliseconds-hex8, the id of a member without a configured consumer.id."""
    return f"{group}_{host}-{timestamp_ms}-{source.hex[:8]}"


def encode_consumer(registration: ConsumerRegistration) -> bytes:
    """Return the registration of a member."""
    return dump(
        {
            "version": 1,
            "subscription": dict(registration.subscription),
            "pattern": registration.pattern,
            "timestamp": str(registration.timestamp_ms),
        }
    )


def decode_consumer(path: str, data: bytes | None) -> ConsumerRegistration:
    """Read the registration of a member."""
    fields = Fields.parse(path, data)
    fields.require_version(1)
    pattern = fields.string("pattern", "static")
    if pattern not in PATTERNS:
        raise ZnodeError(path, f"pattern {pattern!r} is not one of {list(PATTERNS)}")
    subscription = fields.integer_map("subscription")
    most = max(subscription.values(), default=0)
    if most > MOST_THREADS:
        raise ZnodeError(path, f"{most} threads for one topic, over {MOST_THREADS}")
    return ConsumerRegistration(
        subscription=subscription,
        pattern=pattern,
        timestamp_ms=fields.integer("timestamp", 0),
    )


class TopicPattern(Protocol):
    """A compiled pattern, of whichever engine."""

    def fullmatch(self, name: str, /) -> object | None:
        """Return something where all of the name matches."""


def topics_matched(pattern: TopicPattern, existing: Iterable[str]) -> list[str]:
    """Return the topics that a pattern means, of those that exist."""
    return [name for name in existing if name not in INTERNAL_TOPICS and pattern.fullmatch(name)]


def topics_read(
    path: str, registration: ConsumerRegistration, existing: Iterable[str]
) -> dict[str, int]:
    """Return topic -> threads of a member; patterns are matched with the topics that exist.

    A pattern is Java's and matches the whole name; a comma in it means "or", as in Kafka's
    TopicFilter. Raises ZnodeError where it is none.
    """
    if registration.pattern == "static":
        return dict(registration.subscription)
    found: dict[str, int] = {}
    for text, threads in registration.subscription.items():
        try:
            pattern = re.compile(text.strip().replace(",", "|").replace(" ", "").strip("\"'"))
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise ZnodeError(path, f"{text[:80]!r} is not a pattern: {error}") from error
        listed = registration.pattern == "white_list"
        for topic in existing:
            if topic not in INTERNAL_TOPICS and (pattern.fullmatch(topic) is not None) is listed:
                found[topic] = threads
    return found


def owners_path(group: str, topic: str) -> str:
    """Return /consumers/G/owners/T."""
    return f"{group_path(group)}/owners/{topic}"


def owner_path(group: str, topic: str, partition: int) -> str:
    """Return /consumers/G/owners/T/P."""
    return f"{owners_path(group, topic)}/{partition}"


def encode_owner(consumer_id: str, thread: int) -> bytes:
    """Return ID-thread, who owns a partition."""
    return f"{consumer_id}-{thread}".encode()


def decode_owner(path: str, data: bytes | None) -> tuple[str, int]:
    """Read the owner of a partition as (consumer id, thread)."""
    text = parse_text(path, data)
    consumer_id, dash, thread = text.rpartition("-")
    number = _natural(thread)
    if not dash or not consumer_id or number is None:
        raise ZnodeError(path, f"{text[:80]!r} is not CONSUMER-THREAD")
    return consumer_id, number


def offsets_path(group: str, topic: str) -> str:
    """Return /consumers/G/offsets/T."""
    return f"{group_path(group)}/offsets/{topic}"


def offset_path(group: str, topic: str, partition: int) -> str:
    """Return /consumers/G/offsets/T/P."""
    return f"{offsets_path(group, topic)}/{partition}"


def partition_of(name: str) -> int | None:
    """Return the partition P of a child of owners/T or offsets/T; None for other names, which any
    client of ZooKeeper may have created there.
    """
    number = _natural(name)
    return number if number is not None and str(number) == name else None


def _natural(text: str) -> int | None:
    """Return a number from 0 to the largest int32 of its digits; None for another text."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_LARGEST))):
        return None
    number = int(text)
    return number if number <= _LARGEST else None


def encode_offset(offset: int) -> bytes:
    """Return the next offset to read, as decimal text."""
    return str(offset).encode()


def decode_offset(path: str, data: bytes | None) -> int:
    """Read the next offset to read, as it is."""
    return parse_integer(path, data)


def decode_commit(path: str, data: bytes | None) -> int:
    """Read a committed offset. Raises ZnodeError for -1 and other numbers below 0, which old
    consumers take for none.
    """
    offset = decode_offset(path, data)
    if offset < 0:
        raise ZnodeError(path, f"{offset} is no committed offset")
    return offset


def epoch_path(group: str) -> str:
    """Return /consumers/G/epoch, the number of the group's latest driver."""
    return f"{group_path(group)}/epoch"


def encode_epoch(epoch: int) -> bytes:
    """Return the number of the group's latest driver, as decimal text."""
    return str(epoch).encode()


def decode_epoch(path: str, data: bytes | None) -> int:
    """Read the number of the group's latest driver."""
    return parse_integer(path, data)


@dataclass(frozen=True, slots=True)
class TopicIncarnation:
    """One of the topics that had the same name, and how many partitions it has.

    `czxid` is the transaction that created its znode, `created_ms` the time of that (not stored).
    `topic_id` is None where the topic has none.
    """

    czxid: int
    topic_id: str | None
    partitions: int
    created_ms: int = field(default=0, compare=False)


def incarnations_path(group: str) -> str:
    """Return /consumers/G/incarnations, whose data is the request of the last reset, or empty."""
    return f"{group_path(group)}/incarnations"


def incarnation_path(group: str, topic: str) -> str:
    """Return /consumers/G/incarnations/T."""
    return f"{incarnations_path(group)}/{topic}"


def encode_incarnation(incarnation: TopicIncarnation) -> bytes:
    """Return the topic that a group's offsets belong to."""
    return dump(
        {
            "version": 1,
            "czxid": incarnation.czxid,
            "topic_id": incarnation.topic_id,
            "partitions": incarnation.partitions,
        }
    )


def decode_incarnation(path: str, data: bytes | None) -> TopicIncarnation:
    """Read the topic that a group's offsets belong to."""
    fields = Fields.parse(path, data)
    fields.require_version(1)
    return TopicIncarnation(
        fields.integer("czxid"), fields.optional_string("topic_id"), fields.integer("partitions")
    )
