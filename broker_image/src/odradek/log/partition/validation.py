"""Checks of a batch before it is appended as leader, as Kafka's LogValidator does them.

Nothing here depends on where the batch will lie, so it can run outside the append lock.
"""

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


def needs_record_inspection(data: Buffer, origin: Origin, config: TopicConfig) -> bool:
    """Return whether `prepare` has to unpack records, which may take seconds: use a thread then.

    A few plain records are decoded sooner than a thread would start.
    """
    demanded = (
        config.compression_type != "producer"
        or config.message_magic < 2
        or (origin is Origin.CLIENT and "compact" in config.cleanup_policy)
        or (
            origin is Origin.CLIENT
            and config.message_timestamp_type == "CreateTime"
            and batch.understates_time(data)
        )
        or (origin is Origin.CLIENT and batch.claims_many_records(data))
    )
    return demanded and (len(data) > _SOON_DECODED or batch.is_compressed(data))


def prepare(data: Buffer, origin: Origin, config: TopicConfig, now_ms: int) -> Prepared:
    """Check one batch, and convert it to the codec and message format of the topic.

    Raises KafkaError.
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
    if origin is Origin.CLIENT and not stamped and header.max_timestamp < header.first_timestamp:
        header, data = contents.date(header, data)
    difference_ms = LONG_MAX if stamped else config.message_timestamp_difference_max_ms
    batch.check_timestamps(header, now_ms, difference_ms)
    if origin is Origin.CLIENT and "compact" in config.cleanup_policy:
        contents.check_keys(data)
    if config.compression_type != "producer":
        header, data = contents.recompress(header, data, config.compression_type)
    old = None
    if config.message_magic < 2:
        old = conversion.for_old_topic(header, data, config.message_magic)
    return Prepared(header, data, old)
