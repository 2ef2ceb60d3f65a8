"""No replica adopts the log of a former topic of the same name (KIP-516).

Broker 1 comes back with a log on its disk, and is asked to take a role in a topic of that name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss

from odradek.log.partition import topic_identity
from odradek.log.partition.topic_identity import CorruptIdentityError, Incarnation, TopicIdentity
from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.control import LeaderAndIsrPartitionState, LeaderAndIsrRequest
from odradek.values import BrokerId
from odradek.zk import admin, znodes
from odradek.zk.session import SessionExpiredError, Stat
from odradek.zk.znodes import TopicAssignment
from tests.support import logs
from tests.support.replicas import KEY, TOPIC, Replicas

PATH = znodes.topic_path(TOPIC)
ZOOKEEPER_MS = 1_763_855_560_123
FORMER = TopicIdentity("a" * 22, Incarnation(5, ZOOKEEPER_MS))
PRESENT = TopicIdentity("b" * 22, Incarnation(9, ZOOKEEPER_MS))


def znode(
    broker: Replicas, topic_id: str | None, czxid: int, zookeeper_ms: int = ZOOKEEPER_MS
) -> None:
    """Make the topic's znode, as somebody who creates the topic does."""
    broker.session.znodes[znodes.CLUSTER_ID_PATH] = b"", 0
    broker.session.created_ms[znodes.CLUSTER_ID_PATH] = zookeeper_ms
    assignment = TopicAssignment({0: (BrokerId(1), BrokerId(2))}, topic_id=topic_id)
    broker.session.znodes[PATH] = znodes.encode_topic(assignment), 0
    broker.session.czxids[PATH] = czxid


def id_in_znode(broker: Replicas) -> str | None:
    return znodes.decode_topic(PATH, broker.session.znodes[PATH][0]).topic_id


def folder(directory: Path) -> Path:
    return directory / "data" / f"{TOPIC}-0"


async def write(broker: Replicas) -> None:
    outcome = await broker.manager.append([(KEY, logs.batch(b"old"))], 1, 1000, Origin.CLIENT)
    assert outcome[0].error is ErrorCode.NONE


async def take(
    broker: Replicas,
    role: str,
    epoch: int = 0,
    isr: tuple[int, ...] = (1, 2),
    *,
    is_new: bool = False,
) -> ErrorCode:
    """Take a role in the topic; return the error of the partition."""
    leader = 1 if role == "leader" else 2
    result: Any = await broker.take(
        leader=leader, isr=isr, replicas=(1, 2), epoch=epoch, is_new=is_new
    )
    error, errors = result
    assert error is ErrorCode.NONE
    return ErrorCode(errors[KEY])


def log_end(broker: Replicas) -> int:
    log = broker.logs.get(*KEY)
    assert log is not None
    return log.log_end_offset


async def leave_log(tmp_path: Path, topic_id: str | None, czxid: int) -> None:
    """Leave a log with one record, of a topic with this identity, as a broker of us does."""
    async with Replicas(tmp_path) as before:
        znode(before, topic_id, czxid)
        await before.lead(epoch=7)
        await write(before)
        assert log_end(before) == 1


@pytest.fixture
async def back(tmp_path: Path) -> AsyncIterator[Replicas]:
    """The broker, back with a log of the former topic."""
    await leave_log(tmp_path, FORMER.topic_id, 5)
    async with Replicas(tmp_path) as broker:
        assert log_end(broker) == 1
        yield broker


@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize("epoch", [0, 7, 30])
async def test_log_of_a_former_topic_is_not_adopted(
    back: Replicas, tmp_path: Path, role: str, epoch: int
) -> None:
    znode(back, PRESENT.topic_id, 9)
    assert await take(back, role, epoch=epoch) is ErrorCode.NONE
    assert log_end(back) == 0
    assert back.manager.partitions[KEY].is_leader == (role == "leader")
    assert topic_identity.read(str(folder(tmp_path))) == PRESENT
    [kept] = (tmp_path / "data").glob("*-stray")
    assert (kept / f"{0:020d}.log").stat().st_size > 0
    assert not list((tmp_path / "data").glob("*-delete"))


