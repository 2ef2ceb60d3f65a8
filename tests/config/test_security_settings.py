"""Security settings that are not supported end the start; Kafka's defaults of them do not."""

import subprocess
import sys
from pathlib import Path

import pytest

from odradek import config_loading, properties

REQUIRED = {"broker.id": "0", "zookeeper.connect": "localhost:2181"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("authorizer.zookeeper.url", "other:2181"),
        ("zookeeper.ssl.context.supplier.class", "a.Supplier"),
        ("principal.builder.class", "a.Builder"),
        ("listener.name.internal.principal.builder.class", "a.Builder"),
        ("security.providers", "a.Provider"),
        ("create.topic.policy.class.name", "a.Policy"),
        ("alter.config.policy.class.name", "a.Policy"),
        ("ssl.protocol", "TLSv1.1"),
        ("delegation.token.master.key", "a-secret"),
        ("delegation.token.secret.key", "a-secret"),
        ("sasl.jaas.config", "x required;"),
        ("ssl.engine.factory.class", "a.Factory"),
        ("sasl.server.callback.handler.class", "a.Handler"),
        ("listener.name.internal.gssapi.sasl.jaas.config", "x required;"),
        ("listener.name.internal.plain.ssl.keystore.location", "/etc/keys.jks"),
    ],
)
def test_setting_that_differs_from_its_default_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(properties.ConfigError, match=name) as refused:
        config_loading.from_values({**REQUIRED, name: text})
    message = str(refused.value)
    assert message.startswith("these security settings are not supported; remove ")
    assert "\n" not in message
    assert text not in message, "values may be secrets"


def test_all_of_them_are_named_at_once() -> None:
    values = {**REQUIRED, "ssl.provider": "p", "sasl.jaas.config": "x"}
    with pytest.raises(properties.ConfigError, match=r"remove sasl\.jaas\.config, ssl\.provider"):
        config_loading.from_values(values)


def test_kafkas_defaults_are_accepted_without_a_warning() -> None:
    defaults = {
        "security.inter.broker.protocol": "PLAINTEXT",
        "zookeeper.set.acl": "false",
        "ssl.client.auth": "none",
        "ssl.protocol": "TLSv1.3",
        "ssl.enabled.protocols": "TLSv1.2, TLSv1.3",
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.keystore.location": "",
        "delegation.token.master.key": "",
        "delegation.token.secret.key": "",
        "ssl.truststore.type": "JKS",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.ticket.renew.window.factor": "0.8",
        "sasl.login.refresh.buffer.seconds": "300",
        "listener.name.internal.ssl.client.auth": "none",
        "principal.builder.class": (
            "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
        ),
        "create.topic.policy.class.name": "",
    }
    assert config_loading.from_values({**REQUIRED, **defaults})[1] == []


def test_start_ends_with_one_line_and_status_2(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("broker.id=0\nzookeeper.connect=localhost:1\nssl.provider=p\n")
    ended = subprocess.run(
        [sys.executable, "-m", "odradek", "broker", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2
    assert ended.stderr == (
        "odradek: these security settings are not supported; "
        "remove ssl.provider, and let only trusted networks reach the broker\n"
    )
