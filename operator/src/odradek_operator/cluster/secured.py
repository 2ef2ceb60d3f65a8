"""The Secrets of a cluster with listeners, and its own users in ZooKeeper.

`prepare` makes what the pods of a plan need before any of them starts with it: authorities,
certificates, passwords. What users or cert-manager provide is checked and copied into the Secret
that pods mount, so that something broken never reaches a broker that runs. Keys and passwords are
in Secrets only: no status, Event or log line has them.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from odradek_operator.cluster import listener_objects
from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.cluster.authority_secrets import AuthoritySecrets, ClusterAuthority
from odradek_operator.cluster.listener_objects import ListenerSetup
from odradek_operator.cluster.listener_plan import ListenerPlan
from odradek_operator.cluster.own_secrets import NotPreparedError, decode
from odradek_operator.shared import (
    authorities,
    certificates,
    cluster_secrets,
    passwords,
    user_znodes,
    zookeeper_login,
)
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.certificates import Pair, UnusableError
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.listener_spec import TLS, ListenerSpec
from odradek_operator.shared.objects import metadata
from odradek_operator.shared.spec import Body, ResourceMeta
from odradek_operator.shared.status import Event
from odradek_operator.shared.zookeeper import ZooKeeper

CERT_MANAGER: Final = "cert-manager.io/v1"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedListeners:
    """What pods get, and what is wrong with certificates that serve nevertheless.

    `proven` are hosts outside that brokers may advertise.
    """

    setup: ListenerSetup
    warnings: tuple[str, ...] = ()
    proven: frozenset[str] = frozenset()
    authorities: tuple[ClusterAuthority, ...] = ()
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class OutsideHosts:
    """What clients outside connect to, by listener: present hosts, and former ones."""

    now: Mapping[str, frozenset[str]] = field(default_factory=dict)
    former: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def of(self, listener: str) -> frozenset[str]:
        """Return all hosts of a listener."""
        return self.now.get(listener, frozenset()) | self.former.get(listener, frozenset())


@dataclass(slots=True)
class _Served:
    """The certificate of a listener, and whom it makes clients trust; PEM."""

    pair: Pair = field(repr=False)
    authority: str


def prepare(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    spec: ClusterSpec,
    plan: ListenerPlan,
    pods: Sequence[Mapping[str, Any]],
    outside: OutsideHosts,
) -> PreparedListeners:
    """Make what brokers need for a plan.

    Raises NotPreparedError, ChangedError, KubeError, UnreachableError, ZnodeError, or what
    `user_znodes.set_password` raises.
    """
    work = _Work(context, body, meta, spec, plan)
    # Those of before stay: a pod that is made anew comes to its node again, and must not wait.
    known = sorted({*_hosts(meta, spec, pods), *work.known_hosts()})
    addresses = _addresses(spec, known)
    own_outside = {host for one in plan.listeners if one.of_own_ca for host in outside.of(one.name)}
    own = work.own_certificate([*_service_hosts(meta), *addresses, *own_outside])
    served = {
        one.name: work.served(one, own, [*addresses, *sorted(outside.of(one.name))])
        for one in plan.listeners
        if one.tls
    }
    clients = work.clients_authority()
    work.tell_clients(served.values())
    password = work.password()
    trusted = _trusted(plan, served, clients)
    data = {
        cluster_secrets.PASSWORD: password,
        listener_objects.PASSWORD_SETTINGS: listener_objects.password_settings(plan, password),
        **({listener_objects.OWN_PEM: _pem(own.pair)} if own is not None else {}),
        **{
            listener_objects.key_file(one): _pem(served[one.name].pair)
            for one in plan.listeners
            if one.tls
        },
        **{f"{name}-trust.pem": text for name, text in trusted.items()},
    }
    data[listener_objects.HOSTS] = "".join(
        f"{host}\n" for host in known if _all_prove(plan, served, host)
    )
    proven = _proven(plan, served, outside)
    if outside.now:
        data[listener_objects.EXPOSED_HOSTS] = "".join(f"{host}\n" for host in sorted(proven))
    work.write(cluster_secrets.brokers(meta.name), data)
    work.operator_user(clients)
    _write_users(zookeeper_login.connected(context, body, spec), work, plan, password)
    subjects = [
        f"{name}: {certificates.load(one.pair.certificate)[0].subject.rfc4514_string()}"
        for name, one in sorted(served.items())
    ]
    # Not the password, from which nobody can tell it.
    mark = hashlib.sha256(f"{meta.uid}:{password}".encode()).hexdigest()[:16]
    setup = ListenerSetup(plan, meta.name, frozenset(trusted), (mark, *subjects))
    warnings = tuple(_warnings(served, addresses, outside))
    return PreparedListeners(setup, warnings, proven, tuple(work.authorities), tuple(work.events))


def _write_users(
    zookeeper: ZooKeeper, work: _Work, plan: ListenerPlan, broker_password: str
) -> None:
    """Give the brokers' user and the operator's their passwords, for each mechanism."""
    mechanisms = sorted({one.mechanism for one in plan.listeners if one.mechanism})
    if not mechanisms:
        return
    users = {
        cluster_secrets.BROKER_USER: broker_password,
        cluster_secrets.OPERATOR_USER: work.operator_password(),
    }
    known = user_znodes.read_entries(zookeeper.cached, users)
    for user, password in users.items():
        for one in mechanisms:
            if not user_znodes.is_of_password(known[user].get(one), one, password):
                work.still_wanted()
                user_znodes.set_password(zookeeper, user, one, password)


# --- hosts ----------------------------------------------------------------------------------------


def _service_hosts(meta: ResourceMeta) -> list[str]:
    """Return the names of the headless Service and of all its pods."""
    service = cluster_objects.service_name(meta.name)
    full = [f"{service}.{meta.namespace}", f"{service}.{meta.namespace}.svc"]
    full.append(f"{full[-1]}.cluster.local")
    return [service, *full, *(f"*.{one}" for one in full)]


def _addresses(spec: ClusterSpec, hosts: Iterable[str]) -> list[str]:
    """Return the addresses among what brokers advertise; names are those of the Service."""
    return _ip_addresses(hosts) if spec.host_network else []


def _ip_addresses(hosts: Iterable[str]) -> list[str]:
    found = set()
    for host in hosts:
        with contextlib.suppress(ValueError):
            found.add(str(ipaddress.ip_address(host)))
    return sorted(found)


def _hosts(meta: ResourceMeta, spec: ClusterSpec, pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what brokers advertise, as pods have it in ADVERTISED_HOST once they have a node."""
    if spec.host_network:
        return sorted({one for pod in pods if (one := pod.get("status", {}).get("hostIP"))})
    workload = cluster_objects.workload_name(meta.name)
    return [
        cluster_objects.pod_host(meta, f"{workload}-{number}") for number in range(spec.replicas)
    ]


