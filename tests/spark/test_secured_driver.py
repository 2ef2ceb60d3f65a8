"""A driver on a listener with TLS, SASL and ACLs: its rights suffice, and it tells no password."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, ResourceType

from odradek_operator.shared import cluster_access
from tests.support import secured_cluster, spark_jvm
from tests.support.clients import QUIET, consume_all, create_topic
from tests.support.secured_cluster import SecuredCluster
from tests.support.spark_driver import Driver

pytestmark = pytest.mark.timeout(2400)

USER, PASSWORD = "odradek-job.logs.counts", "j0b-s3cret"
GROUP, SINK = "counts-1", "results"
RECORDS = 20


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_cluster.running(tmp_path_factory.mktemp("secured")) as made:
        create_topic(made.cluster.bootstrap, SINK)
        yield made


@pytest.fixture
def driver(
    secured: SecuredCluster, tmp_path: Path, drivers_jvm: spark_jvm.SharedJvm
) -> Iterator[Driver]:
    made = Driver(secured.cluster, tmp_path, GROUP, drivers_jvm)
    made.offset_store = "Both"
    made.seam = {
        "bootstrap": secured.bootstrap,
        "clientConfig": str(secured.properties(USER, PASSWORD)),
    }
    # The rights that the operator gives to such a job, and no more.
    kinds = {"TOPIC": ResourceType.TOPIC, "GROUP": ResourceType.GROUP}
    rights = [
        (kinds[pattern.resource_type.name], pattern.name, AclOperation[operation.name])
        for pattern, operation in cluster_access.job_rights([GROUP], None, GROUP, SINK)
    ]
    secured.add_user(USER, PASSWORD, *rights)
    secured.await_rights(USER, PASSWORD, GROUP, SINK)
    yield made
    made.kill()


def test_job_reads_commits_and_writes_with_the_rights_of_its_user(
    secured: SecuredCluster, driver: Driver, tmp_path: Path
) -> None:
    plain = secured.cluster.bootstrap
    producer = Producer({"bootstrap.servers": plain, **QUIET})
    for number in range(RECORDS):
        producer.produce(GROUP, json.dumps({"n": number}), partition=number % 2)
    assert producer.flush(60) == 0
    events = tmp_path / "data" / "events"
    events.mkdir()
    driver.start(
        trigger="availableNow",
        sql=f"select n from `{GROUP}`",
        sink={"topic": {"name": SINK}},
        eventLog={"path": str(events)},
    )
    try:
        assert driver.wait() == 0
    finally:
        print(driver.log.read_text()[-6000:])
    found = [json.loads(value)["n"] for value in consume_all(plain, SINK, 1, RECORDS)]
    assert sorted(found) == list(range(RECORDS))
    # Plans, properties and options are in the event log.
    told = [path for path in events.rglob("*") if path.is_file()]
    assert told
    written = [driver.log, *told, *(tmp_path / "data").rglob("*"), driver._job]
    for path in written:
        if path.is_file():
            assert PASSWORD.encode() not in path.read_bytes(), path
    log = "".join(one.log_text() for one in secured.cluster.brokers.values())
    assert f"User:{USER} is Denied" not in log
