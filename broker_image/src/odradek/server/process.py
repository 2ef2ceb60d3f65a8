"""A process that is a broker: what it sets up before there is one, and its exit status."""

from __future__ import annotations

import asyncio
import logging

from odradek import descriptors, log_output, long_lived, stop_signals, terminal_text
from odradek.config import BrokerConfig, within_descriptors
from odradek.properties import INT_MAX, ConfigError
from odradek.replica.topic_configs import LOWERED
from odradek.server.errors import StartError
from odradek.server.server import Server

logger = logging.getLogger(__name__)


def run(config: BrokerConfig, log_level: str, label: str = "") -> int:
    """Run a broker until it is told to stop; the process's exit status.

    `label` stands in each line of its log, where several brokers write to one.
    """
    log_output.configure(log_level, label)
    try:
        return _run(config)
    finally:
        log_output.drop_rest()


def _run(config: BrokerConfig) -> int:
    descriptors.raise_limit()
    config = _within_descriptors(config)
    # Modules and their code last as long as the process: full collections need not look at them.
    long_lived.freeze()
    try:
        server = Server(config)
    except ConfigError as error:
        terminal_text.tell(error)
        return 2
    try:
        return asyncio.run(_run_to_its_end(server))
    except StartError as error:
        terminal_text.tell(error)
        return 1
    except BaseExceptionGroup as failures:
        logger.critical("the broker fails", exc_info=failures)
        return 1


async def _run_to_its_end(server: Server) -> int:
    try:
        return await server.run()
    finally:
        stop_signals.hold_back()


def _within_descriptors(config: BrokerConfig) -> BrokerConfig:
    most = descriptors.budget().connections
    if most < config.max_connections < INT_MAX:
        logger.warning(LOWERED, config.max_connections, most)
    return within_descriptors(config, most)
