"""The exporter on a listener with TLS, SASL and ACLs, while password and authority change."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AclOperation, ResourceType

from odradek.http_server import HttpRequest
from odradek_operator.exporter.rounds import Exporter, Options
from tests.support import certificates, secured_cluster
from tests.support.broker import wait_until
from tests.support.clients import QUIET, create_topic, produce_all
from tests.support.secured_cluster import SecuredCluster

USER, TOPIC, GROUP = "lags", "orders", "billing"
FIRST, SECOND = "lag-s3cret", "other-s3cret"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_cluster.running(tmp_path_factory.mktemp("secured")) as made:
        plain = made.cluster.bootstrap
        create_topic(plain, TOPIC)
        produce_all(plain, TOPIC, [b"x"] * 10)
        consumer = Consumer({"bootstrap.servers": plain, "group.id": GROUP, **QUIET})
        place = TopicPartition(TOPIC, 0, 4)
        wait_until(lambda: _committed(consumer, place), "the commit")
        consumer.close()
        describe = AclOperation.DESCRIBE
        rights = [(ResourceType.TOPIC, "*", describe), (ResourceType.GROUP, "*", describe)]
        cluster = (ResourceType.BROKER, "kafka-cluster", describe)
        made.add_user(USER, FIRST, *rights, cluster)
        made.await_rights(USER, FIRST, TOPIC)
        yield made


def _committed(consumer: Consumer, place: TopicPartition) -> bool:
    try:
        return bool(consumer.commit(offsets=[place], asynchronous=False))
    except Exception:
        # The first commit of all makes the topic that it goes to.
        return False


class Round:
    """What one round left: its lags, and what failed."""

    def __init__(self, exporter: Exporter) -> None:
        exporter.round()
        text = exporter.answer(HttpRequest("GET", "/metrics", "", {})).body.decode()
        lines = [one for one in text.splitlines() if one.startswith("kafka_consumergroup_lag{")]
        self.lags = [line.rpartition(" ")[2] for line in lines if GROUP in line]
        self.failures = " ".join(exporter._failures.values())


def test_lag_is_read_with_the_file_as_it_is_now(
    secured: SecuredCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "client.properties"
    shutil.copy(secured.properties(USER, FIRST), config)
    options = Options(secured.cluster.zookeeper.connect, 15, client_config=config)
    unsecured = Exporter(Options(secured.cluster.zookeeper.connect, 15, listener="ABSENT"))
    try:
        assert "none has the listener ABSENT" in Round(unsecured).failures
    finally:
        unsecured.close()
    exporter = Exporter(Options(options.zookeeper, 15, client_config=config, listener="SECRET"))
    try:
        wait_until(lambda: Round(exporter).lags == ["6"], "the lag")
        # The password changes at the brokers, and after that in the file.
        secured.add_user(USER, SECOND)
        wait_until(lambda: "SASL_AUTHENTICATION_FAILED" in Round(exporter).failures, "a refusal")
        shutil.copy(secured.properties(USER, SECOND), config)
        wait_until(lambda: Round(exporter).lags == ["6"] and not Round(exporter).failures, "again")

        # An authority that did not sign the brokers' certificate, then none, then the right one.
        other = certificates.Authority(tmp_path, "stranger").issue("stranger")
        where = "ssl.truststore.location"
        right = config.read_text()
        config.write_text(right.replace(f"{secured.own.authority_path}", f"{other.authority_path}"))
        assert "CERTIFICATE_VERIFY_FAILED" in Round(exporter).failures
        config.write_text(right.replace(f"{where}={secured.own.authority_path}", f"{where}=/none"))
        assert f"{config}: cannot use ssl.truststore" in Round(exporter).failures
        config.unlink()
        assert f"cannot read {config}" in Round(exporter).failures
        config.write_text(right)
        assert Round(exporter).failures == ""
    finally:
        exporter.close()
    assert FIRST not in caplog.text
    assert SECOND not in caplog.text
