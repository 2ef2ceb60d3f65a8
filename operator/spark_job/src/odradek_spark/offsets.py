"""Reads and rewrites the offsets in a Spark checkpoint, so that commits follow the sink.

Spark writes `offsets/N` into the checkpoint before it runs micro-batch N, and `commits/N` after
foreachBatch returned. foreachBatch therefore does three things in this order: write the sink, read
the batch's end offsets from `offsets/N`, commit them. If the driver dies in between, `commits/N` is
missing and the next driver runs batch N again over the same offsets: the sink restarts batch N, and
the same offsets are committed. So a committed record is always in the sink.

A listener of query progress would not do: it runs beside the query, after `commits/N`, and a crash
between the two would leave an idle group with a lag forever.

After a rebalance a member continues at the group's offsets, which others may have moved, and not
where its own checkpoint ends. Spark has no option for that, but it begins each batch where
`offsets/N` of the last batch ends: `rewrite_start` rewrites that file between two runs of the
query.
"""

import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from odradek.values import TopicPartition
from odradek_spark.storage import StorageFolder

_LOG_VERSION = "v1"
_NO_OFFSET = "-"


class CheckpointError(RuntimeError):
    """The checkpoint is not in the format of Spark's offset log, version 1."""


def parse_offset_log(text: str) -> dict[TopicPartition, int]:
    """Return the end offset (next to read) per partition in one file of the offset log.

    The file is a line `v1`, a line of metadata, and a line of JSON per source. A topic may be in
    several sources (a query that names a view twice); the lowest offset counts.
    """
    lines = text.splitlines()
    if len(lines) < 3 or lines[0] != _LOG_VERSION:
        raise CheckpointError(f"expected an offset log of version {_LOG_VERSION}: {text[:40]!r}")
    ends: dict[TopicPartition, int] = {}
    for line in lines[2:]:
        if line == _NO_OFFSET:
            continue
        for key, offset in _parse_source(line).items():
            ends[key] = min(offset, ends.get(key, offset))
    return ends


def _parse_source(line: str) -> dict[TopicPartition, int]:
    try:
        return {
            TopicPartition(topic, int(number)): int(offset)
            for topic, partitions in json.loads(line).items()
            for number, offset in partitions.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"unreadable offsets of a source: {line[:80]!r}") from error


def batch_ends(checkpoint: StorageFolder, batch_id: int) -> dict[TopicPartition, int]:
    """Return the end offsets of a batch that Spark runs or ran. Raises CheckpointError."""
    name = f"offsets/{batch_id}"
    try:
        text = checkpoint.read(name)
    except OSError as error:
        raise CheckpointError(f"cannot read {checkpoint.url}/{name}: {error}") from error
    if text is None:
        raise CheckpointError(f"there is no {checkpoint.url}/{name}")
    return parse_offset_log(text)


def source_count(checkpoint: StorageFolder) -> int | None:
    """Return from how many sources the newest batch reads; None if there is no batch."""
    planned = _numbers(checkpoint, "offsets")
    if not planned:
        return None
    return len((checkpoint.read(f"offsets/{planned[-1]}") or "").splitlines()) - 2


def _query_start(checkpoint: StorageFolder) -> dict[TopicPartition, int]:
    """Return the start offsets of the first batch, which Spark stores before it plans one.

    The file is a zero byte, a line with the version, and the offsets. It may not exist yet.
    """
    text = checkpoint.read("sources/0/0")
    return {} if text is None else _parse_source(text.partition("\n")[2])


