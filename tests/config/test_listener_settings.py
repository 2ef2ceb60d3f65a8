"""Settings of TLS and SASL listeners: whose counts, what is missing, what contradicts."""

from __future__ import annotations

import pytest

from odradek import config, config_loading, listener_settings, properties
from odradek.listener_settings import PrincipalRule, principal_rules
from odradek.oauth_settings import OauthSettings
from odradek.server import preparation
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
    settings, unknown = config_loading.from_values({**REQUIRED, **values})
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


URL = "https://issuer.test/keys"
TOKENS = {
    "listeners": "PLAINTEXT://:9092,TOKENS://:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TOKENS:SASL_PLAINTEXT",
    "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": URL,
    "org.apache.kafka.sasl.oauthbearer.allowed.urls": f"https://other.test, {URL}",
}
OF_TOKENS = "listener.name.tokens.oauthbearer"


def test_settings_of_tokens_count_for_a_listener_with_the_mechanism_before_them() -> None:
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
    sasl = (
        loaded(
            {
                **TOKENS,
                f"{OF_TOKENS}.sasl.server.callback.handler.class": handler,
                "sasl.oauthbearer.expected.issuer": "all",
                "listener.name.tokens.sasl.oauthbearer.expected.issuer": "listener",
                f"{OF_TOKENS}.sasl.oauthbearer.expected.issuer": "mechanism",
                "listener.name.tokens.sasl.oauthbearer.expected.audience": "a, b",
                "sasl.oauthbearer.sub.claim.name": "client_id",
            }
        )
        .security["TOKENS"]
        .sasl
    )
    assert sasl is not None
    assert sasl.oauth == OauthSettings(
        URL, issuer="mechanism", audiences=("a", "b"), user_claim="client_id"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sasl.oauthbearer.jwks.endpoint.url": ""}, "OAUTHBEARER needs"),
        ({"org.apache.kafka.sasl.oauthbearer.allowed.urls": ""}, "is not in org.apache.kafka"),
        ({"org.apache.kafka.sasl.oauthbearer.allowed.urls": f"{URL}/x"}, "is not in org.apache"),
        *(
            ({"sasl.oauthbearer.jwks.endpoint.url": url}, "not a URL of https or file")
            for url in (
                "http://issuer.test/keys",
                "https://",
                "https://a:99999/",
                "https://a:b@issuer.test/",
                "https://issuer.test/a b",
                "https://[::1/",
                "file://host/keys",
                "file:///",
                "jar:file:///x",
                "keys",
            )
        ),
        ({"sasl.oauthbearer.clock.skew.seconds": "-1"}, "clock.skew.seconds"),
        ({"sasl.oauthbearer.jwks.endpoint.refresh.ms": "0"}, "refresh.ms"),
        (
            {
                f"{OF_TOKENS}.sasl.server.callback.handler.class": (
                    "org.apache.kafka.common.security.oauthbearer.internals.unsecured."
                    "OAuthBearerUnsecuredValidatorCallbackHandler"
                )
            },
            "OAuthBearerUnsecuredValidatorCallbackHandler is not supported",
        ),
        ({"sasl.oauthbearer.token.endpoint.url": URL}, "token.endpoint.url"),
        (
            {
                "inter.broker.listener.name": "TOKENS",
                "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            },
            "sasl.mechanism.inter.broker.protocol OAUTHBEARER is not supported",
        ),
        (
            {
                f"{OF_TOKENS}.sasl.jaas.config": (
                    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule "
                    'required ssl.protocol="x";'
                )
            },
            "ssl.protocol is no option of OAUTHBEARER",
        ),
    ],
)
def test_tokens_that_nobody_could_check_are_refused_by_name(
    changes: dict[str, str], reason: str
) -> None:
    with pytest.raises(properties.ConfigError, match=reason) as refused:
        loaded({**TOKENS, **changes})
    assert "\n" not in str(refused.value)


def test_listener_whose_clients_send_what_others_can_use_is_named_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warned(values: dict[str, str]) -> list[str]:
        caplog.clear()
        preparation.warn_of_readable_secrets(loaded(values))
        return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]

    after = "has no TLS: who reads its connections can use what clients of"
    both = {**SASL, "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN"}
    assert warned(both) == [f"listener SASL_PLAINTEXT {after} PLAIN send"]
    assert warned(TOKENS) == [f"listener TOKENS {after} OAUTHBEARER send"]
    with_tls = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TOKENS:SASL_SSL"}
    assert warned({**TOKENS, **STORE, **with_tls}) == []
    assert warned({**TOKENS, "listener.name.tokens.sasl.enabled.mechanisms": "SCRAM-SHA-512"}) == []
    assert warned({}) == []


def test_connection_rate_of_a_listener_is_read() -> None:
    name = "listener.name.plaintext.max.connection.creation.rate"
    assert loaded({name: "7"}).listener_creation_rates == {"PLAINTEXT": 7}
    assert loaded({}).listener_creation_rates == {}
    for wrong in ("-1", "x", ""):
        with pytest.raises(properties.ConfigError, match=name):
            loaded({name: wrong})


def test_rules_for_principals_are_read_as_kafka_reads_them() -> None:
    assert principal_rules("RULE:^CN=(.*?),OU=x$/$1@$2/L, RULE:^a{1,2}$/b/,DEFAULT") == (
        PrincipalRule("^CN=(.*?),OU=x$", "$1@$2", "L"),
        PrincipalRule("^a{1,2}$", "b"),
        PrincipalRule(None),
    )
