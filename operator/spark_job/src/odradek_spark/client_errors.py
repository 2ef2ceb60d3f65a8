"""Why a librdkafka client gets no answer, which its calls do not say: they only time out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from odradek import thread_errors
from odradek_spark.broker_access import in_kafkas_names

_REFUSALS: Final = (
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    # A client has a thread per broker.
    KafkaError._CRIT_SYS_RESOURCE,
)


@contextmanager
def starting_threads() -> Iterator[None]:
    """Raise Python's error where a client that is made can start no thread: commands tell it."""
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() == KafkaError._CRIT_SYS_RESOURCE:
            raise thread_errors.no_thread() from error
        raise


class Refusals:
    """Keeps the last error of TLS, authentication or threads: the `error_cb` of a client.

    The client must have been polled since.
    """

    def __init__(self) -> None:
        self._last: str | None = None

    def __call__(self, error: KafkaError) -> None:
        """Take an error of the client."""
        if error.code() in _REFUSALS:
            self._last = in_kafkas_names(" ".join(error.str().split()))

    def text(self) -> str:
        """Return `: REASON`, or nothing."""
        return "" if self._last is None else f": {self._last}"
