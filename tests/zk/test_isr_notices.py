"""Announcements of changed in-sync sets, on a real ZooKeeper."""

import pytest

from odradek.replica import isr_notices
from odradek.replica.isr_notices import IsrNotices
from odradek.values import TopicPartition
from odradek.zk import znodes
from odradek.zk.registration import create_persistent_paths
from odradek.zk.session import Session, SessionState
from tests.zk.conftest import OpenSession

# A name of the greatest length, and one notification of all would take more than 2 MiB.
PARTITIONS = {TopicPartition("t" * 249, number) for number in range(8_200)}


async def announced(session: Session) -> list[frozenset[TopicPartition]]:
    """Return what each notification names."""
    children = await session.children(znodes.ISR_CHANGES_PATH)
    found = await session.get_all(f"{znodes.ISR_CHANGES_PATH}/{name}" for name in children)
    return [frozenset(znodes.decode_isr_change(path, data)) for path, (data, _) in found.items()]


async def test_thousands_of_long_names_are_announced_without_losing_the_connection(
    sessions: OpenSession,
) -> None:
    session = await sessions()
    await create_persistent_paths(session)
    states: list[SessionState] = []
    session.on_state(states.append)
    notices = IsrNotices(session, lambda: 0)
    for one in PARTITIONS:
        notices.add(one)
    await notices.announce()
    parts = await announced(session)
    assert frozenset.union(*parts) == PARTITIONS
    assert sum(map(len, parts)) == len(PARTITIONS)
    assert not states
    await notices.announce()
    assert len(await announced(session)) == len(parts), "nothing is announced twice"


async def test_what_fails_is_announced_the_next_time(
    sessions: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isr_notices, "PARTITIONS_PER_NOTICE", 2)
    session = await sessions()
    notices = IsrNotices(session, lambda: 0)
    wanted = {TopicPartition("t", number) for number in range(5)}
    for one in wanted:
        notices.add(one)
    await notices.announce()  # the parent is missing
    await create_persistent_paths(session)
    await notices.announce()
    assert sorted(map(len, await announced(session))) == [1, 2, 2]
    assert frozenset.union(*await announced(session)) == wanted
