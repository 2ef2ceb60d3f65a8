"""What the operator misses or is told wrongly: resources deleted unseen, lists empty or old."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.zk import consumers, znodes
from odradek_operator.loop import resync
from odradek_operator.shared.spec import FINALIZER
from tests.reconcile.conftest import OFTEN, Operator, Place
from tests.reconcile.test_outages import EVERYTHING, ONE, await_reasons, fill, identities, written
from tests.reconcile.test_reassignment_flow import config
from tests.support.api_proxy import KINDS, ApiProxy
from tests.support.apiserver import ApiServer
from tests.support.kubectl import eventually
from tests.support.sampling import FULL


@pytest.fixture
def proxy(api: ApiServer, tmp_path: Path) -> Iterator[ApiProxy]:
    with ApiProxy(api, tmp_path) as server:
        yield server


@pytest.fixture
def misled(api: ApiServer, proxy: ApiProxy, place: Place, tmp_path: Path) -> Iterator[Operator]:
    """An operator that is told what the proxy tells."""
    log = tmp_path / "operator.log"
    modules = () if FULL else ("tests.reconcile.frequent_resync", *OFTEN)
    with Operator(
        api, place.namespace, log, "operator-0", through=proxy.kubeconfig, modules=modules
    ) as process:
        yield process
    print(log.read_text())


def finalizers(place: Place) -> dict[str, list[str]]:
    found = place.kubectl.get("topics,consumergroups,reassignments")["items"]
    return {
        f"{one['kind']}/{one['metadata']['name']}": one["metadata"].get("finalizers", [])
        for one in found
    }


def listed(place: Place) -> dict[str, list[dict[str, Any]]]:
    return {kind: place.kubectl.get(kind)["items"] for kind in KINDS}


def await_lies(proxy: ApiProxy, lies: dict[str, list[dict[str, Any]]]) -> None:
    """Tell lies until each was believed."""
    proxy.lie(lies)
    eventually(lambda: proxy.lied.keys() >= lies.keys(), "the lies to be told", pause_s=0.2)


def test_lists_that_are_empty_or_old_delete_nothing_and_the_truth_is_followed_again(
    place: Place, proxy: ApiProxy, misled: Operator
) -> None:
    fill(place)
    everything, held = identities(place), finalizers(place)
    assert held["Topic/going"] == held["ConsumerGroup/g"] == held["Reassignment/r"] == [FINALIZER]
    before, asked = written(place.client), place.requested()
    empty = dict.fromkeys(KINDS, ApiProxy.EMPTY)

    def nothing_happened() -> None:
        assert written(place.client) == before
        assert place.requested() == asked
        assert identities(place) == everything
        assert finalizers(place) == held

    # An operator that knew better, then one that begins with it, then one that misses only the
    # cluster that everything belongs to.
    await_lies(proxy, empty)
    nothing_happened()
    misled.kill()
    misled.start()
    await_lies(proxy, empty)
    nothing_happened()
    misled.kill()
    misled.start()
    await_lies(proxy, {"kafkaclusters": ApiProxy.EMPTY})
    place.kubectl("annotate", "topic", "going", "touched=yes")
    place.kubectl("annotate", "consumergroup", "g", "touched=yes")
    nothing_happened()

    # Lists from before a Topic got another setting, and another was deleted and its data with it.
    old = listed(place)
    proxy.lie({})
    await_reasons(place, EVERYTHING)
    place.kubectl.apply(place.topic("kept", **ONE, config={"retention.ms": "6000000"}))
    place.kubectl("delete", "topic", "going", "--wait=false")
    eventually(lambda: place.client.exists(znodes.delete_topic_path("going")), "the request")
    place.finish_deletion("going")
    place.kubectl("wait", "--for=delete", "topic/going", "--timeout=120s")
    eventually(lambda: config(place, "topics", "kept") == {"retention.ms": "6000000"}, "the change")
    del everything["Topic/going"], held["Topic/going"]
    before = written(place.client)
    misled.kill()
    misled.start()
    await_lies(proxy, old)
    # Both are looked at: the one that is no more, and what the other was.
    eventually(lambda: misled.metric("odradek_operator_reconcile_seconds_count") > 4, "a pass")
    nothing_happened()

    proxy.lie({})
    left = {one: reason for one, reason in EVERYTHING.items() if one != "topic/going"}
    await_reasons(place, left)
    place.kubectl.apply(place.topic("kept", **ONE, config={"retention.ms": "7000000"}))
    eventually(lambda: config(place, "topics", "kept") == {"retention.ms": "7000000"}, "the change")


def test_resources_that_were_deleted_during_a_gap_in_the_watch_are_let_go(
    place: Place, proxy: ApiProxy, misled: Operator
) -> None:
    fill(place)
    place.kubectl.apply(place.topic("orphan", **ONE))
    eventually(lambda: place.client.exists(znodes.topic_path("orphan")), "the topic")
    place.elect("orphan")
    await_reasons(place, {**EVERYTHING, "topic/orphan": "Synced"})
    before = written(place.client)
    # Watches bring nothing, and what is listed after them is the truth again.
    await_lies(proxy, listed(place))
    place.kubectl("delete", "topic", "orphan")
    place.kubectl("delete", "kafkacluster", "main")
    proxy.lie({})
    # Nobody told the operator: it finds out, and that the data stay is said as it always is.
    within = resync.CHECK_SECONDS + 60
    eventually(lambda: place.events("TopicRetained"), "an Event", within)
    for one in ("topic/kept", "consumergroup/g", "reassignment/r"):
        kind, name = one.split("/")
        place.wait_for(kind, name, "ClusterNotFound")
    # What they had is nobody's now.
    for topic in ("kept", "orphan"):
        place.client.set(
            znodes.topic_config_path(topic), znodes.encode_config({"retention.ms": "8"})
        )
        place.kubectl("annotate", "topic", "kept", f"touched={topic}", "--overwrite")
    changed = {znodes.topic_config_path(one) for one in ("kept", "orphan")}
    place.wait_for("topic", "kept", "ClusterNotFound")
    after = written(place.client)
    assert {one for one in after | before if after.get(one) != before.get(one)} == changed


def test_resources_that_were_deleted_while_no_operator_ran_lose_only_what_they_were_to(
    place: Place, operator: Operator
) -> None:
    fill(place)
    place.client.create(consumers.offset_path("other", "kept", 0), b"7", makepath=True)
    place.kubectl.apply(
        {
            "apiVersion": "odradek.io/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": "other"},
            "spec": {"clusterRef": {"name": "main"}, "topics": ["kept"]},
        }
    )
    await_reasons(place, {**EVERYTHING, "consumergroup/other": "Observed"})
    before = written(place.client)
    operator.kill()
    place.kubectl("delete", "topic,consumergroup,reassignment", "--all", "--wait=false")
    operator.start()
    # What is to be kept had no finalizer; the others are held until the operator has done its part.
    request = znodes.delete_topic_path("going")
    eventually(lambda: place.client.exists(request), "the deletion", pause_s=0.2)
    place.kubectl("wait", "--for=delete", "consumergroup/g", "--timeout=120s")
    place.finish_deletion("going")
    # The move that is under way ends, and its resource with it.
    place.finish_moves()
    place.kubectl(
        "wait", "--for=delete", "topic,consumergroup,reassignment", "--all", "--timeout=120s"
    )
    after = written(place.client)
    gone = {one for one in before if one not in after}
    mine = (
        *(znodes.topic_path("going"), znodes.topic_config_path("going")),
        *(consumers.group_path("g"), znodes.REASSIGN_PARTITIONS_PATH),
    )
    assert all(one.startswith(mine) for one in gone), gone
    assert place.client.get(consumers.offset_path("other", "kept", 0))[0] == b"7"
    assert place.client.exists(znodes.topic_path("kept"))


def test_a_finalizer_that_was_taken_away_by_hand_costs_no_data_and_holds_nothing_up(
    place: Place, operator: Operator
) -> None:
    fill(place)
    strip = ["patch", "topic", "going", "--type=merge", '--patch={"metadata":{"finalizers":null}}']

    def held() -> bool:
        return bool(place.kubectl.get("topic", "going")["metadata"].get("finalizers"))

    # From a Topic that stays it is put back.
    place.kubectl(*strip)
    eventually(held, "the finalizer", pause_s=0.2)
    before = written(place.client)
    operator.kill()
    place.kubectl("delete", "topic", "going", "--wait=false")
    place.kubectl(*strip)
    place.kubectl("wait", "--for=delete", "topic/going", "--timeout=60s")
    operator.start()
    place.kubectl.apply(place.topic("next", **ONE))
    eventually(lambda: place.client.exists(znodes.topic_path("next")), "the next topic")
    place.elect("next")
    place.wait_for("topic", "next", "Synced")
    after = written(place.client)
    assert {one: after.get(one) for one in before} == before
    assert place.client.get_children(znodes.DELETE_TOPICS_PATH) == []
    # Who wants the topic again has it again, with its data.
    place.kubectl.apply(place.topic("going", **ONE, deletionPolicy="Delete"))
    place.wait_for("topic", "going", "Synced")
    assert written(place.client).items() >= before.items()
