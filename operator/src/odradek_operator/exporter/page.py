"""The page for Prometheus, in its text format, compressed.

prometheus_client makes several objects per series, which is too much for a hundred thousand
partitions. So the text is written here, line by line, into gzip.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from odradek_operator.exporter.lags import VERDICTS, ExportedGroup, ExportedPartition, Lags
from odradek_operator.exporter.logs import LogBounds

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# More makes the page hardly smaller, and a round much slower.
_COMPRESSION: Final = 1

Number = int | float


@dataclass(frozen=True, slots=True)
class Rounds:
    """The exporter about itself: failures by what failed, and the seconds of the last round."""

    failures: Mapping[str, int]
    seconds: float | None


_OF_PARTITION: Final[tuple[tuple[str, str, Callable[[ExportedPartition], Number | None]], ...]] = (
    (
        "kafka_consumergroup_lag",
        "Records after the committed offset.",
        lambda one: one.lag,
    ),
    (
        "kafka_consumergroup_current_offset",
        "Committed offset of the group.",
        lambda one: one.committed,
    ),
    (
        "kafka_consumergroup_lag_seconds",
        "Seconds since the next record to be read was appended.",
        lambda one: one.seconds,
    ),
    (
        "odradek_consumergroup_commit_unchanged_seconds",
        "Seconds for which the committed offset has not changed although there was lag.",
        lambda one: one.unchanged_seconds,
    ),
)


_OF_LOG: Final[tuple[tuple[str, str, Callable[[LogBounds], int]], ...]] = (
    (
        "kafka_topic_partition_current_offset",
        "End offset of the partition.",
        lambda one: one.end,
    ),
    (
        "kafka_topic_partition_oldest_offset",
        "Log start offset of the partition.",
        lambda one: one.start,
    ),
)


def render(lags: Lags, rounds: Rounds) -> bytes:
    """Return the page as gzip."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=_COMPRESSION, mtime=0) as page:
        for piece in _pieces(lags, rounds):
            page.write(piece.encode())
    return buffer.getvalue()


def _pieces(lags: Lags, rounds: Rounds) -> Iterator[str]:
    groups = lags.groups
    names = {name: f'consumergroup="{_escape(name)}"' for name in groups}
    for metric, text, value in _OF_PARTITION:
        yield _head(metric, text)
        for name, group in groups.items():
            yield "".join(_of_partitions(metric, names[name], group, value))
    for metric, text, by_topic in (
        (
            "kafka_consumergroup_lag_sum",
            "Records after the committed offsets, over the partitions of the topic with a commit.",
            ExportedGroup.sums,
        ),
        (
            "kafka_consumergroup_current_offset_sum",
            "Committed offsets of the group, over the partitions of the topic with a commit.",
            ExportedGroup.committed_sums,
        ),
        (
            "odradek_consumergroup_partitions_without_commit",
            "Partitions of the topic in which the group has no committed offset.",
            lambda group: group.uncommitted,
        ),
    ):
        yield _head(metric, text)
        for name, group in groups.items():
            for topic, number in by_topic(group).items():
                yield f'{metric}{{{names[name]},topic="{_escape(topic)}"}} {number}\n'
    yield _head("kafka_consumergroup_members", "Members of the group.")
    for name, group in groups.items():
        yield f"kafka_consumergroup_members{{{names[name]}}} {group.members}\n"
    yield _head(
        "odradek_consumergroup_verdict", "1 for the verdict on the group, as Burrow's; else 0."
    )
    for name, group in groups.items():
        found = group.verdict()
        for one in VERDICTS if found else ():
            labels = f'{names[name]},verdict="{one}"'
            yield f"odradek_consumergroup_verdict{{{labels}}} {int(one == found)}\n"
    metric = "odradek_consumergroup_lag_read_timestamp_seconds"
    yield _head(
        metric,
        "Unix time of the last read; an old one means that brokers or ZooKeeper do not answer.",
    )
    for name, group in groups.items():
        if group.read_unix is not None:
            yield f"{metric}{{{names[name]}}} {group.read_unix:.3f}\n"
    yield from _of_topics(lags)
    yield from _own(len(groups), rounds)


def _of_partitions(
    metric: str,
    labels: str,
    group: ExportedGroup,
    value: Callable[[ExportedPartition], Number | None],
) -> Iterable[str]:
    for (topic, number), one in group.partitions.items():
        shown = value(one)
        if shown is not None:
            place = f'topic="{_escape(topic)}",partition="{number}"'
            yield f"{metric}{{{labels},{place}}} {shown}\n"


def _of_topics(lags: Lags) -> Iterator[str]:
    """Yield what dashboards show beside groups: the topics that groups read."""
    metric = "kafka_topic_partitions"
    yield _head(metric, "Partitions of the topic.")
    for topic, count in lags.partition_counts.items():
        yield f'{metric}{{topic="{_escape(topic)}"}} {count}\n'
    logs = lags.bounds
    for metric, text, value in _OF_LOG:
        yield _head(metric, text)
        for (topic, number), bounds in logs.items():
            place = f'topic="{_escape(topic)}",partition="{number}"'
            yield f"{metric}{{{place}}} {value(bounds)}\n"


def _own(groups: int, rounds: Rounds) -> Iterator[str]:
    yield _head("odradek_exporter_groups", "Consumer groups with series.")
    yield f"odradek_exporter_groups {groups}\n"
    if rounds.seconds is not None:
        yield _head("odradek_exporter_round_seconds", "Seconds that the last round took.")
        yield f"odradek_exporter_round_seconds {rounds.seconds:.3f}\n"
    metric = "odradek_exporter_round_failures_total"
    yield _head(metric, "What rounds failed to read, by its kind.", "counter")
    for kind, count in rounds.failures.items():
        yield f'{metric}{{kind="{kind}"}} {count}\n'


def _head(metric: str, text: str, kind: str = "gauge") -> str:
    return f"# HELP {metric} {text}\n# TYPE {metric} {kind}\n"


@lru_cache(10_000)
def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
