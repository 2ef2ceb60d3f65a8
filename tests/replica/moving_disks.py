"""A broker's replicas on three log directories, for moves between these."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from odradek.log.partition.log import Log
from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode
from odradek.replica.fetch_specs import FetchLimits, FetchSpec
from odradek.replica.reads import CONSUMER
from odradek.values import TopicPartition
from tests.support import logs
from tests.support.replicas import KEY, Replicas

LIMIT = "replica_alter_log_dirs_io_max_bytes_per_second"


class Disks:
    """A broker with three log directories whose moves run."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.paths = [str(directory / name) for name in "abc"]
        self.replicas = Replicas(directory, log_dirs=",".join(self.paths), **settings)
        self.manager = self.replicas.manager
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Disks:
        self._running = asyncio.create_task(self.manager._moves.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._running is not None
        assert not self._running.done(), self._running.exception()
        self._running.cancel()
        await asyncio.wait((self._running,))
        await self.replicas.__aexit__()

    @property
    def log(self) -> Log:
        return self.manager.partitions[KEY].log

    @property
    def place(self) -> str:
        return os.path.dirname(self.log.directory)

    async def ask(self, path: str, key: TopicPartition = KEY) -> ErrorCode:
        return (await self.manager.alter_log_dirs({key: path}))[key]

    async def produce(self, *values: bytes, acks: int = -1) -> int:
        outcome = (
            await self.manager.append([(KEY, logs.batch(*values))], acks, 30_000, Origin.CLIENT)
        )[0]
        assert outcome.error is ErrorCode.NONE
        return outcome.base_offset

    async def consumed(self) -> list[bytes | None]:
        found: list[bytes | None] = []
        while True:
            spec = FetchSpec(KEY, len(found), 1 << 20)
            [result] = await self.manager.fetch([spec], CONSUMER, FetchLimits(0, 1, 1 << 20))
            assert result.error is ErrorCode.NONE
            if result.region is None:
                return found
            with contextlib.closing(result.region) as region:
                data = os.pread(region.fd, region.length, region.position)
            found += [record.value for record in logs.whole_records(data)]

    async def moved(self, path: str) -> None:
        await until(lambda: self.place == path and not self.manager._moves._moves)

    def limit(self, rate: int) -> None:
        """Let moves copy so many bytes per second; the clock stands still."""
        self.manager._moves._limit = lambda: rate

    async def stop_replica(self) -> None:
        await self.replicas.delete()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def folders(disks: Disks) -> list[str]:
    return [
        f"{Path(path).name}/{folder.name}"
        for path in disks.paths
        for folder in Path(path).iterdir()
        if folder.is_dir() and not folder.name.endswith("-delete")
    ]


def fail(disks: Disks, path: str) -> None:
    """Have a directory fail, and tell the replica manager, as the server does."""
    directory = next(each for each in disks.replicas.logs._directories if each.path == path)
    directory.fail(OSError(5, "Input/output error"))
    disks.manager.directory_failed(path)
