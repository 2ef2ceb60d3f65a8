"""How the operator, its clients and jobs reach a cluster's brokers, as its spec says. Pure.

All of them use the listener of brokers. Where it asks for a name and a password, each has a user of
its own. The Secret of an exporter or a job has what its clients need:

| key | what |
|---|---|
| `username`, `password`, `sasl.jaas.config` | the user |
| `ca.crt` | whom to trust, with TLS |
| `client.properties` | settings of Kafka's clients, for pods that mount the Secret at MOUNT |
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from odradek.security.acls import (
    WILDCARD,
    AclOperation,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from odradek_operator.shared import cluster_secrets, listener_spec
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.objects import Object, metadata
from odradek_operator.shared.spec import ResourceMeta

MOUNT: Final = "/etc/odradek/brokers"
PROPERTIES: Final = "client.properties"
JAAS: Final = "sasl.jaas.config"
_LOGIN_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"

# (pattern, operation) that a user may do.
Right = tuple[ResourcePattern, AclOperation]


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """The listener that clients of ours use, by Kafka's name, and what it asks for.

    `authorizes` says whether ACLs are asked. Without `mechanism` nobody has a user; `shows` says
    that clients must show a certificate, which exporters and jobs do not have.
    """

    cluster: str
    listener: str
    protocol: str
    mechanism: str | None
    authorizes: bool
    shows: bool = False

    @property
    def tls(self) -> bool:
        """Return whether clients need to know whom to trust."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def ca_secret(self) -> str:
        """Name of the Secret that says whom to trust."""
        return cluster_secrets.cluster_ca_cert(self.cluster)

    @property
    def operator_secret(self) -> str:
        """Name of the Secret with the operator's user."""
        return cluster_secrets.operator(self.cluster)

    @property
    def exporter_secret(self) -> str:
        """Name of the Secret with the user of the lag exporter."""
        return f"{self.cluster}-lag-exporter"

    @property
    def console_secret(self) -> str:
        """Name of the Secret with the user of the console."""
        return f"{self.cluster}-console"

    @property
    def is_secured(self) -> bool:
        """Return whether clients need more than an address."""
        return self.protocol != "PLAINTEXT"


def of_cluster(name: str, spec: ClusterSpec) -> ClusterAccess | None:
    """Return how to reach the brokers; None where the cluster names no listeners."""
    if not spec.listeners:
        return None
    one = listener_spec.broker_listener(spec.listeners)
    return ClusterAccess(
        name,
        one.kafka_name,
        one.protocol,
        one.mechanism,
        spec.authorization is not None,
        one.authentication == listener_spec.TLS,
    )


def settings(access: ClusterAccess, user: str, password: str) -> dict[str, str]:
    """Return the settings of a client whose Secret is mounted at MOUNT."""
    found = {"security.protocol": access.protocol}
    if access.mechanism is not None:
        found["sasl.mechanism"] = access.mechanism
        found[JAAS] = jaas(user, password)
    if access.tls:
        found["ssl.truststore.type"] = "PEM"
        found["ssl.truststore.location"] = f"{MOUNT}/{cluster_secrets.CA_CERTIFICATE}"
    return found


def jaas(user: str, password: str) -> str:
    """Return the JAAS configuration of a client; neither has a quote in it."""
    return f'{_LOGIN_MODULE} required username="{user}" password="{password}";'


def secret(
    access: ClusterAccess,
    meta: ResourceMeta,
    labels: Mapping[str, str],
    name: str,
    user: str,
    password: str,
    ca: str,
) -> Object:
    """Return the Secret of a client, which is its owner's."""
    wanted = settings(access, user, password)
    data = {PROPERTIES: "".join(f"{key}={text}\n" for key, text in wanted.items())}
    if access.mechanism is not None:
        data[cluster_secrets.USERNAME] = user
        data[cluster_secrets.PASSWORD] = password
        data[JAAS] = wanted[JAAS]
    if access.tls:
        data[cluster_secrets.CA_CERTIFICATE] = ca
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(meta, name, labels),
        "type": "Opaque",
        "data": encoded,
    }


def field(found: Mapping[str, Any] | None, key: str) -> str:
    """Return what a Secret has under a key; nothing where either is missing, or is no text."""
    data = (found or {}).get("data") or {}
    try:
        return base64.b64decode(data.get(key) or "").decode()
    except ValueError:
        return ""


# --- rights ---------------------------------------------------------------------------------------


def exporter_rights() -> tuple[Right, ...]:
    """Return what the lag exporter may do: see every group and topic."""
    return (
        (ResourcePattern(ResourceType.CLUSTER, "kafka-cluster"), AclOperation.DESCRIBE),
        (ResourcePattern(ResourceType.GROUP, WILDCARD), AclOperation.DESCRIBE),
        (ResourcePattern(ResourceType.TOPIC, WILDCARD), AclOperation.DESCRIBE),
    )


def console_rights(*, records: bool) -> tuple[Right, ...]:
    """Return what the console may do: see all that it shows, and read records if it shows them."""
    return (
        *exporter_rights(),
        (ResourcePattern(ResourceType.CLUSTER, "kafka-cluster"), AclOperation.DESCRIBE_CONFIGS),
        (ResourcePattern(ResourceType.TOPIC, WILDCARD), AclOperation.DESCRIBE_CONFIGS),
        *([(ResourcePattern(ResourceType.TOPIC, WILDCARD), AclOperation.READ)] if records else []),
    )


def job_user(namespace: str, name: str) -> str:
    """Return the user of a ConsumerGroup's job. A namespace has no dot, so no other has it."""
    return f"odradek-job.{namespace}.{name}"


def job_rights(
    topics: Iterable[str], pattern: str | None, group: str, written: str | None
) -> tuple[Right, ...]:
    """Return what a job may do: read its topics, commit for its group, write to its topic."""
    found = [
        (ResourcePattern(ResourceType.TOPIC, topic), AclOperation.READ) for topic in sorted(topics)
    ]
    if pattern is not None:
        found.append((_matched(pattern), AclOperation.READ))
    found.append((ResourcePattern(ResourceType.GROUP, group), AclOperation.READ))
    if written is not None:
        found.append((ResourcePattern(ResourceType.TOPIC, written), AclOperation.WRITE))
    return tuple(found)


def _matched(pattern: str) -> ResourcePattern:
    """Return the least pattern of ACLs that covers an expression: what all its names begin with."""
    prefix = ""
    text = pattern.removeprefix("^").replace("\\.", ".") if "|" not in pattern else ""
    # An escaped dot and any character cannot be told apart any more: a dot ends the prefix, too.
    for place, one in enumerate(text):
        follows = text[place + 1 : place + 2]
        if not (one.isascii() and (one.isalnum() or one in "_-")) or follows in ("?", "*", "{"):
            break
        prefix += one
    if not prefix:
        return ResourcePattern(ResourceType.TOPIC, WILDCARD)
    return ResourcePattern(ResourceType.TOPIC, prefix, PatternType.PREFIXED)