@pytest.mark.parametrize("isr", [(2,), (1, 2)])
async def test_producers_of_a_topic_made_anew_while_the_broker_was_away_go_on(
    back: Replicas, isr: tuple[int, ...]
) -> None:
    """They do not notice it, and may write first to this replica."""
    znode(back, PRESENT.topic_id, 9)
    await take(back, "follower", isr=isr)
    await take(back, "leader", epoch=1)
    data = logs.batch(b"value", producer_id=5, producer_epoch=0, base_sequence=7)
    [outcome] = await back.manager.append([(KEY, data)], 1, 1000, Origin.CLIENT)
    assert outcome.error is ErrorCode.NONE


async def test_log_of_a_former_topic_that_nobody_counts_on_is_deleted(
    back: Replicas, tmp_path: Path
) -> None:
    znode(back, PRESENT.topic_id, 9)
    assert await take(back, "follower", isr=(2,)) is ErrorCode.NONE
    assert log_end(back) == 0
    assert len(list((tmp_path / "data").glob("*-delete"))) == 1
    assert not list((tmp_path / "data").glob("*-stray"))


async def test_records_that_were_kept_outlive_restarts_beside_the_new_log(
    back: Replicas, tmp_path: Path
) -> None:
    """In an ensemble that went back to a backup, the czxid of a topic that is created again is
    higher, too: its log may be the only copy.
    """
    znode(back, PRESENT.topic_id, 1 << 32)
    await take(back, "leader")
    await back.__aexit__(None, None, None)
    async with Replicas(tmp_path) as later:
        znode(later, PRESENT.topic_id, 1 << 32)
        await take(later, "leader", epoch=1)
        assert log_end(later) == 0
    [kept] = (tmp_path / "data").glob("*-stray")
    assert topic_identity.read(str(kept)) == FORMER
    assert (kept / f"{0:020d}.log").stat().st_size > 0


async def test_log_of_a_topic_made_anew_by_an_old_tool_is_not_adopted(back: Replicas) -> None:
    znode(back, None, 9)
    await take(back, "leader")
    assert log_end(back) == 0
    assert znodes.is_topic_id(id_in_znode(back))
    assert id_in_znode(back) != FORMER.topic_id


@pytest.mark.parametrize(
    ("topic_id", "czxid", "zookeeper_ms"),
    [
        (FORMER.topic_id, 5, ZOOKEEPER_MS),
        (FORMER.topic_id, 9, 7),
        (PRESENT.topic_id, 5, ZOOKEEPER_MS),
        (PRESENT.topic_id, 9, 7),
        (PRESENT.topic_id, 4, ZOOKEEPER_MS),
    ],
    ids=["same", "copied to another", "id replaced", "ZooKeeper lost", "ZooKeeper went back"],
)
async def test_log_of_the_topic_is_adopted_and_says_what_the_znode_says(
    back: Replicas, tmp_path: Path, topic_id: str, czxid: int, zookeeper_ms: int
) -> None:
    znode(back, topic_id, czxid, zookeeper_ms)
    assert await take(back, "follower", epoch=8) is ErrorCode.NONE
    assert log_end(back) == 1
    made = Incarnation(czxid, zookeeper_ms)
    assert topic_identity.read(str(folder(tmp_path))) == TopicIdentity(topic_id, made)


@pytest.mark.parametrize("dropped", [None, "", "abc", "A" * 22, "a" * 22 + "\n"])
async def test_id_that_a_tool_dropped_is_restored_from_the_log(
    back: Replicas, dropped: str | None
) -> None:
    znode(back, dropped, 5)
    await take(back, "leader", epoch=8)
    assert log_end(back) == 1
    assert id_in_znode(back) == FORMER.topic_id


