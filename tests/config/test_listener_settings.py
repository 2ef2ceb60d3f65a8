"""Settings of TLS and SASL listeners: whose counts, what is missing, what contradicts."""

from __future__ import annotations

import pytest

from odradek import config, listener_settings, properties
from odradek.listener_settings import PrincipalRule, principal_rules
from tests.support.secure_broker import jaas

REQUIRED = {"broker.id": "0", "zookeeper.connect": "localhost:2181"}
STORE = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/etc/broker.pem"}
USER = jaas("PLAIN", username="admin", password="p", user_admin="p")
SASL = {
    "listeners": "SASL_PLAINTEXT://:9092",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": USER,
}
SSL = {"listeners": "SSL://:9093", "security.inter.broker.protocol": "SSL"}


def loaded(values: dict[str, str]) -> config.BrokerConfig:
    settings, unknown = config.from_values({**REQUIRED, **values})
    assert unknown == []
    return settings


def test_setting_of_a_listener_counts_before_that_of_all() -> None:
    found = loaded(
        {
            **STORE,
            "listeners": "SSL://:1,CLIENTS://:2,PLAINTEXT://:3",
            "listener.security.protocol.map": "SSL:SSL,CLIENTS:SSL,PLAINTEXT:PLAINTEXT",
            "ssl.client.auth": "requested",
            "listener.name.clients.ssl.client.auth": "required",
        }
    ).security
    assert found["SSL"].tls is not None
    assert found["CLIENTS"].tls is not None
    assert found["SSL"].tls.client_auth == "requested"
    assert found["CLIENTS"].tls.client_auth == "required"
    assert found["CLIENTS"].tls.key_store.location == "/etc/broker.pem"
    assert found["PLAINTEXT"] == listener_settings.ListenerSecurity()


def test_protocol_between_brokers_names_their_listener() -> None:
    settings = loaded(SASL)
    assert settings.inter_broker_listener_name == "SASL_PLAINTEXT"
    sasl = settings.security["SASL_PLAINTEXT"].sasl
    assert sasl is not None
    assert sasl.users("PLAIN") == {"admin": "p"}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({**SASL, "inter.broker.listener.name": "SASL_PLAINTEXT"}, "Only one of"),
        (SSL, r"listener SSL needs ssl\.keystore\.location"),
        ({**SSL, **STORE, "ssl.client.auth": "maybe"}, r"ssl\.client\.auth"),
        ({**SSL, **STORE, "ssl.enabled.protocols": "TLSv1"}, r"ssl\.enabled\.protocols"),
        ({**SSL, **STORE, "ssl.keystore.type": "BCFKS"}, r"ssl\.keystore\.type"),
        ({**SSL, **STORE, "ssl.principal.mapping.rules": "RULE:("}, r"mapping\.rules"),
        ({**SSL, **STORE, "ssl.endpoint.identification.algorithm": "LDAPS"}, "identification"),
        ({**SSL, **STORE, "ssl.keystore.key": "k"}, "are needed together"),
        ({**SASL, "sasl.enabled.mechanisms": "GSSAPI"}, "GSSAPI is not supported"),
        ({**SASL, "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"}, "not one of"),
        (
            {**SASL, "listener.name.sasl_plaintext.plain.sasl.jaas.config": ""},
            r"listener\.name\.sasl_plaintext\.plain\.sasl\.jaas\.config is missing",
        ),
        (
            {
                **SASL,
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas("PLAIN", user_a="b"),
            },
            "needs username and password",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(values: dict[str, str], reason: str) -> None:
    with pytest.raises(properties.ConfigError, match=reason) as refused:
        loaded(values)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "org.apache.kafka.common.security.plain.PlainLoginModule required",
        "org.apache.kafka.common.security.plain.PlainLoginModule user_a=b;",
        "org.apache.kafka.common.security.plain.PlainLoginModule required user_a;",
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="b;',
        "org.apache.kafka.common.security.scram.ScramLoginModule required user_a=b;",
    ],
)
def test_malformed_jaas_is_refused_without_its_secrets(text: str) -> None:
    name = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    with pytest.raises(properties.ConfigError, match=name) as refused:
        loaded({**SASL, name: text})
    assert "user_a" not in str(refused.value)


def test_jaas_is_read_as_java_reads_it() -> None:
    text = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required username=admin "
        'password="p\\"=;x" user_admin="p\\"=;x" user_bob=\'#1\';'
    )
    name = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    sasl = loaded({**SASL, name: text}).security["SASL_PLAINTEXT"].sasl
    assert sasl is not None
    assert sasl.users("PLAIN") == {"admin": 'p"=;x', "bob": "#1"}


def test_rules_for_principals_are_read_as_kafka_reads_them() -> None:
    assert principal_rules("RULE:^CN=(.*?),OU=x$/$1@$2/L, RULE:^a{1,2}$/b/,DEFAULT") == (
        PrincipalRule("^CN=(.*?),OU=x$", "$1@$2", "L"),
        PrincipalRule("^a{1,2}$", "b"),
        PrincipalRule(None),
    )
