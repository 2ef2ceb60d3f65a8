"""Checks of a batch before it is appended as leader, as Kafka's LogValidator does them.

Nothing here depends on where the batch will lie, so it can run outside the append lock.
"""

from collections.abc import Callable
from typing import NamedTuple

from odradek.config import TopicConfig
from odradek.log.partition import conversion
from odradek.log.partition.conversion import OldFormat
from odradek.log.records import batch, contents, records
from odradek.log.records.batch import Header, Origin
from odradek.properties import INT_MAX, LONG_MAX
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.regions import Buffer

_SOON_DECODED = 4096
"""Bytes of plain records that are decoded in about the time of a change of threads."""


class Prepared(NamedTuple):
    """One batch that passed every check that does not depend on where it will lie.

    On a topic of an old message format, `old` is what is stored instead.
    """

    header: Header
    data: Buffer
    old: OldFormat | None


def needs_record_inspection(
    data: Buffer, origin: Origin, config: TopicConfig, now_ms: Callable[[], int]
) -> bool:
    """Return whether `prepare` has to unpack records, which may take seconds: use a thread then.

    A few plain records are decoded sooner than a thread would start.
    """
    if len(data) <= _SOON_DECODED and not batch.is_compressed(data):
        return False
    if config.compression_type != "producer" or config.message_magic < 2:
        return True
    if origin is not Origin.CLIENT:
        return False
    if "compact" in config.cleanup_policy or batch.claims_many_records(data):
        return True
    if config.message_timestamp_type != "CreateTime":
        return False
    limit_ms = config.message_timestamp_difference_max_ms
    return batch.has_doubtful_times(data, now_ms() if limit_ms < LONG_MAX else 0, limit_ms)


def prepare(
    data: Buffer, origin: Origin, config: TopicConfig, now_ms: int, name: str = ""
) -> Prepared:
    """Check one batch, and convert it to the codec and message format of the topic.

    `name` is that of the partition, for messages. Raises KafkaError, which is RecordsRefusedError
    where single records are at fault.
    """
    # A topic of an old format limits the size of what is stored, message set by message set.
    limit = config.max_message_bytes if config.message_magic == 2 else INT_MAX
    header = batch.validate(data, origin, limit)
    stamped = config.message_timestamp_type == "LogAppendTime"
    if origin is Origin.CLIENT and header.record_count > records.MAX_OBJECTS:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{header.record_count} records in a batch, over {records.MAX_OBJECTS}",
        )
    if origin is Origin.CLIENT and header.codec and header.record_count > len(data):
        contents.check_count(header, data)
    difference_ms = LONG_MAX if stamped else config.message_timestamp_difference_max_ms
    if origin is Origin.CLIENT and not stamped and header.max_timestamp < header.first_timestamp:
        contents.check_records(header, data, name, False, now_ms, difference_ms)
        header, data = contents.date(header, data)
    valid_times = batch.has_valid_times(header, now_ms, difference_ms)
    with_keys = origin is Origin.CLIENT and "compact" in config.cleanup_policy
    if with_keys or not valid_times:
        contents.check_records(header, data, name, with_keys, now_ms, difference_ms)
    if not valid_times:  # though its records have: retention would go by the header
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, contents.INVALID_TIMES)
    if config.compression_type != "producer":
        header, data = contents.recompress(header, data, config.compression_type)
    old = None
    if config.message_magic < 2:
        old = conversion.for_old_topic(header, data, config.message_magic)
    return Prepared(header, data, old)