async def test_id_dropped_by_adding_partitions_is_restored_from_the_other_partitions(
    back: Replicas,
) -> None:
    znode(back, FORMER.topic_id, 5)
    await take(back, "leader", epoch=8)
    znode(back, None, 5)
    request = LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=1,
        ungrouped_partition_states=[
            LeaderAndIsrPartitionState(
                topic_name=TOPIC,
                partition_index=number,
                controller_epoch=1,
                leader=1,
                leader_epoch=0,
                isr=[1],
                zk_version=0,
                replicas=[1],
                is_new=True,
            )
            for number in (1, 2)
        ],
        live_leaders=[],
    )
    await back.manager.become_leader_or_follower(request)
    assert id_in_znode(back) == FORMER.topic_id


async def test_who_writes_an_id_first_is_followed(back: Replicas, tmp_path: Path) -> None:
    znode(back, None, 9)
    real = back.session.get_all

    async def overtaken(paths: Iterable[str]) -> dict[str, tuple[bytes, Stat]]:
        found = await real(paths)
        data = znodes.encode_topic(TopicAssignment({0: (BrokerId(1),)}, topic_id=PRESENT.topic_id))
        back.session.znodes[PATH] = data, 1
        return found

    back.session.get_all = overtaken  # type: ignore[method-assign]
    await take(back, "leader")
    assert id_in_znode(back) == PRESENT.topic_id
    assert topic_identity.read(str(folder(tmp_path))) == PRESENT


async def test_id_whose_answer_was_lost_is_found_written(back: Replicas, tmp_path: Path) -> None:
    znode(back, None, 9)
    back.session.lost_answers.append(ConnectionLoss())
    await take(back, "leader")
    kept = topic_identity.read(str(folder(tmp_path)))
    assert kept is not None
    assert kept.topic_id == id_in_znode(back)


async def test_log_without_identity_is_adopted_once(back: Replicas, tmp_path: Path) -> None:
    (folder(tmp_path) / topic_identity.FILE_NAME).unlink()
    znode(back, PRESENT.topic_id, 9)
    assert await take(back, "leader", epoch=8) is ErrorCode.NONE
    assert log_end(back) == 1
    assert topic_identity.read(str(folder(tmp_path))) == PRESENT


@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_log_that_only_kafka_s_id_speaks_against_is_kept_but_not_served(
    back: Replicas, tmp_path: Path, role: str
) -> None:
    topic_identity.write(str(folder(tmp_path)), TopicIdentity(FORMER.topic_id))
    znode(back, PRESENT.topic_id, 9)
    assert await take(back, role, epoch=8) is ErrorCode.INCONSISTENT_TOPIC_ID
    assert KEY not in back.manager.partitions
    assert log_end(back) == 1
    # Others have the records now, but they may never come back.
    assert await take(back, "follower", epoch=9, isr=(2,)) is ErrorCode.NONE
    assert log_end(back) == 0
    assert len(list((tmp_path / "data").glob("*-stray"))) == 1


async def test_topic_is_the_one_that_the_controller_sees(back: Replicas) -> None:
    znode(back, PRESENT.topic_id, 9)
    back.session.unseen = dict(back.session.znodes)
    znode(back, FORMER.topic_id, 9)
    await take(back, "leader")
    assert log_end(back) == 0


async def test_topic_made_anew_by_hand_under_a_running_broker_is_noticed(back: Replicas) -> None:
    znode(back, FORMER.topic_id, 5)
    await take(back, "leader", epoch=8)
    znode(back, PRESENT.topic_id, 9)
    await take(back, "leader", epoch=0)
    partition = back.manager.partitions[KEY]
    assert (log_end(back), partition.leader_epoch) == (0, 0)
    await write(back)
    znode(back, FORMER.topic_id, 15)
    await take(back, "follower", epoch=0, is_new=True)
    assert log_end(back) == 0
    assert not back.manager.partitions[KEY].is_leader


