"""How many transactional ids a coordinator has at most, and how it refuses further ones."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.transaction.states import TransactionState
from tests.support.log_lines import messages_of
from tests.support.replicas import Replicas
from tests.support.transaction_coordinators import (
    EMPTY,
    ID,
    STATE,
    TIMEOUT_MS,
    Coordinating,
    series,
    until,
)

OTHER = dataclasses.replace(EMPTY, transactional_id="b")
REFUSED = ErrorCode.POLICY_VIOLATION


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[Coordinating]:
    """A coordinator of at most two ids."""
    async with Replicas(tmp_path) as replicas:
        replicas.config = dataclasses.replace(replicas.config, max_transactional_ids=2)
        await replicas.lead(topic=STATE.topic, epoch=5)
        coordinating = Coordinating(replicas)
        yield coordinating
        await coordinating.coordinator.close()


async def test_new_ids_beyond_the_bound_are_refused_and_known_ones_served(
    on: Coordinating, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await on.write(OTHER)
    producer = await on.init()
    end = on.real.manager.partitions[STATE].log.log_end_offset
    for _ in range(2):
        answer = await on.coordinator.init_producer_id("c" * 100, TIMEOUT_MS, None)
        assert answer.error is REFUSED
    assert on.real.manager.partitions[STATE].log.log_end_offset == end
    assert series(on, "odradek_transactional_ids_refused_total") == 2
    [line] = messages_of(caplog, "odradek")
    assert line == (
        f"refused transactional id {'c' * 80}: there are 2 transactional ids "
        "(odradek.max.transactional.ids)"
    )

    assert await on.add(producer) is ErrorCode.NONE
    assert await on.end(producer, commits=True) is ErrorCode.NONE
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    again = await on.init()
    assert again.epoch == producer.epoch + 1
    assert (await on.coordinator.init_producer_id("b", TIMEOUT_MS, None)).error is ErrorCode.NONE


async def test_ids_in_the_log_beyond_the_bound_are_loaded(on: Coordinating) -> None:
    await on.write(OTHER, EMPTY, dataclasses.replace(EMPTY, transactional_id="c"))
    on.coordinator.notice_roles()
    await until(lambda: on.state("c") is not None)
    assert on.state(ID) is TransactionState.EMPTY
    assert (await on.coordinator.init_producer_id("d", TIMEOUT_MS, None)).error is REFUSED


async def test_there_is_room_again_once_an_id_has_expired(on: Coordinating) -> None:
    await on.write(EMPTY, OTHER)
    on.coordinator.notice_roles()
    await until(lambda: on.state("b") is not None)
    assert (await on.coordinator.init_producer_id("c", TIMEOUT_MS, None)).error is REFUSED
    async with on.running():
        on.now_ms += on.real.config.transactional_id_expiration_ms
        on.clock_ms += on.real.config.transaction_remove_expired_interval_ms
        await until(lambda: on.state("b") is None)
    assert (await on.coordinator.init_producer_id("c", TIMEOUT_MS, None)).error is ErrorCode.NONE
