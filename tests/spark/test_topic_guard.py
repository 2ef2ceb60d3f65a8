"""Topics made anew and truncated logs, with a real ZooKeeper and a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from odradek.values import TopicPartition
from odradek.zk import consumers, znodes
from odradek.zk.consumers import TopicIncarnation
from odradek_spark import config, group_znodes, membership, topic_guard
from odradek_spark.errors import JobStalledError
from odradek_spark.topic_guard import AdmittedStart, TopicChangedError
from tests.spark.guarded_groups import (
    Group,
    part,
)
from tests.support import broker
from tests.support.clients import create_topic, produce_all

pytestmark = pytest.mark.timeout(1200)
ONE = TopicIncarnation(5, None, 2)


@pytest.mark.parametrize(
    ("now", "same"),
    [
        (TopicIncarnation(5, None, 3), True),
        (TopicIncarnation(6, None, 2), False),
        (TopicIncarnation(5, None, 1), False),
        (TopicIncarnation(5, "B", 2), True),
        (TopicIncarnation(6, "B", 2), False),
    ],
)
def test_topic_without_an_id_is_known_by_the_transaction_that_created_it(
    now: TopicIncarnation, same: bool
) -> None:
    assert topic_guard.is_same(ONE, now) is same
    assert topic_guard.is_same(now, TopicIncarnation(now.czxid, None, now.partitions))


@pytest.mark.parametrize("czxid", [5, 6])
def test_topic_id_decides_where_both_have_one(czxid: int) -> None:
    before = TopicIncarnation(5, "A", 2)
    assert topic_guard.is_same(before, TopicIncarnation(czxid, "A", 2))
    assert not topic_guard.is_same(before, TopicIncarnation(czxid, "B", 2))


def test_incarnation_is_stored_without_its_time() -> None:
    for incarnation in (ONE, TopicIncarnation(2**40, "A" * 22, 1, created_ms=3)):
        data = consumers.encode_incarnation(incarnation)
        assert consumers.decode_incarnation("/x", data) == incarnation


@pytest.mark.parametrize("store", [config.ZOOKEEPER, config.KAFKA])
def test_topic_made_anew_while_nobody_read_it_is_refused_until_a_reset(
    group: Callable[..., Group], store: str
) -> None:
    one = group(records=10, store=store)
    assert one.start() == AdmittedStart({}, frozenset(), frozenset())
    one.commit({part(one): 10})
    before = one.incarnation()
    one.make_anew(records=30)
    # A coordinator forgets offsets of a deleted topic; the checkpoint still has them.
    own = {part(one): 10}
    with pytest.raises(JobStalledError) as refusal:
        one.start(own)
    assert str(refusal.value).startswith(f"TopicRecreated: topic {one.name} was made anew at 20")
    assert "spec.reset" in str(refusal.value)
    assert len(str(refusal.value)) < 500
    assert one.incarnation() == before
    one.reset({part(one): 0})
    admission = one.start(own)
    assert admission == AdmittedStart({part(one): 0}, {part(one)}, {one.name})
    assert one.incarnation() not in (before, None)
    # From now on its offsets count again.
    one.commit({part(one): 30})
    assert one.start({part(one): 30}).lost == frozenset()


def test_reset_does_not_cover_a_topic_made_anew_after_it(group: Callable[..., Group]) -> None:
    one = group(records=10)
    one.start()
    one.reset({part(one): 10})
    one.make_anew(records=30)
    with pytest.raises(JobStalledError, match="TopicRecreated"):
        one.start()


def test_topic_of_which_nothing_was_read_may_be_made_anew(group: Callable[..., Group]) -> None:
    one = group()
    one.start()
    one.commit({part(one): 0})
    one.make_anew(records=3)
    assert one.start({part(one): 0}).committed == {part(one): 0}
    assert one.start().lost == frozenset()


@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_offsets_of_partitions_that_are_gone_do_not_come_back(
    group: Callable[..., Group], partitions: int
) -> None:
    one = group(partitions=3, records=30)
    one.start()
    own = {part(one, number): 9 for number in range(3)}
    one.commit(own)
    one.make_anew(partitions=partitions, records=50)
    with pytest.raises(JobStalledError, match="TopicRecreated") as refusal:
        one.start(own)
    assert ("where it had 3" in str(refusal.value)) is (partitions < 3)
    one.reset({part(one, number): 2 for number in range(min(partitions, 3))})
    admission = one.start(own)
    assert set(admission.committed.values()) == {2}
    assert admission.lost == own.keys()
    assert one.offset_znodes() == {str(number) for number in range(min(partitions, 3))}
    assert one.incarnation().partitions == partitions


def test_topic_that_got_partitions_is_the_same(group: Callable[..., Group]) -> None:
    one = group(records=10)
    one.start()
    one.commit({part(one): 10})
    path = znodes.topic_path(one.name)
    now = znodes.decode_topic(path, one.zookeeper.get(path)[0])
    more = {0: now.partitions[0], 1: now.partitions[0]}
    grown = znodes.TopicAssignment(more, topic_id=now.topic_id)
    one.zookeeper.set(path, znodes.encode_topic(grown))
    admission = one.start({part(one): 10})
    assert (admission.lost, admission.known) == (frozenset(), {one.name})
    assert one.incarnation().partitions == 2
    # Taken away from the znode by hand.
    one.zookeeper.set(path, znodes.encode_topic(now))
    with pytest.raises(JobStalledError, match=r"TopicRecreated.*1 partitions, where it had 2"):
        one.start()


def test_of_two_topics_the_one_made_anew_is_named(group: Callable[..., Group]) -> None:
    one = group(records=10)
    other = f"{one.name}-b"
    create_topic(one.cluster.bootstrap, other)
    one.topics.append(other)
    one.start()
    one.commit({part(one): 10, TopicPartition(other, 0): 0})
    one.make_anew(records=20)
    with pytest.raises(JobStalledError, match=f"topic {one.name} was made anew"):
        one.start()
    one.reset({part(one): 0})
    own = {part(one): 10, TopicPartition(other, 0): 0}
    assert one.start(own).lost == {part(one)}


def test_topic_of_a_pattern_may_go_but_not_come_back_as_another(
    group: Callable[..., Group], cluster: broker.Cluster
) -> None:
    one = group(records=10, pattern="p-[0-9a-f]+|g-none")
    name = f"p-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.bootstrap, name)
    partition = TopicPartition(name, 0)
    produce_all(cluster.bootstrap, name, [b"x"] * 4)
    one.start()
    one.commit({partition: 4})
    one.delete_topic(name)
    assert one.start({partition: 4}) == AdmittedStart({}, {partition}, {name})
    create_topic(cluster.bootstrap, name)
    with pytest.raises(JobStalledError, match=f"topic {name} was made anew"):
        one.start()


def test_topic_that_is_deleted_after_its_assignment_is_waited_for(
    group: Callable[..., Group],
) -> None:
    one = group(records=10)
    assigned = one.join()
    one.delete_topic()
    with pytest.raises(membership.OwnershipLostError, match="was deleted"):
        one.guard().admit(assigned, {})


def test_log_may_begin_at_the_offset_but_not_after_it(group: Callable[..., Group]) -> None:
    one = group(records=10)
    one.start()
    one.commit({part(one): 6})
    one.delete_records(6)
    assert one.start().committed == {part(one): 6}
    one.delete_records(7)
    with pytest.raises(
        JobStalledError, match="begins at 7, and the group's offset is 6: 1 records"
    ):
        one.start()
    # A group without offsets, whose checkpoint has some.
    with pytest.raises(JobStalledError, match="DataTruncated"):
        one.start({part(one): 6})
    one.reset({part(one): 7})
    assert one.start({part(one): 6}) == AdmittedStart({part(one): 7}, {part(one)}, {one.name})


def test_group_from_before_takes_the_topic_if_its_offsets_lie_within_the_log(
    group: Callable[..., Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_guard, "LOG_PATIENCE_S", 0.0)
    one = group(records=10)
    one.join()
    one.commit({part(one): 11})
    with pytest.raises(JobStalledError, match=r"TopicRecreated: the log of .* ends at 10"):
        one.start()
    one.commit({part(one): 10})
    assert one.start({part(one): 10}).lost == frozenset()
    assert one.incarnation().partitions == 1
    # A log that ends before a commit to the same topic has lost records.
    one.commit({part(one): 11})
    with pytest.raises(JobStalledError, match=r"DataTruncated: the log of .* ends at 10"):
        one.start()


def test_group_from_before_with_offsets_of_missing_partitions_needs_a_reset(
    group: Callable[..., Group],
) -> None:
    one = group(records=10)
    one.join()
    one.commit({part(one): 3})
    one.zookeeper.create(consumers.offset_path(one.name, one.name, 1), b"3")
    with pytest.raises(JobStalledError, match="with 1 partitions, where it had 2"):
        one.start()
    one.reset({part(one): 0})
    assert one.start().committed == {part(one): 0}
    assert one.offset_znodes() == {"0"}


def test_restored_znode_with_its_id_is_the_same_topic(group: Callable[..., Group]) -> None:
    one = group(records=10)
    one.start()
    one.commit({part(one): 4})
    before = one.incarnation()
    assert before.topic_id is not None
    path = consumers.incarnation_path(one.name, one.name)
    restored = TopicIncarnation(before.czxid - 1, before.topic_id, 1)
    one.zookeeper.set(path, consumers.encode_incarnation(restored))
    assert one.start({part(one): 4}).lost == frozenset()
    assert one.incarnation() == before


def test_driver_killed_after_the_record_starts_as_before(group: Callable[..., Group]) -> None:
    one = group(records=10)
    one.start()  # recorded, and nothing committed
    admission = one.start()
    assert admission == AdmittedStart({}, frozenset(), {one.name})
    # Made anew before the first commit: nothing of the former topic was read.
    one.make_anew(records=5)
    one.start()
    one.commit({part(one): 5})
    one.make_anew()
    with pytest.raises(JobStalledError, match="TopicRecreated"):
        one.start()


def test_nothing_is_recorded_by_a_member_that_lost_its_registration(
    group: Callable[..., Group],
) -> None:
    one = group(records=10)
    assigned = one.join()
    guard = one.guard()
    guard.admit(assigned, {})
    assert one.member is not None
    one.zookeeper.delete(consumers.consumer_id_path(one.name, one.member.consumer_id))
    with pytest.raises(group_znodes.TRANSIENT):
        guard.record()
    assert not one.zookeeper.exists(consumers.incarnation_path(one.name, one.name))


def test_changes_while_a_query_runs_are_found_before_the_next_batch(
    group: Callable[..., Group],
) -> None:
    one = group(records=10)
    assigned = one.join()
    guard = one.guard()
    guard.admit(assigned, {})
    guard.record()
    one.delete_records(3)
    guard.require_unchanged({part(one): 3}, 120)
    with pytest.raises(TopicChangedError, match="begins at 3, after 2"):
        guard.require_unchanged({part(one): 2}, 120)
    one.delete_topic()
    assert guard.changed() == f"topic {one.name} was deleted"
    create_topic(one.cluster.bootstrap, one.name)
    assert f"topic {one.name} was made anew" in str(guard.changed())
    with pytest.raises(TopicChangedError, match="was made anew"):
        guard.require_unchanged({part(one): 3}, 120)