def _all_prove(plan: ListenerPlan, served: Mapping[str, _Served], host: str) -> bool:
    """Return whether a broker with this address may start.

    A certificate of a user's that does not prove it is only refused between brokers: clients may
    know the broker by another name.
    """
    return all(
        certificates.proves(one.pair.certificate, host)
        for name, one in served.items()
        if name in plan.in_use or (found := plan.find(name)) is None or not found.secret_name
    )


def _proven(
    plan: ListenerPlan, served: Mapping[str, _Served], outside: OutsideHosts
) -> frozenset[str]:
    """Return the hosts outside that brokers may advertise.

    As above: a certificate of a user's is the user's business, and `_warnings` names the host.
    """
    found, lacking = set[str](), set[str]()
    for one in plan.listeners:
        for host in outside.of(one.name):
            sound = (
                not one.tls
                or one.secret_name is not None
                or certificates.proves(served[one.name].pair.certificate, host)
            )
            (found if sound else lacking).add(host)
    return frozenset(found - lacking)


def _warnings(
    served: Mapping[str, _Served], addresses: Sequence[str], outside: OutsideHosts
) -> Iterable[str]:
    for name, one in sorted(served.items()):
        missing = [
            host
            for host in (*addresses, *sorted(outside.now.get(name, ())))
            if not certificates.proves(one.pair.certificate, host)
        ]
        if missing:
            yield f"the certificate of listener {name} does not prove {', '.join(missing)}"


# --- whom to trust --------------------------------------------------------------------------------


