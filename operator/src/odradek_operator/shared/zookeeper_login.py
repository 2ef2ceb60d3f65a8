"""The operator's own way to a cluster's ZooKeeper, and what lag exporters and jobs get for theirs.

The operator logs in as the brokers do: it changes what they keep there. Exporters and jobs only
read that, and write to /consumers, which is open to all. So they get no login, but those of a
Secret of their own (`clientsSecretName`), for servers that ask everybody for one. Secrets are read
by name, for each pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from odradek_operator.shared import spec, zookeeper_credentials
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.spec import Body
from odradek_operator.shared.zookeeper import ClusterLogin, UnreachableError, ZooKeeper
from odradek_operator.shared.zookeeper_credentials import (
    UnusableCredentialsError,
    ZooKeeperCredentials,
)

# In the status: {"setAcl": true} once brokers secure what they create.
REMEMBERED = "zookeeper"


class CredentialsError(UnreachableError):
    """Nobody can log in: `reason` in CamelCase, for a condition, and a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """The texts of a Secret for lag exporters or jobs; with a `problem` there is none."""

    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    problem: CredentialsError | None = None

    @property
    def needed(self) -> bool:
        """Return whether their pods mount a Secret."""
        return bool(self.texts) or self.problem is not None


def credentials(context: ReconcileContext, namespace: str, secret: str) -> ZooKeeperCredentials:
    """Read the credentials in a Secret. Raises CredentialsError, or KubeError."""
    found = context.kube.get("v1", "Secret", namespace, secret)
    if found is None:
        raise CredentialsError(
            "ZooKeeperSecretMissing",
            f"there is no Secret {secret}, which spec.zookeeper.authentication names: make it",
        )
    try:
        read = zookeeper_credentials.read(found, context.now())
        # Texts may be certificates that no connection can be made with.
        zookeeper_credentials.static_access(read)
    except UnusableCredentialsError as error:
        raise CredentialsError("ZooKeeperSecretUnusable", f"Secret {secret}: {error}") from None
    return read


def connected(context: ReconcileContext, body: Body, wanted: ClusterSpec) -> ZooKeeper:
    """Return a cluster's ZooKeeper, connected. Raises UnreachableError, or KubeError."""
    namespace, name = spec.cluster_of(body)
    connect = context.connect_from_here(wanted.zookeeper, namespace)
    if wanted.zookeeper_authentication is None:
        return context.zookeepers.get(connect)
    found = credentials(context, namespace, wanted.zookeeper_authentication.secret)
    secures = bool((body.get("status", {}).get(REMEMBERED) or {}).get("setAcl"))
    access = zookeeper_credentials.static_access(found, set_acl=secures)
    login = ClusterLogin((namespace, name, *found.kind), access)
    return context.zookeepers.get(connect, login)


def require_decision(body: Body, wanted: ClusterSpec) -> None:
    """Raise UnreachableError before it is decided whether brokers secure what they create.

    What would be written meanwhile for another resource would stay open to all.
    """
    decided = body.get("status", {}).get(REMEMBERED) is not None
    if wanted.zookeeper_authentication is not None and not decided:
        raise UnreachableError(f"{wanted.zookeeper}: how brokers use it is not decided yet")


def client_files(context: ReconcileContext, namespace: str, wanted: ClusterSpec) -> ClientFiles:
    """Return what exporters and jobs connect with; what is wrong is a problem of theirs.

    Raises KubeError: what their pods mount is then not known, and no reason to change them.
    """
    found = wanted.zookeeper_authentication
    if found is None:
        return ClientFiles()
    try:
        if found.clients_secret is None:
            own = credentials(context, namespace, found.secret)
            return ClientFiles(zookeeper_credentials.trust_files(own))
        known = credentials(context, namespace, found.clients_secret)
    except CredentialsError as error:
        return ClientFiles(problem=error)
    return ClientFiles(zookeeper_credentials.files(known))
