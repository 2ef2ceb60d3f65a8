"""The modes of a Reassignment: nothing lost, nothing moved without need, racks and leaders kept."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.values import TopicPartition
from odradek_operator.reassignment import placement
from odradek_operator.reassignment.placement import PlanError, Replicas, Seen
from tests.support import steps


@st.composite
def layouts(draw: st.DrawFn) -> Seen:
    """Topics of one replication factor each, on 3 to 6 brokers on 1 to 3 racks or on none."""
    count = draw(st.integers(3, 6))
    racks = draw(st.integers(0, 3))
    brokers = {one: f"rack-{one % racks}" if racks else None for one in range(count)}
    replicas: dict[TopicPartition, Replicas] = {}
    for topic in range(draw(st.integers(1, 4))):
        factor = draw(st.integers(1, 3))
        for partition in range(draw(st.integers(1, 6))):
            order = draw(st.permutations(range(count)))
            replicas[TopicPartition(f"t{topic}", partition)] = tuple(order[:factor])
    return Seen(replicas, brokers)


def after(seen: Seen, planned: dict[TopicPartition, Replicas]) -> dict[TopicPartition, Replicas]:
    return {**seen.replicas, **planned}


def load(layout: dict[TopicPartition, Replicas]) -> Counter[int]:
    return Counter(one for replicas in layout.values() for one in replicas)


def racks_of(seen: Seen, replicas: Replicas) -> int:
    return len({seen.brokers.get(one) for one in replicas})


@settings(deadline=None)
@given(layouts(), st.integers(1, 2))
def test_added_brokers_get_their_share_and_nothing_else_moves(seen: Seen, more: int) -> None:
    added = set(range(10, 10 + more))
    rack = None if None in seen.brokers.values() else "rack-0"
    wider = Seen(seen.replicas, {**seen.brokers, **dict.fromkeys(added, rack)})
    planned = placement.plan_added(wider, added)
    layout = after(wider, planned)
    assert planned == placement.plan_added(wider, added)
    for partition, replicas in planned.items():
        before = seen.replicas[partition]
        assert len(set(replicas)) == len(before)
        # Only new brokers gain anything.
        assert set(replicas) - set(before) <= added
        assert racks_of(wider, replicas) >= racks_of(wider, before)
    counts = load(layout)
    moved = sum(len(set(one) - set(seen.replicas[p])) for p, one in planned.items())
    assert moved == sum(counts[one] for one in added)
    fair = sum(counts.values()) // len(wider.brokers)
    assert all(counts[one] <= fair + 1 for one in added)
    if rack is None:
        # Without racks nothing stands in the way but a partition that has the broker already.
        longest = len(seen.replicas)
        assert all(counts[one] >= min(fair, longest) - 1 for one in added)


def test_brokers_that_may_be_removed_are_there_or_hold_replicas() -> None:
    held = {TopicPartition("t", 0): (0, 9)}
    seen = Seen(held, {0: None, 1: None}, others=frozenset({4}))
    assert placement.plan_removed(seen, [4]) == {}
    assert placement.plan_removed(seen, [1]) == {}
    assert placement.plan_removed(seen, [9]) == {TopicPartition("t", 0): (0, 1)}
    with pytest.raises(PlanError, match=r"brokers \[7\] are none of \[0, 1, 4, 9\]"):
        placement.plan_removed(seen, [7, 9])


def test_nothing_is_left_on_brokers_that_have_gone_or_never_were() -> None:
    seen = Seen({TopicPartition("t", 0): (0, 1)}, {0: None, 1: None}, others=frozenset({4}))
    assert placement.plan_removed(seen, [7, 4]) == {}
    assert placement.unknown_brokers(seen, [7, 4]) == [7]
    assert placement.unknown_brokers(seen, [0, 4]) == []


@settings(deadline=None)
@given(layouts(), st.data())
def test_removed_brokers_end_up_empty_and_others_keep_what_they_have(
    seen: Seen, data: st.DataObject
) -> None:
    gone = data.draw(st.integers(0, len(seen.brokers) - 1))
    stay = set(seen.brokers) - {gone}
    if max(map(len, seen.replicas.values())) > len(stay):
        with pytest.raises(PlanError, match="brokers remain"):
            placement.plan_removed(seen, [gone])
        return
    planned = placement.plan_removed(seen, [gone])
    layout = after(seen, planned)
    assert load(layout)[gone] == 0
    assert set(planned) == {one for one, replicas in seen.replicas.items() if gone in replicas}
    for partition, replicas in planned.items():
        before = seen.replicas[partition]
        assert len(set(replicas)) == len(before)
        assert set(before) - {gone} <= set(replicas) <= stay
        free_racks = {seen.brokers[one] for one in stay}
        assert racks_of(seen, replicas) == min(
            len(replicas), len(free_racks), racks_of(seen, tuple(set(before) - {gone})) + 1
        )


@settings(deadline=None)
@given(layouts(), st.integers(1, 3))
def test_factor_grows_without_moving_and_shrinks_without_losing_the_leader(
    seen: Seen, factor: int
) -> None:
    topics = {one.topic for one in seen.replicas}
    leaders = {partition: replicas[-1] for partition, replicas in seen.replicas.items()}
    in_sync = {partition: frozenset({leaders[partition]}) for partition in leaders}
    known = Seen(seen.replicas, seen.brokers, leaders, in_sync)
    planned = placement.plan_factor(known, topics, factor)
    for partition, replicas in after(known, planned).items():
        before = seen.replicas[partition]
        assert len(set(replicas)) == factor
        assert leaders[partition] in replicas
        assert set(replicas) <= set(before) or set(before) <= set(replicas)
        kept = [one for one in before if one in replicas]
        assert list(replicas[: len(kept)]) == kept
    assert placement.plan_factor(Seen(after(known, planned), seen.brokers), topics, factor) == {}


P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
TWO = Seen({P0: (0, 1), P1: (1, 2)}, {0: None, 1: None, 2: None}, {P0: 1, P1: 1})


def test_explicit_moves_leave_out_what_is_done_and_refuse_what_cannot_be() -> None:
    assert placement.plan_explicit(TWO, {P0: (0, 1), P1: (2, 1)}) == {P1: (2, 1)}
    # It may be made later, so this is no end as that of brokers which have gone.
    with pytest.raises(PlanError, match=r"partition t-7 does not exist; looked for again"):
        placement.plan_explicit(TWO, {TopicPartition("t", 7): (0,)})
    with pytest.raises(PlanError, match=r"brokers \[9\] are not registered"):
        placement.plan_explicit(TWO, {P0: (9,)})
    with pytest.raises(PlanError, match="a broker twice"):
        placement.plan_explicit(TWO, {P0: (1, 1)})


def test_preferred_leaders_are_those_that_another_leads() -> None:
    assert placement.plan_preferred(TWO, {"t"}) == {P0: (0, 1)}
    with pytest.raises(PlanError, match=r"unknown topics: u; .* if the topic went, delete"):
        placement.plan_preferred(TWO, {"t", "u"})


def test_one_broker_added_to_three_gets_a_quarter_and_its_share_of_leaders() -> None:
    replicas = {
        TopicPartition("t", one): tuple((one + shift) % 3 for shift in range(3))
        for one in range(12)
    }
    planned = placement.plan_added(Seen(replicas, dict.fromkeys(range(4))), [3])
    assert load({**replicas, **planned}) == {0: 9, 1: 9, 2: 9, 3: 9}
    leads = Counter(one[0] for one in {**replicas, **planned}.values())
    assert max(leads.values()) - min(leads.values()) <= 1


def test_an_added_broker_gets_a_share_of_each_topic_and_not_all_of_a_small_one() -> None:
    sizes = {"large": 50, "small": 6, "tiny": 3}
    replicas: dict[TopicPartition, Replicas] = {
        TopicPartition(topic, one): ((1, 2) if one % 2 else (2, 1))
        for topic, size in sizes.items()
        for one in range(size)
    }
    planned = placement.plan_added(Seen(replicas, dict.fromkeys((1, 2, 3))), [3])
    layout = {**replicas, **planned}
    assert max(load(layout).values()) - min(load(layout).values()) <= 1
    for topic, size in sizes.items():
        of_topic = load({one: where for one, where in layout.items() if one.topic == topic})
        assert all(abs(of_topic[one] - size * 2 / 3) <= 1 for one in (1, 2, 3)), (topic, of_topic)


@settings(deadline=None)
@given(layouts(), st.integers(1, 2), st.lists(st.integers(0, 4), min_size=12, max_size=12))
def test_each_replica_that_moves_is_the_best_of_all_at_that_moment(
    seen: Seen, more: int, nodes: list[int]
) -> None:
    added = set(range(10, 10 + more))
    rack = None if None in seen.brokers.values() else "rack-1"
    brokers = {**seen.brokers, **dict.fromkeys(added, rack)}
    shared = {one: f"node-{nodes[one]}" for one in brokers}
    planned = placement.plan_added(Seen(seen.replicas, brokers, nodes=shared), added)
    layout = {one: set(replicas) for one, replicas in after(seen, planned).items()}
    assert layout == greedy(seen, brokers, shared, added)


def greedy(
    seen: Seen, brokers: dict[int, str | None], nodes: dict[int, str], added: set[int]
) -> dict[TopicPartition, set[int]]:
    """Move one replica after the other, each time after a look at every partition."""
    layout = {one: set(replicas) for one, replicas in seen.replicas.items()}
    counts = Counter(one for replicas in layout.values() for one in replicas)
    share, hungry = -(-counts.total() // len(brokers)), set(added)

    def of_topic(topic: str, broker: int) -> int:
        return sum(broker in held for one, held in layout.items() if one.topic == topic)

    def fits(held: set[int], source: int, target: int) -> bool:
        rest = held - {source}
        racks = {brokers[one] for one in held} - {None}
        return nodes[target] not in {nodes[one] for one in rest} and (
            len({brokers[one] for one in rest | {target}} - {None}) >= len(racks)
        )

    def best(source: int, target: int) -> TopicPartition | None:
        possible = (
            one
            for one, held in layout.items()
            if source in held and target not in held and fits(held, source, target)
        )
        return min(
            possible,
            key=lambda one: (of_topic(one.topic, target) - of_topic(one.topic, source), one),
            default=None,
        )

    while hungry:
        target = min(hungry, key=lambda one: (counts[one], one))
        found = None
        for source in sorted(brokers.keys() - added, key=lambda one: (-counts[one], one)):
            if counts[target] >= share or counts[source] - counts[target] <= 1:
                break
            found = best(source, target)
            if found is not None:
                layout[found] = layout[found] - {source} | {target}
                counts[source] -= 1
                counts[target] += 1
                break
        if found is None:
            hungry.remove(target)
    return layout


def test_steps_of_a_plan_grow_with_the_partitions() -> None:
    def spread_out(partitions: int) -> Seen:
        held: dict[TopicPartition, Replicas] = {
            TopicPartition(f"t{one // 20}", one % 20): (one % 3, (one + 1) % 3)
            for one in range(partitions)
        }
        return Seen(held, dict.fromkeys(range(4)))

    once, twice = (steps.count(placement.plan_added, spread_out(many), [3]) for many in (200, 400))
    assert twice < 2.2 * once
    once, twice = (
        steps.count(placement.plan_removed, spread_out(many), [2]) for many in (200, 400)
    )
    assert twice < 2.2 * once
