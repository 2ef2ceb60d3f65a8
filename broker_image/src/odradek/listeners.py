"""The listeners of a broker: the addresses where it listens, and those that it advertises."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from odradek.properties import ConfigError, is_port
from odradek.values import SECURITY_PROTOCOLS


@dataclasses.dataclass(frozen=True, slots=True)
class ListenerEndpoint:
    """One listener: name, security protocol, host (empty: every address) and port."""

    name: str
    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{self.host}:{self.port}"


def endpoints(
    listeners_text: str,
    advertised_text: str | None,
    protocol_map: Iterable[str],
    inter_broker_listener: str,
) -> tuple[tuple[ListenerEndpoint, ...], tuple[ListenerEndpoint, ...]]:
    """Return what `listeners` and `advertised.listeners` (by default the same) name.

    `protocol_map` has the entries NAME:PROTOCOL of `listener.security.protocol.map`. Raises
    ConfigError.
    """
    protocols = dict(_name_and_protocol(entry) for entry in protocol_map)
    found = _endpoints("listeners", listeners_text, protocols)
    advertised = (
        _endpoints("advertised.listeners", advertised_text, protocols) if advertised_text else found
    )
    _check_distinct(found)
    names = {endpoint.name for endpoint in found}
    for endpoint in advertised:
        if endpoint.name not in names:
            raise ConfigError(f"advertised.listeners names {endpoint.name}, not one of listeners")
        if endpoint.host == "0.0.0.0":  # noqa: S104 refused, not bound
            raise ConfigError("advertised.listeners cannot use the nonroutable address 0.0.0.0")
    if inter_broker_listener not in {endpoint.name for endpoint in advertised}:
        raise ConfigError(f"inter.broker.listener.name {inter_broker_listener} is not advertised")
    return found, advertised


def _check_distinct(found: Iterable[ListenerEndpoint]) -> None:
    """Raise ConfigError if two listeners have the same address."""
    by_address: dict[tuple[str, int], ListenerEndpoint] = {}
    for endpoint in found:
        other = by_address.setdefault((endpoint.host, endpoint.port), endpoint)
        if endpoint.port and other is not endpoint:
            raise ConfigError(f"listeners: {other} and {endpoint} have the same address")


def _name_and_protocol(entry: str) -> tuple[str, str]:
    name, _, protocol = entry.partition(":")
    if protocol not in SECURITY_PROTOCOLS:
        raise ConfigError(
            f"Invalid value {entry} for configuration listener.security.protocol.map: "
            f"no security protocol {protocol}"
        )
    return name, protocol


def _endpoints(
    setting: str, text: str, protocols: Mapping[str, str]
) -> tuple[ListenerEndpoint, ...]:
    endpoints: list[ListenerEndpoint] = []
    for entry in text.split(","):
        name, separator, address = entry.strip().partition("://")
        host, colon, port = address.rpartition(":")
        if not (separator and colon and is_port(port)):
            raise ConfigError(
                f"Invalid value {text} for configuration {setting}: "
                f"{entry.strip() or 'an empty entry'} is not NAME://host:port"
            )
        if name not in protocols:
            raise ConfigError(
                f"Invalid value {text} for configuration {setting}: "
                f"no security protocol defined for listener {name}"
            )
        if name in {endpoint.name for endpoint in endpoints}:
            raise ConfigError(f"{setting}: each listener must have a different name")
        endpoints.append(ListenerEndpoint(name, protocols[name], host.strip("[]"), int(port)))
    return tuple(endpoints)
