"""The file with the settings of Kafka's clients, as librdkafka and Spark get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from confluent_kafka import KafkaError, KafkaException, admin

from odradek_spark import broker_access
from odradek_spark.broker_access import BrokerAccess, ClientConfigError
from odradek_spark.client_errors import Refusals
from tests.support import certificates, oauth, preloaded
from tests.support.secure_broker import jaas

PASSWORD = "pa'ss w0rd"


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def own(tmp_path: Path) -> certificates.Issued:
    return certificates.Authority(tmp_path).issue("client")


def test_without_a_file_clients_have_addresses_only() -> None:
    access = BrokerAccess("b:1")
    assert access.client_settings() == {"bootstrap.servers": "b:1"}
    assert access.source_options() == {"kafka.bootstrap.servers": "b:1"}


def test_passwords_are_in_no_option_of_spark_and_in_no_text(
    tmp_path: Path, own: certificates.Issued
) -> None:
    path = written(
        tmp_path / "client.properties",
        *("security.protocol=SASL_SSL", "sasl.mechanism=SCRAM-SHA-512"),
        f"sasl.jaas.config={jaas('SCRAM-SHA-512', username='a', password=PASSWORD)}",
        *("ssl.truststore.type=PEM", f"ssl.truststore.location={own.authority_path}"),
        *("ssl.keystore.type=PEM", f"ssl.keystore.location={own.pem_path}"),
        *("ssl.key.password=open", "ssl.endpoint.identification.algorithm=", "acks=all"),
    )
    access, ignored = broker_access.read("b:1", path)
    assert ignored == ["acks"]
    assert access.librdkafka == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "a",
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(own.authority_path),
        "ssl.certificate.location": str(own.pem_path),
        "ssl.key.location": str(own.pem_path),
        "ssl.key.password": "open",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert access.source_options() == {
        "kafka.bootstrap.servers": "b:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f"${{file:{path}:sasl.jaas.config}}",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(own.authority_path),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": str(own.pem_path),
        "kafka.ssl.key.password": f"${{file:{path}:ssl.key.password}}",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.config.providers": "file",
        "kafka.config.providers.file.class": (
            "org.apache.kafka.common.config.provider.FileConfigProvider"
        ),
    }
    assert PASSWORD not in repr(access)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("security.protocol=TLS",), "one of: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (("security.protocol=SASL_SSL",), "GSSAPI is not supported"),
        (
            ("security.protocol=SSL", "ssl.truststore.location=/absent"),
            r"ssl\.truststore\.type must be PEM here; JKS is not supported",
        ),
        (
            *[("security.protocol=SSL", "ssl.truststore.type=PEM")],
            None,
        ),
        (
            (
                *("security.protocol=SSL", "ssl.truststore.type=PEM"),
                "ssl.truststore.location=/absent",
            ),
            r"cannot use ssl\.truststore\.location=/absent: No such file",
        ),
        (
            ("security.protocol=SSL", "ssl.keystore.location=/absent"),
            r"ssl\.keystore\.type must be PEM or PKCS12 here",
        ),
        (
            ("security.protocol=SSL", "ssl.enabled.protocols=TLSv1.3"),
            r"ssl\.enabled\.protocols is not supported here",
        ),
        (
            (
                *("security.protocol=SSL", "ssl.truststore.type=PEM"),
                "ssl.truststore.certificates=junk",
            ),
            r"certificate .*from ssl\.truststore\.certificates: not in PEM format",
        ),
        (
            (
                *("security.protocol=SSL", "ssl.truststore.type=PEM"),
                "ssl.truststore.location=/dev/null",
            ),
            r"ssl\.truststore\.location failed: .*no certificate",
        ),
    ],
)
def test_wrong_file_is_one_line(tmp_path: Path, lines: tuple[str, ...], said: str | None) -> None:
    path = written(tmp_path / "client.properties", *lines)
    if said is None:
        assert broker_access.read("b:1", path)[0].librdkafka == {"security.protocol": "SSL"}
        return
    with pytest.raises(ClientConfigError, match=said) as failure:
        broker_access.read("b:1", path)
    assert str(failure.value).startswith(f"{path}: ")
    assert "\n" not in str(failure.value)


def test_path_that_spark_could_not_name_is_refused(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a:b.properties",
        *("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN"),
        f"sasl.jaas.config={jaas('PLAIN', username='a', password='b')}",
    )
    with pytest.raises(ClientConfigError, match="must have neither : nor }"):
        broker_access.read("b:1", path)


@pytest.mark.parametrize("command", ["datagen", "sql"])
def test_mistake_of_a_command_is_one_line_and_2(tmp_path: Path, command: str) -> None:
    absent = tmp_path / "absent"
    arguments = ("--quickstart", "users") if command == "datagen" else ("-e", "SHOW TOPICS")
    done = preloaded.run("odradek", command, *arguments, "--command-config", str(absent))
    assert (done.returncode, done.stderr) == (
        2,
        f"odradek: cannot read {absent}: No such file or directory\n",
    )


def test_tokens_of_spark_are_got_with_options_of_jaas(
    tmp_path: Path, own: certificates.Issued
) -> None:
    """Kafka 3.9 knows no settings with credentials; the secret stays in the file."""
    credentials = "sasl.oauthbearer.client.credentials.client"
    path = written(
        tmp_path / "client.properties",
        *("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER"),
        "sasl.oauthbearer.token.endpoint.url=https://issuer.test/token",
        *(f'{credentials}.id=a "b"', f"{credentials}.secret={PASSWORD}"),
        f"sasl.jaas.config={oauth.MODULE} required extension_traceId=x "
        f'ssl.truststore.type=PEM ssl.truststore.location="{own.authority_path}";',
    )
    access, ignored = broker_access.read("b:1", path)
    assert ignored == []
    assert access.librdkafka == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
    }
    assert "oauth_cb" in access.client_settings()
    assert access.spark["kafka.sasl.jaas.config"] == (
        f'{oauth.MODULE} required clientId="a \\"b\\"" '
        f'clientSecret="${{file:{path}:{credentials}.secret}}" extension_traceId="x" '
        f'ssl.truststore.type="PEM" ssl.truststore.location="{own.authority_path}";'
    )
    assert PASSWORD not in repr(access) + "".join(access.spark.values())
    path = written(
        tmp_path / "client.properties",
        *("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER"),
        "sasl.oauthbearer.token.endpoint.url=file:/token",
    )
    access, _ = broker_access.read("b:1", path)
    assert access.spark["kafka.sasl.jaas.config"] == f"{oauth.MODULE} required;"
    assert access.spark["kafka.sasl.login.callback.handler.class"].endswith(
        "oauthbearer.OAuthBearerLoginCallbackHandler"
    )


def test_a_file_is_not_blamed_for_threads_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(settings: dict[str, Any]) -> NoReturn:
        raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE))

    monkeypatch.setattr(admin, "AdminClient", refuse)
    path = written(tmp_path / "client.properties", "security.protocol=PLAINTEXT")
    with pytest.raises(RuntimeError, match=r"^can't start new thread$"):
        broker_access.read("b:1", path)


@pytest.mark.parametrize("name", ["client.credentials.client.id", "scope"])
def test_credentials_of_spark_are_all_settings_or_all_options(tmp_path: Path, name: str) -> None:
    path = written(
        tmp_path / "client.properties",
        *("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER"),
        "sasl.oauthbearer.token.endpoint.url=https://issuer.test/token",
        f"sasl.oauthbearer.{name}=a",
        f'sasl.jaas.config={oauth.MODULE} required clientId="a" clientSecret="{PASSWORD}";',
    )
    with pytest.raises(ClientConfigError, match=f"oauthbearer.{name} needs") as refused:
        broker_access.read("b:1", path)
    assert PASSWORD not in str(refused.value)


def test_refusals_name_the_settings_that_the_file_has() -> None:
    refusals = Refusals()
    assert refusals.text() == ""
    said = "certificate verify failed: verify that ssl.ca.location is correctly configured"
    refusals(KafkaError(KafkaError._SSL, said))
    assert refusals.text().startswith(": ")
    assert "verify that ssl.truststore.location is correctly configured" in refusals.text()
    assert "ssl.ca." not in refusals.text()
