"""Kafka's security settings that are not supported: a broker that has one does not start.

Those that work, of listeners (see `listener_settings`) and towards ZooKeeper (see
`zookeeper_settings`), are listed by name; a new one is refused until it works.

Whoever sets a key store relies on it. A broker that ignored the setting would be open to everybody.
A setting with Kafka's default asks for nothing, and is accepted. The defaults are those of 2.8.2; a
setting without one, such as `ssl.keystore.location`, may be empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_DEFAULTS: Mapping[str, tuple[str, ...]] = {
    # ACLs are in the ZooKeeper of the cluster.
    "authorizer.zookeeper.url": (),
    # Classes of Java that decide who somebody is, and what may be asked for.
    "principal.builder.class": (
        "org.apache.kafka.common.security.authenticator.defaultkafkaprincipalbuilder",
    ),
    "security.providers": (),
    "create.topic.policy.class.name": (),
    "alter.config.policy.class.name": (),
    "security.inter.broker.protocol": ("plaintext",),
    "zookeeper.set.acl": ("false",),
    "zookeeper.clientCnxnSocket": (),
    "zookeeper.ssl.client.enable": ("false",),
    "zookeeper.ssl.protocol": ("tlsv1.2",),
    "zookeeper.ssl.endpoint.identification.algorithm": ("https",),
    "zookeeper.ssl.crl.enable": ("false",),
    "zookeeper.ssl.ocsp.enable": ("false",),
    "ssl.client.auth": ("none",),
    # These two depend on the versions of Java and Kafka.
    "ssl.protocol": ("tlsv1.3", "tlsv1.2", "tls"),
    "ssl.enabled.protocols": ("tlsv1.2,tlsv1.3", "tlsv1.2", "tlsv1.2,tlsv1.1,tlsv1"),
    "ssl.endpoint.identification.algorithm": ("https",),
    "ssl.keystore.type": ("jks",),
    "ssl.truststore.type": ("jks",),
    "ssl.principal.mapping.rules": ("default",),
    "sasl.mechanism.inter.broker.protocol": ("gssapi",),
    "sasl.enabled.mechanisms": ("gssapi",),
    "sasl.server.max.receive.size": ("524288",),
    "connection.failed.authentication.delay.ms": ("100",),
    "connections.max.reauth.ms": ("0",),
    # Two names of one setting.
    "delegation.token.master.key": (),
    "delegation.token.secret.key": (),
    "ssl.keymanager.algorithm": ("sunx509",),
    "ssl.trustmanager.algorithm": ("pkix",),
    "sasl.kerberos.kinit.cmd": ("/usr/bin/kinit",),
    "sasl.kerberos.ticket.renew.window.factor": ("0.8",),
    "sasl.kerberos.ticket.renew.jitter": ("0.05",),
    "sasl.kerberos.min.time.before.relogin": ("60000",),
    "sasl.kerberos.principal.to.local.rules": ("default",),
    "sasl.login.refresh.window.factor": ("0.8",),
    "sasl.login.refresh.window.jitter": ("0.05",),
    "sasl.login.refresh.min.period.seconds": ("60",),
    "sasl.login.refresh.buffer.seconds": ("300",),
    "sasl.oauthbearer.clock.skew.seconds": ("30",),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": ("3600000",),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": ("10000",),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": ("100",),
    "sasl.oauthbearer.scope.claim.name": ("scope",),
    "sasl.oauthbearer.sub.claim.name": ("sub",),
}
_OF_OAUTHBEARER = frozenset(
    f"sasl.oauthbearer.{name}"
    for name in (
        "clock.skew.seconds",
        "expected.audience",
        "expected.issuer",
        "jwks.endpoint.refresh.ms",
        "jwks.endpoint.retry.backoff.max.ms",
        "jwks.endpoint.retry.backoff.ms",
        "jwks.endpoint.url",
        "scope.claim.name",
        "sub.claim.name",
    )
)
_SUPPORTED = frozenset(
    {
        "security.inter.broker.protocol",
        "ssl.cipher.suites",
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.principal.mapping.rules",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
        "sasl.enabled.mechanisms",
        "sasl.mechanism.inter.broker.protocol",
        "sasl.server.max.receive.size",
        "connection.failed.authentication.delay.ms",
        "connections.max.reauth.ms",
        # Judged by `oauth_settings`.
        "org.apache.kafka.sasl.oauthbearer.allowed.urls",
        *_OF_OAUTHBEARER,
        # Judged by `zookeeper_settings`.
        "zookeeper.clientCnxnSocket",
        "zookeeper.set.acl",
        "zookeeper.ssl.cipher.suites",
        "zookeeper.ssl.client.enable",
        "zookeeper.ssl.crl.enable",
        "zookeeper.ssl.enabled.protocols",
        "zookeeper.ssl.endpoint.identification.algorithm",
        "zookeeper.ssl.keystore.location",
        "zookeeper.ssl.keystore.password",
        "zookeeper.ssl.keystore.type",
        "zookeeper.ssl.ocsp.enable",
        "zookeeper.ssl.protocol",
        "zookeeper.ssl.truststore.location",
        "zookeeper.ssl.truststore.password",
        "zookeeper.ssl.truststore.type",
    }
)
_OF_MECHANISM = re.compile(
    r"listener\.name\.[^.]+\.(?:plain|scram-sha-256|scram-sha-512|oauthbearer)"
    r"\.(?:sasl\.jaas\.config|connections\.max\.reauth\.ms)"
    r"|listener\.name\.[^.]+\.oauthbearer\.(?:sasl\.server\.callback\.handler\.class|"
    + "|".join(map(re.escape, sorted(_OF_OAUTHBEARER)))
    + ")"
)
_PREFIXES = ("ssl.", "sasl.", "authorizer.zookeeper.", "zookeeper.ssl.")
# listener.name.NAME. makes a setting of one listener; a SASL mechanism may follow the name.
_OF_LISTENER = re.compile(
    r"listener\.name\.[^.]+"
    r"\.((?:[^.]+\.)?(?:ssl|sasl|connections\.max\.reauth|principal\.builder)\..+)"
)
_MECHANISM = re.compile(r"[^.]+\.((?:ssl|sasl|connections\.max\.reauth)\..+)")


def is_security_setting(name: str) -> bool:
    """Return whether this is one of Kafka's settings that this module knows."""
    setting = _without_listener(name)
    if found := _MECHANISM.fullmatch(setting):
        setting = found[1]
    return setting in _DEFAULTS or setting in _SUPPORTED or setting.startswith(_PREFIXES)


def asked_for(values: Mapping[str, str]) -> list[str]:
    """Return the names of the security settings that differ from Kafka's defaults, sorted."""
    return sorted(
        name
        for name, text in values.items()
        if is_security_setting(name)
        and _normalized(text) not in ("", *_DEFAULTS.get(_without_listener(name), ()))
    )


def unsupported(values: Mapping[str, str]) -> list[str]:
    """Return those of them that brokers do not support."""
    return [
        name
        for name in asked_for(values)
        if _without_listener(name) not in _SUPPORTED and _OF_MECHANISM.fullmatch(name) is None
    ]


def _without_listener(name: str) -> str:
    found = _OF_LISTENER.fullmatch(name)
    return found[1] if found else name


def _normalized(text: str) -> str:
    return "".join(text.split()).lower()
