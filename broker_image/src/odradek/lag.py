"""The lag of a consumer group in one partition: one rule for tools, exporter, operator and jobs.

Read committed offsets first and the bounds of logs after them. The other order would count records
that were committed in between, and give a negative lag as many exporters do.

The lag is the number of records from the first unread one to the end of the log:

- A commit below the log start (retention or DeleteRecords overtook the group) counts as the start.
- A commit beyond the end, or of a former topic of that name, says nothing of the records that are
  there: all of them are unread.
- Without a commit the lag is unknown, for "everything" and "nothing" would both be a guess; only an
  empty log has none. What no leader tells is unknown, too, and never 0.

Pure. None means unknown.
"""

from __future__ import annotations

from typing import Final

WORST_PARTITIONS: Final = 10
"""How many partitions a group's status names, those with the most unread records."""


def is_of_former_topic(written: int, created: int) -> bool:
    """Return whether an offset znode is older than its topic: its mzxid, and the topic's czxid.

    A coordinator deletes the offsets of a topic with the topic, and ZooKeeper does not.
    """
    return written < created


def needs_start(committed: int | None, end: int | None, *, is_former: bool = False) -> bool:
    """Return whether the log start decides: not where the log is empty, or all of it is read."""
    return bool(end) and (is_former or committed != end)


def first_unread(
    committed: int | None, start: int | None, end: int | None, *, is_former: bool = False
) -> int | None:
    """Return the offset from which on nothing is read; `end` where all is read.

    `is_former`: the commit is of a former topic of that name.
    """
    if committed is None or end is None:
        return None
    if not needs_start(committed, end, is_former=is_former):
        return end
    if start is None:
        return None
    is_useless = is_former or committed > end
    # Records may be deleted after the end was read.
    return min(start if is_useless else max(committed, start), end)


def lag(
    committed: int | None, start: int | None, end: int | None, *, is_former: bool = False
) -> int | None:
    """Return how many records of a log are unread."""
    if end is None:
        return None
    if committed is None:
        is_empty = end == 0 or (start is not None and start >= end)
        return 0 if is_empty else None
    first = first_unread(committed, start, end, is_former=is_former)
    return None if first is None else end - first
