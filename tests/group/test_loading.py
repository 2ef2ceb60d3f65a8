"""How much of `__consumer_offsets` a coordinator reads at once when it takes a partition over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from odradek.group.coordinator import GroupCoordinator
from odradek.protocol.errors import ErrorCode
from odradek.values import OFFSETS_TOPIC, TopicPartition
from tests.support.logs import batch
from tests.support.one_partition import OnePartition
from tests.support.replicas import Replicas

BATCHES = 7


@pytest.mark.parametrize(
    ("settings", "reads"), [({}, 1), ({"offsets.load.buffer.size": "1"}, BATCHES)]
)
async def test_offsets_load_buffer_size_is_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], reads: int
) -> None:
    async with Replicas(tmp_path, **settings) as replicas:
        await replicas.lead(topic=OFFSETS_TOPIC)
        log = replicas.manager.partitions[TopicPartition(OFFSETS_TOPIC, 0)].log
        assert log is not None
        for _ in range(BATCHES):
            log.append_as_leader(batch(b"a", key=b"k"), 0)
        asked: list[int] = []
        read = log.reader.read

        def counted(offset: int, most: int) -> object:
            asked.append(most)
            return read(offset, most)

        monkeypatch.setattr(log.reader, "read", counted)
        coordinator = GroupCoordinator(
            replicas.config,
            replicas.manager,
            OnePartition(),  # type: ignore[arg-type]
            lambda _: True,
        )
        coordinator.notice_roles()
        while coordinator.find("g")[0] is not ErrorCode.NONE:
            await asyncio.sleep(0)
        assert len(asked) == reads
