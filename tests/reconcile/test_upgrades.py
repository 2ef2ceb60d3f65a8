"""Which changes reach the pods of a cluster that does not follow its operator: pure decisions."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest

from odradek.dynamic_config import DYNAMIC_KEYS
from odradek_operator.cluster import asked, listener_plan, rollout, upgrades
from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.cluster.listener_objects import ListenerSetup
from odradek_operator.cluster.objects import Budget
from odradek_operator.cluster.rollout import BrokerPod, ClusterView
from odradek_operator.cluster.upgrades import WaitingUpgrade
from odradek_operator.cluster.zookeeper_objects import ZooKeeperSetup
from odradek_operator.cluster.zookeeper_plan import ZooKeeperPlan
from odradek_operator.shared import cluster_spec
from odradek_operator.shared.broker_sets import BrokerSets
from odradek_operator.shared.cluster_spec import ClusterSpec, RolloutSpec
from odradek_operator.shared.objects import digest
from odradek_operator.shared.views import Partitions
from tests.reconcile.test_objects import META

OURS, NEWER, OWN = "registry.test/broker:1", "registry.test/broker:2", "registry.test/own:7"
PLAIN = cluster_spec.parse_cluster(
    {
        "metadata": {"name": "main"},
        "spec": {"zookeeper": {"connect": "zk:2181"}, "brokers": {"replicas": 3}},
    }
)
PINNED = replace(PLAIN, image=OWN)
ASKING = replace(PLAIN, rollout=RolloutSpec(on_request=True))
LISTENERS = listener_plan.wanted_plan(
    cluster_spec.parse_cluster(
        {
            "metadata": {"name": "main"},
            "spec": {
                "zookeeper": {"connect": "zk:2181"},
                "brokers": {"replicas": 3},
                "listeners": [
                    {
                        "name": "internal",
                        "port": 9093,
                        "tls": True,
                        "authentication": {"type": "scram-sha-512"},
                    }
                ],
                "authorization": {"type": "simple"},
            },
        }
    )
)
SETUP = ListenerSetup(LISTENERS, "main", frozenset({"internal"}), ("mark",))
LOGIN = ZooKeeperSetup(ZooKeeperPlan(("id",), True), "main-zookeeper", {}, "", ("jaas.conf",))

Live = dict[str, Any]


def made(
    wanted: ClusterSpec,
    *live: Live | None,
    image: str = OURS,
    policy: str = "IfNotPresent",
    setup: ListenerSetup | None = None,
    login: ZooKeeperSetup | None = None,
) -> list[Live]:
    """Return what an operator makes; `policy` stands for how it makes pods."""
    sets = live or (None,)
    given = upgrades.image_for(wanted, image, sets)
    return cluster_objects.desired_objects(
        META, wanted, given, policy, (), {}, sets, wanted.brokers, Budget(1), setup, login
    )


def sets_of(objects: Sequence[Live]) -> list[Live]:
    return [one for one in objects if one["kind"] == "StatefulSet"]


def given_image(live: Live) -> str:
    (container,) = live["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


def applied(wanted: ClusterSpec, *live: Live, image: str, policy: str) -> tuple[list[Live], bool]:
    """Return the StatefulSets as a later operator leaves them, and whether anything waits."""
    objects = made(wanted, *live, image=image, policy=policy)
    held = upgrades.held_sets(wanted, objects, live)
    given = upgrades.image_for(wanted, image, live)
    waits = upgrades.waiting(wanted, image, given, held)
    return sets_of(upgrades.hold(objects, held, {})), waits != WaitingUpgrade()


# --- when pods change -----------------------------------------------------------------------------


def test_to_name_the_image_that_brokers_have_or_to_take_it_out_changes_no_pod() -> None:
    (live,) = sets_of(made(ASKING))
    (kept,), waits = applied(ASKING, live, image=NEWER, policy="Always")
    assert (waits, kept) == (True, live)
    (named,), _ = applied(replace(ASKING, image=OURS), kept, image=NEWER, policy="Always")
    assert named["spec"]["template"] == live["spec"]["template"]
    (asking,), _ = applied(ASKING, named, image=NEWER, policy="Always")
    assert asking["spec"]["template"] == live["spec"]["template"]


def test_an_image_that_somebody_edits_is_not_taken_for_the_one_that_was_given() -> None:
    (live,) = sets_of(made(ASKING))
    edited = copy.deepcopy(live)
    edited["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.test/other:1"
    (after,), waits = applied(ASKING, edited, image=OURS, policy="IfNotPresent")
    assert (given_image(after), waits) == (OURS, False)


@pytest.mark.parametrize("wanted", [PINNED, ASKING], ids=["pinned", "on request"])
def test_only_the_cluster_that_follows_gets_another_template_by_an_upgrade(
    wanted: ClusterSpec,
) -> None:
    (followed,) = sets_of(made(PLAIN))
    (changed,), waits = applied(PLAIN, followed, image=NEWER, policy="Always")
    assert (given_image(changed), waits) == (NEWER, False)
    assert changed["spec"]["template"] != followed["spec"]["template"]

    (live,) = sets_of(made(wanted))
    (kept,), waits = applied(wanted, live, image=NEWER, policy="Always")
    assert (kept, waits) == (live, True)
    # It stays so, and what the StatefulSet has beside pods is as wanted.
    (grown,), waits = applied(replace(wanted, replicas=5), kept, image=NEWER, policy="Always")
    assert (grown["spec"]["replicas"], waits) == (5, True)
    assert grown["spec"]["template"] == live["spec"]["template"]
    # Back again, nothing waits.
    assert applied(wanted, grown, image=OURS, policy="IfNotPresent")[1] is False


@pytest.mark.parametrize("wanted", [PINNED, ASKING], ids=["pinned", "on request"])
def test_another_request_brings_once_what_the_operator_makes_now(wanted: ClusterSpec) -> None:
    (live,) = sets_of(made(wanted))
    asks = replace(wanted, rollout=replace(wanted.rollout, request_id="1"))
    (changed,), waits = applied(asks, live, image=NEWER, policy="Always")
    assert waits is False
    assert given_image(changed) == (OWN if wanted.image else NEWER)
    assert "Always" in str(changed["spec"]["template"])
    # The same request is no other one, nor is none.
    for same in (asks, wanted):
        assert applied(same, changed, image=NEWER, policy="Always") == ([changed], False)
        kept, waits = applied(same, changed, image=OURS, policy="Never")
        assert (kept, waits) == ([changed], True)


def test_a_request_restarts_also_the_brokers_of_a_cluster_that_follows() -> None:
    (live,) = sets_of(made(PLAIN))
    first = replace(PLAIN, rollout=RolloutSpec("1"))
    (changed,) = sets_of(made(first, live))
    assert changed["spec"]["template"] != live["spec"]["template"]
    assert sets_of(made(first, changed)) == [changed]
    assert sets_of(made(PLAIN, changed)) == [changed]
    (other,) = sets_of(made(replace(PLAIN, rollout=RolloutSpec("2")), changed))
    assert other["spec"]["template"] != changed["spec"]["template"]


def test_image_of_the_operator_comes_by_a_request_and_by_no_other_change() -> None:
    (live,) = sets_of(made(ASKING))
    (changed,), waits = applied(
        replace(ASKING, priority_class="high"), live, image=NEWER, policy="Always"
    )
    assert changed["spec"]["template"]["spec"]["priorityClassName"] == "high"
    assert (given_image(changed), waits) == (OURS, True)
    assert "Always" in str(changed["spec"]["template"])
    # An image that is taken out of the spec stays until the request, too.
    (pinned,) = sets_of(made(replace(ASKING, image=OWN)))
    (kept,), waits = applied(ASKING, pinned, image=NEWER, policy="Always")
    assert (given_image(kept), waits) == (OWN, True)


def test_image_that_is_taken_out_of_the_spec_is_the_operators_again() -> None:
    (live,) = sets_of(made(PINNED))
    (changed,), waits = applied(PLAIN, live, image=NEWER, policy="IfNotPresent")
    assert (given_image(changed), waits) == (NEWER, False)
    # To name the image that runs, before an upgrade, changes no pod.
    (followed,) = sets_of(made(PLAIN))
    (named,) = sets_of(made(replace(PLAIN, image=OURS), followed))
    assert named["spec"] == followed["spec"]
    assert applied(replace(PLAIN, image=OURS), named, image=NEWER, policy="Always")[0] == [named]


def test_a_statefulset_that_nobody_has_marked_is_brought_up_to_date_once() -> None:
    (live,) = sets_of(made(PINNED))
    for mark in (asked.SPEC_HASH, cluster_objects.TEMPLATE_HASH):
        notes = dict(live["metadata"]["annotations"])
        del notes[mark]
        former = {**live, "metadata": {**live["metadata"], "annotations": notes}}
        assert applied(PINNED, former, image=OURS, policy="IfNotPresent") == ([live], False)
        (changed,), waits = applied(PINNED, former, image=OURS, policy="Always")
        assert (changed["spec"] != live["spec"], waits) == (True, False)


def test_each_of_several_statefulsets_is_held_and_a_missing_one_is_made_anew() -> None:
    wide = replace(PINNED, replicas=6, per_node=2)
    first, second = sets_of(made(wide))
    assert applied(wide, first, second, image=NEWER, policy="Always") == ([first, second], True)
    objects = made(wide, first, None, image=NEWER, policy="Always")
    held = upgrades.held_sets(wide, objects, [first, None])
    assert held == {"main-broker": first}
    kept, anew = sets_of(upgrades.hold(objects, held, {}))
    assert kept == first
    assert "Always" in str(anew["spec"]["template"])
    # Killed between the two, the operator goes on with the second, and the image of the first.
    asks = replace(ASKING, replicas=6, per_node=2)
    first, second = sets_of(made(asks))
    now = replace(asks, rollout=RolloutSpec("1", on_request=True))
    (first, _), _ = applied(now, first, second, image=NEWER, policy="Always")
    both, waits = applied(now, first, second, image="registry.test/broker:3", policy="Always")
    assert [given_image(one) for one in both] == [NEWER, NEWER]
    assert waits is True
    # The one that is left has the image of all of them.
    assert upgrades.image_for(asks, OURS, [None, both[1]]) == NEWER


def test_files_that_pods_start_with_are_held_and_those_that_change_meanwhile_are_not() -> None:
    objects = made(PINNED)
    (live,) = sets_of(objects)
    (config,) = [one for one in objects if one["kind"] == "ConfigMap"]
    former = {**config, "data": {**config["data"], "server.properties": "a=1\n", "gone": "x"}}
    config["data"] |= {"racks": "n=r\n", "exposed": "0 * EXTERNAL://a:1 a\n", "new": "y"}
    held = {"main-broker": live}
    (found,) = [
        one
        for one in upgrades.hold(objects, held, {"main-broker": former})
        if one["kind"] == "ConfigMap"
    ]
    assert found["data"] == {
        "server.properties": "a=1\n",
        "gone": "x",
        "new": "y",
        "racks": "n=r\n",
        "exposed": "0 * EXTERNAL://a:1 a\n",
    }
    # Somebody has deleted it.
    assert upgrades.hold(objects, held, {"main-broker": None})[1] == config


# --- what users ask for ---------------------------------------------------------------------------

OTHERS: dict[str, Any] = {
    "image": NEWER,
    "rollout": RolloutSpec("1"),
    "zookeeper": "zk:2181/b",
    "per_node": 2,
    "host_network": False,
    "port": 9999,
    "metrics_port": 9999,
    "config": {"zookeeper.session.timeout.ms": "9000"},
    "resources": {"limits": {"cpu": "1"}},
    "node_selector": {"disks": "fast"},
    "affinity": {"nodeAffinity": {}},
    "tolerations": ({"operator": "Exists"},),
    "priority_class": "high",
    "pod_labels": {"team": "logs"},
    "pod_annotations": {"team": "logs"},
    "spread": ({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},),
    "env": ({"name": "TZ", "value": "UTC"},),
}
# These change no template, or by the listeners and the login alone.
ELSEWHERE = {
    "replicas": 6,
    "storage": cluster_spec.Storage("20Gi", None, True),
    "default_partitions": 7,
    "default_replication_factor": 3,
    "unknown_keys": ("a",),
    "rack_key": "zone",
    "paused": True,
    "listeners": (),
    "authorization": None,
    "console": None,
    "exposed": (),
    "zookeeper_authentication": None,
    "cluster_ca": cluster_spec.AuthoritySpec(99),
    "clients_ca": cluster_spec.AuthoritySpec(99),
}


def test_every_field_that_changes_pods_changes_the_digest_and_no_other_does() -> None:
    assert {*OTHERS, *ELSEWHERE} == {one.name for one in fields(ClusterSpec)}
    (before,) = sets_of(made(PINNED))
    for name, value in {**OTHERS, **ELSEWHERE}.items():
        (after, *_) = sets_of(made(replace(PINNED, **{name: value})))
        differs = after["spec"]["template"] != before["spec"]["template"]
        marks = [one["metadata"]["annotations"][asked.SPEC_HASH] for one in (before, after)]
        assert (differs, marks[0] != marks[1]) == (name in OTHERS, name in OTHERS), name


def test_settings_that_running_brokers_take_are_no_reason_to_restart_them() -> None:
    (before,) = sets_of(made(PINNED))
    (after,) = sets_of(made(replace(PINNED, config={"log.retention.ms": "5"})))
    assert after["metadata"] == before["metadata"]


def test_listeners_certificates_and_logins_restart_a_cluster_that_does_not_follow() -> None:
    def mark(setup: ListenerSetup | None, login: ZooKeeperSetup | None) -> str:
        (one,) = sets_of(made(PINNED, setup=setup, login=login))
        return str(one["metadata"]["annotations"][asked.SPEC_HASH])

    marks = [
        mark(None, None),
        mark(SETUP, None),
        mark(replace(SETUP, restart=("another",)), None),
        mark(replace(SETUP, exposed=frozenset({"internal"})), None),
        mark(SETUP, LOGIN),
        mark(SETUP, replace(LOGIN, plan=ZooKeeperPlan(("other",), True))),
        mark(SETUP, replace(LOGIN, files=("ca.pem", "jaas.conf"))),
    ]
    assert len({*marks}) == len(marks)
    # What brokers read again is not among it, nor what the operator names by itself.
    assert mark(replace(SETUP, exposed_lines="0 * EXTERNAL://a:1 a\n"), LOGIN) == marks[4]
    assert mark(SETUP, replace(LOGIN, settings={"a": "b"}, options="-Da=b")) == marks[4]


def test_later_versions_give_the_same_digests_for_the_same_wishes() -> None:
    """A digest that differs would restart each cluster that an upgrade must not restart.

    So these texts are for ever. What users may ask for in addition is left out where they do not.
    """
    config = {"zookeeper.session.timeout.ms": "9000", "num.io.threads": "3"}
    full = replace(PINNED, config=config, rollout=RolloutSpec("1"), replicas=6, per_node=2)
    (plain,), (secured, _) = sets_of(made(PLAIN)), sets_of(made(full, setup=SETUP, login=LOGIN))
    found = [one["metadata"]["annotations"][asked.SPEC_HASH] for one in (plain, secured)]
    assert found == ["168c75e7d3ecf8c5", "db5974137503229a"]
    # A setting that only later brokers take while they run stays in the digest: `asked` must name
    # it then, or clusters that have it are restarted by the upgrade. One that earlier brokers did
    # not know need not be named: nobody had a reason to set it.
    assert digest(sorted(DYNAMIC_KEYS)) == "54840fa351fd5ff7"


# --- what the status says -------------------------------------------------------------------------


def view(*revisions: str) -> ClusterView:
    pods = [
        BrokerPod(one, f"main-broker-{one}", "n", "h:1", revision, True, True, image=OURS)
        for one, revision in enumerate(revisions)
    ]
    return ClusterView(tuple(pods), 0, Partitions(0, 0, frozenset()), "new")


def test_status_says_what_waits_and_what_to_do() -> None:
    assert upgrades.judge(PLAIN, view("old"), WaitingUpgrade()) == ()
    (waits,) = upgrades.judge(ASKING, view("new"), WaitingUpgrade((OURS, NEWER), rest=True))
    assert (waits.type, waits.status, waits.reason) == ("UpToDate", False, "UpgradeWaiting")
    assert waits.message == (
        f"set spec.rollout.requestId to another value to give brokers image {NEWER} instead of "
        f"{OURS} and pods as this version of the operator makes them"
    )
    (rest,) = upgrades.judge(PINNED, view("new"), WaitingUpgrade(rest=True))
    assert (rest.reason, "image" in rest.message) == ("UpgradeWaiting", False)
    (rolls,) = upgrades.judge(PINNED, view("new", "old"), WaitingUpgrade())
    assert (rolls.status, rolls.reason) == (False, "Rolling")
    (done,) = upgrades.judge(PINNED, view("new", "new"), WaitingUpgrade())
    assert (done.status, done.reason) == (True, "UpToDate")


@pytest.mark.parametrize("pod", ["main-broker-0", None], ids=["without image", "without pod"])
def test_nobody_knows_whether_a_broker_that_does_not_run_is_up_to_date(pod: str | None) -> None:
    trouble = "ErrImagePull" if pod else None
    away = BrokerPod(0, pod, None, None, "new" if pod else None, False, False, trouble=trouble)
    (found,) = upgrades.judge(PINNED, replace(view(), brokers=(away,)), WaitingUpgrade())
    assert (found.status, found.reason) == (None, "BrokersStarting")


def test_status_has_the_images_of_pods_and_not_of_the_spec() -> None:
    pods = [
        {
            "metadata": {"name": f"main-broker-{number}"},
            "spec": {"containers": [{"name": "mesh", "image": "m"}, *broker]},
        }
        for number, broker in enumerate(([{"name": "broker", "image": OURS}], []))
    ]
    brokers = rollout.view_brokers(META, pods, {}, BrokerSets((3,)))
    seen = replace(view(), brokers=brokers)
    listed = rollout.status_fields(META, PINNED, seen, BrokerSets((3,)))["brokers"]
    assert [one.get("image") for one in listed] == [OURS, None, None]
