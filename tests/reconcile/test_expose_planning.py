"""Where exposed listeners are reached, and what brokers advertise there: pure, or in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.values import BrokerId
from odradek.zk.znodes import BrokerEndpoint, BrokerRegistration
from odradek_operator.cluster import (
    expose,
    exposed_addresses,
    exposed_services,
    listener_objects,
    listener_plan,
    rollout,
)
from odradek_operator.cluster.expose import Exposed
from odradek_operator.cluster.exposed_addresses import Endpoint, Line, Reachable
from odradek_operator.cluster.listener_objects import ListenerSetup
from odradek_operator.cluster.own_secrets import NotPreparedError
from odradek_operator.cluster.secured import PreparedListeners
from odradek_operator.shared import cluster_spec, expose_spec, listener_spec, spec, status
from odradek_operator.shared.broker_sets import BrokerSets
from odradek_operator.shared.expose_spec import ExposeSpec
from odradek_operator.shared.objects import digest
from odradek_operator.shared.status import Condition
from tests.reconcile.in_memory import cluster
from tests.reconcile.test_cluster_planning import NEW, broker, view
from tests.reconcile.test_objects import META
from tests.support.memory import MemoryKube, context

BALANCED = ExposeSpec("external", 9094, "LoadBalancer")
BY_NODE = ExposeSpec("external", 9094, "NodePort")


def service(name: str, *ingress: dict[str, str], node_port: int | None = None) -> dict[str, Any]:
    port = {"port": 9094} | ({"nodePort": node_port} if node_port else {})
    return {
        "metadata": {"name": name},
        "spec": {"ports": [port]},
        "status": {"loadBalancer": {"ingress": list(ingress)} if ingress else {}},
    }


def services(*found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in found}


def node(**addresses: str) -> dict[str, Any]:
    listed = [{"type": kind, "address": text} for kind, text in addresses.items()]
    return {"status": {"addresses": listed}}


def test_a_load_balancer_is_reached_by_its_name_before_its_address() -> None:
    found = services(
        service("c-external-bootstrap", {"ip": "10.0.0.9"}, {"ip": "2001:db8::9"}),
        service("c-external-0", {"hostname": "lb.example", "ip": "10.0.0.1"}),
        service("c-external-1"),
    )
    known = exposed_addresses.find("c", [BALANCED], found, {}, {}, range(3))
    assert known.brokers == {("external", 0): Endpoint("lb.example", 9094)}
    assert list(map(str, known.bootstrap["external"])) == ["10.0.0.9:9094", "[2001:db8::9]:9094"]
    assert known.pending == ("Services c-external-1, c-external-2 have no address yet",)
    going = found["c-external-0"]["metadata"] | {"deletionTimestamp": "2026-11-25T00:00:00Z"}
    found["c-external-0"]["metadata"] = going
    assert exposed_addresses.find("c", [BALANCED], found, {}, {}, range(1)).pending == (
        "Service c-external-0 has no address yet",
    )


def test_of_several_addresses_the_present_one_stays_while_it_is_listed() -> None:
    first, second = {"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}
    kafka_name = BALANCED.kafka_name
    former = {0: Line(exposed_addresses.ANY_NODE, {kafka_name: Endpoint("10.0.0.2", 9094)})}
    for listed, host in (
        ((first, second), "10.0.0.2"),
        ((second, first), "10.0.0.2"),
        ((first,), "10.0.0.1"),
    ):
        found = services(service("c-external-bootstrap", first), service("c-external-0", *listed))
        known = exposed_addresses.find("c", [BALANCED], found, {}, {}, range(1), former)
        assert known.brokers == {("external", 0): Endpoint(host, 9094)}


def test_a_template_is_advertised_at_once_and_the_service_still_needs_an_address() -> None:
    one = replace(BALANCED, host_template="b{nodeId}.example", port_template="1909{nodeId}")
    known = exposed_addresses.find("c", [one], services(service("c-external-0")), {}, {}, range(2))
    assert known.brokers["external", 1] == Endpoint("b1.example", 19091)
    assert known.pending == (
        "Services c-external-bootstrap, c-external-0, c-external-1 have no address yet",
    )


@pytest.mark.parametrize(
    ("preferred", "addresses", "host"),
    [
        (None, {"InternalIP": "10.0.0.1", "ExternalIP": "203.0.113.1"}, "203.0.113.1"),
        ("InternalIP", {"InternalIP": "10.0.0.1", "ExternalIP": "203.0.113.1"}, "10.0.0.1"),
        ("ExternalDNS", {"Hostname": "n", "InternalIP": "10.0.0.1"}, "10.0.0.1"),
        (None, {"Hostname": "n"}, "n"),
    ],
)
def test_a_node_port_is_reached_at_the_node_of_the_broker(
    preferred: str | None, addresses: dict[str, str], host: str
) -> None:
    one = replace(BY_NODE, address_type=preferred)
    found = services(
        service("c-external-bootstrap", node_port=31000), service("c-external-0", node_port=31001)
    )
    known = exposed_addresses.find(
        "c", [one], found, {0: "n0"}, {"n0": node(**addresses)}, range(1)
    )
    assert known.brokers == {("external", 0): Endpoint(host, 31001)}
    assert known.bootstrap["external"] == (Endpoint(host, 31000),)
    assert known.pending == ()


def test_what_is_unknown_of_nodes_is_told() -> None:
    found = services(
        service("c-external-bootstrap", node_port=31000), service("c-external-0", node_port=31001)
    )

    def look(placed: dict[int, str], nodes: dict[str, dict[str, Any]] | None) -> Reachable:
        return exposed_addresses.find("c", [BY_NODE], found, placed, nodes, range(1))

    assert look({}, {}).pending == ()
    assert look({0: "n0"}, {"n0": node()}).pending == (
        "no address is known of n0, which brokers run on",
    )
    (text,) = look({0: "n0"}, None).pending
    assert "may not list nodes" in text
    assert look({0: "n0"}, None).brokers == {}


def reachable(*brokers: Endpoint | None, nodes: dict[int, str] | None = None) -> Reachable:
    known = {("external", number): one for number, one in enumerate(brokers) if one is not None}
    return Reachable(known, {}, nodes or {})


def test_a_broker_gets_a_line_once_its_address_is_known_and_proven() -> None:
    known = reachable(Endpoint("a", 1), Endpoint("b", 2), None)
    lines = exposed_addresses.lines([BALANCED], known, {}, range(3), {"a"})
    assert lines == {0: Line("*", {"EXTERNAL": Endpoint("a", 1)})}
    assert exposed_addresses.encode(lines) == "0 * EXTERNAL://a:1 a\n"


def test_a_former_line_stays_while_there_is_nothing_better() -> None:
    former = {0: Line("*", {"EXTERNAL": Endpoint("old", 1)})}
    for known, proven in ((reachable(None), {"old"}), (reachable(Endpoint("new", 1)), {"old"})):
        assert exposed_addresses.lines([BALANCED], known, former, range(1), proven) == former
    lines = exposed_addresses.lines(
        [BALANCED], reachable(Endpoint("new", 1)), former, range(1), {"old", "new"}
    )
    assert lines[0].endpoints == {"EXTERNAL": Endpoint("new", 1)}
    # One more listener without an address: what the broker has now stays as a whole.
    other = replace(BALANCED, listener="other")
    lines = exposed_addresses.lines(
        [BALANCED, other], reachable(Endpoint("new", 1)), former, range(1), {"old", "new"}
    )
    assert lines == former


def test_a_line_of_one_node_is_none_of_another() -> None:
    known = reachable(Endpoint("10.0.0.1", 31001), nodes={0: "n0"})
    lines = exposed_addresses.lines([BY_NODE], known, {}, range(1), {"10.0.0.1"})
    assert lines[0].node == "n0"
    # While its pod is made anew, the broker comes back where its volume is.
    assert (
        exposed_addresses.lines([BY_NODE], reachable(None), lines, range(1), {"10.0.0.1"}) == lines
    )
    # A node whose address is not known gives no line of another one's.
    moved = reachable(None, nodes={0: "n1"})
    assert exposed_addresses.lines([BY_NODE], moved, lines, range(1), {"10.0.0.1"}) == lines
    assert not lines[0].is_for("n1")


_HOSTS = st.sampled_from(["10.0.0.1", "2001:db8::1", "broker-1.example.com", "n"])
_ENDPOINTS = st.builds(Endpoint, _HOSTS, st.integers(1, 65535))
_LINES = st.builds(
    Line,
    st.sampled_from(["*", "node-1.example"]),
    st.dictionaries(st.sampled_from(["EXTERNAL", "A-B"]), _ENDPOINTS, min_size=1),
)


@given(st.dictionaries(st.integers(0, 999), _LINES, max_size=4))
def test_lines_are_read_as_they_were_written(lines: dict[int, Line]) -> None:
    assert exposed_addresses.decode(exposed_addresses.encode(lines)) == lines


@given(st.text(alphabet="0 *:/EXTRNAL[],.\n-", max_size=60))
def test_damaged_lines_are_skipped(text: str) -> None:
    for one in exposed_addresses.decode(text).values():
        assert all(each.port >= 0 and each.host for each in one.endpoints.values())


def registration(**endpoints: Endpoint) -> BrokerRegistration:
    found = tuple(BrokerEndpoint(name, *one) for name, one in endpoints.items())
    return BrokerRegistration(BrokerId(0), found)


def test_a_broker_with_a_former_address_is_restarted_in_the_order_of_a_roll() -> None:
    lines = {one: Line("*", {"EXTERNAL": Endpoint("new", 1)}) for one in range(3)}
    registered = {
        BrokerId(0): registration(EXTERNAL=Endpoint("old", 1)),
        BrokerId(1): registration(EXTERNAL=Endpoint("new", 1)),
        BrokerId(2): registration(INTERNAL=Endpoint("new", 1)),
    }
    pods = [broker(one, NEW) for one in range(3)]
    assert rollout.next_to_roll(view(*pods)) is None
    marked = expose.mark_moved(view(*pods), Exposed(lines=lines), registered)
    assert [one.moved for one in marked.brokers] == [True, False, True]
    first = rollout.next_to_roll(marked)
    assert first is not None
    # The controller, 0, goes last.
    assert first.broker_id == 2
    # A pod that has just come back may not have registered yet: what is there is its former life's.
    starting = [replace(one, ready=False) for one in pods]
    marked = expose.mark_moved(view(*starting), Exposed(lines=lines), registered)
    assert not any(one.moved for one in marked.brokers)
    elsewhere = {0: Line("other-node", {"EXTERNAL": Endpoint("new", 1)})}
    marked = expose.mark_moved(view(*pods), Exposed(lines=elsewhere), registered)
    assert rollout.next_to_roll(marked) is None


def test_brokers_that_only_the_user_may_restart_for_their_addresses_are_named() -> None:
    registered = {BrokerId(0): registration(EXTERNAL=Endpoint("old", 1))}
    lines = {0: Line("*", {"EXTERNAL": Endpoint("new", 1)})}
    found = Exposed((BALANCED,), (BALANCED,), reachable(Endpoint("new", 1)), lines=lines)
    marked = expose.mark_moved(view(broker(0, NEW)), found, registered)
    secure = Condition("Secured", True, "Secured")
    for cordoned in (False, True):
        seen = rollout.mark_closed(marked, {"node"} if cordoned else set())
        assert (rollout.next_to_roll(seen) is None) == cordoned
        ready = status.ready("BrokersReady", "1 of 1")
        held = rollout.why_held(seen)
        judged, _ = expose.judge(ready, secure, found, registered, held)
        assert judged[0].reason == "NotAdvertised"
        assert ("main-broker-0 on node; uncordon" in judged[0].message) == cordoned
        # Nothing happens before the user acts, so that is looked for less often.
        assert expose.awaits_user(judged[0], seen) == cordoned
        starting = replace(seen, brokers=(replace(seen.brokers[0], ready=False),))
        assert not expose.awaits_user(judged[0], starting)


def test_a_cluster_is_not_ready_while_clients_do_not_reach_a_broker() -> None:
    secure = Condition("Secured", True, "Secured")
    known = reachable(Endpoint("new", 1))
    registered = {BrokerId(0): registration(EXTERNAL=Endpoint("old", 1))}
    found = Exposed((BALANCED,), (BALANCED,), known)
    ready = status.ready("BrokersReady", "1 of 1")
    judged, told = expose.judge(ready, secure, found, registered)
    assert [(one.type, one.status) for one in judged] == [
        ("Ready", False),
        ("Reconciling", True),
        ("Stalled", False),
    ]
    assert {judged[0].reason, told.reason} == {"NotAdvertised"}
    assert "brokers 0 do not advertise" in judged[0].message
    assert told.status is False
    good = {BrokerId(0): registration(EXTERNAL=Endpoint("new", 1))}
    assert expose.judge(ready, secure, found, good) == (ready, secure)
    pending = Exposed((BALANCED,), (BALANCED,), replace(known, pending=("Service x ...",)))
    starting = status.progressing("BrokersStarting", "0 of 1 brokers registered")
    judged, _ = expose.judge(starting, secure, pending, {})
    assert judged[0].reason == "AddressPending"
    assert judged[0].message == "Service x ...; 0 of 1 brokers registered"
    # What is worse is told, and so is that a listener is in plain text.
    worse = status.stalled("ZnodeUnreadable", "x")
    plain = Condition("Secured", False, "PlainText")
    assert expose.judge(worse, plain, pending, {}) == (worse, plain)


def test_annotations_have_the_broker_and_fields_that_go_show_in_the_hash() -> None:
    notes = {"external-dns.alpha.kubernetes.io/hostname": "b{nodeId}.example", "plain": "x"}
    one = replace(
        BALANCED,
        annotations=notes,
        node_ports={1: 31001},
        bootstrap_node_port=31000,
        source_ranges=("10.0.0.0/8",),
    )
    bootstrap, first, second = exposed_services.desired(META, one, BrokerSets((2,)))
    annotations = second["metadata"]["annotations"]
    assert annotations["external-dns.alpha.kubernetes.io/hostname"] == "b1.example"
    assert "plain" not in bootstrap["metadata"]["annotations"]
    ports = [each["spec"]["ports"][0].get("nodePort") for each in (bootstrap, first, second)]
    assert ports == [31000, None, 31001]
    assert first["spec"]["selector"] == {
        "statefulset.kubernetes.io/pod-name": f"{META.name}-broker-0"
    }
    fewer = exposed_services.desired(META, replace(one, source_ranges=()), BrokerSets((2,)))[1]
    hashes = [each["metadata"]["annotations"][exposed_services.HASH] for each in (first, fewer)]
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize(
    ("expose_field", "why"),
    [
        ({"advertisedPortTemplate": "{nodeId}"}, "gives broker 0 port 0"),
        ({"advertisedPortTemplate": "6553{nodeId}"}, "gives broker 9 port 65539"),
        (
            {"bootstrap": {"nodePort": 31000}, "brokers": [{"broker": 3, "nodePort": 31000}]},
            "nodePort 31000 is asked for twice",
        ),
    ],
)
def test_ports_that_cannot_be_are_refused(expose_field: dict[str, Any], why: str) -> None:
    listener = {"name": "external", "port": 9094, "expose": {"type": "NodePort", **expose_field}}
    body: dict[str, Any] = {
        "kind": "KafkaCluster",
        "metadata": {"name": "main"},
        "spec": {
            "zookeeper": {"connect": "zk:2181"},
            "brokers": {"replicas": 10},
            "listeners": [{"name": "internal", "port": 9093}, listener],
        },
    }
    with pytest.raises(spec.InvalidSpec, match=why) as refused:
        cluster_spec.parse_cluster(body)
    assert refused.value.reason == "InvalidExpose"
    (read,) = expose_spec.parse(body["spec"])
    assert read.kafka_name == "EXTERNAL"


@pytest.mark.parametrize(
    ("per_node", "node_port", "whose"),
    [
        (1, 30001, "listener internal"),
        (1, 30002, None),
        (3, 30003, "listener internal"),
        (3, 30012, "listener external"),
        (3, 30022, "metrics"),
        (3, 30023, None),
    ],
)
def test_node_ports_that_cut_brokers_off_are_refused(
    per_node: int, node_port: int, whose: str | None
) -> None:
    expose = {"type": "NodePort", "brokers": [{"broker": 1, "nodePort": node_port}]}
    listeners = [
        {"name": "internal", "port": 30001},
        {"name": "external", "port": 30010, "expose": expose},
    ]
    brokers = {"replicas": 3, "perNode": per_node, "metricsPort": 30020}
    wanted = {"zookeeper": {"connect": "zk:2181"}, "brokers": brokers, "listeners": listeners}
    body: dict[str, Any] = {"kind": "KafkaCluster", "metadata": {"name": "main"}, "spec": wanted}
    if whose is not None:
        with pytest.raises(spec.InvalidSpec, match=f"{node_port} .* for {whose}, ") as refused:
            cluster_spec.parse_cluster(body)
        assert refused.value.reason == "InvalidExpose"
        # Without the nodes' network, they are nobody else's.
        brokers |= {"hostNetwork": False, "perNode": 1}
    cluster_spec.parse_cluster(body)


def test_brokers_of_clusters_that_expose_nothing_are_not_restarted() -> None:
    listeners = listener_spec.parse_listeners(
        {"listeners": [{"name": "internal", "port": 9093}, {"name": "external", "port": 9094}]}
    )
    plan = listener_plan.ListenerPlan(listeners, "internal", "internal")
    setup = ListenerSetup(plan, "main", frozenset({"internal"}), ("mark",))
    fields = [listener_plan.encode(plan), "mark", "internal"]
    assert setup.annotations() == {listener_objects.HASH: digest(fields)}
    assert listener_objects.files(setup) == {"advertised": "INTERNAL://@:9093,EXTERNAL://@:9094"}
    assert "exposed" not in listener_objects.start(setup, "/c")
    exposed = replace(
        setup, exposed=frozenset({"external"}), exposed_lines="0 * EXTERNAL://a:1 a\n"
    )
    assert exposed.annotations() != setup.annotations()
    assert listener_objects.files(exposed) == {
        "advertised": "INTERNAL://@:9093",
        "exposed": "0 * EXTERNAL://a:1 a\n",
    }


def exposing(**fields: Any) -> dict[str, Any]:
    external = {"name": "external", "port": 9094, "expose": {"type": "NodePort", **fields}}
    return cluster(listeners=[{"name": "internal", "port": 9093}, external])


def test_nodes_that_may_not_be_listed_are_told_unless_nobody_needs_them() -> None:
    pod = {
        "kind": "Pod",
        "metadata": {"name": "c-broker-0", "namespace": "n"},
        "spec": {"nodeName": "n0"},
    }
    pending = {}
    for body in (exposing(), exposing(advertisedHostTemplate="b{nodeId}.example")):
        wanted, meta = cluster_spec.parse_cluster(body), spec.parse_meta(body)
        kube = MemoryKube(body, pod, forbidden=frozenset({"Node"}))
        plan = listener_plan.wanted_plan(wanted)
        found = expose.reconcile(context(kube), body, meta, wanted, plan, BrokerSets((1,)))
        assert kube.names("Service") == ["c-external-bootstrap", "c-external-0"]
        pending[len(found.reachable.pending)] = found.reachable.pending[-1]
    assert "may not list nodes" in pending[2]
    assert "have no address yet" in pending[1]


def test_what_brokers_use_among_themselves_is_never_exposed() -> None:
    body = exposing()
    wanted, meta = cluster_spec.parse_cluster(body), spec.parse_meta(body)
    kube = MemoryKube(body)
    switched = replace(listener_plan.wanted_plan(wanted), former="external")
    for plan, served in ((switched, []), (switched.settled(), ["external"])):
        found = expose.observe(context(kube), meta, wanted, plan, BrokerSets((1,)))
        assert [one.listener for one in found.served] == served
        assert [one.listener for one in found.exposed] == ["external"]
    assert kube.names("Service") == []


def test_a_running_broker_keeps_the_template_that_it_comes_back_with() -> None:
    setup = ListenerSetup(
        listener_plan.wanted_plan(cluster_spec.parse_cluster(exposing())), "c", frozenset(), ()
    )
    found = Exposed((BALANCED,), (BALANCED,), Reachable(pending=("Service x has none",)))
    running = {BrokerId(0): registration(INTERNAL=Endpoint("a", 9093))}
    with pytest.raises(NotPreparedError, match="brokers 0 are not restarted") as held:
        expose.complete(found, PreparedListeners(setup), running, BrokerSets((1,)))
    assert (held.value.reason, held.value.waits) == ("AddressPending", True)
    # One that does not run yet waits by itself.
    _, given = expose.complete(found, PreparedListeners(setup), {}, BrokerSets((1,)))
    assert given is not None
    assert (given.setup.exposed, given.setup.exposed_lines) == (frozenset({"external"}), "")
