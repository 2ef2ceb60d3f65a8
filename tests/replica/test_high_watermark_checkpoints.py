"""High watermarks are written when one of them has moved: most partitions may be at rest."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from odradek.log.partition import checkpoints
from tests.support import logs
from tests.support.replicas import KEY, Replicas


async def test_checkpoint_is_written_again_once_a_mark_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data" / checkpoints.HIGH_WATERMARKS

    async def checkpoint() -> int:
        await broker.manager.checkpoint_high_watermarks()
        assert checkpoints.read_offsets(str(path)) == {KEY: partition.high_watermark}
        return path.stat().st_ino

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with Replicas(tmp_path) as broker:
        await broker.take(leader=1, isr=(1,), replicas=(1,))
        partition = broker.manager.partitions[KEY]
        first = await checkpoint()
        with monkeypatch.context() as patched:
            patched.setattr(broker.logs, "write_high_watermarks", fail)
            assert await checkpoint() == first, "nothing is asked of the logs"
        partition.log.append_as_leader(logs.batch(b"a"), 0)
        assert partition.advance_high_watermark()
        with monkeypatch.context() as patched:
            patched.setattr(checkpoints, "write_atomically", fail)
            await broker.manager.checkpoint_high_watermarks()
        assert await checkpoint() != first, "what failed is done later"


async def test_checkpoint_is_written_for_a_new_replica_with_the_mark_of_the_former(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "data" / checkpoints.HIGH_WATERMARKS)
    async with Replicas(tmp_path) as broker:
        for epoch in range(2):
            await broker.lead(epoch=epoch)
            partition = broker.manager.partitions[KEY]
            partition.log.append_as_leader(logs.batch(b"a"), epoch)
            assert partition.advance_high_watermark()
            await broker.manager.checkpoint_high_watermarks()
            assert checkpoints.read_offsets(path) == {KEY: 1}
            await broker.delete()
            assert checkpoints.read_offsets(path) == {}


async def test_a_partition_made_anew_during_a_write_does_not_get_the_mark_of_the_former(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "data" / checkpoints.HIGH_WATERMARKS)
    async with Replicas(tmp_path) as broker:
        await broker.lead(epoch=0)
        partition = broker.manager.partitions[KEY]
        partition.log.append_as_leader(logs.batch(b"a"), 0)
        assert partition.advance_high_watermark()
        write = broker.logs.write_high_watermarks

        async def remade_meanwhile(*arguments: Any) -> bool:
            await broker.delete()
            await broker.lead(epoch=1)
            return await write(*arguments)

        monkeypatch.setattr(broker.logs, "write_high_watermarks", remade_meanwhile)
        await broker.manager.checkpoint_high_watermarks()
        assert checkpoints.read_offsets(path) == {KEY: 0}
