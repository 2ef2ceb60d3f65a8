"""The authorities (CAs) of one cluster: made, renewed in phases, and kept in Secrets.

What was published and who signs is in the Secret `CLUSTER-authorities` before anything else knows
of it. An authority of the user's is taken as it is in its Secret, and is never written.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from cryptography import x509

from odradek_operator.cluster.own_secrets import NotPreparedError, OwnSecrets, decode
from odradek_operator.shared import authorities, certificates, cluster_secrets
from odradek_operator.shared.authorities import (
    CLIENTS_CA,
    CLUSTER_CA,
    AuthorityPolicy,
    AuthorityState,
)
from odradek_operator.shared.certificates import Pair, UnusableError
from odradek_operator.shared.cluster_spec import AuthoritySpec
from odradek_operator.shared.status import Condition, Event

CONDITION: Final = "CertificateAuthorities"
_REQUEST: Final = "odradek.io/renew-"
# Brokers have replaced a certificate of their own by then; others may show theirs until it ends.
_KEPT: Final = {CLUSTER_CA: timedelta(days=1), CLIENTS_CA: certificates.VALID}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterAuthority:
    """An authority: `signer` signs now. `own`: the operator's, which renews it."""

    kind: str
    signer: Pair = field(repr=False)
    state: AuthorityState = field(repr=False)
    own: bool
    policy: AuthorityPolicy

    @property
    def bundle(self) -> str:
        """Return whom everybody trusts because of it."""
        return self.state.bundle

    def why_renew(
        self, pair: Pair, hosts: Sequence[str], whom: x509.Name, now: datetime
    ) -> str | None:
        """Return why a certificate must be signed anew; None: it serves for a while yet."""
        return authorities.why_renew(self.state, pair, hosts, whom, now)

    @property
    def signs_from(self) -> datetime:
        """Return when the newest one signs at the latest."""
        return self.state.newest.since + max(authorities.PROPAGATION, self.policy.overlap)


class AuthoritySecrets(OwnSecrets):
    """The Secrets of one cluster, with those of its authorities, during one reconciliation."""

    def authority(self, kind: str, wanted: AuthoritySpec) -> ClusterAuthority:
        """Return an authority as it is in its present phase, made where there is none.

        Raises NotPreparedError, ChangedError, or KubeError.
        """
        name = f"{self._meta.name}-{kind}"
        present, own = self._present(name, wanted)
        policy = _policy(kind, wanted)
        before = self._state(kind)
        notes = self._body["metadata"].get("annotations") or {}

        def make(suffix: str) -> Pair:
            valid = timedelta(days=wanted.validity_days)
            return certificates.make_authority(f"{name}-{suffix}", self._context.now(), valid)

        state = authorities.next_state(
            before or authorities.first_state(present),
            present,
            policy,
            self._context.now(),
            request=notes.get(_REQUEST + kind, ""),
            make=make if own else None,
            given="".join(self._read_own(cluster_secrets.brokers(self._meta.name)).values()),
        )
        if state != before:
            self._keep_state(kind, state)
            self.events += _news(name, before, state)
        signer = authorities.signing_pair(state, present)
        if own and signer is not present:
            texts = {
                cluster_secrets.CA_CERTIFICATE: signer.certificate,
                cluster_secrets.CA_KEY: signer.key,
            }
            self.write(name, texts)
        return ClusterAuthority(kind, signer, state, own, policy)

    def _present(self, name: str, wanted: AuthoritySpec) -> tuple[Pair, bool]:
        """Return the authority in its Secret, and whether it is the operator's own."""
        secret = self._read(name)
        if secret is None:
            valid = timedelta(days=wanted.validity_days)
            pair = certificates.make_authority(name, self._context.now(), valid)
            texts = {
                cluster_secrets.CA_CERTIFICATE: pair.certificate,
                cluster_secrets.CA_KEY: pair.key,
            }
            self.still_wanted()
            # Not applied: the authority of another one who was faster is not replaced.
            self._context.kube.create(self._object(name, texts))
            log.info("%s: made an authority in Secret %s", self._meta.name, name)
            return pair, True
        own = self._is_own(secret)
        if not own:
            self._refuse_of_resource(name, secret)
        texts = decode(secret)
        pair = Pair(
            texts.get(cluster_secrets.CA_CERTIFICATE, ""), texts.get(cluster_secrets.CA_KEY, "")
        )
        try:
            # One of the operator's own that has ended is replaced by its next one.
            certificates.check(pair, self._context.now(), may_have_ended=own)
        except UnusableError as error:
            raise NotPreparedError("AuthorityUnusable", f"Secret {name}: {error}") from None
        return pair, own

    def _state(self, kind: str) -> AuthorityState | None:
        texts = self._read_own(cluster_secrets.authorities(self._meta.name))
        return authorities.decode(texts.get(authorities.key_of(kind), ""))

    def _keep_state(self, kind: str, state: AuthorityState) -> None:
        name = cluster_secrets.authorities(self._meta.name)
        self.write(
            name, {**self._read_own(name), authorities.key_of(kind): authorities.encode(state)}
        )


def _policy(kind: str, wanted: AuthoritySpec) -> AuthorityPolicy:
    renewal = timedelta(days=wanted.renewal_days)
    # Only brokers need to know who signs certificates of clients.
    overlap = renewal / 2 if kind == CLUSTER_CA else timedelta(0)
    return AuthorityPolicy(renewal, overlap, _KEPT[kind])


def _news(name: str, before: AuthorityState | None, after: AuthorityState) -> list[Event]:
    if before is None:
        return []
    found = []
    if after.generation > before.generation:
        ends = f"{after.newest.ends:%Y-%m-%d}"
        text = f"{name}: published another authority, which ends on {ends}"
        found.append(Event("AuthorityPublished", text))
    if after.signing != before.signing:
        found.append(Event("AuthoritySigns", f"{name}: the published authority signs now"))
    kept = {one.certificate for one in after.trusted}
    gone = [one for one in before.trusted if one.certificate not in kept]
    if gone:
        found.append(Event("AuthorityDropped", f"{name}: {len(gone)} former no longer trusted"))
    return found


def conditions(found: Sequence[ClusterAuthority], now: datetime) -> tuple[Condition, ...]:
    """Return what there is to say: one is renewed, or the user must renew it."""
    ending = [
        f"{one.kind} ends on {one.state.newest.ends:%Y-%m-%d}: replace what its Secret has"
        for one in found
        if not one.own and one.state.newest.ends - now < one.policy.renewal
    ]
    if ending:
        return (Condition(CONDITION, False, "AuthorityEnds", "; ".join(ending)),)
    renewed = [
        f"{one.kind}: the next one is trusted, and signs from {one.signs_from:%Y-%m-%d %H:%M} UTC"
        for one in found
        if one.state.renewing
    ]
    if renewed:
        return (Condition(CONDITION, True, "Renewing", "; ".join(renewed)),)
    return ()


def report(found: Sequence[ClusterAuthority]) -> list[dict[str, Any]]:
    """Return the field of the status: when the newest one ends, and how many are trusted."""
    return [
        {
            "name": one.kind,
            "notAfter": f"{one.state.newest.ends:%Y-%m-%dT%H:%M:%SZ}",
            "phase": "Renewing" if one.state.renewing else "Signing",
            "trusted": len(one.state.trusted),
            "generation": one.state.generation,
        }
        for one in found
    ]