def query_id(checkpoint: StorageFolder) -> str:
    """Return the query id that Spark stored in this checkpoint. Raises CheckpointError."""
    try:
        return str(json.loads(checkpoint.read("metadata") or "")["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        path = f"{checkpoint.url}/metadata"
        raise CheckpointError(f"cannot read the query's id from {path}: {error}") from error


def renew_query_id(checkpoint: StorageFolder) -> None:
    """Give the checkpoint's query a new id: sinks count its batches anew. No query may run."""
    checkpoint.write("metadata", json.dumps({"id": str(uuid.uuid4())}))


@dataclass(frozen=True, slots=True)
class CheckpointProgress:
    """The newest batch in a checkpoint: its number and its end offsets.

    With `pending` the batch was planned and not finished, and `starts` has its start offsets.
    """

    batch_id: int
    ends: Mapping[TopicPartition, int]
    pending: bool = False
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)


def progress(checkpoint: StorageFolder) -> CheckpointProgress | None:
    """Return the newest batch of the checkpoint's query; None if it never planned one."""
    planned = _numbers(checkpoint, "offsets")
    if not planned:
        return None
    last = planned[-1]
    pending = last not in _numbers(checkpoint, "commits")
    if not pending:
        return CheckpointProgress(last, batch_ends(checkpoint, last))
    is_first = len(planned) == 1
    starts = _query_start(checkpoint) if is_first else batch_ends(checkpoint, planned[-2])
    return CheckpointProgress(last, batch_ends(checkpoint, last), pending, starts)


def _numbers(checkpoint: StorageFolder, folder: str) -> list[int]:
    return sorted(int(name) for name in checkpoint.names(folder) if name.isdigit())


def can_resume(
    known: CheckpointProgress,
    assigned: Collection[TopicPartition],
    committed: Mapping[TopicPartition, int],
    stateful: bool,
) -> bool:
    """Return whether Spark can resume from the checkpoint as it is.

    It can if the assignment is the same and nobody else committed offsets. A pending batch may be
    committed already, or not. If all of it is committed, the sink has it, or somebody reset the
    offsets to its end: it need not run again, unless the query's state needs that batch.
    """
    if known.pending and not stateful and committed == known.ends:
        return False
    return set(assigned) == known.ends.keys() and all(
        committed[partition] == end
        or (known.pending and committed[partition] == known.starts.get(partition))
        for partition, end in known.ends.items()
        if partition in committed
    )


def is_own_pending(
    known: CheckpointProgress,
    assigned: Collection[TopicPartition],
    committed: Mapping[TopicPartition, int],
) -> bool:
    """Return whether the pending batch is to be run although other partitions came along.

    The sink may have it, so its records must not come again in another batch. Nobody else may have
    read its partitions, and it may not be committed whole.
    """
    ends = known.ends.items()
    return (
        known.pending
        and set(known.ends) <= set(assigned)
        and all(committed.get(part) in (None, known.starts.get(part), end) for part, end in ends)
        and any(committed.get(part) != end for part, end in ends)
    )


def uncommitted_ends(
    known: CheckpointProgress,
    assigned: Collection[TopicPartition],
    committed: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return where the pending batch ends in those of its partitions that are still assigned.

    Leave out what is committed already. Empty without a pending batch, and if somebody moved the
    group's offset in one of them.
    """
    ends = {part: end for part, end in known.ends.items() if part in assigned}
    is_untouched = known.pending and all(
        committed.get(part) in (None, known.starts.get(part), end) for part, end in ends.items()
    )
    if not is_untouched:
        return {}
    return {part: end for part, end in ends.items() if committed.get(part) != end}


def resume_offsets(
    known: CheckpointProgress | None,
    assigned: Collection[TopicPartition],
    committed: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return where to resume: at the group's offsets, or else where the checkpoint ends.

    Partitions without either are left out.
    """
    found = {**own_offsets(known), **committed}
    return {partition: found[partition] for partition in assigned if partition in found}


def own_offsets(known: CheckpointProgress | None) -> Mapping[TopicPartition, int]:
    """Return where the checkpoint ends; a pending batch does not count."""
    if known is None:
        return {}
    return known.starts if known.pending else known.ends


def forget(
    checkpoint: StorageFolder,
    known: CheckpointProgress,
    lost: Collection[TopicPartition],
    drop_pending: bool,
) -> CheckpointProgress | None:
    """Remove partitions from the checkpoint, and return its progress. No query may be running.

    A pending batch has to be planned again: its records are gone. It counts as finished, so that
    the next batch has another number and no sink takes it for a copy. With `drop_pending` it does
    not, and the next batch has its number, because state belongs to a number.
    """
    own = own_offsets(known)
    if known.pending and drop_pending:
        checkpoint.remove(f"offsets/{known.batch_id}")
        left = progress(checkpoint)
        if left is None:
            rewrite_start(checkpoint, None, {})
            return None
        known = left
    kept = {partition: offset for partition, offset in own.items() if partition not in lost}
    rewrite_start(checkpoint, known, kept)
    return progress(checkpoint)


def discard(checkpoint: StorageFolder, kept: str = "") -> None:
    """Delete a checkpoint, but for the file `kept`. No query may be running.

    Its offsets go last: who dies in between finds some at the next start, and discards it again.
    """
    for name in sorted(checkpoint.names(""), key=lambda one: one == "offsets"):
        if name != kept:
            checkpoint.remove(name)


def has_state(checkpoint: StorageFolder) -> bool:
    """Return whether the query keeps state. State belongs to a batch and cannot skip one."""
    return bool(checkpoint.names("state"))


def rewrite_start(
    checkpoint: StorageFolder,
    known: CheckpointProgress | None,
    starts: Mapping[TopicPartition, int],
) -> None:
    """Make the next batch begin at `starts` and read no other partition. No query may be running.

    A pending batch counts as finished. Without any batch, remove the start offsets that Spark
    stored, so that it uses its option startingOffsets again.
    """
    if known is None:
        checkpoint.remove("sources")
        return
    # Finish the batch first: a pending batch with new end offsets would read from the old ones on.
    if known.pending:
        text = checkpoint.read(f"commits/{known.batch_id - 1}")
        if text is None:
            text = f'{_LOG_VERSION}\n{{"nextBatchWatermarkMs":0}}'
        checkpoint.write(f"commits/{known.batch_id}", text)
    name = f"offsets/{known.batch_id}"
    lines = (checkpoint.read(name) or "").splitlines()
    line = _by_topic(starts)
    checkpoint.write(name, "\n".join([*lines[:2], *(line for _ in lines[2:])]))


def starting_offsets(starts: Mapping[TopicPartition, int]) -> str:
    """Return Spark's option startingOffsets, which must name every partition that is read."""
    return _by_topic(starts)


def assign_option(assigned: Collection[TopicPartition]) -> str:
    """Return Spark's option assign: the partitions that a query reads, and no others."""
    topics: dict[str, list[int]] = {}
    for partition in sorted(assigned):
        topics.setdefault(partition.topic, []).append(partition.partition)
    return json.dumps(topics)


def _by_topic(offsets: Mapping[TopicPartition, int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(offsets.items()):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return json.dumps(topics)
