"""The future log of a partition: a copy in another log directory, to replace it (KIP-113).

The current log goes on serving meanwhile. `agree` makes the copy a prefix of it after a start;
`copy` appends to it, and follows truncations and the log start offset. `is_ready` tells whether the
copy holds everything that the current log holds, as safely. Then `succeed` makes it the current log
within one call, so that nothing can be appended in between.

One thread at a time uses a future log. Nobody else reads it, writes it or renames its folder.
"""

import os

from odradek.log.partition import topic_identity
from odradek.log.partition.epochs import UNDEFINED_EPOCH
from odradek.log.partition.log import Log
from odradek.log.segment.files import (
    FileRetiredError,
    fsync_path,
    remove_if_there,
    write_atomically,
)
from odradek.values import TopicPartition

MARK = "replaces-other-log"
"""A file in the folder of a log that replaced the one of another directory, as long as that one may
still have its name. Kafka ignores it.
"""


def agree(current: Log, future: Log) -> None:
    """Truncate the future log to what it has in common with the current one. Blocks. Raises
    KafkaError.

    As a follower does it with its leader (KIP-101, KIP-279): both have the batches of an epoch up
    to the smaller of its ends.
    """
    current.segments.take_cut()
    common = min(future.log_end_offset, current.log_end_offset)
    epoch = min(future.latest_epoch, current.latest_epoch)
    if epoch == UNDEFINED_EPOCH:
        common = min(common, future.high_watermark)
    while epoch != UNDEFINED_EPOCH:
        known, end = current.end_offset_for_epoch(epoch)
        own_epoch, own_end = future.end_offset_for_epoch(known)
        common = min(common, end, own_end)
        epoch = UNDEFINED_EPOCH if own_epoch == known else own_epoch
    future.truncate_to(common)
    _follow_start(current, future)


def copy(current: Log, future: Log, max_bytes: int) -> int:
    """Copy the next batches of the current log, at least one; return their bytes, 0 where the
    future log is at its end, or the current log was truncated meanwhile. Blocks.

    Raises KafkaError, and UnexpectedOffsetError where the logs do not fit together.
    """
    cut = current.segments.take_cut()
    if cut is not None:
        future.truncate_to(cut)
    _follow_start(current, future)
    end, offset = current.log_end_offset, future.log_end_offset
    if offset >= end:
        return 0
    try:
        data = current.reader.read_bytes(offset, max_bytes)
    except FileRetiredError:
        return 0
    size = 0
    if data:
        size = future.append_as_follower(data).size
    elif not current.segments.was_cut:
        future.skip_to(end)  # compaction removed what was there
    _follow_start(current, future)
    return size


def _follow_start(current: Log, future: Log) -> None:
    """Let the future log follow the log start offset and the high watermark of the current one."""
    start = current.log_start_offset
    if future.log_end_offset < start:
        future.truncate_fully_and_start_at(start)
    future.high_watermark = current.high_watermark
    start = min(start, future.high_watermark)
    if future.log_start_offset < start:
        future.advance_log_start(start)
        future.apply_retention(only_hidden=True)
        future.delete_due()


def is_ready(current: Log, future: Log) -> bool:
    """Return whether the future log may replace the current one. Raises KafkaError.

    It holds the same records, and what the current log is sure to keep in a crash.
    """
    return (
        future.log_end_offset == current.log_end_offset
        and not current.segments.was_cut
        and future.recovery_point >= min(current.recovery_point, current.log_end_offset)
        and future.durable_log_start >= current.durable_log_start
        and current.read_file(topic_identity.FILE_NAME)
        == future.read_file(topic_identity.FILE_NAME)
    )


def copy_identity(current: Log, future: Log) -> None:
    """Let the folder of the future log tell the same topic, durably, and whether that had a former
    one. Raises KafkaError and OSError.
    """
    former = topic_identity.FORMER_MARK
    if current.read_file(former) is not None and future.read_file(former) is None:
        topic_identity.mark_former(future.directory)
        fsync_path(future.directory)
    told = current.read_file(topic_identity.FILE_NAME)
    if told == future.read_file(topic_identity.FILE_NAME):
        return
    path = os.path.join(future.directory, topic_identity.FILE_NAME)
    if told is None:
        remove_if_there(path)
    else:
        write_atomically(path, told)


def mark(future: Log) -> None:
    """Mark, durably, that this log is the newer one if another has the same name. Raises
    OSError.
    """
    path = os.path.join(future.directory, MARK)
    if not os.path.exists(path):
        write_atomically(path, b"0\n")


def unmark(directory: str) -> None:
    """Remove the mark, if there is one, durably. Raises OSError."""
    path = os.path.join(directory, MARK)
    if os.path.exists(path):
        remove_if_there(path)
        fsync_path(directory)


def succeed(current: Log, future: Log) -> bool:
    """Make the future log the current one and close the other; return False, and change nothing,
    where it is not ready. Takes a short time: what it did is durable only later.

    Raises KafkaError and OSError; then the current log stays.
    """
    with current.held() as holding:
        if not holding or current.closed or future.closed or not is_ready(current, future):
            return False
        future.epochs.replace(current.epochs.entries)
        name = str(TopicPartition(future.topic, future.partition))
        future.relocate(os.path.join(os.path.dirname(future.directory), name))
        # What the log knows of producers may be of batches that it has no more.
        future.producers = current.producers
        future.producers.snapshot_offset = -1
        future.segments.raise_log_start(current.log_start_offset)
        future.high_watermark = current.high_watermark
        future.is_future = False
        current.abandon()
        return True
