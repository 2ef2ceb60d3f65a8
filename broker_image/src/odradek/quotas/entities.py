"""Quota entities: whom a limit is for, where it is kept, and which of several counts.

A quota is for a user, a client id, or a user with a client id, each by name or by default. As in
Kafka, of the quotas that match a request the most specific one counts, for each kind of quota by
itself. A default limits everybody whom it matches separately: each has the whole limit.

    /config/clients/C    /config/users/U    /config/users/U/clients/C    /config/ips/A

The last one is of addresses (KIP-612): how many connections each may make per second.

Names are sanitized there: encoded as in a URL. A name of `<default>` is therefore no user's.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple
from urllib.parse import quote, unquote

DEFAULT = "<default>"
USERS = "users"
CLIENTS = "clients"
IPS = "ips"
CREATION_RATE = "connection_creation_rate"
"""The quota of an address: new connections per second, a whole number."""
_BOTH = f"/{CLIENTS}/"


class QuotaKey(Enum):
    """What is limited, by the name of its config. Values are per second."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    CONTROLLER_MUTATION = "controller_mutation_rate"


WHOLE = frozenset({QuotaKey.PRODUCE, QuotaKey.FETCH})
"""Quotas that are whole numbers."""

Limits = Mapping[QuotaKey, float]


class QuotaEntity(NamedTuple):
    """Whom a quota is for: sanitized names, DEFAULT, or None for what it does not look at.

    A quota of an address (`ip`) looks at nothing else.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    @property
    def entity_type(self) -> str:
        """Return the folder of its znode below /config."""
        if self.ip is not None:
            return IPS
        return CLIENTS if self.user is None else USERS

    @property
    def name(self) -> str:
        """Return the path of its znode below that folder."""
        if self.user is None:
            return self.ip or self.client_id or ""
        return self.user if self.client_id is None else f"{self.user}{_BOTH}{self.client_id}"


def of_path(entity_type: str, name: str) -> QuotaEntity | None:
    """Return the entity of a path below /config, None if it is another kind of entity."""
    if entity_type == CLIENTS and "/" not in name:
        return QuotaEntity(client_id=name)
    if entity_type == IPS and "/" not in name:
        return QuotaEntity(ip=name)
    if entity_type != USERS:
        return None
    user, both, client_id = name.partition(_BOTH)
    if "/" in user or "/" in client_id or not user or (both and not client_id):
        return None
    return QuotaEntity(user, client_id or None)


def sanitize(name: str) -> str:
    """Return a name as Kafka's Sanitizer writes it."""
    return quote(name, safe="").replace("~", "%7E")


def desanitize(text: str) -> str:
    """Return the name that was sanitized. Raises ValueError if it is none."""
    return unquote(text.replace("+", "%20"), errors="strict")


def parse_limits(entries: Mapping[str, str]) -> tuple[dict[QuotaKey, float], list[str]]:
    """Return the limits among the configs of an entity, and the names of invalid ones.

    Users have other configs too, as their SCRAM credentials.
    """
    limits: dict[QuotaKey, float] = {}
    invalid: list[str] = []
    for key in QuotaKey:
        text = entries.get(key.value)
        if text is None:
            continue
        try:
            limit = float(text)
        except ValueError:
            limit = math.nan
        if is_limit(limit):
            limits[key] = limit
        else:
            invalid.append(key.value)
    return limits, invalid


def plain_address(name: str) -> str:
    """Return DEFAULT, or the one way to write the address that a sanitized name has.

    Raises ValueError for anything else, such as the name of a host.
    """
    if name == DEFAULT:
        return name
    address = ipaddress.ip_address(desanitize(name))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def sanitized_address(name: str) -> str:
    """Return the name of the znode of an address (see `plain_address`). Raises ValueError."""
    address = plain_address(name)
    return name if address == DEFAULT else sanitize(address)


def parse_creation_rate(entries: Mapping[str, str]) -> int | None:
    """Return the creation rate among the configs of an address; None if it has none.

    Raises ValueError if it is invalid.
    """
    text = entries.get(CREATION_RATE)
    if text is None:
        return None
    rate = float(text)
    if not is_limit(rate) or rate != int(rate):
        raise ValueError(text)
    return int(rate)


def is_limit(value: float) -> bool:
    """Return whether a number can be a limit: finite, and more than nothing."""
    return math.isfinite(value) and value > 0


class Share(NamedTuple):
    """Who shares one limit: a sanitized user, a sanitized client id, or both."""

    user: str | None
    client_id: str | None


def _candidates(user: str, client_id: str) -> Iterator[QuotaEntity]:
    """Yield the entities that a request matches, the most specific first (KIP-55)."""
    for one in (user, DEFAULT):
        yield QuotaEntity(one, client_id)
        yield QuotaEntity(one, DEFAULT)
        yield QuotaEntity(one)
    yield QuotaEntity(client_id=client_id)
    yield QuotaEntity(client_id=DEFAULT)


def find(
    limits: Mapping[QuotaEntity, float], user: str, client_id: str
) -> tuple[Share, float] | None:
    """Return the limit that counts for a sanitized user and client id, and who shares it."""
    for entity in _candidates(user, client_id):
        limit = limits.get(entity)
        if limit is not None:
            share = Share(
                None if entity.user is None else user,
                None if entity.client_id is None else client_id,
            )
            return share, limit
    return None
