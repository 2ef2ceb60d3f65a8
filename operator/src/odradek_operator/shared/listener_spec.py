"""`spec.listeners` and `spec.authorization` of a KafkaCluster, read into frozen values.

The CRD's rules have refused what contradicts itself; `check_config` refuses settings of brokers by
hand beside them. A cluster that names no listeners has one, plain and called `plaintext`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from odradek import security_settings

NONE: Final = "none"
TLS: Final = "tls"
OAUTH: Final = "oauth"
# The listener that brokers use among themselves, if one has this name; else the first.
INTERNAL: Final = "internal"
PLAINTEXT: Final = "plaintext"
ANONYMOUS: Final = "User:ANONYMOUS"
_PROTOCOLS: Final = {
    (False, False): "PLAINTEXT",
    (False, True): "SASL_PLAINTEXT",
    (True, False): "SSL",
    (True, True): "SASL_SSL",
}
# Settings that follow from listeners and authorization, beside those of TLS and SASL.
_OWNED: Final = frozenset(
    {
        "allow.everyone.if.no.acl.found",
        "authorizer.class.name",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "security.inter.broker.protocol",
        "super.users",
    }
)


@dataclass(frozen=True, slots=True)
class IssuerRef:
    """An issuer of cert-manager: Issuer or ClusterIssuer."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class OauthSpec:
    """Which tokens a listener takes; an audience that is empty is not compared."""

    jwks_uri: str
    issuer_uri: str
    audience: str = ""
    user_claim: str = "sub"


@dataclass(frozen=True, slots=True)
class ListenerSpec:
    """One listener as wanted.

    `authentication` is none, tls, oauth, scram-sha-256 or scram-sha-512. With TLS the certificate
    is that of `secret_name`, or of `issuer`, or of the operator's own CA where both are None.
    """

    name: str
    port: int
    tls: bool = False
    authentication: str = NONE
    secret_name: str | None = None
    issuer: IssuerRef | None = None
    oauth: OauthSpec | None = None

    @property
    def mechanism(self) -> str | None:
        """SASL's name of the mechanism; None where nobody authenticates with a password."""
        return None if self.authentication in (NONE, TLS, OAUTH) else self.authentication.upper()

    @property
    def protocol(self) -> str:
        """Kafka's security protocol."""
        return _PROTOCOLS[self.tls, self.authentication not in (NONE, TLS)]

    @property
    def kafka_name(self) -> str:
        """The name in `listeners` of server.properties."""
        return self.name.upper()

    @property
    def of_own_ca(self) -> bool:
        """Return whether the operator signs its certificate."""
        return self.tls and self.secret_name is None and self.issuer is None


@dataclass(frozen=True, slots=True)
class AuthorizationSpec:
    """Kafka's ACLs are asked. `super_users` are principals such as `User:admin`."""

    super_users: tuple[str, ...] = ()
    allow_everyone: bool = False


def broker_listener(listeners: Sequence[ListenerSpec]) -> ListenerSpec:
    """Return the listener that brokers use among themselves."""
    return next((one for one in listeners if one.name == INTERNAL), listeners[0])


def parse_listeners(spec: Mapping[str, Any]) -> tuple[ListenerSpec, ...]:
    """Read spec.listeners of a KafkaCluster; empty where there is none."""
    return tuple(map(_listener, spec.get("listeners", ())))


def _listener(raw: Mapping[str, Any]) -> ListenerSpec:
    certificate = raw.get("certificate", {})
    issuer = certificate.get("issuerRef")
    return ListenerSpec(
        name=raw["name"],
        port=raw["port"],
        tls=raw.get("tls", False),
        authentication=raw.get("authentication", {}).get("type", NONE),
        secret_name=certificate.get("secretName"),
        issuer=IssuerRef(issuer["name"], issuer.get("kind", "Issuer")) if issuer else None,
        oauth=_oauth(raw.get("authentication", {})),
    )


def _oauth(raw: Mapping[str, Any]) -> OauthSpec | None:
    if raw.get("type") != OAUTH:
        return None
    return OauthSpec(
        raw["jwksEndpointUri"],
        raw["validIssuerUri"],
        raw.get("audience", ""),
        raw.get("userNameClaim", "sub"),
    )


def parse_authorization(spec: Mapping[str, Any]) -> AuthorizationSpec | None:
    """Read spec.authorization of a KafkaCluster."""
    raw = spec.get("authorization")
    if raw is None:
        return None
    return AuthorizationSpec(
        tuple(raw.get("superUsers", ())), raw.get("allowEveryoneIfNoAclFound", False)
    )


def set_by_hand(config: Collection[str]) -> list[str]:
    """Return the settings, sorted, that listeners and authorization decide."""
    return sorted(
        name
        for name in config
        if name in _OWNED
        or name.startswith("listener.name.")
        or security_settings.is_security_setting(name)
    )