async def test_topics_are_read_once_per_zookeeper_session(back: Replicas) -> None:
    znode(back, FORMER.topic_id, 5)
    for epoch in (8, 9, 9, 10):
        await take(back, "leader", epoch=epoch)
    assert back.session.reads[PATH] == 1
    back.session.generation += 1
    znode(back, PRESENT.topic_id, 9)
    await take(back, "leader", epoch=11)
    assert back.session.reads[PATH] == 2
    assert log_end(back) == 0


async def test_role_is_refused_where_the_identity_cannot_be_kept(
    back: Replicas, tmp_path: Path
) -> None:
    (folder(tmp_path) / topic_identity.FILE_NAME).unlink()
    (folder(tmp_path) / topic_identity.FILE_NAME).mkdir()
    znode(back, FORMER.topic_id, 5)
    assert await take(back, "leader", epoch=8) is ErrorCode.KAFKA_STORAGE_ERROR
    assert KEY not in back.manager.partitions
    (folder(tmp_path) / topic_identity.FILE_NAME).rmdir()
    assert await take(back, "leader", epoch=8) is ErrorCode.NONE
    assert log_end(back) == 1


async def test_session_that_ends_meanwhile_leaves_every_role_to_the_next_registration(
    back: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def expire() -> None:
        raise SessionExpiredError

    monkeypatch.setattr(back.session, "sync", expire)
    result = await back.take(leader=1, epoch=8)
    assert result == (ErrorCode.STALE_BROKER_EPOCH, {})
    assert KEY not in back.manager.partitions


async def test_role_of_a_former_registration_is_not_taken_in_the_next(
    back: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def register_anew() -> None:
        back.session.generation += 1

    with monkeypatch.context() as patch:
        patch.setattr(back.session, "sync", register_anew)
        result = await back.take(leader=1, epoch=8)
    assert result == (ErrorCode.STALE_BROKER_EPOCH, {})
    assert KEY not in back.manager.partitions
    assert await take(back, "leader", epoch=8) is ErrorCode.NONE
    assert back.manager.role_confirmed(back.manager.partitions[KEY])


async def test_topic_that_is_gone_changes_nothing(back: Replicas) -> None:
    assert await take(back, "follower", epoch=8) is ErrorCode.NONE
    assert log_end(back) == 1


def test_file_is_the_one_that_kafka_reads(tmp_path: Path) -> None:
    file = tmp_path / topic_identity.FILE_NAME
    assert topic_identity.read(str(tmp_path)) is None
    topic_identity.write(str(tmp_path), PRESENT)
    assert (
        file.read_bytes()
        == b"version: 0\ntopic_id: " + b"b" * 22 + b"\nczxid: 9\nzookeeper: %d\n" % ZOOKEEPER_MS
    )
    assert topic_identity.read(str(tmp_path)) == PRESENT
    file.write_bytes(b"version: 0\ntopic_id: " + b"b" * 22)
    assert topic_identity.read(str(tmp_path)) == TopicIdentity("b" * 22)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"version: 1\ntopic_id: " + b"b" * 22,
        b"version: 0\ntopic_id: " + b"b" * 21,
        b"version: 0\ntopic_id: " + b"b" * 22 + b"\nczxid: x\nzookeeper: 7",
        b"version: 0\ntopic_id: " + b"b" * 22 + b"\nczxid: 7",
        b"\x00" * 50,
    ],
)
async def test_damaged_file_says_nothing(back: Replicas, tmp_path: Path, data: bytes) -> None:
    (folder(tmp_path) / topic_identity.FILE_NAME).write_bytes(data)
    with pytest.raises(CorruptIdentityError):
        topic_identity.read(str(folder(tmp_path)))
    znode(back, PRESENT.topic_id, 9)
    assert await take(back, "leader", epoch=8) is ErrorCode.NONE
    assert topic_identity.read(str(folder(tmp_path))) == PRESENT


def test_new_ids_can_be_read_by_kafka_and_given_to_commands() -> None:
    made = {admin.new_topic_id() for _ in range(300)}
    assert len(made) == 300
    assert all(map(znodes.is_topic_id, made))
    assert not any(one.startswith("-") for one in made)
