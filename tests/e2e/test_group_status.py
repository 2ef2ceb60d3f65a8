"""What a ConsumerGroup's status says of jobs that cannot run, and of a topic made anew."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.e2e.test_quickstart import topic
from tests.e2e.test_under_load import wait_for
from tests.support.clients import consume_all, produce_all, settings
from tests.support.kubectl import Kubectl, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

FORMER = [b"former %04d" % number for number in range(1000)]
ANEW = [b"anew %04d" % number for number in range(3000)]


def group(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "main"}, "deletionPolicy": "Delete", **spec},
    }


def status(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """Return the status; one that was just made has none."""
    return dict(kubectl.get("consumergroup", name).get("status", {}))


def test_job_that_cannot_run_says_so_and_rests_until_its_spec_changes(
    kubectl: Kubectl, healthy: None
) -> None:
    name = "cannot-run"
    job = {
        "schema": "component string",
        "sink": {"console": {}},
        "volume": {"size": "1Gi", "storageClassName": "local"},
    }

    def uid() -> str:
        return str(kubectl.get("pod", f"{name}-driver")["metadata"]["uid"])

    try:
        kubectl.apply(group(name, topics=["cluster-logs"], job={**job, "sql": "selec nonsense"}))
        wait_for(kubectl, "consumergroup", name, "InvalidJob")
        first, told = uid(), status(kubectl, name)
        assert "PARSE_SYNTAX_ERROR" in told["job"]["message"]
        assert (told["job"]["phase"], told["verdict"]) == ("Stalled", "STOP")
        kubectl("annotate", "consumergroup", name, "touched=1")
        wait_for(kubectl, "consumergroup", name, "InvalidJob")
        assert uid() == first

        large = {"executors": {"memory": "900Gi"}, "sql": "select component from records"}
        kubectl.apply(group(name, topics=["cluster-logs"], job={**job, **large}))

        def is_pending() -> bool:
            ready = kubectl.condition("consumergroup", name)
            assert (ready.get("status"), ready.get("reason")) == ("False", "ExecutorsPending")
            assert "Insufficient memory" in ready["message"], ready
            return True

        eventually(is_pending, "the scheduler's words", 300)
        assert status(kubectl, name)["verdict"] == "STOP"
        assert uid() != first
    finally:
        kubectl("delete", "consumergroup", name, "--timeout=120s")
        kubectl("delete", "pvc", f"{name}-data", "--timeout=120s")


def test_topic_made_anew_is_wholly_behind(kubectl: Kubectl, healthy: None, bootstrap: str) -> None:
    """For groups in either store, and for a job that was suspended meanwhile."""
    name, in_znodes, copies = "made-anew", "made-anew-in-znodes", "made-anew-copies"
    client = AdminClient(settings(bootstrap))
    job = {
        "trigger": "availableNow",
        "format": "text",
        "sql": "select value from records",
        "sink": {"topic": {"name": copies}},
        "volume": {"size": "1Gi", "storageClassName": "local"},
        # As in the quick start: there may be no whole core left.
        "sparkConf": {"spark.kubernetes.executor.request.cores": "250m"},
    }

    def make(records: list[bytes]) -> None:
        kubectl.apply(topic(name, partitions=1))
        wait_for(kubectl, "topic", name, "Synced")
        produce_all(bootstrap, name, records, partitions=1)

    def change(spec: dict[str, Any]) -> None:
        patch = json.dumps({"spec": spec})
        kubectl("patch", "consumergroup", copies, "--type=merge", f"--patch={patch}")

    def have_lag(lag: int, verdict: str) -> bool:
        for one in (name, in_znodes):
            kubectl("annotate", "consumergroup", one, f"look={time.time()}", "--overwrite")
            seen = status(kubectl, one)
            assert (seen.get("totalLag"), seen.get("verdict")) == (lag, verdict), (one, seen)
        return True

    try:
        kubectl.apply(topic(copies, partitions=1))
        make(FORMER)
        consumer = Consumer({**settings(bootstrap), "group.id": name})
        place = TopicPartition(name, 0, len(FORMER))
        eventually(lambda: consumer.commit(offsets=[place], asynchronous=False), "the commit")
        consumer.close()
        wait_for(kubectl, "topic", copies, "Synced")
        latest = {"requestId": "first", "strategy": "Latest"}
        kubectl.apply(
            group(copies, topics=[name], job=job),
            group(name, topics=[name], offsetStore="Kafka"),
            # The reset makes the commit: nobody else writes offsets to ZooKeeper here.
            group(in_znodes, topics=[name], reset=latest),
        )
        eventually(lambda: have_lag(0, "OK"), "all is read")
        wait_for(kubectl, "consumergroup", copies, "Completed")
        change({"job": {"suspend": True}})
        wait_for(kubectl, "consumergroup", copies, "Suspended")

        kubectl("delete", "topic", name, "--timeout=120s")
        eventually(lambda: name not in client.list_topics(timeout=60).topics, "the topic is gone")
        make(ANEW)
        change({"job": {"suspend": False}})
        eventually(lambda: have_lag(len(ANEW), "STOP"), "nothing is read")
        wait_for(kubectl, "consumergroup", copies, "TopicRecreated")
        assert kubectl.condition("consumergroup", copies, "Stalled")["status"] == "True"
        message = kubectl.condition("consumergroup", copies)["message"]
        assert f"topic {name} was made anew at " in message
        assert "apply spec.reset to go on" in message
        told = status(kubectl, copies)
        assert (told["job"]["phase"], told["verdict"]) == ("Stalled", "STOP")

        change({"reset": {"requestId": "anew", "strategy": "Earliest"}})
        wait_for(kubectl, "consumergroup", copies, "Completed")
        assert status(kubectl, copies)["lastReset"]["phase"] == "Done"
        copied = consume_all(bootstrap, copies, 1, len(FORMER) + len(ANEW))
        assert sorted(json.loads(one)["value"].encode() for one in copied) == sorted(FORMER + ANEW)
    finally:
        left = ("--ignore-not-found", "--timeout=120s")
        kubectl("delete", "consumergroup", copies, name, in_znodes, *left)
        kubectl("delete", "pvc", f"{copies}-data", *left)
        kubectl("delete", "topic", name, copies, *left)
