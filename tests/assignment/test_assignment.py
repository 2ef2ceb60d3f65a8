"""Replica and range assignment against what Kafka's own code gives."""

from collections.abc import Mapping
from random import Random
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek import assignment
from odradek.assignment import Start
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import BrokerId, TopicPartition

Rack = TypeVar("Rack", str, str | None)


def by_broker(racks: Mapping[int, Rack]) -> dict[BrokerId, Rack]:
    """Return brokers with their racks."""
    return {BrokerId(number): rack for number, rack in racks.items()}


FIVE = by_broker(dict[int, str | None].fromkeys(range(5)))
SIX_IN_THREE_RACKS = by_broker({0: "r1", 1: "r3", 2: "r3", 3: "r2", 4: "r2", 5: "r1"})


def test_assignment_equals_the_table_in_kafkas_admin_utils() -> None:
    """The table printed above AdminUtils.assignReplicasToBrokers: 10 partitions, 5 brokers."""
    laid = assignment.assign_replicas(FIVE, 10, 3, Start.fixed(0))
    assert laid == {
        0: (0, 1, 2),
        1: (1, 2, 3),
        2: (2, 3, 4),
        3: (3, 4, 0),
        4: (4, 0, 1),
        5: (0, 2, 3),
        6: (1, 3, 4),
        7: (2, 4, 0),
        8: (3, 0, 1),
        9: (4, 1, 2),
    }


def test_racks_alternate_as_in_kafkas_rack_aware_test() -> None:
    assert assignment.alternate_racks(SIX_IN_THREE_RACKS) == [0, 3, 1, 5, 4, 2]
    uneven = by_broker({0: "a", 1: "a", 2: "a", 3: "b"})
    assert assignment.alternate_racks(uneven) == [0, 3, 1, 2]


def test_rack_aware_assignment_equals_kafkas_rack_aware_test() -> None:
    laid = assignment.assign_replicas(SIX_IN_THREE_RACKS, 7, 3, Start(0, 0))
    assert laid == {
        0: (0, 3, 1),
        1: (3, 1, 5),
        2: (1, 5, 4),
        3: (5, 4, 2),
        4: (4, 2, 0),
        5: (2, 0, 3),
        6: (0, 4, 2),
    }


@settings(deadline=None)
@given(
    racks=st.lists(st.sampled_from("abc"), min_size=1, max_size=9),
    partitions=st.integers(1, 40),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_replicas_are_distinct_cover_racks_and_leaders_are_spread(
    racks: list[str], partitions: int, seed: int, data: st.DataObject
) -> None:
    brokers = by_broker(dict(enumerate(racks)))
    factor = data.draw(st.integers(1, len(brokers)))
    start = Start.draw(Random(seed), len(brokers))
    laid = assignment.assign_replicas(brokers, partitions, factor, start)
    assert list(laid) == list(range(partitions))
    for replicas in laid.values():
        assert len(set(replicas)) == factor
        assert len({brokers[b] for b in replicas}) == min(factor, len(set(racks)))
    leaders = [r[0] for r in laid.values()]
    counts = [leaders.count(broker) for broker in brokers]
    assert max(counts) - min(counts) <= 1


def test_one_broker_holds_every_partition() -> None:
    assert assignment.assign_replicas({BrokerId(7): None}, 3, 1, Start(0, 0)) == {
        0: (7,),
        1: (7,),
        2: (7,),
    }


@pytest.mark.parametrize(
    ("partitions", "factor", "code", "words"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS, "partitions 0"),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR, "factor 0"),
        (1, 6, ErrorCode.INVALID_REPLICATION_FACTOR, "factor: 6 .*brokers: 5"),
    ],
)
def test_impossible_numbers_are_refused_with_the_numbers(
    partitions: int, factor: int, code: ErrorCode, words: str
) -> None:
    with pytest.raises(KafkaError, match=words) as caught:
        assignment.assign_replicas(FIVE, partitions, factor, Start(0, 0))
    assert caught.value.code == code


def test_partial_racks_are_refused_or_ignored() -> None:
    partial = by_broker({0: "a", 1: None})
    with pytest.raises(KafkaError, match=r"1 of 2 have none: \[1\]"):
        assignment.assign_replicas(partial, 1, 1, Start(0, 0))
    assert assignment.forget_partial_racks(partial) == {0: None, 1: None}
    assert assignment.forget_partial_racks(by_broker({0: "a", 1: "b"})) == {0: "a", 1: "b"}


def test_added_partitions_continue_the_assignment_from_partition_0() -> None:
    whole = assignment.assign_replicas(FIVE, 10, 3, Start.fixed(2))
    first = {partition: whole[partition] for partition in range(4)}
    added = assignment.add_partitions(first, FIVE, 10)
    assert added == {
        4: (1, 4, 0),
        5: (2, 1, 3),
        6: (3, 2, 4),
        7: (4, 3, 0),
        8: (0, 4, 1),
        9: (1, 0, 2),
    }
    assert first | added == whole


