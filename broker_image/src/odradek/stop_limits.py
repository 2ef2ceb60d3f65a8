"""How long a broker may take to stop. The operator gives pods more than that."""

from __future__ import annotations

from typing import Final

from odradek.config import BrokerConfig

# With Kafka's defaults: two pauses of 5 s, and the requests.
_CONTROLLED_SHUTDOWN_S: Final = 15.0
_REQUESTS_S: Final = 5.0
# Connections, controller and logs, after the controlled shutdown.
_CLOSING_S: Final = 5.0


def controlled_shutdown_s(config: BrokerConfig) -> float:
    """Return the limit of a controlled shutdown: all pauses between attempts fit in."""
    pauses = max(config.controlled_shutdown_max_retries - 1, 0)
    pauses_s = pauses * config.controlled_shutdown_retry_backoff_ms / 1000
    return max(_CONTROLLED_SHUTDOWN_S, pauses_s + _REQUESTS_S)


def stop_s(config: BrokerConfig) -> float:
    """Return how long the whole stop may take."""
    return controlled_shutdown_s(config) + _CLOSING_S
