"""The users of the operator's own clients: their Secrets, and what brokers know of them.

The Secret comes first: a crash in between leaves a password that the next pass makes known to the
brokers. The Secret holds the password: who changes it there changes the user's. One that a file of
properties would have to quote is replaced.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from odradek.listener_settings import SaslLogin
from odradek.security.acls import (
    AclEntry,
    AclOperation,
    PermissionType,
    ResourcePattern,
)
from odradek.values import Principal
from odradek.zk.operations import TransactionFailedError
from odradek.zk.payload import ZnodeError
from odradek_operator.shared import (
    broker_security,
    cluster_access,
    cluster_secrets,
    kube,
    passwords,
    user_znodes,
)
from odradek_operator.shared.apply import ReconcileContext, is_refused
from odradek_operator.shared.broker_security import OperatorSecurity
from odradek_operator.shared.cluster_access import ClusterAccess, Right
from odradek_operator.shared.kube import Kube, KubeError
from odradek_operator.shared.objects import CLUSTER_LABEL, MANAGED_BY, Object, belongs_to, metadata
from odradek_operator.shared.spec import ResourceMeta
from odradek_operator.shared.status import Condition
from odradek_operator.shared.user_znodes import FullZnodeError, OvertakenError
from odradek_operator.shared.zookeeper import RefusedError, UnreachableError, ZnodeReader, ZooKeeper

log = logging.getLogger(__name__)


class ClientUserError(Exception):
    """Clients of ours cannot reach the brokers. `reason` is for a condition, in CamelCase.

    `waits` says that it may come without help.
    """

    def __init__(self, reason: str, message: str, *, waits: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.waits = waits


@dataclass(frozen=True, slots=True)
class ClientUser:
    """A user that a client of ours needs. The Secret is of `meta`, beside it, with these labels.

    `changes`: it may have had other rights, which go.
    """

    meta: ResourceMeta
    labels: Mapping[str, str]
    secret: str
    name: str
    rights: tuple[Right, ...] = ()
    changes: bool = False


def of_cluster(
    meta: ResourceMeta, secret: str, name: str, rights: tuple[Right, ...], *, changes: bool = False
) -> ClientUser:
    """Return the user of a client that a KafkaCluster has beside its brokers."""
    labels = {"app.kubernetes.io/managed-by": MANAGED_BY, CLUSTER_LABEL: meta.name}
    return ClientUser(meta, labels, secret, name, rights, changes)


def reported(condition: str, work: Callable[[], None]) -> tuple[Condition, ...]:
    """Do something for such a client; return a condition that says why it was not possible.

    Raises KubeError where trying again may help.
    """
    try:
        work()
    except RefusedError as error:
        return (Condition(condition, False, "ZooKeeperRefuses", str(error)),)
    except UnreachableError as error:
        return (Condition(condition, False, "ZooKeeperUnreachable", str(error)),)
    except ClientUserError as error:
        return (Condition(condition, False, error.reason, str(error)),)
    except KubeError as error:
        if not is_refused(error):
            raise
        return (Condition(condition, False, "ApplyRejected", str(error)),)
    return ()


def ensure(
    context: ReconcileContext,
    zookeeper: ZooKeeper | None,
    access: ClusterAccess,
    namespace: str,
    user: ClientUser,
) -> None:
    """Make the Secret, the credential and the ACLs of a user as they should be.

    `namespace` is the cluster's, where the Secret of its authority is. Raises ClientUserError, or
    KubeError.
    """
    if access.shows:
        raise ClientUserError(
            "CertificateNeeded",
            f"listener {access.listener} asks clients for certificates, which lag exporters, "
            "consoles and jobs do not have; choose a SCRAM authentication for it",
        )
    ca = _authority(context.kube, access, namespace) if access.tls else ""
    meta = user.meta
    live = context.kube.get("v1", "Secret", meta.namespace, user.secret)
    if live is not None and not belongs_to(meta.uid, live):
        raise ClientUserError(
            "ResourceConflict", f"Secret {user.secret} exists and does not belong to {meta.name}"
        )
    password = passwords.kept(cluster_access.field(live, cluster_secrets.PASSWORD))
    wanted = cluster_access.secret(access, meta, user.labels, user.secret, user.name, password, ca)
    _write(context, wanted, live)
    if access.mechanism is None:
        return
    if zookeeper is None:
        raise ClientUserError("ZooKeeperUnreachable", "ZooKeeper does not answer", waits=True)
    with _named_errors(user.name):
        user_znodes.set_password(zookeeper, user.name, access.mechanism, password)
        if access.authorizes:
            _allow(zookeeper, user)


@contextmanager
def _named_errors(user: str) -> Iterator[None]:
    try:
        yield
    except RefusedError as error:
        raise ClientUserError("ZooKeeperRefuses", str(error)) from error
    except UnreachableError as error:
        raise ClientUserError("ZooKeeperUnreachable", str(error), waits=True) from error
    except (ZnodeError, OvertakenError, FullZnodeError, TransactionFailedError) as error:
        raise ClientUserError("UsersNotWritten", f"user {user}: {error}", waits=True) from error


def _authority(client: Kube, access: ClusterAccess, namespace: str) -> str:
    found = client.get("v1", "Secret", namespace, access.ca_secret)
    ca = cluster_access.field(found, cluster_secrets.CA_CERTIFICATE)
    if not ca:
        missing = "is not there" if found is None else f"has no {cluster_secrets.CA_CERTIFICATE}"
        text = f"Secret {access.ca_secret} {missing}"
        raise ClientUserError("NoClusterAuthority", text, waits=True)
    return ca


def write_files(
    context: ReconcileContext,
    meta: ResourceMeta,
    labels: Mapping[str, str],
    name: str,
    texts: Mapping[str, str],
) -> None:
    """Make a Secret of `meta` have these texts and no others. Raises ClientUserError, KubeError."""
    live = context.kube.get("v1", "Secret", meta.namespace, name)
    if live is not None and not belongs_to(meta.uid, live):
        raise ClientUserError(
            "ResourceConflict", f"Secret {name} exists and does not belong to {meta.name}"
        )
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    wanted: Object = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(meta, name, labels),
        "type": "Opaque",
        "data": encoded,
    }
    _write(context, wanted, live)


def _write(context: ReconcileContext, wanted: Object, live: Object | None) -> None:
    if live is not None:
        former = (live.get("data") or {}).keys() - wanted["data"].keys()
        if former or kube.differs(wanted, live):
            # Somebody may give the user another password just now: that one counts.
            context.kube.apply_over(live, wanted)
        return
    try:
        # Created, not applied: a Secret of somebody else's must not be overwritten.
        context.kube.create(wanted)
    except KubeError as error:
        if error.code != 409:
            raise
        name = wanted["metadata"]["name"]
        raise ClientUserError(
            "ResourceConflict", f"Secret {name} was made by somebody else"
        ) from error


def _allow(zookeeper: ZooKeeper, user: ClientUser) -> None:
    """Write the ACLs of the user, and remove those that it had for other topics and groups."""
    by_pattern: dict[ResourcePattern, set[AclOperation]] = {}
    for pattern, operation in user.rights:
        by_pattern.setdefault(pattern, set()).add(operation)
    for pattern, operations in by_pattern.items():
        added = [_entry(user.name, one) for one in sorted(operations)]
        user_znodes.update_acls(zookeeper, pattern, added)
    if user.changes:
        # Through the cache: a console's are looked at in each pass, and there may be thousands.
        _forbid(zookeeper, zookeeper.cached, user.name, user.rights)


def _entry(user: str, operation: AclOperation) -> AclEntry:
    return AclEntry(Principal("User", user), PermissionType.ALLOW, operation, "*")


def remove(zookeeper: ZooKeeper, user: str) -> None:
    """Remove a user and its ACLs. Its name is the operator's own, so nobody else wrote them.

    Raises ClientUserError.
    """
    with _named_errors(user):
        user_znodes.delete_credentials(zookeeper, user)
        _forbid(zookeeper, zookeeper, user, ())


def _forbid(zookeeper: ZooKeeper, reader: ZnodeReader, user: str, kept: Iterable[Right]) -> None:
    """Remove the ACLs of a user that are none of these rights."""
    left = frozenset(kept)
    principal = Principal("User", user)
    for pattern, entries in user_znodes.every_acl(reader).items():
        doomed = [
            one
            for one in entries
            if one.principal == principal and (pattern, one.operation) not in left
        ]
        if doomed:
            user_znodes.update_acls(zookeeper, pattern, (), doomed)


def operator_security(client: Kube, namespace: str, access: ClusterAccess) -> OperatorSecurity:
    """Return how the operator connects to the brokers, by its own Secret. Raises KubeError."""
    if not access.is_secured:
        return OperatorSecurity()
    name, login, tls = access.operator_secret, None, None
    try:
        found = client.get("v1", "Secret", namespace, name)
        if access.mechanism is not None:
            user = cluster_access.field(found, cluster_secrets.USERNAME)
            password = cluster_access.field(found, cluster_secrets.PASSWORD)
            if not (user and password):
                return OperatorSecurity(problem=f"Secret {name} has no user and password yet")
            login = SaslLogin(access.mechanism, user, password)
        if access.tls:
            tls = broker_security.trusting(_authority(client, access, namespace))
        if access.shows:
            assert tls is not None
            certificate = cluster_access.field(found, cluster_secrets.USER_CERTIFICATE)
            key = cluster_access.field(found, cluster_secrets.USER_KEY)
            broker_security.show(tls, certificate, key)
    except ClientUserError as error:
        return OperatorSecurity(problem=str(error))
    except (OSError, ValueError) as error:
        return OperatorSecurity(problem=f"Secrets {name}, {access.ca_secret}: {error}")
    return OperatorSecurity(tls, login)
