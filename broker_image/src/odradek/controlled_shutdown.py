"""Controlled shutdown: leaderships move to other brokers before a broker stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from odradek import stop_limits
from odradek.config import BrokerConfig
from odradek.controller.loop import Controller
from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode, KafkaError, name_of
from odradek.protocol.messages.control import ControlledShutdownRequest
from odradek.values import NO_BROKER_EPOCH

# The first that names the broker epoch: Kafka 2.2 and later know it.
_VERSION: Final = 2

logger = logging.getLogger(__name__)


async def move_leaderships(
    config: BrokerConfig,
    controller: Controller,
    connect_to_controller: Callable[[], PeerClient | None],
    broker_epoch: Callable[[], int],
) -> None:
    """Ask the controller to move what this broker leads, until nothing remains; log the outcome.

    As in Kafka, another attempt follows also where partitions remain: a follower may be about to
    come back into the ISR. `controlled.shutdown.max.retries` is the number of all attempts.
    `connect_to_controller` returns None while no controller is known, `broker_epoch` -1 while this
    broker is not registered.
    """
    remaining: int | None = None
    answered = 0  # the last attempt that was
    try:
        async with asyncio.timeout(stop_limits.controlled_shutdown_s(config)):
            for attempt in range(1, config.controlled_shutdown_max_retries + 1):
                if attempt > 1:
                    await asyncio.sleep(config.controlled_shutdown_retry_backoff_ms / 1000)
                try:
                    remaining = await _ask_to_leave(
                        config, controller, connect_to_controller, broker_epoch()
                    )
                except (KafkaError, OSError, TimeoutError) as failure:
                    reason = str(failure)
                else:
                    if not remaining:
                        return
                    answered = attempt
                    reason = f"{_partitions(remaining)} that no other broker can lead now"
                logger.warning("controlled shutdown, attempt %d failed: %s", attempt, reason)
    except TimeoutError:
        logger.warning("controlled shutdown took too long")
    # A controller whose answer was late or lost may have moved leaders all the same.
    if remaining is None:
        logger.warning(
            "stopping without a controlled shutdown, as far as is known: "
            "no controller answered that it moved leaders"
        )
    else:
        logger.warning(
            "stopping as leader of %s, without another leader, by the answer to attempt %d",
            _partitions(remaining),
            answered,
        )


def _partitions(number: int) -> str:
    return f"{number} partition{'' if number == 1 else 's'}"


async def _ask_to_leave(
    config: BrokerConfig,
    controller: Controller,
    connect_to_controller: Callable[[], PeerClient | None],
    broker_epoch: int,
) -> int:
    """Return how many partitions remain that no other replica can lead."""
    if broker_epoch == NO_BROKER_EPOCH:
        raise ConnectionError("this broker is not registered")
    if controller.active:
        return len(await controller.controlled_shutdown(config.broker_id, broker_epoch))
    client = connect_to_controller()
    if client is None:
        raise ConnectionError("the controller is unknown")
    try:
        answer = await client.call(
            ControlledShutdownRequest(broker_id=config.broker_id, broker_epoch=broker_epoch),
            _VERSION,
            config.request_timeout_ms,
        )
    finally:
        await client.close()
    if answer.error_code != ErrorCode.NONE:
        raise ConnectionError(f"the controller answered {name_of(answer.error_code)}")
    return len(answer.remaining_partitions)
