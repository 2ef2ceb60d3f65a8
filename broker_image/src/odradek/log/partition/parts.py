"""What the modules that `Log` is made of see of it."""

from typing import Protocol

from odradek.log.partition.epochs import EpochCache
from odradek.log.partition.failure import LogFailure
from odradek.log.partition.producers import ProducerStates
from odradek.log.partition.segments import SegmentList
from odradek.log.partition.start_offset import StartOffset
from odradek.log.segment.segment import SegmentSettings
from odradek.topic_config import TopicConfig


class LogParts(Protocol):
    """A `Log`, as `appending`, `truncation` and `old_segments` use it."""

    directory: str
    topic: str
    partition: int
    config: TopicConfig
    segments: SegmentList
    epochs: EpochCache
    producers: ProducerStates
    failures: LogFailure
    start: StartOffset

    @property
    def log_start_offset(self) -> int:
        """See `Log`, here and below."""

    @property
    def log_end_offset(self) -> int: ...  # noqa: D102

    @property
    def high_watermark(self) -> int: ...  # noqa: D102

    @property
    def preallocated_bytes(self) -> int: ...  # noqa: D102

    @property
    def delete_at(self) -> float: ...  # noqa: D102

    def now_ms(self) -> int: ...  # noqa: D102

    def segment_settings(self) -> SegmentSettings: ...  # noqa: D102

    def may_roll_by_time(self) -> bool: ...  # noqa: D102

    def roll(self, base_offset: int | None = None) -> None: ...  # noqa: D102

    def raise_log_start(self, offset: int) -> None: ...  # noqa: D102

    def lower_high_watermark(self, end: int) -> None: ...  # noqa: D102

    def truncate_fully_and_start_at(self, offset: int) -> None: ...  # noqa: D102

    def reload_producers(self) -> None: ...  # noqa: D102

    def note_truncated(self) -> None: ...  # noqa: D102

    def request_housekeeping(self) -> None: ...  # noqa: D102
