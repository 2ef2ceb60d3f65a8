"""The Secret of a User as it is and as it must be, read and written."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509

from odradek_operator.shared import (
    authorities,
    certificates,
    cluster_access,
    cluster_secrets,
    kube,
    passwords,
    status,
)
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.authorities import CLIENTS_CA, AuthorityState
from odradek_operator.shared.certificates import Pair
from odradek_operator.shared.cluster_secrets import CA_CERTIFICATE
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.objects import Object, belongs_to, is_of_former
from odradek_operator.shared.spec import ResourceMeta
from odradek_operator.shared.status import Condition, Event
from odradek_operator.user import secret
from odradek_operator.user.user_spec import UserSpec


@dataclass(frozen=True, slots=True)
class SecretPlan:
    """What the Secret must be; `wanted` None: as it is, or there is none. `event` tells of it.

    `live` is the Secret that was read; None: it must be created. `password` is the user's, ""
    without SCRAM. `issuer` is the certificate of the authority that has just signed another
    certificate, "" if none has.
    """

    name: str | None = None
    password: str = field(default="", repr=False)
    wanted: Object | None = field(default=None, repr=False)
    live: Object | None = field(default=None, repr=False)
    event: Event | None = None
    issuer: str = ""

    @property
    def is_due(self) -> bool:
        """Return whether the Secret must be written."""
        return self.wanted is not None


Refusal = tuple[Condition, ...]


def look(context: ReconcileContext, meta: ResourceMeta, wanted: UserSpec) -> SecretPlan | Refusal:
    """Return what the Secret must be, or the conditions of a User that cannot have it."""
    if wanted.authentication == "tls-external":
        return SecretPlan()
    live = context.kube.get("v1", "Secret", meta.namespace, meta.name)
    if live is not None and not belongs_to(meta.uid, live):
        if is_of_former(meta, live):
            text = f"Secret {meta.name} is of a former User of this name, and goes with it"
            return status.progressing("SecretTerminating", text)
        text = f"""
            Secret {meta.name} exists and does not belong to this User: delete or rename it, or give
            the User another name
        """
        return status.stalled("SecretInUse", " ".join(text.split()))
    if wanted.mechanism is None:
        return _look_at_certificate(context, meta, wanted, live)
    try:
        password = _password(context, meta, wanted, live)
    except secret.UnusableSecretError as error:
        return status.stalled("InvalidPassword", str(error))
    data = secret.scram_data(wanted.username, password)
    built = secret.build(meta, wanted.cluster, data)
    if live is not None and not kube.differs(built, live):
        return SecretPlan(meta.name, password)
    event = None
    if live is None:
        event = Event("SecretCreated", f"made Secret {meta.name}")
    elif not secret.has_password(live, password):
        event = Event("PasswordChanged", f"Secret {meta.name} has another password")
    return SecretPlan(meta.name, password, built, live, event)


def _look_at_certificate(
    context: ReconcileContext, meta: ResourceMeta, wanted: UserSpec, live: Object | None
) -> SecretPlan | Refusal:
    """Return the Secret with a certificate that serves for a while, signed anew if need be."""
    source = cluster_secrets.clients_ca(wanted.cluster)
    subject, now = certificates.subject(meta.name), context.now()
    try:
        found = _read_authority(context, meta, wanted.cluster)
        if found is None:
            text = f"there is no Secret {source}, whose authority signs certificates of users"
            return status.progressing("NoClientsAuthority", text)
        authority, state = found
        why = None if live is None else _why_renew(live, state, subject, now)
        if live is not None and why is None:
            return SecretPlan(meta.name)
        if not authorities.signs(state, authority.certificate):
            return _wait_for_authority(f"Secret {source} has another authority")
        pair = certificates.sign_client(authority, subject, now)
        data = secret.tls_data(meta.name, pair, authority)
    except (certificates.UnusableError, secret.UnusableSecretError) as error:
        return status.stalled("InvalidClientsAuthority", f"Secret {source}: {error}")
    built = secret.build(meta, wanted.cluster, data)
    if live is None:
        return SecretPlan(
            meta.name,
            wanted=built,
            event=Event("SecretCreated", f"made Secret {meta.name}"),
            issuer=authority.certificate,
        )
    event = Event("CertificateRenewed", f"signed a new certificate: {why}")
    return SecretPlan(meta.name, wanted=built, live=live, event=event, issuer=authority.certificate)


def _read_authority(
    context: ReconcileContext, meta: ResourceMeta, cluster: str
) -> tuple[Pair, AuthorityState] | None:
    """Return the authority to sign with, and its phase; None: there is none.

    Raises UnusableError or UnusableSecretError as soon as it is so, not when a certificate has to
    be signed anew.
    """
    name = cluster_secrets.clients_ca(cluster)
    found = context.kube.get("v1", "Secret", meta.namespace, name)
    if found is None:
        return None
    present = secret.read_authority(found)
    certificates.check_authority(present)
    state = _state(context, meta, cluster, present)
    # The one that signs comes into its Secret a moment after it began.
    return authorities.signing_pair(state, present), state


def _wait_for_authority(what: str) -> Refusal:
    text = f"{what}; it signs certificates of users once brokers trust it, minutes from now"
    return status.progressing("AuthorityPending", text)


def why_untrusted(
    context: ReconcileContext, meta: ResourceMeta, cluster: str, planned: SecretPlan
) -> Refusal | None:
    """Return the conditions of a User whose certificate was signed by an authority that was
    replaced meanwhile; None: the one that signed it still does, or nothing was signed.
    """
    if not planned.issuer:
        return None
    try:
        found = _read_authority(context, meta, cluster)
    except (certificates.UnusableError, secret.UnusableSecretError):
        found = None
    if found is not None and authorities.signs(found[1], planned.issuer):
        return None
    return _wait_for_authority("the authority that signed the certificate was replaced")


def _state(
    context: ReconcileContext, meta: ResourceMeta, cluster: str, present: Pair
) -> AuthorityState:
    """Return in which phase the authority is; that of an operator before there were phases."""
    name = cluster_secrets.authorities(cluster)
    kept = cluster_access.field(
        context.kube.get("v1", "Secret", meta.namespace, name), authorities.key_of(CLIENTS_CA)
    )
    return authorities.decode(kept) or authorities.first_state(present)


def _why_renew(
    live: Object, state: AuthorityState, subject: x509.Name, now: datetime
) -> str | None:
    data = live.get("data", {})
    for one in (secret.STORE, secret.STORE_PASSWORD):
        if not data.get(one):
            return f"the Secret has no {one}"
    try:
        known = (state.signing.strip(), state.newest.certificate.strip())
        if secret.value(live, CA_CERTIFICATE).strip() not in known:
            return "the authority is another one"
        return authorities.why_renew(state, secret.read_pair(live), (), subject, now)
    except secret.UnusableSecretError as error:
        return str(error)


def _password(
    context: ReconcileContext, meta: ResourceMeta, wanted: UserSpec, live: Object | None
) -> str:
    """Return the password: of the user's own Secret, else that of the Secret, else a new one."""
    if wanted.source is None:
        found = "" if live is None else secret.read_password(live, secret.PASSWORD)
        return found or passwords.new()
    name, key = wanted.source
    if name == meta.name:
        raise secret.UnusableSecretError(f"Secret {name} is the one that the operator writes")
    source = context.kube.get("v1", "Secret", meta.namespace, name)
    found = "" if source is None else secret.read_password(source, key)
    if not found:
        raise secret.UnusableSecretError(
            f"Secret {name} has no {key}" if source else f"no Secret {name}"
        )
    return found


def carry_out(context: ReconcileContext, planned: SecretPlan) -> bool:
    """Write the Secret; False if somebody else has just created it, changed it or deleted it."""
    if planned.wanted is None:
        return True
    try:
        if planned.live is None:
            # Created, not applied: a Secret of somebody else's must not be overwritten.
            context.kube.create(planned.wanted)
        else:
            context.kube.apply_over(planned.live, planned.wanted)
    except KubeError as error:
        if error.code != 409:
            raise
        return False
    return True
