"""Several brokers per node: which ids there are, who goes together, and how they come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.values import BrokerId, TopicPartition
from odradek.zk import znodes
from odradek_operator.cluster import broker_steps, exposed_services, listener_plan, rollout
from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.cluster.objects import Budget
from odradek_operator.cluster.rollout import BrokerPod, ClusterView
from odradek_operator.reassignment import placement
from odradek_operator.reassignment.placement import PlanError, Seen
from odradek_operator.shared import cluster_spec, observe, spec
from odradek_operator.shared.broker_sets import BrokerSets, broker_id_of
from odradek_operator.shared.listener_spec import ListenerSpec
from odradek_operator.shared.views import Partitions
from tests.reconcile.in_memory import NOBODY_LISTENS, reason, resource, run
from tests.reconcile.in_memory import cluster as cluster_body
from tests.reconcile.test_objects import META, cluster
from tests.support.memory import MemoryZooKeeper

NEW, OLD = "new", "old"
SIX = BrokerSets((3, 3))
IN_SYNC = Partitions(0, 0, frozenset(SIX))
# Where brokers run: 0 and 100 on n0, and so on.
NODES = {one: f"n{one % 100}" for one in SIX}


def objects(
    wanted: cluster_spec.ClusterSpec, brokers: BrokerSets, *live: Any
) -> dict[str, dict[str, Any]]:
    made = cluster_objects.desired_objects(
        META, wanted, "b:1", "Always", (), {}, live or (None,), brokers, Budget(1)
    )
    return {f"{one['kind']} {one['metadata']['name']}": one for one in made}


def pod(broker_id: int, revision: str = OLD, *, healthy: bool = True) -> BrokerPod:
    return BrokerPod(
        broker_id,
        SIX.pod("main", broker_id),
        NODES[broker_id],
        "h:1",
        revision,
        healthy,
        healthy,
        of_set=SIX.set_of(broker_id),
    )


def view(*pods: BrokerPod, partitions: Partitions = IN_SYNC, controller: int = 0) -> ClusterView:
    return ClusterView(pods, controller, partitions, NEW, later_revisions=(NEW,))


# --- what cannot run ------------------------------------------------------------------------------


def test_a_broker_that_does_not_come_back_takes_none_of_its_node_with_it() -> None:
    bad = replace(pod(101, NEW, healthy=False), trouble="ErrImagePull")
    assert rollout.next_to_roll(view(pod(0), pod(1), pod(100), bad)) is None


def test_one_that_never_ran_gets_another_template_whatever_else_is_down() -> None:
    lagging = replace(IN_SYNC, lagging=frozenset({0, 2}))
    stuck = replace(pod(2, healthy=False), trouble="ImagePullBackOff")
    others = [pod(0, NEW, healthy=False), pod(1, NEW)]
    found = rollout.next_to_roll(view(*others, stuck, partitions=lagging, controller=1))
    assert found is not None
    assert found.broker_id == 2


# --- ids and pods ---------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 40))
def test_brokers_are_spread_over_sets_and_keep_id_and_pod_when_there_are_more(
    per_node: int, replicas: int
) -> None:
    brokers = BrokerSets.spread(replicas, per_node)
    assert len(list(brokers)) == len(set(brokers)) == len(brokers) == replicas
    assert max(brokers.counts) == -(-replicas // per_node)
    assert all(one in brokers for one in brokers)
    assert all(one not in brokers for one in (-1, brokers.counts[0], 99, 1000, "0"))
    pods = {one: brokers.pod("a-broker", one) for one in brokers}
    assert {one: broker_id_of("a-broker", name) for one, name in pods.items()} == {
        one: one for one in brokers
    }
    assert broker_id_of("a", pods[0]) is None
    # What stays has the same pod, and so the same volume.
    more = BrokerSets.spread(replicas + per_node, per_node)
    assert all(more.pod("a-broker", one) == name for one, name in pods.items() if one in more)
    assert set(brokers) <= set(more)


def test_one_broker_per_node_is_as_ever() -> None:
    wanted = cluster(replicas=150)
    assert wanted.brokers == BrokerSets((150,))
    assert (wanted.brokers.pod("main", 149), 149 in wanted.brokers) == ("main-broker-149", True)
    assert objects(wanted, wanted.brokers) == objects(
        cluster(replicas=150, perNode=1), wanted.brokers
    )
    (workload,) = [one for one in objects(wanted, wanted.brokers).values() if "Set" in one["kind"]]
    assert "broker-set" not in str(workload)
    assert "one.replica" not in str(objects(wanted, wanted.brokers))


def test_each_set_has_ports_of_its_own_and_only_its_own_pods_keep_apart() -> None:
    wanted = cluster(replicas=5, perNode=2, port=9092, metricsPort=9404)
    made = objects(wanted, wanted.brokers)
    first, second = (made[f"StatefulSet main-broker{one}"]["spec"] for one in ("", "-b"))
    assert (first["replicas"], "ordinals" in first) == (3, False)
    assert (second["replicas"], second["ordinals"]) == (2, {"start": 100})
    for number, one in enumerate((first, second)):
        (container,) = one["template"]["spec"]["containers"]
        assert [port["containerPort"] for port in container["ports"]] == [
            9092 + number,
            9404 + number,
        ]
        anti = one["template"]["spec"]["affinity"]["podAntiAffinity"]
        (term,) = anti["requiredDuringSchedulingIgnoredDuringExecution"]
        own = {cluster_objects.SET_LABEL: str(number)}
        assert own.items() <= term["labelSelector"]["matchLabels"].items()
        labels = one["template"]["metadata"]["labels"].items()
        assert {**one["selector"]["matchLabels"], **own}.items() <= labels
    # The selector of a set cannot change.
    former = objects(cluster(replicas=5), BrokerSets((5,)))["StatefulSet main-broker"]["spec"]
    assert first["selector"] == former["selector"]
    text = made["ConfigMap main-broker-b"]["data"]["server.properties"]
    assert "listeners=PLAINTEXT://:9093\n" in text
    assert "odradek.one.replica.per.node=true\n" in text
    # Who looks addresses up asks for the first set's ports, which no other has.
    service = made["Service main-brokers"]["spec"]
    assert [one["targetPort"] for one in service["ports"]] == [9092, 9404]
    assert service["selector"][cluster_objects.SET_LABEL] == "0"
    alone = objects(wanted, BrokerSets((3, 0)))["Service main-brokers"]["spec"]
    assert cluster_objects.SET_LABEL not in alone["selector"]
    notes = made["StatefulSet main-broker"]["metadata"]["annotations"]
    assert broker_steps.sets_so_far({"metadata": {"annotations": notes}}) == 2


def test_services_of_exposed_listeners_lead_to_the_port_of_each_set() -> None:
    listeners = [
        {"name": "internal", "port": 9092},
        {"name": "external", "port": 9094, "expose": {"type": "NodePort"}},
    ]
    body = resource("KafkaCluster", "main", zookeeper={"connect": "zk:2181"}, listeners=listeners)
    body["spec"]["brokers"] = {"replicas": 4, "perNode": 2}
    wanted = cluster_spec.parse_cluster(body)
    (exposed,) = wanted.exposed
    found = exposed_services.desired(META, exposed, wanted.brokers)
    assert [one["metadata"]["name"].removeprefix("main-external-") for one in found] == [
        "bootstrap",
        *("0", "1", "100", "101"),
    ]
    assert {one["spec"]["ports"][0]["targetPort"] for one in found} == {"external"}
    assert found[3]["spec"]["selector"] == {
        "statefulset.kubernetes.io/pod-name": "main-broker-b-100"
    }


def test_former_listeners_must_leave_room_for_those_that_replace_them() -> None:
    def plan(name: str, port: int) -> listener_plan.ListenerPlan:
        return listener_plan.ListenerPlan((ListenerSpec(name, port),), name, name)

    for per_node, refused in ((1, False), (2, True)):
        step = listener_plan.next_step(
            plan("old", 9092), plan("new", 9093), settled=True, per_node=per_node
        )
        assert bool(step.refused) is refused
    assert "on ports 9092 to 9093 until all of them have new" in step.refused


# --- more and fewer -------------------------------------------------------------------------------


def live(replicas: int, *, shares: bool, revision: str = NEW, pods: int | None = None) -> Any:
    labels = {cluster_objects.SET_LABEL: "0"} if shares else {}
    return {
        "metadata": {"generation": 2},
        "spec": {"replicas": replicas, "template": {"metadata": {"labels": labels}}},
        "status": {
            "replicas": replicas if pods is None else pods,
            "observedGeneration": 2,
            "updateRevision": revision,
        },
    }


def test_brokers_beside_others_come_once_these_leave_room() -> None:
    rolled = [pod(0, NEW), pod(1, NEW), pod(2, NEW)]
    cases = [
        ([live(3, shares=False), None], rolled, (3, 0)),
        ([live(3, shares=True), None], [*rolled[:2], pod(2, OLD)], (3, 0)),
        ([live(3, shares=True), None], rolled, (3, 3)),
        # One that is down does not hold up the others.
        ([live(3, shares=True), None], [*rolled[:2], pod(2, NEW, healthy=False)], (3, 3)),
        # Those that are there already stay.
        ([live(3, shares=True), live(2, shares=True)], [pod(0, OLD)], (3, 3)),
        ([None, None], [], (3, 3)),
    ]
    for live_sets, pods, counts in cases:
        seen = view(*pods, partitions=replace(IN_SYNC, holders=frozenset({0, 1, 2})))
        assert broker_steps.next_brokers(SIX, live_sets, seen).counts == counts
    # Somebody deleted a set while others were restarted, which waits until replicas are in sync.
    deleted = [live(3, shares=True), None]
    assert broker_steps.next_brokers(SIX, deleted, view(*rolled[:2], pod(2, OLD))) == SIX


def test_a_set_is_there_until_its_last_pod_is_gone() -> None:
    first = live(3, shares=True)
    assert broker_steps.present([None]) is None
    assert broker_steps.present([first, None]) == BrokerSets((3,))
    assert broker_steps.present([first, live(0, shares=True, pods=1)]) == BrokerSets((3, 0))
    assert broker_steps.present([first, live(0, shares=True)]) == BrokerSets((3,))
    assert broker_steps.present([first, live(2, shares=True)]) == BrokerSets((3, 2))
    # Kubernetes may be making pods, and does not know yet that there shall be none.
    unseen = live(0, shares=True)
    unseen["status"]["observedGeneration"] = 1
    assert broker_steps.present([first, unseen]) == BrokerSets((3, 0))
    # Somebody deleted the first set: what others hold is no less there.
    assert broker_steps.present([None, live(2, shares=True)]) == BrokerSets((0, 2))


def test_brokers_that_hold_replicas_stay_in_each_set() -> None:
    def safe(wanted: BrokerSets, *holders: int) -> tuple[int, ...]:
        return rollout.safe_brokers(wanted, SIX, Partitions(0, 0, frozenset(holders))).counts

    assert safe(BrokerSets((3,)), 0, 101) == (3, 2)
    assert safe(BrokerSets((3,)), 0, 2) == (3, 0)
    assert safe(BrokerSets((6,)), 102) == (6, 3)
    assert safe(BrokerSets((2, 2)), 2, 100) == (3, 2)
    assert safe(BrokerSets((2, 2, 2)), 2, 100) == (3, 2, 2)
    assert rollout.safe_brokers(BrokerSets((3,)), SIX, None) == SIX


def test_pods_of_a_set_that_was_forgotten_are_strangers_and_left_alone() -> None:
    """Somebody removed the annotation that tells how many sets there are."""
    pods = [
        {"metadata": {"name": SIX.pod("main", one)}, "spec": {"nodeName": NODES[one]}}
        for one in SIX
    ]
    addresses = dict.fromkeys(SIX, "h:1")
    known = rollout.view_brokers(META, pods, addresses, BrokerSets((3,)))
    assert [one.broker_id for one in known if one.own] == [0, 1, 2]
    assert [one.pod for one in known if not one.own] == [None] * 3
    assert all(one.own for one in rollout.view_brokers(META, pods, addresses, SIX))
    # Nor is one that a user gave a broker's labels and a name that no broker can have.
    other = {"metadata": {"name": "main-broker-5000"}, "spec": {}}
    assert len(rollout.view_brokers(META, [*pods, other], addresses, SIX)) == len(SIX)


def test_ids_of_two_sets_never_meet() -> None:
    broker_steps.check_sets(BrokerSets((150,)), BrokerSets((150,)))
    for allowed, current in (
        (BrokerSets((75, 75)), BrokerSets((150,))),
        (BrokerSets((150, 3)), SIX),
    ):
        with pytest.raises(spec.InvalidSpec, match="scale down to 100 brokers") as refused:
            broker_steps.check_sets(allowed, current)
        assert refused.value.reason == "TooManyBrokers"


def with_ports(first: int, *ports: int) -> dict[str, Any]:
    """A set of three brokers, or a pod, of which the first port is this one."""
    container = {"ports": [{"containerPort": first + one} for one in (0, *ports)]}
    found = live(3, shares=True)
    template = {"spec": {"containers": [container]}}
    return {**found, "spec": {"replicas": 3, "template": template, **template["spec"]}}


@pytest.mark.parametrize(
    ("brokers", "port"),
    [
        # As they are, and far away.
        ({"perNode": 2, "port": 9092}, None),
        ({"perNode": 2, "port": 9094}, None),
        # Those of a neighbour, on either side.
        ({"perNode": 2, "port": 9093}, 9093),
        ({"perNode": 2, "port": 9091}, 9092),
        ({"perNode": 2, "metricsPort": 9091, "port": 9192}, 9092),
        # One per node again: the second set is there until its brokers hold nothing.
        ({"perNode": 1, "port": 9092}, None),
        ({"perNode": 1, "port": 9092, "metricsPort": 9093}, 9093),
        # Both sets would get it.
        ({"perNode": 1, "port": 9192, "metricsPort": 9193}, 9193),
    ],
)
def test_no_broker_is_to_have_a_port_that_a_neighbour_has(
    brokers: dict[str, int], port: int | None
) -> None:
    sets = [with_ports(9092, 312), with_ports(9093, 312)]
    wanted = cluster(**{"replicas": 6, "metricsPort": 9404, **brokers})
    if port is None:
        broker_steps.check_ports(META, wanted, sets, [])
        return
    with pytest.raises(spec.InvalidSpec, match=f"^port {port}, which") as refused:
        broker_steps.check_ports(META, wanted, sets, [])
    assert refused.value.reason == "PortsTaken"


def test_pods_have_ports_until_they_are_restarted_and_sets_that_went_have_none() -> None:
    wanted = cluster(replicas=6, perNode=2, port=9193)
    rolling = {**with_ports(9292), "metadata": {"name": "main-broker-b-101"}}
    sets = [with_ports(9292), with_ports(9293)]
    broker_steps.check_ports(META, wanted, sets, [rolling])
    behind = {**with_ports(9193), "metadata": {"name": "main-broker-b-101"}}
    with pytest.raises(spec.InvalidSpec, match="brokers of main-broker are to have, is or will"):
        broker_steps.check_ports(META, wanted, sets, [behind])
    gone = live(0, shares=True)
    broker_steps.check_ports(META, cluster(replicas=3, metricsPort=9293), [sets[0], gone], [])
    broker_steps.check_ports(META, wanted, [sets[0], None], [])


def test_what_is_blocked_or_still_to_come_is_told() -> None:
    pods = [pod(one, NEW) for one in SIX]
    held = replace(IN_SYNC, widest=(3, "views"))
    fewer = cluster(replicas=3)
    ready, *_ = rollout.judge(fewer, view(*pods, partitions=held), SIX)
    assert (ready.status, ready.reason) == (False, "ScaleDownBlocked")
    assert ready.message == (
        "brokers [100, 101, 102] hold replicas; "
        "apply a Reassignment with mode RemoveBrokers, brokers [100, 101, 102]"
    )
    assert rollout.proposal(fewer, SIX) == {"mode": "RemoveBrokers", "brokers": [100, 101, 102]}
    more = cluster(replicas=6, perNode=2)
    ready, *_ = rollout.judge(more, view(*pods[:3]), BrokerSets((3, 0)))
    assert (ready.status, ready.reason) == (False, "BrokersRolling")
    assert ready.message.startswith("3 of 3 brokers registered; brokers [100, 101, 102] come once")


def test_replicas_that_came_onto_one_node_are_told() -> None:
    """Volumes that follow a pod let it move beside others than before."""
    wanted = cluster(replicas=6, perNode=2)
    pods = [pod(one, NEW) for one in SIX]
    *_, found = rollout.judge(wanted, view(*pods, partitions=sharing((0, 101), (100, 2))), SIX)
    assert (found.type, found.status) == ("ConfigWarning", False)
    pods[4] = replace(pods[4], node="n0")
    *_, found = rollout.judge(wanted, view(*pods, partitions=sharing((0, 101), (100, 2))), SIX)
    assert (found.status, found.reason) == (True, "ReplicasShareNode")
    assert found.message == "partitions have two replicas on one node, by brokers 0 and 101"


def test_a_move_between_brokers_of_a_node_is_no_warning_and_no_wider_topic() -> None:
    zookeeper = MemoryZooKeeper()
    replicas = tuple(map(BrokerId, (0, 1, 100, 2)))
    moved = znodes.TopicAssignment(
        {0: replicas}, adding={0: (BrokerId(0),)}, removing={0: (BrokerId(100),)}
    )
    zookeeper.put(znodes.topic_path("t"), znodes.encode_topic(moved))
    seen = observe.partitions(zookeeper)
    assert seen.widest == (3, "t")
    # They are not restarted together meanwhile.
    assert frozenset({0, 100}) in seen.sharing
    pods = [pod(one, NEW) for one in SIX]
    *_, found = rollout.judge(cluster(replicas=6, perNode=2), view(*pods, partitions=seen), SIX)
    assert (found.type, found.status) == ("ConfigWarning", False)


@pytest.mark.parametrize(
    ("counts", "per_node", "enough"),
    [((3, 1), 2, 5), ((3, 3), 2, 6), ((1, 2), 2, 4), ((3,), 1, None), ((3, 3), 1, None)],
)
def test_who_keeps_brokers_learns_how_many_replicas_that_needs(
    counts: tuple[int, ...], per_node: int, enough: int | None
) -> None:
    assert BrokerSets(counts).replicas_with(per_node) == enough
    if enough is not None:
        fewer, kept = (BrokerSets.spread(one, per_node) for one in (enough - 1, enough))
        assert set(BrokerSets(counts)) <= set(kept)
        assert not set(BrokerSets(counts)) <= set(fewer)


def test_more_per_node_without_more_replicas_says_that_these_were_meant() -> None:
    pods = [replace(pod(one, NEW), of_set=one // 100) for one in (0, 1, 2, 100)]
    held = replace(IN_SYNC, holders=frozenset({0, 1, 2}), widest=(3, "views"))
    ready, *_ = rollout.judge(
        cluster(replicas=3, perNode=2), view(*pods, partitions=held), BrokerSets((3, 1))
    )
    assert ready.reason == "ScaleDownBlocked"
    assert ready.message.endswith("; or keep them: with perNode 2, that needs replicas 5")


def test_settings_ask_for_no_more_replicas_than_there_are_nodes_for_certain() -> None:
    config = {"default.replication.factor": "4", "min.insync.replicas": "2"}
    cluster_spec.check_fits(cluster(replicas=6, config=config))
    with pytest.raises(spec.InvalidSpec, match="factor 4 is larger than 3, the number of nodes"):
        cluster_spec.check_fits(cluster(replicas=6, perNode=2, config=config))
    assert cluster(replicas=5, perNode=2).lacks_coordinators is False
    assert cluster(replicas=4, perNode=2).lacks_coordinators is True


def test_too_few_nodes_are_not_told_as_too_few_brokers() -> None:
    wanted = cluster(replicas=4, perNode=2)
    *_, warning = rollout.judge(wanted, view(*map(pod, wanted.brokers)), wanted.brokers)
    assert warning.reason == "TooFewBrokers"
    needed = "needs brokers on 3 nodes, as 5 are with perNode 2, or a smaller"
    assert warning.message.count(needed) == 2
    assert cluster(replicas=5, perNode=2).lacks_transactions is False


# --- rolls and drains -----------------------------------------------------------------------------


def sharing(*pairs: tuple[int, int]) -> Partitions:
    return replace(IN_SYNC, sharing=frozenset(map(frozenset, pairs)))


def test_brokers_of_a_node_are_restarted_together_and_its_controller_last() -> None:
    pods = {one: pod(one) for one in SIX}
    order = []
    down: set[int] = set()
    while True:
        lagging = frozenset(down)
        now = replace(sharing((0, 1), (101, 2)), under_replicated=len(down), lagging=lagging)
        chosen = rollout.next_to_roll(view(*pods.values(), partitions=now, controller=101))
        if chosen is None:
            if not down:
                break
            # All that are down are back.
            for one in down:
                pods[one] = pod(one, NEW)
            down.clear()
            continue
        order.append(chosen.broker_id)
        down.add(chosen.broker_id)
        pods[chosen.broker_id] = replace(pod(chosen.broker_id), terminating=True)
    assert order == [102, 2, 100, 0, 1, 101]


@pytest.mark.parametrize(
    "partitions",
    [
        # Two replicas of a partition are on the node.
        replace(sharing((2, 102)), lagging=frozenset({102})),
        # Some broker elsewhere has not caught up.
        replace(IN_SYNC, under_replicated=1, lagging=frozenset({102, 1})),
        replace(IN_SYNC, unreadable=("torn",)),
    ],
)
def test_brokers_of_a_node_go_one_by_one_where_that_is_not_safe(partitions: Partitions) -> None:
    pods = [pod(one) for one in SIX if one != 102]
    now = view(*pods, replace(pod(102), terminating=True), partitions=partitions)
    assert rollout.next_to_roll(now) is None
    assert rollout.budget(partitions, now).free == ()


def test_brokers_of_a_set_that_is_emptied_are_not_restarted() -> None:
    emptied = replace(view(*(pod(one, NEW) for one in SIX)), later_revisions=("",))
    assert rollout.next_to_roll(emptied) is None
    ready, *_ = rollout.judge(cluster(replicas=3), emptied, BrokerSets((3, 0)))
    assert (ready.status, ready.reason) == (True, "BrokersReady")
    # Listeners and ZooKeeper's login change only when they are gone.
    assert not rollout.is_settled(emptied)
    outdated = replace(emptied, brokers=(pod(0), *emptied.brokers[1:]))
    assert rollout.next_to_roll(outdated) == pod(0)


def test_brokers_that_go_do_not_stand_in_for_one_that_is_down() -> None:
    """Their pods may not end for long: their node does not answer, and they run there."""
    going = [replace(pod(one, NEW), terminating=True) for one in (100, 101, 102)]
    down = pod(0, NEW, healthy=False)
    seen = replace(view(down, pod(1, NEW), pod(2, NEW), *going), later_revisions=("",))
    ready, *_ = rollout.judge(cluster(replicas=3), seen, BrokerSets((3, 0)))
    assert (ready.status, ready.reason) == (False, "BrokersStarting")
    assert ready.message.startswith("2 of 3 brokers registered; main-broker-0 on n0 is not ready")


def test_brokers_of_two_nodes_are_never_down_together() -> None:
    pods = [pod(one) for one in SIX if one not in (102, 1)]
    gone = [replace(pod(102), terminating=True), pod(1, healthy=False)]
    now = view(*pods, *gone, partitions=replace(IN_SYNC, lagging=frozenset({102, 1})))
    assert rollout.next_to_roll(now) is None
    assert rollout.budget(now.partitions, now) == Budget(1)


def test_a_drained_node_loses_all_its_brokers_and_no_other_does() -> None:
    pods = [pod(one, NEW) for one in SIX]
    assert rollout.budget(IN_SYNC, view(*pods)) == Budget(1)
    # Its pod is there again, and has no node to go to.
    waiting = replace(pod(2, healthy=False), node=None)
    now = (*(one for one in pods if one.broker_id != 2), waiting)
    partitions = replace(IN_SYNC, under_replicated=2, lagging=frozenset({2}))
    assert rollout.budget(partitions, view(*now, partitions=partitions)) == Budget(0)
    former = rollout.status_fields(META, cluster(), view(*pods), SIX)["brokers"]
    known = rollout.remember_nodes(now, former)
    found = rollout.budget(partitions, view(*known, partitions=partitions))
    assert found == Budget(0, ("main-broker-b-102", "main-broker-2"))
    made = cluster_objects.desired_objects(
        META, cluster(perNode=2), "b:1", "Always", (), {}, (None,), SIX, found
    )
    (budget,) = [one["spec"] for one in made if one["kind"] == "PodDisruptionBudget"]
    assert budget["maxUnavailable"] == 0
    (held,) = budget["selector"]["matchExpressions"]
    assert (held["operator"], held["values"]) == ("NotIn", ["main-broker-2", "main-broker-b-102"])
    # The status remembers it for the next look.
    (told,) = [
        one
        for one in rollout.status_fields(META, cluster(), view(*known), SIX)["brokers"]
        if one["id"] == 2
    ]
    assert (told.get("node"), told["lastNode"]) == (None, "n2")
    assert rollout.remember_nodes(now, [told])[-1].last_node == "n2"


def test_who_lags_and_who_shares_partitions_is_read_from_znodes() -> None:
    def state(leader: int, *isr: int) -> bytes:
        return (
            f'{{"controller_epoch":1,"leader":{leader},"version":1,"leader_epoch":0,'
            f'"isr":{list(isr)}}}'
        ).encode()

    zookeeper = MemoryZooKeeper(
        {
            znodes.topic_path("t"): b'{"version":1,"partitions":{"0":[0,1,102],"1":[2],"2":[1]}}',
            znodes.state_path("t", 0): state(0, 0, 1),
            znodes.state_path("t", 1): state(-1, 2),
            znodes.state_path("t", 2): state(1, 1),
        }
    )
    seen = observe.partitions(zookeeper)
    assert (seen.under_replicated, seen.offline, set(seen.lagging)) == (1, 1, {102, 2})
    assert seen.sharing == set(map(frozenset, ((0, 1), (0, 102), (1, 102))))


# --- topics and moves -----------------------------------------------------------------------------

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def seen(*brokers: int, **replicas: tuple[int, ...]) -> Seen:
    layout = {TopicPartition("t", int(name[1:])): one for name, one in replicas.items()}
    return Seen(layout, dict.fromkeys(brokers or SIX, None), nodes=NODES)


def test_no_mode_of_a_reassignment_puts_two_replicas_on_one_node() -> None:
    def apart(planned: dict[TopicPartition, tuple[int, ...]]) -> bool:
        return all(len({NODES[one] for one in each}) == len(each) for each in planned.values())

    grown = placement.plan_factor(seen(p0=(0,), p1=(102,)), ["t"], 3)
    assert (len(grown), apart(grown)) == (2, True)
    # Pods may have moved since: of two that share a node now, one goes.
    fewer = placement.plan_factor(seen(p0=(0, 100, 1), p1=(0, 1, 100)), ["t"], 2)
    assert fewer == {P0: (0, 1), P1: (0, 1)}
    with pytest.raises(PlanError, match="factor 4 is larger than the number of nodes, 3"):
        placement.plan_factor(seen(p0=(0,)), ["t"], 4)
    with pytest.raises(PlanError, match="brokers 1 and 101 are on n1"):
        placement.plan_explicit(seen(p0=(0, 1)), {P0: (1, 101)})
    layout = {f"p{one}": (one % 3, (one + 1) % 3, (one + 2) % 3) for one in range(8)}
    added = placement.plan_added(seen(**layout), [100, 101, 102])
    assert (bool(added), apart(added)) == (True, True)
    # The dead broker is not registered, and its node still is its own.
    for gone in ([102], [2, 102]):
        removed = placement.plan_removed(seen(0, 1, 100, 101, p0=(102, 1)), gone)
        assert (set(removed[P0]) <= {0, 1, 100, 101}, apart(removed)) == (True, True)
    with pytest.raises(PlanError, match="has 3 replicas, but only 2 nodes remain"):
        placement.plan_removed(seen(p0=(0, 1, 2)), [2, 102])


def test_nodes_count_until_the_last_of_several_brokers_is_gone() -> None:
    """The spec has one per node again, and those of the second set are emptied one by one."""
    zookeeper = MemoryZooKeeper()
    for one in SIX:
        endpoint = znodes.BrokerEndpoint("PLAINTEXT", f"127.0.0.{1 + one % 100}", NOBODY_LISTENS)
        found = znodes.BrokerRegistration(BrokerId(one), (endpoint,))
        zookeeper.put(znodes.broker_path(one), znodes.encode_broker(found))
    topic = znodes.TopicAssignment({0: (BrokerId(100), BrokerId(102))})
    zookeeper.put(znodes.topic_path("t"), znodes.encode_topic(topic))
    listed = [{"id": one, "node": node} for one, node in NODES.items()]
    body = cluster_body(brokers={"replicas": 3}) | {"status": {"brokers": listed}}
    moves = [{"topic": "t", "partition": 0, "replicas": [100, 0]}]
    emptied = resource("Reassignment", "r", clusterRef={"name": "c"}, mode="Explicit", moves=moves)
    kube = run([emptied], [body], zookeeper)
    assert reason(kube, "Reassignment", "r") == "InvalidMove"


def test_a_broker_that_is_away_keeps_the_node_that_the_status_knows() -> None:
    # The first listener is exposed, and has another host per broker.
    endpoints = (
        znodes.BrokerEndpoint("EXTERNAL-9094", "broker-0.example.com", 9094),
        znodes.BrokerEndpoint("INTERNAL-9093", "10.0.0.1", 9093),
    )
    registered = {BrokerId(0): znodes.BrokerRegistration(BrokerId(0), endpoints)}
    listed = [
        {"id": 0, "node": "n0"},
        {"id": 100, "lastNode": "n0"},
        {"id": 1, "node": "n1"},
        {"id": 2},
    ]
    found = observe.nodes({"status": {"brokers": listed}}, registered, "INTERNAL-9093")
    assert found == {0: "10.0.0.1", 100: "10.0.0.1", 1: "n1"}
