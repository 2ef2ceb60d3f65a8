"""`odradek datagen` and `odradek sql` on a listener with TLS, SASL and ACLs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from tests.support import certificates, preloaded, secured_cluster
from tests.support.clients import consume_all, create_topic
from tests.support.secured_cluster import SecuredCluster

pytestmark = pytest.mark.timeout(900)

USER, PASSWORD = "analyst", "ana-s3cret"
TOPIC, HIDDEN = "orders", "salaries"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_cluster.running(tmp_path_factory.mktemp("secured")) as made:
        for topic in (TOPIC, HIDDEN):
            create_topic(made.cluster.bootstrap, topic)
        rights = [
            (ResourceType.TOPIC, TOPIC, operation)
            for operation in (AclOperation.READ, AclOperation.WRITE)
        ]
        made.add_user(USER, PASSWORD, *rights)
        made.await_rights(USER, PASSWORD, TOPIC)
        yield made


def written(secured: SecuredCluster, config: Path, topic: str) -> subprocess.CompletedProcess[str]:
    return preloaded.run(
        *("odradek", "datagen", "--bootstrap-server", secured.bootstrap),
        *("--command-config", str(config), "--quickstart", "orders", "--topic", topic),
        *("--iterations", "50", "--seed", "1", "--max-interval", "0"),
        timeout=300,
    )


def asked(
    secured: SecuredCluster, environment: Mapping[str, str], config: Path, text: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *("odradek", "sql", "--bootstrap-server", secured.bootstrap),
            *("--command-config", str(config), "-e", text),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.full(
    "tests/spark/test_secured_driver.py::test_job_reads_commits_and_writes_with_the_rights_of_its_user"
)
def test_user_writes_and_queries_its_topics_and_no_others(
    secured: SecuredCluster, environment: Mapping[str, str]
) -> None:
    config = secured.properties(USER, PASSWORD)
    done = written(secured, config, TOPIC)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (
        0,
        ["50 records written to topic orders"],
    )
    assert len(consume_all(secured.cluster.bootstrap, TOPIC, 1, 50)) == 50
    done = written(secured, config, HIDDEN)
    assert done.returncode == 1
    assert "topic salaries cannot be used: Broker: Topic authorization failed" in done.stderr

    # Rows by Spark's source with a schema inferred, records by librdkafka, and a continuous query.
    done = asked(
        secured,
        environment,
        config,
        "SHOW TOPICS; SELECT count(*) AS n, max(orderid) AS m FROM orders; "
        "EXPLAIN EXTENDED SELECT * FROM orders; PRINT 'orders' FROM BEGINNING LIMIT 2; "
        "SET 'auto.offset.reset'='earliest'; SELECT orderid FROM orders EMIT CHANGES LIMIT 3;",
    )
    assert done.returncode == 0, done.stderr
    assert "50 | 49" in " ".join(done.stdout.split())
    assert HIDDEN not in done.stdout
    assert PASSWORD not in done.stdout + done.stderr
    assert done.stdout.count("rowtime: ") == 2


def test_refusals_are_one_line_that_says_why(secured: SecuredCluster) -> None:
    other = certificates.Authority(secured.own.folder, "stranger").issue("stranger")
    guessed = secured.properties(USER, "guessed")
    distrusting = secured.properties(
        "wary", PASSWORD, **{"ssl.truststore.location": str(other.authority_path)}
    )
    known = (("--quickstart", "orders"), ("-e", "SHOW TOPICS"))
    reasons = (
        (secured.bootstrap, ("--command-config", str(guessed)), "Authentication failed"),
        (secured.bootstrap, ("--command-config", str(distrusting)), "certificate verify failed"),
        ("127.0.0.1:1", (), ""),
    )

    def refused(command: str, arguments: tuple[str, ...], where: str, why: str) -> None:
        options = ("--bootstrap-server", where, *arguments)
        done = preloaded.run("odradek", command, *options, timeout=300)
        assert (done.returncode, done.stdout) == (1, "")
        assert PASSWORD not in done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"odradek: no broker answers at {where}")
        assert why in line

    # Each waits for ten seconds, for a broker that might only be late. More of them at once, on a
    # busy machine, would not get to know within ten seconds why it refuses.
    with ThreadPoolExecutor(3) as threads:
        running = [
            threads.submit(refused, command, (*arguments, *config), where, why)
            for command, arguments in zip(("datagen", "sql"), known, strict=True)
            for where, config, why in reasons
        ]
        for one in running:
            one.result()
