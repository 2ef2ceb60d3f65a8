"""End offsets of a batch, and their way to /consumers/G/offsets once the sink has the batch.

Spark writes `offsets/N` into the checkpoint before it runs batch N and `commits/N` after
foreachBatch returned. foreachBatch therefore does three things in this order: write the sink, read
the batch's end offsets from `offsets/N`, set them in ZooKeeper. Whatever dies in between,
`commits/N` is missing and the next driver runs batch N again over the same offsets: the sink
replaces what it had of batch N, and the same numbers are committed. So a commit never tells of a
record that the sink does not have.

A listener of query progress would not do: it runs beside the query, after `commits/N`, and a crash
between the two would leave an idle group with a lag for ever.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from odradek.zk.znodes import TopicPartition

_LOG_VERSION = "v1"
_NO_OFFSET = "-"


class CheckpointError(RuntimeError):
    """The checkpoint does not hold what Spark's offset log of version 1 holds."""


def parse_offset_log(text: str) -> dict[TopicPartition, int]:
    """Return the end offset (next to read) of each partition in one file of the offset log.

    The file is a line `v1`, a line of metadata, and a line of JSON for each source. One topic may
    be in several sources (a query that names a view twice); the batch is done up to the least of
    them.
    """
    lines = text.splitlines()
    if len(lines) < 3 or lines[0] != _LOG_VERSION:
        raise CheckpointError(
            f"an offset log of version {_LOG_VERSION} was expected: {text[:40]!r}"
        )
    ends: dict[TopicPartition, int] = {}
    for line in lines[2:]:
        if line == _NO_OFFSET:
            continue
        try:
            source = json.loads(line)
            for topic, partitions in source.items():
                for number, offset in partitions.items():
                    key = TopicPartition(topic, int(number))
                    ends[key] = min(int(offset), ends.get(key, int(offset)))
        except (ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"unreadable offsets of a source: {line[:80]!r}") from error
    return ends


def batch_ends(checkpoint: Path, batch_id: int) -> dict[TopicPartition, int]:
    """Read the end offsets of a batch that Spark runs or has run."""
    path = checkpoint / "offsets" / str(batch_id)
    try:
        return parse_offset_log(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def query_id(checkpoint: Path) -> str:
    """Return the id that Spark gave to this checkpoint's query for ever."""
    path = checkpoint / "metadata"
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"cannot read the query's id from {path}: {error}") from error


def is_new(checkpoint: Path) -> bool:
    """Tell whether no batch was ever planned here, so that starting offsets still count."""
    folder = checkpoint / "offsets"
    return not folder.is_dir() or not any(name.name.isdigit() for name in folder.iterdir())


def starting_offsets(
    partitions: list[TopicPartition], committed: Mapping[TopicPartition, int]
) -> str:
    """Return Spark's startingOffsets for a group: its commits, and the earliest record elsewhere.

    Spark wants every partition named; -2 is Kafka's number for the earliest offset.
    """
    earliest = -2
    by_topic: dict[str, dict[str, int]] = {}
    for partition in partitions:
        numbers = by_topic.setdefault(partition.topic, {})
        numbers[str(partition.partition)] = committed.get(partition, earliest)
    return json.dumps(by_topic)
