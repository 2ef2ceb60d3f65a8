"""A new replica for which there is no descriptor comes back by itself once there is one.

The requests are those that the controller sends: see tests/controller/test_replica_failures.py.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from odradek.log.records.batch import Origin
from odradek.log.segment import files
from odradek.protocol.errors import ErrorCode
from odradek.replica.hosted import HostedPartitions
from tests.support import logs
from tests.support.replicas import KEY, Replicas

NONE, REFUSED = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR
NO_LEADER = -1


def no_descriptor(path: str, _: int) -> int:
    raise OSError(errno.EMFILE, "Too many open files", path)


def led(broker: Replicas) -> ErrorCode:
    hosted: HostedPartitions = broker.manager._hosted
    return hosted.leader_or_error(KEY)[1]


async def test_refused_replica_leads_once_there_are_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Replicas(tmp_path) as broker:
        with monkeypatch.context() as patched:
            patched.setattr(files, "open_file", no_descriptor)
            assert await broker.take(leader=1) == (NONE, {KEY: REFUSED})
            # Nobody else can lead. The controller tells so, and asks for the same role again.
            for _ in range(2):
                asked = broker.take(leader=NO_LEADER, epoch=1, is_new=False)
                assert await asked == (NONE, {KEY: REFUSED})
        assert broker.manager.refused_replicas == 3
        assert broker.logs.get(*KEY) is None
        assert led(broker) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert broker.logs.online_directories
        again = broker.take(leader=NO_LEADER, epoch=1, is_new=False)
        assert await again == (NONE, {KEY: NONE}), "so the controller elects it"
        assert await broker.take(leader=1, epoch=2, is_new=False) == (NONE, {KEY: NONE})
        [outcome] = await broker.manager.append([(KEY, logs.batch(b"a"))], -1, 0, Origin.CLIENT)
        assert (outcome.error, outcome.base_offset) == (NONE, 0)
        assert broker.manager.refused_replicas == 3
        assert len(list((tmp_path / "data").glob(f"{KEY.topic}-0"))) == 1