@pytest.mark.parametrize("wanted", [1, 2])
def test_partitions_never_shrink(wanted: int) -> None:
    with pytest.raises(KafkaError, match=f"has 2 .* requested {wanted}") as caught:
        assignment.add_partitions({0: (1,), 1: (2,)}, FIVE, wanted)
    assert caught.value.code == ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize(
    ("manual", "words"),
    [
        ({}, "No partition"),
        ({1: [0]}, "consecutive from 0"),
        ({0: [0], 2: [1]}, "consecutive"),
        ({0: []}, "no replicas"),
        ({0: [0, 0]}, "twice"),
        ({0: [-1]}, "negative"),
        ({0: [0], 1: [1, 2]}, "has 2 and not 1"),
        ({0: [0, 9]}, r"unknown brokers \[9\]"),
    ],
)
def test_bad_manual_assignments_are_refused(manual: dict[int, list[int]], words: str) -> None:
    with pytest.raises(KafkaError, match=words) as caught:
        assignment.check_manual(manual, FIVE)
    assert caught.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_manual_assignment_for_growth_keeps_the_factor() -> None:
    assert assignment.check_manual({2: [1, 0]}, FIVE, 2, 2) == {2: (1, 0)}
    with pytest.raises(KafkaError, match="has 1 and not 2"):
        assignment.check_manual({2: [1]}, FIVE, 2, 2)


def test_four_partitions_on_three_consumers_give_the_first_one_more() -> None:
    threads = assignment.thread_names({"c1": 1, "c2": 1, "c3": 1})
    assert assignment.assign_range(range(4), threads) == {
        "c1-0": (0, 1),
        "c2-0": (2,),
        "c3-0": (3,),
    }


@given(st.sets(st.integers(0, 50)), st.sets(st.text("abc", min_size=1, max_size=3), min_size=1))
def test_every_partition_has_one_owner_and_shares_differ_by_one(
    partitions: set[int], threads: set[str]
) -> None:
    owned = assignment.assign_range(partitions, threads)
    assert sorted(p for mine in owned.values() for p in mine) == sorted(partitions)
    sizes = [len(mine) for _, mine in sorted(owned.items())]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_topics_are_assigned_to_the_consumers_that_read_them() -> None:
    subscriptions = {"c2": {"t": 1}, "c1": {"t": 2, "u": 1}}
    owned = assignment.assign_group(subscriptions, {"t": range(4), "u": [0], "other": [0]})
    assert owned == {
        TopicPartition("t", 0): "c1-0",
        TopicPartition("t", 1): "c1-0",
        TopicPartition("t", 2): "c1-1",
        TopicPartition("t", 3): "c2-0",
        TopicPartition("u", 0): "c1-0",
    }


# --- brokers that share nodes ---------------------------------------------------------------------

TWO_PER_NODE = {100 * more + node: f"n{node}" for more in (0, 1) for node in range(3)}


@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 40),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_no_two_replicas_share_a_node_and_racks_come_first(
    per_node: int, nodes: int, racks: int, partitions: int, with_racks: bool, random: Random
) -> None:
    placed = {100 * k + n: f"n{n}" for k in range(per_node) for n in range(nodes)}
    rack_of = {BrokerId(one): f"r{one % 100 % racks}" if with_racks else None for one in placed}
    factor = random.randint(1, nodes)
    start = Start.draw(random, len(placed))
    laid = assignment.assign_replicas(rack_of, partitions, factor, start, nodes=placed)
    for replicas in laid.values():
        assert len({placed[one] for one in replicas}) == factor
        if with_racks:
            assert len({rack_of[one] for one in replicas}) == min(factor, racks, nodes)
    grown = assignment.add_partitions(laid, rack_of, partitions + 5, placed)
    assert all(len({placed[one] for one in replicas}) == factor for replicas in grown.values())
    with pytest.raises(KafkaError, match=f"{nodes + 1} larger than available") as refused:
        assignment.assign_replicas(rack_of, 1, nodes + 1, start, nodes=placed)
    assert refused.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_brokers_of_a_node_lead_and_follow_alike() -> None:
    racks: dict[BrokerId, str | None] = dict.fromkeys(map(BrokerId, TWO_PER_NODE), None)
    laid = assignment.assign_replicas(racks, 60, 3, Start(0, 0), nodes=TWO_PER_NODE)
    led = {one: sum(replicas[0] == one for replicas in laid.values()) for one in racks}
    held = {one: sum(one in replicas for replicas in laid.values()) for one in racks}
    assert set(led.values()) == {10}
    assert max(held.values()) - min(held.values()) <= 6


def test_a_node_whose_brokers_name_two_racks_still_has_one_replica() -> None:
    """Its label was changed, and only one of its brokers was restarted since."""
    racks = by_broker({0: "a", 1: "a", 100: "b", 101: "a"})
    nodes = {0: "n0", 1: "n1", 100: "n0", 101: "n1"}
    for start in range(4):
        laid = assignment.assign_replicas(racks, 8, 2, Start.fixed(start), nodes=nodes)
        assert all({nodes[one] for one in replicas} == {"n0", "n1"} for replicas in laid.values())


def test_manual_assignment_to_one_node_is_refused() -> None:
    with pytest.raises(KafkaError, match="brokers 1 and 101 are on n1") as refused:
        assignment.check_manual({0: [0, 1], 1: [1, 101]}, TWO_PER_NODE, nodes=TWO_PER_NODE)
    assert refused.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert assignment.check_manual({0: [0, 101]}, TWO_PER_NODE, nodes=TWO_PER_NODE)
