"""What several tests of the log share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from odradek import config_loading
from odradek.log.manager import LogManager
from odradek.log.partition.log import Log, LogEnvironment
from odradek.topic_config import TopicConfig
from tests.support.logs import FakeClock, batch, new_log

COMPACTED = TopicConfig(cleanup_policy=("compact",), segment_bytes=300)

Make = Callable[..., LogManager]


@pytest.fixture(scope="module")
def without_fsync() -> Iterator[None]:
    """For tests that end processes, not machines: what was written is there, synced or not, and
    thousands of cases need not wait for the disk.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, clock: FakeClock, failures: list[str]) -> Iterator[Make]:
    """Start a manager on folders `a` and `b`; whatever a test leaves open is closed."""
    made: list[LogManager] = []

    def start(
        broker_id: int = 1,
        cluster: str = "cluster",
        topic: TopicConfig | None = None,
        load: bool = True,
        dirs: tuple[str, ...] = ("a", "b"),
        **more: str,
    ) -> LogManager:
        settings, _ = config_loading.from_values(
            {
                "broker.id": str(broker_id),
                "zookeeper.connect": "unused",
                "log.dirs": ",".join(str(tmp_path / name) for name in dirs),
                **{name.replace("_", "."): value for name, value in more.items()},
            }
        )
        manager = LogManager(
            settings,
            cluster,
            lambda name: topic or TopicConfig(),
            on_dir_failure=lambda path, error: failures.append(path),
            environment=LogEnvironment(now_ms=clock.now_ms, monotonic=clock.monotonic),
        )
        made.append(manager)
        if load:
            manager.load()
            manager.record_owner()
        return manager

    yield start
    for manager in made:
        manager.close()


def dirty_log(manager: LogManager, topic: str, config: TopicConfig = COMPACTED) -> Log:
    """A log of twenty records with one key, all but the last of them superseded."""
    log = new_log(manager, topic, 0, config)
    for number in range(20):
        log.append_as_leader(batch(b"value %d" % number, key=b"key"), 0)
    log.high_watermark = log.log_end_offset
    return log
