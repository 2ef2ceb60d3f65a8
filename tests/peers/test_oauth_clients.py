"""Kafka's Java clients with tokens that they get from a real endpoint with their own code."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.support import jvm, kafka_peer, oauth
from tests.support.broker import STEADY, Cluster
from tests.support.clients import create_topic
from tests.support.sampling import some_of
from tests.support.secure_broker import SecureBroker

PROGRAM = Path(__file__).with_name("JavaClient.java")
HANDLERS = {
    "3.9.1": "oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    "4.1.0": "oauthbearer.OAuthBearerLoginCallbackHandler",
}
COUNT = 20
JARS = Path(pyspark.__file__).with_name("jars")


class Tokens(SecureBroker):
    protocols = {"CLIENTS": "SASL_PLAINTEXT"}


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[oauth.Issuer]:
    with oauth.Issuer(tmp_path_factory.mktemp("issuer")) as running:
        running.claims["outsider"] = {"aud": "others"}
        yield running


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, issuer: oauth.Issuer
) -> Iterator[SecureBroker]:
    settings = {
        **STEADY,
        **issuer.settings("CLIENTS"),
        "inter.broker.listener.name": "PLAINTEXT",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
    }
    with Cluster(tmp_path_factory.mktemp("oauth"), 1, settings, kind=Tokens) as cluster:
        running = cluster.brokers[1]
        assert isinstance(running, SecureBroker)
        yield running


def client(issuer: oauth.Issuer, broker: SecureBroker, version: str, user: str) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.secure_address("CLIENTS"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": (
            f"org.apache.kafka.common.security.{HANDLERS[version]}"
        ),
        # Of 4.1; the default one checks for brokers, too, with a library that is not here.
        "sasl.oauthbearer.jwt.validator.class": (
            "org.apache.kafka.common.security.oauthbearer.ClientJwtValidator"
        ),
        "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
        "sasl.jaas.config": (
            f'{oauth.MODULE} required clientId="{user}" clientSecret="{oauth.SECRET}" '
            f'extension_traceId="x y" ssl.truststore.type="PEM" '
            f'ssl.truststore.location="{issuer.own.authority_path}";'
        ),
        "acks": "all",
        "group.id": f"of-{version}",
        "auto.offset.reset": "earliest",
        "exchange.topic": f"of-{version}",
        "exchange.count": str(COUNT),
    }


@pytest.mark.parametrize("version", some_of(list(HANDLERS), ["4.1.0"]))
def test_java_client_with_a_token_is_served_and_another_learns_why_not(
    issuer: oauth.Issuer, broker: SecureBroker, version: str, tmp_path: Path
) -> None:
    create_topic(broker.address, f"of-{version}", 1)
    files = []
    for user in ("alice", "outsider"):
        settings = client(issuer, broker, version, user)
        files.append(tmp_path / f"{user}.properties")
        files[-1].write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    own = kafka_peer.classpath(kafka_peer.clients(version))
    # Jackson, which these clients leave to the application, is among the jars of Spark.
    jackson = sorted(str(one) for one in JARS.glob("jackson-*-2.*.jar"))
    everything = ":".join([str(jvm.compiled(PROGRAM, own)), own, *jackson])
    done = subprocess.run(
        [
            *(*kafka_peer.JAVA, kafka_peer.scratch(tmp_path), "-Xmx128m"),
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.url}/token",
            *("-cp", everything, PROGRAM.stem, "exchange", *map(str, files)),
        ],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    served, refused = done.stdout.splitlines()
    assert sorted(served.split(",")) == sorted(f"value {number}" for number in range(COUNT))
    assert refused == "SaslAuthenticationException"
    assert "OAUTHBEARER: Audience doesn't match" in broker.log_text()
