"""Why brokers refuse a librdkafka client, which its calls do not say: they only time out."""

from typing import Final

from confluent_kafka import KafkaError

from odradek_spark.broker_access import in_kafkas_names

_REFUSALS: Final = (KafkaError._AUTHENTICATION, KafkaError._SSL)


class Refusals:
    """Keeps the last error of TLS or authentication: the `error_cb` of a client.

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
