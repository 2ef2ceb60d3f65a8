"""Settings of connections to ZooKeeper: Kafka's names, JAAS files, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from odradek import config_loading, zookeeper_settings
from odradek.listener_settings import TLS_VERSIONS
from odradek.properties import ConfigError
from odradek.zookeeper_settings import ZooKeeperLogin, ZooKeeperSecurity

REQUIRED = {"broker.id": "0", "zookeeper.connect": "localhost:2181"}
TLS = {"zookeeper.ssl.client.enable": "true"}
MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"


def read(values: Mapping[str, str], kafka_opts: str = "") -> ZooKeeperSecurity:
    settings, unknown = config_loading.from_values(
        {**REQUIRED, **values}, {"KAFKA_OPTS": kafka_opts}
    )
    assert unknown == []
    return settings.zookeeper_security


def jaas(folder: Path, text: str) -> str:
    path = folder / "kafka.jaas"
    path.write_text(text)
    return f"-Djava.security.auth.login.config={path}"


def test_nothing_is_asked_for_by_default() -> None:
    assert read({}) == ZooKeeperSecurity()
    assert read({"zookeeper.ssl.client.enable": "false"}) == ZooKeeperSecurity()


def test_tls_checks_host_names_and_finds_kinds_of_stores_by_their_names() -> None:
    found = read(
        {
            **TLS,
            "zookeeper.ssl.keystore.location": "/k/own.p12",
            "zookeeper.ssl.keystore.password": "p",
            "zookeeper.ssl.truststore.location": "/k/trusted.JKS",
        }
    )
    assert found.authenticates
    assert found.tls is not None
    assert found.tls.checks_host
    assert found.tls.versions == TLS_VERSIONS
    assert (found.tls.key_store.kind, found.tls.trust_store.kind) == ("PKCS12", "JKS")
    assert "'p'" not in repr(found)


def test_versions_and_host_names_are_settings() -> None:
    algorithm = "zookeeper.ssl.endpoint.identification.algorithm"
    tls = read({**TLS, "zookeeper.ssl.protocol": "TLSv1.2", algorithm: ""}).tls
    assert tls is not None
    assert (tls.versions, tls.checks_host) == (("TLSv1.2",), False)
    tls = read({**TLS, "zookeeper.ssl.enabled.protocols": "TLSv1.3", algorithm: "HTTPS"}).tls
    assert tls is not None
    assert (tls.versions, tls.checks_host) == (("TLSv1.3",), True)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({**TLS, "zookeeper.clientCnxnSocket": "a.Socket"}, "zookeeper.clientCnxnSocket must be"),
        ({**TLS, "zookeeper.ssl.crl.enable": "true"}, "crl.enable=true is not supported"),
        ({**TLS, "zookeeper.ssl.protocol": "TLSv1.1"}, "Invalid value TLSv1.1"),
        ({**TLS, "zookeeper.ssl.keystore.location": "/k"}, "keystore.type is missing"),
        ({**TLS, "zookeeper.ssl.keystore.type": "BCFKS"}, "Invalid value BCFKS"),
        (
            {**TLS, "zookeeper.ssl.endpoint.identification.algorithm": "none"},
            "must be https or empty",
        ),
        ({"zookeeper.ssl.client.enable": "yes"}, "Invalid value yes"),
        (
            {"zookeeper.ssl.truststore.location": "/k.pem"},
            "zookeeper.ssl.truststore.location has no effect without",
        ),
        ({"zookeeper.set.acl": "true"}, "zookeeper.set.acl=true needs authentication"),
        ({**TLS, "zookeeper.set.acl": "true"}, "zookeeper.set.acl=true needs authentication"),
    ],
)
def test_mistake_is_one_line_with_the_setting(values: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(values)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_login_is_that_of_the_section_client(tmp_path: Path) -> None:
    text = f"""
    // for listeners
    KafkaServer {{ a.Module required x="}}"; b.Module optional; }};
    /* for
       ZooKeeper */
    Client {{
      {MODULE} required username="kafka"
        password="a \\"b\\" \\\\c // d";
    }};
    Other {{ {MODULE} required username=other password="x"; }};
    """
    options = jaas(tmp_path, text)
    assert read({}, options).login == ZooKeeperLogin("kafka", 'a "b" \\c // d')
    assert read({"zookeeper.set.acl": "true"}, options).set_acl
    named = f"-Dzookeeper.sasl.clientconfig=Other {options}"
    assert read({}, named).login == ZooKeeperLogin("other", "x")
    assert read({}, f"{options} -Dzookeeper.sasl.client=false").login is None
    assert read({}, jaas(tmp_path, "KafkaServer { a.Module required; };")).login is None
    assert "// d" not in repr(read({}, options))


def test_mark_of_an_editor_hides_no_section(tmp_path: Path) -> None:
    text = f'\ufeffClient {{ {MODULE} required username="kafka" password="x"; }};'
    assert read({}, jaas(tmp_path, text)).login == ZooKeeperLogin("kafka", "x")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Client", "it is malformed: there is no { after the name of a section"),
        ("Client { a required;", "section Client is malformed: there is no }"),
        ("Client { a required; }", "section Client is malformed: it does not end with };"),
        ("Client { };", "must have one login module"),
        (f"Client {{ {MODULE} required username=a password=b }};", "must have one login module"),
        ("Client { com.sun.security.auth.module.Krb5LoginModule required; };", "must be org"),
        (f"Client {{ {MODULE} username=a password=b; }};", "no control flag"),
        (f"Client {{ {MODULE} required username; }};", "an option is not name=value"),
        (f"Client {{ {MODULE} required username=a; }};", "needs username and password"),
        ('Client { a required x="', "it is malformed near line 1"),
    ],
)
def test_mistake_in_a_jaas_file_is_one_line(tmp_path: Path, text: str, why: str) -> None:
    options = jaas(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        read({}, options)
    assert str(refused.value).startswith(f"{tmp_path}/kafka.jaas: ")
    assert why in str(refused.value)


def test_file_that_has_only_a_password_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read({}, jaas(tmp_path, "open-sesame\n"))
    assert "sesame" not in str(refused.value)


def test_mistake_in_kafka_opts_is_one_line(tmp_path: Path) -> None:
    for options, why in (
        (f"-Djava.security.auth.login.config={tmp_path}/none", "No such file"),
        ('-Dx="', "KAFKA_OPTS is malformed"),
        ("-Dzookeeper.client.secure=true", "-Dzookeeper.client.secure has no effect"),
    ):
        with pytest.raises(ConfigError, match=why):
            read({}, options)


def test_file_of_a_tool_must_ask_for_tls() -> None:
    with pytest.raises(ConfigError, match=r"it needs zookeeper\.ssl\.client\.enable=true"):
        zookeeper_settings.of_tools({"zookeeper.set.acl": "true"}, {})
    security, ignored = zookeeper_settings.of_tools({**TLS, "zookeeper.set.acl": "true"}, {})
    assert ignored == ["zookeeper.set.acl"]
    assert security.tls is not None
