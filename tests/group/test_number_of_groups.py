"""How many groups a coordinator has at most, and how it refuses further ones."""

from __future__ import annotations

import asyncio
import logging

import pytest

from odradek.group.members import JoinSpec
from odradek.protocol.errors import ErrorCode
from tests.group.test_commit_order import (
    PARTITION,
    SlowReplicas,
    committing,
    loaded,
    run_ready_callbacks,
)
from tests.group.test_metrics import series_of
from tests.support.log_lines import messages_of

SPEC = JoinSpec("", None, "c", "h", 10_000, 10_000, "consumer", (("range", b""),), False)


async def test_new_groups_beyond_the_bound_are_refused_and_known_ones_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    replicas = SlowReplicas()
    coordinator = await loaded(replicas, settings={"odradek.max.groups": "2"})
    known = committing(coordinator, 1, group="second")
    await run_ready_callbacks()
    replicas.appends[-1].set_result(ErrorCode.NONE)
    assert await known == {PARTITION: ErrorCode.NONE}

    appends = len(replicas.appends)
    refused = ErrorCode.GROUP_MAX_SIZE_REACHED
    assert await committing(coordinator, 1, group="third") == {PARTITION: refused}
    assert (await coordinator.join("third", SPEC)).error is refused
    assert len(replicas.appends) == appends, "nothing is written for them"
    assert [group.group_id for group in coordinator.groups()[1]] == ["g", "second"]
    assert series_of(coordinator).get_sample_value("odradek_groups_refused_total") == 2
    [line] = messages_of(caplog, "odradek")
    assert line == "refused group third: there are 2 groups (odradek.max.groups)"

    again = committing(coordinator, 2, group="second")
    await run_ready_callbacks()
    replicas.appends[-1].set_result(ErrorCode.NONE)
    assert await again == {PARTITION: ErrorCode.NONE}
    joining = asyncio.create_task(coordinator.join("g", SPEC))
    await run_ready_callbacks()
    joining.cancel()
    assert coordinator.refused == 2
    coordinator.close()
