"""Checks of a batch before it is appended as leader, as Kafka's LogValidator does them.

Nothing here depends on where the batch will lie, so it can run outside the append lock.
"""

from __future__ import annotations

from typing import TypeAlias

from odradek.log.partition import conversion
from odradek.log.partition.conversion import OldFormat
from odradek.log.records import batch, contents, records
from odradek.log.records.batch import CLIENT, CODEC_MASK, TRANSACTIONAL_CLIENT, Header, Origin
from odradek.log.records.compression import CODECS
from odradek.properties import INT_MAX, LONG_MAX
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.regions import Buffer
from odradek.topic_config import TopicConfig

_SOON_DECODED = 4096
"""Bytes of plain records that are decoded in about the time of a change of threads."""

Prepared: TypeAlias = tuple[Header, Buffer, OldFormat | None]
"""One batch that passed every check that does not depend on where it will lie: its header and its
bytes, and on a topic of an old message format what is stored instead.
"""


def prepare(
    data: Buffer, origin: Origin, config: TopicConfig, now_ms: int, name: str, *, at_once: bool
) -> Prepared | None:
    """Check one batch, and convert it to the codec and message format of the topic.

    Records are read only where the header does not say enough. That may take seconds: with
    `at_once`, None is returned instead, perhaps before every check is made. `name` is that of the
    partition, for messages. Raises KafkaError, which is RecordsRefusedError where single records
    are at fault.
    """
    # A topic of an old format limits the size of what is stored, message set by message set.
    limit = config.max_message_bytes if config.message_magic == 2 else INT_MAX
    header = batch.sole(data, limit)
    codec, count = header.attributes & CODEC_MASK, header.record_count
    from_client = origin is CLIENT or origin is TRANSACTIONAL_CLIENT
    stamped = config.message_timestamp_type == "LogAppendTime"
    difference_ms = LONG_MAX if stamped else config.message_timestamp_difference_max_ms
    # A compressed batch may hold more records than bytes, if they are very many equal ones. If it
    # does not, its claim would move the log end offset by up to 2^31 for a few bytes.
    doubtful_count = from_client and codec != 0 and count > len(data)
    misdated = from_client and not stamped and header.max_timestamp < header.first_timestamp
    valid_times = batch.has_valid_times(header, now_ms, difference_ms)
    with_keys = from_client and "compact" in config.cleanup_policy
    converted = config.message_magic < 2 or (
        config.compression_type != "producer" and CODECS[config.compression_type] != codec
    )
    reads = doubtful_count or misdated or not valid_times or with_keys or converted
    if reads and at_once and (codec or len(data) > _SOON_DECODED):
        return None
    batch.validate(data, header, origin)
    if from_client and count > records.MAX_OBJECTS:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE, f"{count} records in a batch, over {records.MAX_OBJECTS}"
        )
    if not reads:
        return header, data, None
    if doubtful_count:
        contents.check_count(header, data)
    if misdated:
        contents.check_records(header, data, name, False, now_ms, difference_ms)
        header, data = contents.date(header, data)
        valid_times = batch.has_valid_times(header, now_ms, difference_ms)
    if with_keys or not valid_times:
        contents.check_records(header, data, name, with_keys, now_ms, difference_ms)
    if not valid_times:  # though its records have: retention would go by the header
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, contents.INVALID_TIMES)
    if config.compression_type != "producer":
        header, data = contents.recompress(header, data, config.compression_type)
        if header.size > limit:
            raise batch.too_large(header.size, limit)
    old = None
    if config.message_magic < 2:
        old = conversion.for_old_topic(header, data, config.message_magic)
    return header, data, old
