"""Brokers with listeners of several security protocols, each on a port of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.support.broker import Broker
from tests.support.ports import free_port


class SecureBroker(Broker):
    """A broker with a plain listener and others: `protocols` has the protocol of each by its name.

    `ports` has the port of each. A subclass of a test file has other protocols.
    """

    protocols: Mapping[str, str] = MappingProxyType({})
    connect_string = ""

    def __init__(
        self,
        directory: Path,
        broker_id: int,
        connect: str,
        settings: Mapping[str, str],
        port: int | None = None,
    ) -> None:
        plain = port or free_port()
        self.ports = {name: free_port() for name in self.protocols}
        addresses = [f"PLAINTEXT://127.0.0.1:{plain}"]
        addresses += [f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()]
        protocols = {"PLAINTEXT": "PLAINTEXT", **self.protocols}
        own = {
            "listeners": ",".join(addresses),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in protocols.items()
            ),
        }
        super().__init__(directory, broker_id, connect, {**own, **settings}, plain)

    def secure_address(self, listener: str) -> str:
        """Return host:port of a listener."""
        return f"127.0.0.1:{self.ports[listener]}"


def jaas(mechanism: str, **options: str) -> str:
    """Return a JAAS configuration for a mechanism, as it stands in a properties file."""
    kinds = {"PLAIN": "plain.Plain", "OAUTHBEARER": "oauthbearer.OAuthBearer"}
    kind = kinds.get(mechanism, "scram.Scram")
    module = f"org.apache.kafka.common.security.{kind}LoginModule"
    words = [f'{name}="{text}"' for name, text in options.items()]
    return " ".join([module, "required", *words]) + ";"
