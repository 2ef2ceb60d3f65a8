"""`odradek datagen` and `odradek sql` with tokens that their libraries get from an issuer."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import oauth, preloaded
from tests.support.broker import Cluster
from tests.support.clients import create_topic
from tests.support.secure_broker import SecureBroker

pytestmark = pytest.mark.timeout(900)

URL = "sasl.oauthbearer.token.endpoint.url"


class Tokens(SecureBroker):
    protocols = {"CLIENTS": "SASL_PLAINTEXT"}


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[oauth.Issuer]:
    with oauth.Issuer(tmp_path_factory.mktemp("issuer")) as running:
        yield running


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, issuer: oauth.Issuer
) -> Iterator[SecureBroker]:
    settings = {**issuer.settings("CLIENTS"), "inter.broker.listener.name": "PLAINTEXT"}
    with Cluster(tmp_path_factory.mktemp("oauth"), 1, settings, kind=Tokens) as cluster:
        running = cluster.brokers[1]
        assert isinstance(running, SecureBroker)
        yield running


def forms(issuer: oauth.Issuer, folder: Path) -> dict[str, dict[str, str]]:
    """Return settings by what they have: options of JAAS, those of Kafka 4.1, and a file."""
    of_jaas = issuer.client_settings("analyst")
    trust = f'ssl.truststore.type="PEM" ssl.truststore.location="{issuer.own.authority_path}"'
    token = folder / "token"
    token.write_text(issuer.token("analyst"))
    credentials = "sasl.oauthbearer.client.credentials.client"
    return {
        "jaas": of_jaas,
        "settings": {
            **of_jaas,
            "sasl.jaas.config": f"{oauth.MODULE} required {trust};",
            f"{credentials}.id": "analyst",
            f"{credentials}.secret": oauth.SECRET,
        },
        "file": {"sasl.mechanism": "OAUTHBEARER", URL: token.as_uri()},
    }


@pytest.mark.full(
    "tests/broker/test_oauth_listeners.py::test_command_shows_tokens_of_an_endpoint_and_of_a_file"
)
@pytest.mark.parametrize("form", ["jaas", "settings", "file"])
def test_records_are_written_and_queried_with_tokens(
    issuer: oauth.Issuer,
    broker: SecureBroker,
    environment: Mapping[str, str],
    tmp_path: Path,
    form: str,
) -> None:
    """Adds the clients of Spark, which read the settings themselves, and librdkafka's callback."""
    topic = f"of-{form}"
    create_topic(broker.address, topic)
    path = tmp_path / "client.properties"
    settings = {"security.protocol": "SASL_PLAINTEXT", **forms(issuer, tmp_path)[form]}
    path.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    at = ("--bootstrap-server", broker.secure_address("CLIENTS"), "--command-config", str(path))
    done = preloaded.run(
        *("odradek", "datagen", *at, "--quickstart", "orders", "--topic", topic),
        *("--iterations", "50", "--seed", "1", "--max-interval", "0"),
        timeout=300,
    )
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (
        0,
        [f"50 records written to topic {topic}"],
    )
    asked = subprocess.run(
        ["odradek", "sql", *at, "-e", f"SELECT count(*) AS n FROM `{topic}`"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert asked.returncode == 0, asked.stderr
    assert "50" in asked.stdout
    assert oauth.SECRET not in asked.stdout + asked.stderr
