"""Kafka's own tools against TLS and SASL listeners, with Java's key stores on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import certificates, keytool
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.certificates import PASSWORD
from tests.support.kafka_peer import Tools
from tests.support.secure_broker import SecureBroker, jaas

CONFIGS = "kafka.admin.ConfigCommand"
TOPICS = "kafka.admin.TopicCommand"
TOKENS = "kafka.admin.DelegationTokenCommand"
TOKEN_ACTIONS = (
    ("--create", "--max-life-time-period", "60000"),
    ("--renew", "--hmac", "aG1hYw==", "--renew-time-period", "60000"),
    ("--expire", "--hmac", "aG1hYw==", "--expiry-time-period", "60000"),
    ("--describe",),
)
USER = "CN=a user,O=b/c"  # a name that ZooKeeper does not take as it is


class JavaStores(SecureBroker):
    protocols = {"TLS": "SSL", "SECRET": "SASL_SSL"}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> certificates.Issued:
    folder: Path = tmp_path_factory.mktemp("stores")
    return certificates.Authority(folder).issue("broker", ["127.0.0.1", "localhost"])


@pytest.fixture(scope="module")
def secure(
    tmp_path_factory: pytest.TempPathFactory, stores: certificates.Issued
) -> Iterator[JavaStores]:
    settings = {
        **STEADY,
        # As in Kafka's documentation: no types, for JKS is the default.
        "ssl.keystore.location": str(keytool.key_store(stores, "JKS")),
        "ssl.keystore.password": PASSWORD,
        "ssl.key.password": PASSWORD,
        "ssl.truststore.location": str(keytool.trust_store(stores, "JKS")),
        "ssl.truststore.password": PASSWORD,
        "listener.name.tls.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
    }
    with Cluster(tmp_path_factory.mktemp("secure"), 1, settings, kind=JavaStores) as cluster:
        broker = cluster.brokers[1]
        assert isinstance(broker, JavaStores)
        broker.connect_string = cluster.zookeeper.connect
        yield broker


def client_properties(stores: certificates.Issued, protocol: str, **more: str) -> str:
    trusted = keytool.trust_store(stores, "PKCS12") if "SSL" in protocol else Path()
    lines = {
        "security.protocol": protocol,
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(trusted),
        "ssl.truststore.password": PASSWORD,
        **more,
    }
    return "".join(f"{name}={text}\n" for name, text in lines.items())


def certificate(stores: certificates.Issued) -> dict[str, str]:
    """Return the properties of a client that shows a certificate."""
    return {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(keytool.key_store(stores, "PKCS12")),
        "ssl.keystore.password": PASSWORD,
    }


def test_user_of_kafka_configs_is_served(
    secure: JavaStores, stores: certificates.Issued, tools: Tools
) -> None:
    def alter(change: str, text: str) -> None:
        at = ("--zookeeper", secure.connect_string, "--entity-type", "users")
        tools.run(CONFIGS, *at, "--entity-name", USER, "--alter", change, text)

    alter("--add-config", "SCRAM-SHA-512=[password=first]")
    login = {
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": jaas("SCRAM-SHA-512", username=USER, password="first"),
    }
    file = tools.file("scram.properties", client_properties(stores, "SASL_SSL", **login))
    at = ("--bootstrap-server", secure.secure_address("SECRET"), "--command-config", file)
    assert "__" not in tools.run(TOPICS, *at, "--create", "--topic", "made-secretly")
    assert "made-secretly" in tools.run(TOPICS, *at, "--list").split()

    who = ("--entity-type", "users", "--entity-name", USER)
    assert "SCRAM-SHA-512=iterations=4096" in tools.run(CONFIGS, *at, *who, "--describe")

    # Another password counts for the next connection, without a restart.
    alter("--add-config", "SCRAM-SHA-512=[password=second]")
    wait_until(
        lambda: "SASL_AUTHENTICATION" in _refused(tools, at) or "SaslAuth" in _refused(tools, at),
        "the former password is refused",
    )


def _refused(tools: Tools, at: tuple[str | Path, ...]) -> str:
    return tools.run(TOPICS, *at, "--list", statuses=[0, 1])


def test_java_clients_show_certificates(
    secure: JavaStores, stores: certificates.Issued, tools: Tools
) -> None:
    at = ("--bootstrap-server", secure.secure_address("TLS"))
    file = tools.file("tls.properties", client_properties(stores, "SSL", **certificate(stores)))
    words = "".join(f"word {number}\n" for number in range(20))
    producer = ("kafka.tools.ConsoleProducer", *at, "--topic", "words")
    tools.run(*producer, "--producer.config", file, stdin=words)
    consumer = ("kafka.tools.ConsoleConsumer", *at, "--topic", "words", "--from-beginning")
    limits = ("--max-messages", "20", "--timeout-ms", "60000")
    assert tools.run(*consumer, "--consumer.config", file, *limits) == words

    without = tools.file("without.properties", client_properties(stores, "SSL"))
    refused = tools.run(TOPICS, *at, "--command-config", without, "--list", statuses=[1])
    assert "SslAuthenticationException" in refused


def test_delegation_tokens_are_refused_with_the_reasons_that_kafka_has_without_a_secret(
    secure: JavaStores, stores: certificates.Issued, tools: Tools
) -> None:
    certified = client_properties(stores, "SSL", **certificate(stores))
    plain = "security.protocol=PLAINTEXT\n"
    for address, properties, reason in (
        (secure.secure_address("TLS"), certified, "Delegation Token feature is not enabled."),
        (f"127.0.0.1:{secure.port}", plain, "Delegation Token requests are not allowed on PLAIN"),
    ):
        file = tools.file("tokens.properties", properties)
        at = ("--bootstrap-server", address, "--command-config", file)
        for action in TOKEN_ACTIONS:
            said = tools.run(TOKENS, *at, *action, statuses=[1])
            assert f"Exception: {reason}" in said, action