def _trusted(
    plan: ListenerPlan, served: Mapping[str, _Served], clients: ClusterAuthority | None
) -> dict[str, str]:
    """Return the trust store of each listener that has one.

    Where clients show certificates, those of the clients' CA count, and those of brokers where
    brokers may come, too. Elsewhere it is for brokers, who verify each other.
    """
    found = {}
    for one in plan.listeners:
        if not one.tls:
            continue
        text = served[one.name].authority
        if one.authentication == TLS:
            assert clients is not None
            text = clients.bundle + (text if one.of_own_ca else "")
        if text:
            found[one.name] = text
    return found


def _pem(pair: Pair) -> str:
    return f"{pair.key.rstrip()}\n{pair.certificate.rstrip()}\n"


# --- Secrets --------------------------------------------------------------------------------------


class _Work(AuthoritySecrets):
    """The Secrets of one cluster with listeners, during one reconciliation."""

    def __init__(
        self,
        context: ReconcileContext,
        body: Body,
        meta: ResourceMeta,
        spec: ClusterSpec,
        plan: ListenerPlan,
    ) -> None:
        super().__init__(context, body, meta)
        self.authorities: list[ClusterAuthority] = []
        self._spec = spec
        self._plan = plan
        self._now = context.now()
        self._operator_password = ""

    def known_hosts(self) -> list[str]:
        """Return the hosts with which brokers may start so far."""
        present = self._read_own(cluster_secrets.brokers(self._meta.name))
        return present.get(listener_objects.HOSTS, "").splitlines()

    def own_certificate(self, hosts: Sequence[str]) -> _Served | None:
        """Return the certificate by the operator's own CA; None where no listener needs one."""
        if not any(one.of_own_ca for one in self._plan.listeners):
            return None
        name = self._meta.name
        authority = self.authority(authorities.CLUSTER_CA, self._spec.cluster_ca)
        self.authorities.append(authority)
        present = self._read_own(cluster_secrets.brokers(name)).get(listener_objects.OWN_PEM, "")
        key, end, certificate = present.partition("-----END PRIVATE KEY-----\n")
        pair = Pair(certificate, key + end)
        whom = certificates.subject(f"{name}-broker", cluster_secrets.ORGANIZATION)
        why: str | None = "there is none"
        if present:
            why = authority.why_renew(pair, hosts, whom, self._now)
        if why is not None:
            pair = self._signed(authority.signer, whom, hosts)
            log.info("%s: signed a certificate for brokers: %s", name, why)
        return _Served(pair, authority.bundle)

    def _signed(self, authority: Pair, whom: Any, hosts: Sequence[str] | None) -> Pair:
        try:
            if hosts is None:
                return certificates.sign_client(authority, whom, self._now)
            return certificates.sign_server(authority, whom, hosts, self._now)
        except UnusableError as error:
            raise NotPreparedError("AuthorityUnusable", str(error)) from None

    def clients_authority(self) -> ClusterAuthority | None:
        """Return the CA of users of type tls; None where no listener asks for certificates."""
        if all(one.authentication != TLS for one in self._plan.listeners):
            return None
        found = self.authority(authorities.CLIENTS_CA, self._spec.clients_ca)
        self.authorities.append(found)
        public = cluster_secrets.clients_ca_cert(self._meta.name)
        self.write(public, {cluster_secrets.CA_CERTIFICATE: found.bundle})
        return found

    def tell_clients(self, served: Iterable[_Served]) -> None:
        """Write whom clients trust, of all listeners."""
        found = [one.authority for one in served if one.authority]
        if found:
            text = "".join(dict.fromkeys(found))
            name = cluster_secrets.cluster_ca_cert(self._meta.name)
            self.write(name, {cluster_secrets.CA_CERTIFICATE: text})

    def password(self) -> str:
        """Return the password of brokers, a new one where there is none."""
        present = self._read_own(cluster_secrets.brokers(self._meta.name))
        return passwords.kept(present.get(cluster_secrets.PASSWORD, ""))

    def operator_user(self, clients: ClusterAuthority | None) -> None:
        """Write with what the operator authenticates to brokers."""
        name = cluster_secrets.operator(self._meta.name)
        present = self._read_own(name)
        self._operator_password = passwords.kept(present.get(cluster_secrets.PASSWORD, ""))
        texts = {
            cluster_secrets.USERNAME: cluster_secrets.OPERATOR_USER,
            cluster_secrets.PASSWORD: self._operator_password,
        }
        if clients is not None:
            pair = Pair(
                present.get(cluster_secrets.USER_CERTIFICATE, ""),
                present.get(cluster_secrets.USER_KEY, ""),
            )
            whom = certificates.subject(cluster_secrets.OPERATOR_USER, cluster_secrets.ORGANIZATION)
            if clients.why_renew(pair, (), whom, self._now) is not None:
                pair = self._signed(clients.signer, whom, None)
            texts |= {
                cluster_secrets.USER_CERTIFICATE: pair.certificate,
                cluster_secrets.USER_KEY: pair.key,
            }
        self.write(name, texts)

    def operator_password(self) -> str:
        """Return the password that `operator_user` wrote."""
        return self._operator_password

    def served(self, listener: ListenerSpec, own: _Served | None, hosts: Sequence[str]) -> _Served:
        """Return the certificate of a TLS listener. Raises NotPreparedError.

        An issuer is asked to prove the hosts, besides those of the headless Service.
        """
        if listener.of_own_ca:
            assert own is not None
            return own
        name, wait = listener.secret_name, False
        if name is None:
            name, wait = self._ask_issuer(listener, hosts), True
        texts = decode(self._read(name))
        if not texts:
            raise NotPreparedError(
                "CertificatePending" if wait else "CertificateMissing",
                f"listener {listener.name}: Secret {name} is not there, or has nothing",
                waits=wait,
            )
        pair = Pair(texts.get("tls.crt", ""), texts.get("tls.key", ""))
        authority = texts.get(cluster_secrets.CA_CERTIFICATE, "")
        try:
            certificates.check(pair, self._now)
            if authority:
                certificates.load(authority)
        except UnusableError as error:
            raise NotPreparedError(
                "CertificatePending" if wait else "CertificateUnusable",
                f"listener {listener.name}: Secret {name} needs tls.crt and tls.key: {error}",
                waits=wait,
            ) from None
        return _Served(pair, f"{authority.rstrip()}\n" if authority else "")

    def _ask_issuer(self, listener: ListenerSpec, hosts: Sequence[str]) -> str:
        """Apply the Certificate of a listener; return the name of the Secret that it fills."""
        assert listener.issuer is not None
        name = f"{self._meta.name}-{listener.name}"
        secret = f"{name}-certificate"
        addresses = _ip_addresses(hosts)
        spec: dict[str, Any] = {
            "secretName": secret,
            "commonName": f"{self._meta.name}-broker",
            "subject": {"organizations": [cluster_secrets.ORGANIZATION]},
            "dnsNames": [
                *_service_hosts(self._meta),
                *(host for host in hosts if not _ip_addresses([host])),
            ],
            "usages": ["digital signature", "server auth", "client auth"],
            "privateKey": {
                "algorithm": "ECDSA",
                "size": 256,
                "encoding": "PKCS8",
                "rotationPolicy": "Always",
            },
            "issuerRef": {
                "name": listener.issuer.name,
                "kind": listener.issuer.kind,
                "group": "cert-manager.io",
            },
        }
        if addresses:
            spec["ipAddresses"] = addresses
        wanted = {
            "apiVersion": CERT_MANAGER,
            "kind": "Certificate",
            "metadata": metadata(self._meta, name, cluster_objects.labels(self._meta)),
            "spec": spec,
        }
        present = self._context.kube.get(CERT_MANAGER, "Certificate", self._meta.namespace, name)
        if present is not None and not self._is_own(present):
            raise NotPreparedError(
                "CertificateConflict",
                f"listener {listener.name}: Certificate {name} is not of this KafkaCluster: "
                "delete it, or rename the listener",
            )
        try:
            self._apply(wanted)
        except KubeError as error:
            if error.code != 404:
                raise
            raise NotPreparedError(
                "CertManagerMissing",
                f"listener {listener.name} has an issuerRef, and there is no kind Certificate of "
                f"{CERT_MANAGER}: install cert-manager, or take issuerRef out",
            ) from None
        return secret
