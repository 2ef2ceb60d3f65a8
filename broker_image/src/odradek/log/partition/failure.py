"""The failure state of a log: offline after a disk error, or closed."""

import contextlib
import logging
from collections.abc import Callable, Iterator

from odradek.log.records.batch import CorruptBatchError
from odradek.log.segment import files
from odradek.log.segment.segment import Segment
from odradek.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)


class LogFailure:
    """The failure state of one log, and the errors that callers see because of it.

    `name` is topic-partition. `on_failure` is called once, with the first error that says the disk
    failed.
    """

    def __init__(self, name: str, on_failure: Callable[[OSError], None]) -> None:
        self.name = name
        self.error: OSError | None = None
        self.closed = False
        self.unfinished: list[Callable[[], object]] = []
        """What a truncation still has to do; until then the log refuses everything else."""
        self._on_failure = on_failure
        self._reported: set[tuple[int, int]] = set()

    def close(self) -> None:
        """Note that the log is closed; its failures are nobody's any more.

        Without the callback, nothing here refers to the log: it is freed at once, not by the
        garbage collector.
        """
        self.closed = True
        self.unfinished = []
        self._on_failure = _nobody

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Refuse work on a log that is offline or closed; turn OSError into KAFKA_STORAGE_ERROR."""
        self.raise_if_unusable()
        try:
            yield
        except OSError as error:
            raise self.storage_error(error) from error

    def raise_if_unusable(self) -> None:
        """Raise KafkaError KAFKA_STORAGE_ERROR if the log is offline or closed."""
        if self.error is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.error))
        if self.closed:  # its folder may belong to a new log of the same name
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is closed")
        if self.unfinished:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: a truncation is not finished"
            )

    def storage_error(self, error: OSError) -> KafkaError:
        """Return the error for callers; take the log offline if `error` says the disk failed."""
        # A deleted log has no paths any more. That is no failure of the disk.
        if files.is_disk_failure(error) and self.error is None and not self.closed:
            self.error = error
            self._on_failure(error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    def take_offline(self, error: OSError) -> None:
        """Take the log offline because another log of its directory failed."""
        if self.error is None:
            self.error = error

    def damaged(self, segment: Segment, error: CorruptBatchError) -> KafkaError:
        """Return CORRUPT_MESSAGE for a damaged batch; log each place once, since readers retry."""
        reason = f"{self.name}: {segment.log.path} is damaged: {error}"
        place = segment.base_offset, error.position
        if place not in self._reported:
            self._reported.add(place)
            logger.error("%s", reason)
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, reason)


def _nobody(error: OSError) -> None:
    """Take the failure of a log that was closed meanwhile."""
