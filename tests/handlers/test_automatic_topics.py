"""Topics that are created on first use, where settings keep them from being made."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from odradek.handlers import automatic_topics
from odradek.handlers.context import Broker, RequestContext
from odradek.net.rare_log import LINES_PER_PERIOD, RareLog
from odradek.protocol.errors import ErrorCode
from odradek.zk import admin

CONTEXT = RequestContext(9, "c", "PLAINTEXT", "h", 1)


async def test_names_that_clients_make_up_flood_no_log(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("tests.automatic")
    monkeypatch.setattr(automatic_topics, "_rare_log", RareLog(logger, lambda: 0.0))
    config = dataclasses.replace(broker.config, num_partitions=admin.MOST_PARTITIONS + 1)
    serving = dataclasses.replace(broker, config=config)
    for number in range(2 * LINES_PER_PERIOD):
        code = await automatic_topics.create(serving, f"t{number}", CONTEXT)
        assert code is ErrorCode.INVALID_PARTITIONS
    lines = [one.getMessage() for one in caplog.records if one.name == logger.name]
    assert len(lines) == LINES_PER_PERIOD
    assert lines[0].startswith("failed to create topic t0: ")
    assert lines[0].endswith(": lower num.partitions")
