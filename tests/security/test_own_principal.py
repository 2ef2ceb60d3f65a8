"""Whom a broker is for others: what its start looks for in super.users and ACLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek import config_loading
from odradek.security.listeners import BrokerSecurity
from odradek.security.scram import ScramCredential
from odradek.values import ANONYMOUS, Principal
from tests.support import certificates
from tests.support.secure_broker import jaas


async def find_nobody(mechanism: str, user: str) -> ScramCredential | None:
    return None


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder: Path = tmp_path_factory.mktemp("own")
    return certificates.Authority(folder).issue("broker", ["localhost"]).settings()


def security(protocol: str, settings: dict[str, str]) -> BrokerSecurity:
    found, _ = config_loading.from_values(
        {
            "broker.id": "1",
            "zookeeper.connect": "localhost:1",
            "listeners": f"{protocol}://127.0.0.1:1",
            "security.inter.broker.protocol": protocol,
            **settings,
        }
    )
    return BrokerSecurity(found, find_nobody)


@pytest.mark.parametrize(
    ("protocol", "settings", "expected"),
    [
        ("PLAINTEXT", {}, ANONYMOUS),
        ("SSL", {}, ANONYMOUS),
        ("SSL", {"ssl.client.auth": "requested"}, Principal("User", "CN=broker")),
        (
            "SSL",
            {
                "ssl.client.auth": "required",
                "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/U",
            },
            Principal("User", "BROKER"),
        ),
        (
            "SASL_SSL",
            {
                "ssl.client.auth": "required",
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
                "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
                "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas(
                    "PLAIN", username="another", password="p", user_another="p"
                ),
                "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": jaas(
                    "SCRAM-SHA-512", username="admin", password="p"
                ),
            },
            Principal("User", "admin"),
        ),
    ],
)
def test_broker_is_who_its_peers_learn_it_is(
    own: dict[str, str], protocol: str, settings: dict[str, str], expected: Principal
) -> None:
    tls = own if "SSL" in protocol else {}
    assert security(protocol, {**tls, **settings}).own_principal() == expected


def test_broker_whom_no_rule_names_is_nobody(own: dict[str, str]) -> None:
    rules = {"ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:^O=(.*)$/$1/"}
    with pytest.raises(ValueError, match="is for CN=broker"):
        security("SSL", {**own, **rules}).own_principal()
