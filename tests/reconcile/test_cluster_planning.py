"""Which broker is replaced next, and when a cluster may shrink, as pure decisions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek import config_loading
from odradek.zk import znodes
from odradek_operator.cluster import nodes, rollout
from odradek_operator.cluster.objects import Budget
from odradek_operator.cluster.rollout import BrokerPod, ClusterView
from odradek_operator.shared import cluster_spec, connect_strings, observe, spec
from odradek_operator.shared.broker_sets import BrokerSets
from odradek_operator.shared.status import Condition
from odradek_operator.shared.views import Partitions
from tests.reconcile.in_memory import resource
from tests.support import yaml_text
from tests.support.memory import MemoryKube, MemoryZooKeeper, context

NEW, OLD = "new", "old"
HEALTHY = Partitions(0, 0, frozenset({0, 1, 2}))


def broker(
    broker_id: int, revision: str = OLD, healthy: bool = True, going: bool = False
) -> BrokerPod:
    name = f"main-broker-{broker_id}"
    return BrokerPod(broker_id, name, "node", "h:9092", revision, healthy, healthy, going)


def view(
    *brokers: BrokerPod, controller: int | None = 0, partitions: Partitions | None = HEALTHY
) -> ClusterView:
    return ClusterView(tuple(brokers), controller, partitions, NEW)


def test_controller_is_replaced_last() -> None:
    order = []
    pods = {one: broker(one) for one in range(3)}
    while (chosen := rollout.next_to_roll(view(*pods.values(), controller=2))) is not None:
        order.append(chosen.broker_id)
        pods[chosen.broker_id] = broker(chosen.broker_id, NEW)
    assert order == [1, 0, 2]


def test_nothing_is_replaced_while_a_replica_is_out_of_sync_or_nothing_is_known() -> None:
    pods = [broker(one) for one in range(3)]
    unreadable = replace(HEALTHY, unreadable=("/brokers/topics/x: no JSON",))
    known = (Partitions(1, 0, frozenset()), Partitions(0, 1, frozenset()), unreadable)
    for partitions in (*known, None):
        assert rollout.next_to_roll(view(*pods, partitions=partitions)) is None


def test_a_rollout_that_waits_for_replicas_says_so() -> None:
    body = resource("KafkaCluster", "c", zookeeper={"connect": "zk:2181"})
    body["spec"]["brokers"] = {"replicas": 3}
    told = {}
    for under in (0, 1):
        partitions = Partitions(under, 0, frozenset())
        pods = view(*map(broker, range(3)), partitions=partitions)
        _, reconciling, *_ = rollout.judge(cluster_spec.parse_cluster(body), pods, BrokerSets((3,)))
        assert (reconciling.type, reconciling.reason) == ("Reconciling", "BrokersRolling")
        told[under] = "in sync" in reconciling.message
    assert told == {0: False, 1: True}


def test_rolling_stops_at_the_first_replaced_broker_that_is_not_healthy() -> None:
    assert rollout.next_to_roll(view(broker(0), broker(1), broker(2, NEW, healthy=False))) is None


def test_outdated_broker_that_is_down_anyway_goes_first() -> None:
    chosen = rollout.next_to_roll(
        view(
            broker(0), broker(1, healthy=False), broker(2), partitions=Partitions(4, 0, frozenset())
        )
    )
    assert chosen is not None
    assert chosen.broker_id == 1


def test_no_roll_ends_a_broker_whose_registration_cannot_be_read() -> None:
    pods = view(broker(0), replace(broker(1), registered=False), broker(2))
    chosen = rollout.next_to_roll(pods)
    assert chosen is not None
    assert chosen.broker_id == 1
    text = "znode /brokers/ids/1: is empty"
    unknown = replace(pods, unreadable={1: text})
    assert rollout.next_to_roll(unknown) is None
    ready, _, stalled, *_ = rollout.judge(cluster_of(3), unknown, BrokerSets((3,)))
    assert (ready.reason, stalled.status) == ("ZnodeUnreadable", True)
    assert ready.message.startswith("2 of 3 brokers registered; ")
    assert ready.message.endswith(text)
    # One of others holds up nothing.
    chosen = rollout.next_to_roll(replace(pods, unreadable={1001: text}))
    assert chosen is not None


def test_no_roll_and_no_drain_ends_a_pod_whose_volume_would_go_with_it() -> None:
    wanted = cluster_of(3)
    pods = [broker(0, NEW), replace(broker(1), unclaimed=True), broker(2)]
    chosen = rollout.next_to_roll(view(*pods))
    assert chosen is not None
    assert chosen.broker_id == 2
    assert not rollout.only_held_left(view(*pods))
    rolled = view(*pods[:2], broker(2, NEW))
    assert rollout.next_to_roll(rolled) is None
    # Its pod tells when the user has done something.
    assert rollout.only_held_left(rolled)
    assert not rollout.only_held_left(view(*pods[:2], broker(2, NEW, healthy=False)))
    _, reconciling, *_, warning = rollout.judge(wanted, rolled, BrokerSets((3,)))
    assert "brokers [1] wait for you, as ConfigWarning says" in reconciling.message
    assert (warning.status, warning.reason) == (True, "ClaimDeleted")
    assert "volume claims data-main-broker-1, whose data" in warning.message
    assert warning.message.endswith("come back empty: main-broker-1")
    assert rollout.budget(HEALTHY, None, {1}) == Budget(0)
    # What else is wrong does not hide it.
    unknown = replace(wanted, unknown_keys=("no.such.key",))
    *_, both = rollout.judge(unknown, rolled, BrokerSets((3,)))
    assert both.reason == "ClaimDeleted"
    assert both.message.endswith("; unknown broker settings: no.such.key")
    # It is not taken away even when it is down.
    lost = replace(pods[1], ready=False, registered=False)
    assert rollout.next_to_roll(view(pods[0], lost, pods[2])) is None
    # Something else may keep the claim for a while when its pod has gone.
    gone = replace(lost, pod=None)
    *_, warning = rollout.judge(wanted, view(pods[0], gone, pods[2]), BrokerSets((3,)))
    assert warning.reason == "NoWarnings"


def test_no_roll_ends_a_broker_whose_node_would_not_take_it_back() -> None:
    wanted = cluster_of(3)
    pods = [replace(broker(one), node=f"n{one}") for one in range(3)]
    seen = rollout.mark_closed(view(*pods, controller=1), {"n2", "n9"})
    order = []
    while (chosen := rollout.next_to_roll(seen)) is not None:
        order.append(chosen.broker_id)
        pods[chosen.broker_id] = replace(pods[chosen.broker_id], revision=NEW)
        seen = rollout.mark_closed(view(*pods, controller=1), {"n2", "n9"})
    assert order == [0, 1]
    assert rollout.only_held_left(seen)
    ready, reconciling, *_ = rollout.judge(wanted, seen, BrokerSets((3,)))
    assert (ready.status, reconciling.reason) == (True, "BrokersRolling")
    assert "would not take the next pods: main-broker-2 on n2; uncordon them" in reconciling.message
    # Who deletes the pod of one whose claim is deleted loses its data.
    (text,) = rollout.why_held(rollout.mark_unclaimed(seen, {2}))
    assert text == "brokers [2] wait for you, as ConfigWarning says"
    # One that is down already loses nothing by it.
    down = replace(pods[2], ready=False, registered=False)
    broken = rollout.mark_closed(view(*pods[:2], down, controller=1), {"n2"})
    assert (rollout.next_to_roll(broken) or pods[0]).broker_id == 2


_CORDON = {"key": "node.kubernetes.io/unschedulable"}


@pytest.mark.parametrize(
    ("tolerations", "may_read", "found"),
    [
        ([], True, {"n2"}),
        # Nodes that may not be read are taken to take pods.
        ([], False, set()),
        ([{"operator": "Exists"}], True, set()),
        ([{**_CORDON, "operator": "Exists", "effect": "NoSchedule"}], True, set()),
        ([{**_CORDON}], True, set()),
        ([{**_CORDON, "value": "other"}], True, {"n2"}),
        ([{"operator": "Exists", "effect": "NoExecute"}], True, {"n2"}),
        ([{"key": "disks", "operator": "Exists"}], True, {"n2"}),
    ],
)
def test_cordoned_nodes_take_no_pods_but_those_that_tolerate_it(
    tolerations: list[dict[str, str]], may_read: bool, found: set[str]
) -> None:
    def node(name: str, **spec: bool) -> dict[str, object]:
        return {"kind": "Node", "metadata": {"name": name}, "spec": spec}

    forbidden = frozenset[str]() if may_read else frozenset({"Node"})
    kube = MemoryKube(node("n1"), node("n2", unschedulable=True), forbidden=forbidden)
    assert nodes.closed(context(kube), tolerations, []) == found


_DISKS = {"key": "maintenance", "value": "disks"}


@pytest.mark.parametrize(
    ("taint", "tolerations", "is_closed"),
    [
        ({**_DISKS, "effect": "NoSchedule"}, [], True),
        ({**_DISKS, "effect": "NoExecute"}, [], True),
        ({**_DISKS, "effect": "PreferNoSchedule"}, [], False),
        ({**_DISKS, "effect": "NoSchedule"}, [{"key": "maintenance", "operator": "Exists"}], False),
        ({**_DISKS, "effect": "NoSchedule"}, [_DISKS], False),
        ({**_DISKS, "effect": "NoSchedule"}, [{**_DISKS, "value": "memory"}], True),
        ({**_DISKS, "effect": "NoSchedule"}, [{**_DISKS, "effect": "NoExecute"}], True),
        ({"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}, [], False),
    ],
)
def test_tainted_nodes_take_no_pods_but_those_that_tolerate_it(
    taint: dict[str, str], tolerations: list[dict[str, str]], is_closed: bool
) -> None:
    node = {"kind": "Node", "metadata": {"name": "n1"}, "spec": {"taints": [taint]}}
    kube, expected = context(MemoryKube(node)), {"n1"} if is_closed else set()
    assert nodes.closed(kube, tolerations, []) == expected
    # As an admission plugin gives them to pods.
    pods: list[dict[str, Any]] = [{"spec": {}}, {"spec": {"tolerations": tolerations}}]
    assert nodes.closed(kube, [], pods) == expected


def test_brokers_that_a_cluster_waits_for_are_named_with_what_they_lack() -> None:
    wanted = cluster_of(3)
    lost = replace(broker(1, NEW, healthy=False), node="n1")
    stuck = replace(broker(2, NEW, healthy=False), trouble="0/3 nodes are available")
    gone = replace(broker(0), pod=None, ready=False, registered=False)
    told = rollout.judge(wanted, view(broker(0), lost, broker(2)), BrokerSets((3,)))[0]
    assert told.message == "2 of 3 brokers registered; main-broker-1 on n1 is not ready"
    told = rollout.judge(wanted, view(gone, lost, stuck), BrokerSets((3,)))[0]
    assert told.message == (
        "0 of 3 brokers registered; main-broker-2: 0/3 nodes are available; "
        "broker 0 has no pod; main-broker-1 on n1 is not ready"
    )
    told = rollout.judge(
        wanted, rollout.mark_lost(view(broker(0), lost, broker(2)), {"n1"}), BrokerSets((3,))
    )[0]
    assert told.message == (
        "2 of 3 brokers registered; main-broker-1 on n1 is not ready "
        "(its node is not ready: mend that, or remove it from Kubernetes)"
    )
    # Its node does not answer: it still serves, and does not end.
    going = replace(broker(1, going=True), node="n1")
    ready, reconciling, *_ = rollout.judge(
        wanted, view(broker(0), going, broker(2)), BrokerSets((3,))
    )
    assert (ready.status, ready.reason) == (True, "BrokersRolling")
    assert reconciling.message.endswith("pod template; main-broker-1 on n1 has not ended yet")


def test_kafka_brokers_in_the_same_znodes_are_shown_and_hold_nothing_up() -> None:
    body = resource("KafkaCluster", "main", zookeeper={"connect": "zk:2181"})
    body["spec"]["brokers"] = {"replicas": 2}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"labels": {"controller-revision-hash": OLD}}
    pods = [
        {"metadata": {"name": f"main-broker-{one}", **labels}, "spec": {}, "status": ready}
        for one in range(2)
    ]
    meta, wanted = spec.parse_meta(body), cluster_spec.parse_cluster(body)
    addresses = {0: "h:9092", 1: "h:9093", 1001: "kafka:9092"}
    mixed = view(*rollout.view_brokers(meta, pods, addresses, BrokerSets((2,))), controller=1001)
    chosen = rollout.next_to_roll(mixed)
    assert chosen is not None
    assert chosen.broker_id == 1
    fields = rollout.status_fields(meta, wanted, mixed, BrokerSets((2,)))
    assert fields["replicas"] == 2
    assert [one["id"] for one in fields["brokers"]] == [0, 1, 1001]
    # Nor do they stand in for those that are missing.
    starting = view(*rollout.view_brokers(meta, pods, {1000: "a:1", 1001: "b:1"}, BrokerSets((2,))))
    assert rollout.judge(wanted, starting, BrokerSets((2,)))[0].message.startswith(
        "0 of 2 brokers registered"
    )


def test_address_that_a_status_cannot_have_is_cut() -> None:
    crd = Path(__file__).parents[2] / "crds/kafkaclusters.yaml"
    (version,) = yaml_text.load(crd.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["brokers"]
    assert schema["items"]["properties"]["address"]["maxLength"] == rollout.LONGEST_ADDRESS
    body = resource("KafkaCluster", "main", zookeeper={"connect": "zk:2181"})
    body["spec"]["brokers"] = {"replicas": 1}
    meta, wanted = spec.parse_meta(body), cluster_spec.parse_cluster(body)
    far = view(*rollout.view_brokers(meta, [], {7: "h" * 1000}, BrokerSets((1,))))
    shown = rollout.status_fields(meta, wanted, far, BrokerSets((1,)))["brokers"]
    assert [len(one.get("address", "")) for one in shown] == [0, rollout.LONGEST_ADDRESS]


def test_what_blocks_fewer_brokers_is_told_in_the_order_in_which_it_is_undone() -> None:
    config = {"default.replication.factor": "3"}
    body = resource("KafkaCluster", "c", zookeeper={"connect": "zk:2181"})
    body["spec"]["brokers"] = {"replicas": 2, "config": config}
    wanted = cluster_spec.parse_cluster(body)
    full = view(*map(broker, range(3)), partitions=replace(HEALTHY, widest=(3, "views")))
    ready = rollout.judge(wanted, full, BrokerSets((3,)))[0]
    assert (ready.status, ready.reason) == (False, "ScaleDownBlocked")
    assert ready.message == (
        "brokers [2] hold replicas; "
        "lower the replication factor of topics to 2 (views has 3); "
        "set default.replication.factor to 2 or less; "
        "apply a Reassignment with mode RemoveBrokers, brokers [2]"
    )
    with pytest.raises(spec.InvalidSpec):
        cluster_spec.check_fits(wanted)


def cluster_of(replicas: int, **config: str) -> cluster_spec.ClusterSpec:
    body = resource("KafkaCluster", "c", zookeeper={"connect": "zk:2181"})
    named = {name.replace("_", "."): text for name, text in config.items()}
    body["spec"]["brokers"] = {"replicas": replicas, "config": named}
    return cluster_spec.parse_cluster(body)


@pytest.mark.parametrize(
    "name",
    [
        "default_replication_factor",
        "min_insync_replicas",
        "offsets_topic_replication_factor",
        "transaction_state_log_replication_factor",
        "transaction_state_log_min_isr",
    ],
)
def test_settings_that_ask_for_more_replicas_than_there_are_brokers_are_refused(name: str) -> None:
    with pytest.raises(spec.InvalidSpec, match=name.replace("_", ".") + " 3 is larger"):
        cluster_spec.check_fits(cluster_of(2, **{name: "3"}))
    cluster_spec.check_fits(cluster_of(3, **{name: "3"}))
    cluster_spec.check_fits(cluster_of(2, **{name: "3"}), strangers=1)


OFFSETS_LOWERED = {"offsets_topic_replication_factor": "1"}
TRANSACTIONS_LOWERED = {
    "transaction_state_log_replication_factor": "1",
    "transaction_state_log_min_isr": "1",
}


def warning(wanted: cluster_spec.ClusterSpec) -> Condition:
    *_, found = rollout.judge(wanted, view(broker(0, NEW)), BrokerSets((1,)))
    assert found.type == "ConfigWarning"
    return found


def test_users_learn_that_few_brokers_cannot_keep_the_offsets_of_groups() -> None:
    settings, _ = config_loading.from_values({"broker.id": "0", "zookeeper.connect": "zk:2181"})
    assert settings.offsets_topic_replication_factor == cluster_spec.DEFAULT_OFFSETS_FACTOR
    cluster_spec.check_fits(cluster_of(1))
    found = warning(cluster_of(1, **TRANSACTIONS_LOWERED))
    assert (found.status, found.reason) == (True, "TooFewBrokers")
    assert warning(cluster_of(3)).reason == "NoWarnings"
    assert warning(cluster_of(1, **OFFSETS_LOWERED, **TRANSACTIONS_LOWERED)).status is False
    both = warning(cluster_of(1, unheard_of="1"))
    assert both.reason == "UnknownKeys"
    assert "unheard.of" in both.message
    assert cluster_spec.OFFSETS_FACTOR in both.message
    lacking = warning(cluster_of(3, quota_producer_default="1"))
    assert lacking.reason == "UnknownKeys"
    assert lacking.message == "broker settings that are not supported: quota.producer.default"


def test_users_learn_that_few_brokers_cannot_keep_transactions() -> None:
    settings, _ = config_loading.from_values({"broker.id": "0", "zookeeper.connect": "zk:2181"})
    factor, min_isr = (
        cluster_spec.DEFAULT_TRANSACTIONS_FACTOR,
        cluster_spec.DEFAULT_TRANSACTIONS_MIN_ISR,
    )
    assert settings.transaction_state_log_replication_factor == factor
    assert settings.transaction_state_log_min_isr == min_isr
    for lowered in ({}, {"transaction_state_log_replication_factor": "1"}):
        found = warning(cluster_of(1, **OFFSETS_LOWERED, **lowered))
        assert (found.status, found.reason) == (True, "TooFewBrokers")
        assert cluster_spec.TRANSACTIONS_MIN_ISR in found.message
    assert not cluster_of(2, transaction_state_log_replication_factor="2").lacks_transactions


brokers = st.lists(
    st.tuples(st.sampled_from([OLD, NEW]), st.booleans(), st.booleans()), min_size=1, max_size=6
)


@given(brokers, st.integers(0, 3), st.integers(0, 2), st.none() | st.integers(0, 5))
def test_a_healthy_broker_goes_only_when_all_are_healthy_and_in_sync(
    drawn: list[tuple[str, bool, bool]], under: int, offline: int, controller: int | None
) -> None:
    pods = [broker(one, *fields) for one, fields in enumerate(drawn)]
    chosen = rollout.next_to_roll(
        view(*pods, controller=controller, partitions=Partitions(under, offline, frozenset()))
    )
    if chosen is None:
        return
    assert chosen.revision == OLD
    assert not any(one.terminating for one in pods)
    if chosen.healthy:
        assert all(one.healthy for one in pods)
        assert (under, offline) == (0, 0)
        if chosen.broker_id == controller:
            assert [one for one in pods if one.revision == OLD] == [chosen]


def test_a_topic_that_cannot_be_read_is_named_and_no_broker_goes() -> None:
    zookeeper = MemoryZooKeeper(
        {
            znodes.topic_path("good"): b'{"version":1,"partitions":{"0":[0]}}',
            znodes.topic_path("torn"): b'{"version":1,"part',
        }
    )
    seen = observe.partitions(zookeeper)
    assert (seen.under_replicated, set(seen.holders)) == (1, {0})
    body = resource("KafkaCluster", "c", zookeeper={"connect": "zk:2181"}, brokers={"replicas": 1})
    ready, _, stalled, *_ = rollout.judge(
        cluster_spec.parse_cluster(body), view(broker(0, NEW), partitions=seen), BrokerSets((1,))
    )
    assert (ready.reason, stalled.status) == ("ZnodeUnreadable", True)
    assert "/brokers/topics/torn" in ready.message
    assert rollout.budget(seen, None) == Budget(0)
    assert rollout.safe_brokers(BrokerSets((1,)), BrokerSets((3,)), seen) == BrokerSets((3,))


def test_a_broker_stays_until_it_has_deleted_what_it_holds() -> None:
    zookeeper = MemoryZooKeeper(
        {
            znodes.topic_path("stays"): b'{"version":1,"partitions":{"0":[0]}}',
            znodes.topic_path("goes"): b'{"version":1,"partitions":{"0":[2]}}',
            znodes.delete_topic_path("goes"): b"",
        }
    )
    seen = observe.partitions(zookeeper)
    assert (seen.under_replicated, seen.offline, set(seen.holders)) == (1, 0, {0, 2})
    assert rollout.safe_brokers(BrokerSets((1,)), BrokerSets((3,)), seen) == BrokerSets((3,))
    assert observe.topic_names(zookeeper) == ["stays"]


@pytest.mark.parametrize(
    ("isr", "under", "copying"),
    [("[0, 1]", 0, 1), ("[0, 2]", 0, 1), ("[0]", 1, 0), ("[0, 1, 2]", 0, 0)],
)
def test_replicas_that_are_added_leave_no_partition_under_replicated_and_hold_up_rolls(
    isr: str, under: int, copying: int
) -> None:
    state = f'{{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":{isr}}}'
    zookeeper = MemoryZooKeeper(
        {
            znodes.topic_path("t"): b'{"version":2,"partitions":{"0":[0,1,2]},'
            b'"adding_replicas":{"0":[2]},"removing_replicas":{}}',
            znodes.state_path("t", 0): state.encode(),
        }
    )
    seen = observe.partitions(zookeeper)
    assert (seen.under_replicated, seen.copying) == (under, copying)
    assert seen.all_in_sync == (not under and not copying)
    body = resource("KafkaCluster", "c", zookeeper={"connect": "zk:2181"}, brokers={"replicas": 3})
    meta, wanted = spec.parse_meta(body), cluster_spec.parse_cluster(body)
    outdated = view(*map(broker, range(3)), partitions=seen)
    fields = rollout.status_fields(meta, wanted, outdated, BrokerSets((3,)))
    assert fields["underReplicatedPartitions"] == under
    assert (rollout.next_to_roll(outdated) is None) == bool(under or copying)
    _, reconciling, *_ = rollout.judge(wanted, outdated, BrokerSets((3,)))
    assert ("that are being added" in reconciling.message) == bool(copying)


@pytest.mark.parametrize(
    ("lists", "isr", "under", "copying"),
    [
        ('"adding_replicas":{},"removing_replicas":{"0":[2]}', "[0, 1, 2]", 0, 0),
        ('"adding_replicas":{},"removing_replicas":{"0":[2]}', "[0, 1]", 0, 0),
        ('"adding_replicas":{},"removing_replicas":{"0":[2]}', "[0, 2]", 1, 0),
        ('"adding_replicas":{},"removing_replicas":{"0":[2]}', "[0]", 1, 0),
        # A move from 2 to 1, until 1 is in sync, and afterwards.
        ('"adding_replicas":{"0":[1]},"removing_replicas":{"0":[2]}', "[0, 2]", 0, 1),
        ('"adding_replicas":{"0":[1]},"removing_replicas":{"0":[2]}', "[0]", 1, 0),
        ('"adding_replicas":{"0":[1]},"removing_replicas":{"0":[2]}', "[0, 1]", 0, 0),
        # It was cancelled before 2 was in sync.
        ('"adding_replicas":{"0":[2]},"removing_replicas":{"0":[2]}', "[0, 1]", 0, 0),
    ],
)
def test_replicas_that_are_removed_are_missed_only_while_those_that_stay_lack_one(
    lists: str, isr: str, under: int, copying: int
) -> None:
    state = f'{{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":{isr}}}'
    topic = f'{{"version":2,"partitions":{{"0":[0,1,2]}},{lists}}}'
    zookeeper = MemoryZooKeeper(
        {znodes.topic_path("t"): topic.encode(), znodes.state_path("t", 0): state.encode()}
    )
    seen = observe.partitions(zookeeper)
    assert (seen.under_replicated, seen.copying) == (under, copying)
    assert seen.all_in_sync == (not under and not copying)


@given(
    st.integers(1, 9), st.none() | st.integers(1, 9), st.none() | st.frozensets(st.integers(0, 8))
)
def test_brokers_that_hold_replicas_are_never_scaled_away(
    wanted: int, current: int | None, holders: frozenset[int] | None
) -> None:
    known = None if holders is None else Partitions(0, 0, holders)
    present = None if current is None else BrokerSets((current,))
    (allowed,) = rollout.safe_brokers(BrokerSets((wanted,)), present, known).counts
    assert allowed >= wanted
    if current is not None and wanted < current:
        assert allowed <= current
        if holders is None:
            assert allowed == current
        else:
            assert not any(allowed <= one < current for one in holders)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ({"connect": "zk:2181"}, {"connect": "zk:2181"}, False),
        ({"connect": "zk:2181"}, {"connect": "zk.a:2181"}, True),
        ({"connect": "zk:2181"}, {"connect": "ZK.a.svc:2182"}, True),
        ({"connect": "zk:2181"}, {"connect": "zk.a.svc.cluster.local:2181", "chroot": "/b"}, False),
        ({"connect": "zk.a.svc.example:2181"}, {"connect": "zk.a.svc.cluster.local:2181"}, True),
        ({"connect": "10.0.0.1:1,10.0.0.2:1"}, {"connect": "10.0.0.2:1,10.0.0.3:1"}, True),
        ({"connect": "10.0.0.1:1"}, {"connect": "10.0.0.1:2"}, False),
        ({"connect": "zk.example.org:1"}, {"connect": "zk.example.com:1"}, False),
    ],
)
def test_clusters_share_znodes_however_they_name_them(
    one: dict[str, str], other: dict[str, str], shared: bool
) -> None:
    first = resource("KafkaCluster", "c", namespace="a", zookeeper=one)
    second = resource("KafkaCluster", "c", namespace="b", zookeeper=other)
    assert connect_strings.share_znodes(first, second) is shared
    assert connect_strings.share_znodes(second, first) is shared
