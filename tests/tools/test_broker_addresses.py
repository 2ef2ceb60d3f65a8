"""Where `odradek groups --zookeeper` finds brokers."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from odradek.tools.errors import ToolError
from odradek.tools.group_stores import broker_addresses
from odradek.values import BrokerId
from odradek.zk import znodes
from odradek.zk.znodes import BrokerEndpoint, BrokerRegistration

LIVING = znodes.encode_broker(
    BrokerRegistration(
        broker_id=BrokerId(2),
        endpoints=(BrokerEndpoint("PLAINTEXT", "two", 9092), BrokerEndpoint("T", "two", 1, "SSL")),
        rack=None,
        timestamp_ms=0,
    )
)


class Registrations:
    """The client of a ZooKeeper in which brokers are registered; some stop meanwhile."""

    def __init__(self, *names: str) -> None:
        self._names = list(names)

    def get_children(self, path: str) -> list[str]:
        assert path == "/brokers/ids"
        return self._names

    def get(self, path: str) -> tuple[bytes, Any]:
        if path == "/brokers/ids/1":
            raise NoNodeError(path)
        return LIVING, None


def test_a_broker_that_stops_meanwhile_is_passed_over() -> None:
    client: Any = Registrations("1", "2")
    assert broker_addresses(client, "SSL") == [("two", 1)]
    alone: Any = Registrations("1")
    with pytest.raises(ToolError, match="no registered broker has a SSL listener"):
        broker_addresses(alone, "SSL")


def test_what_is_no_broker_is_named_and_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    client: Any = Registrations("x", "2")
    assert broker_addresses(client, "SSL") == [("two", 1)]
    assert capsys.readouterr().err.startswith("odradek: warning: znode /brokers/ids/x: ")
    alone: Any = Registrations("x")
    with pytest.raises(ToolError, match="no registered broker has a SSL listener"):
        broker_addresses(alone, "SSL")
