"""End offsets of a batch, and their way to /consumers/G/offsets once the sink has the batch.

Spark writes `offsets/N` into the checkpoint before it runs batch N and `commits/N` after
foreachBatch returned. foreachBatch therefore does three things in this order: write the sink, read
the batch's end offsets from `offsets/N`, set them in ZooKeeper. Whatever dies in between,
`commits/N` is missing and the next driver runs batch N again over the same offsets: the sink
replaces what it had of batch N, and the same numbers are committed. So a commit never tells of a
record that the sink does not have.

A listener of query progress would not do: it runs beside the query, after `commits/N`, and a crash
between the two would leave an idle group with a lag for ever.

A member of a group whose share changes goes on at the group's offsets, which others may have moved,
and not where its own checkpoint ends. Spark has no word for that, but it begins each batch where
`offsets/N` of the last batch ends: `rewrite_start` writes that anew between two runs of the query.
"""

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from odradek.values import TopicPartition

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


def batch_ends(checkpoint: Path, batch_id: int) -> dict[TopicPartition, int]:
    """Read the end offsets of a batch that Spark runs or has run."""
    path = checkpoint / "offsets" / str(batch_id)
    try:
        return parse_offset_log(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def _query_start(checkpoint: Path) -> dict[TopicPartition, int]:
    """Read where the first batch begins, which Spark notes before it plans one.

    The file is a zero byte, a line with the version, and the offsets. Without it nothing is known.
    """
    try:
        text = (checkpoint / "sources" / "0" / "0").read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    return _parse_source(text.partition("\n")[2])


def query_id(checkpoint: Path) -> str:
    """Return the id that Spark gave to this checkpoint's query for ever."""
    path = checkpoint / "metadata"
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"cannot read the query's id from {path}: {error}") from error


@dataclass(frozen=True, slots=True)
class CheckpointProgress:
    """The newest batch that a checkpoint knows: its number and its end offsets.

    With `pending` it was planned and never finished, and `done` is where it begins.
    """

    batch_id: int
    ends: Mapping[TopicPartition, int]
    pending: bool = False
    done: Mapping[TopicPartition, int] = field(default_factory=dict)


def progress(checkpoint: Path) -> CheckpointProgress | None:
    """Read how far the checkpoint's query came; None where it never planned a batch."""
    planned = _numbers(checkpoint / "offsets")
    if not planned:
        return None
    last = planned[-1]
    pending = last not in _numbers(checkpoint / "commits")
    if not pending:
        return CheckpointProgress(last, batch_ends(checkpoint, last))
    is_first = len(planned) == 1
    done = _query_start(checkpoint) if is_first else batch_ends(checkpoint, planned[-2])
    return CheckpointProgress(last, batch_ends(checkpoint, last), pending, done)


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit())


def can_resume(
    known: CheckpointProgress,
    share: Collection[TopicPartition],
    committed: Mapping[TopicPartition, int],
    stateful: bool,
) -> bool:
    """Tell whether the query may go on by itself: its share is the same and nobody else read it.

    A batch that was planned and not finished may be committed already, or not. Where all of it is,
    the sink has it, or somebody let the group begin behind it: it need not be repeated, unless the
    query's state has to be brought to that batch.
    """
    if known.pending and not stateful and committed == known.ends:
        return False
    return set(share) == known.ends.keys() and all(
        committed[partition] == end
        or (known.pending and committed[partition] == known.done.get(partition))
        for partition, end in known.ends.items()
        if partition in committed
    )


def resume_offsets(
    known: CheckpointProgress | None,
    share: Collection[TopicPartition],
    committed: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return where reading goes on: at the group's offsets, or else where the checkpoint ends.

    What neither knows is left out.
    """
    own: Mapping[TopicPartition, int] = {}
    if known is not None:
        own = known.done if known.pending else known.ends
    found = {**own, **committed}
    return {partition: found[partition] for partition in share if partition in found}


def has_state(checkpoint: Path) -> bool:
    """Tell whether the query keeps state, which is as of a batch and cannot skip one."""
    return (checkpoint / "state").is_dir()


def rewrite_start(
    checkpoint: Path, known: CheckpointProgress | None, places: Mapping[TopicPartition, int]
) -> None:
    """Let the next batch begin at `places` and read nothing else; no query may be running.

    A batch that was planned and never finished counts as finished. Without any batch, what Spark
    noted as the query's start is removed, so that its starting offsets are heeded again.
    """
    if known is None:
        shutil.rmtree(checkpoint / "sources", ignore_errors=True)
        return
    # The batch is finished first: one with new ends that was still to be run would read from the
    # old ones on.
    if known.pending:
        done = checkpoint / "commits" / str(known.batch_id)
        before = done.with_name(str(known.batch_id - 1))
        text = f'{_LOG_VERSION}\n{{"nextBatchWatermarkMs":0}}'
        if before.exists():
            text = before.read_text(encoding="utf-8")
        done.parent.mkdir(parents=True, exist_ok=True)
        _replace(done, text)
    path = checkpoint / "offsets" / str(known.batch_id)
    lines = path.read_text(encoding="utf-8").splitlines()
    line = _by_topic(places)
    _replace(path, "\n".join([*lines[:2], *(line for _ in lines[2:])]))


def _replace(path: Path, text: str) -> None:
    # Hadoop would take the file for damaged while the checksum of the old one lies beside it.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def starting_offsets(places: Mapping[TopicPartition, int]) -> str:
    """Return Spark's startingOffsets, which must name every partition that is read."""
    return _by_topic(places)


def assignment(share: Collection[TopicPartition]) -> str:
    """Return Spark's assign: the partitions that a query reads, and no others."""
    topics: dict[str, list[int]] = {}
    for partition in sorted(share):
        topics.setdefault(partition.topic, []).append(partition.partition)
    return json.dumps(topics)


def _by_topic(places: Mapping[TopicPartition, int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(places.items()):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return json.dumps(topics)
