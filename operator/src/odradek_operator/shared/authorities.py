"""The renewal of an authority (CA) in phases, so that nobody is cut off. Pure; times are arguments.

1. *Trusted*: the next authority is published beside the present one. Everybody trusts both.
2. *Signs*: it signs what is signed from now on. Certificates by the former one are replaced; it is
   retired, and trusted still.
3. The former one goes when it has ended, or when all that it signed has been replaced.

The operator makes the next one some time before the present one ends. An authority that the user
replaced takes the same way: certificates by the former one, whose key is gone, serve until the new
one signs.

`AuthorityState` is kept in a Secret of the operator's (`encode`, `decode`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography import x509

from odradek_operator.shared import certificates
from odradek_operator.shared.certificates import Pair, UnusableError

# What is published is in the files of all pods by then, and brokers have read them.
PROPAGATION: Final = timedelta(minutes=5)
# The authorities of a cluster: of its brokers' certificates, and of users'.
CLUSTER_CA: Final = "cluster-ca"
CLIENTS_CA: Final = "clients-ca"
# Words of the annotations by which a user asks for a phase.
BEGIN, SIGN, DROP = "begin", "sign", "drop"
_ALWAYS: Final = datetime(1970, 1, 1, tzinfo=UTC)

Make = Callable[[str], Pair]


@dataclass(frozen=True, slots=True)
class AuthorityPolicy:
    """When the next authority is made, how long before it signs, how long a retired one is trusted.

    `overlap` is for clients that learn of it by their own means, `kept` for certificates that it
    signed and that others may still show.
    """

    renewal: timedelta
    overlap: timedelta
    kept: timedelta


@dataclass(frozen=True, slots=True)
class TrustedAuthority:
    """A certificate that everybody trusts since a time; one that is `retired` signs no more."""

    certificate: str
    since: datetime
    retired: datetime | None = None

    @property
    def ends(self) -> datetime:
        """Return when it ends."""
        return certificates.load(self.certificate)[0].not_valid_after_utc


@dataclass(frozen=True, slots=True)
class AuthorityState:
    """What is known of an authority and of those before and after it.

    `signing` is the certificate of the one that signs. `following` is the operator's own that does
    not sign yet. `generation` counts those that came after the first. `seen` is the last request,
    which is about the generation `asked`, and about no later one.
    """

    trusted: tuple[TrustedAuthority, ...]
    signing: str
    following: Pair | None = None
    generation: int = 0
    seen: str = ""
    asked: int = 0

    @property
    def bundle(self) -> str:
        """Return the certificates of all that are trusted, the one that signs first."""
        ordered = sorted(self.trusted, key=lambda one: one.certificate != self.signing)
        return "".join(f"{one.certificate.rstrip()}\n" for one in ordered)

    @property
    def newest(self) -> TrustedAuthority:
        """Return the one that signs, or will sign next."""
        return self.trusted[-1]

    @property
    def renewing(self) -> bool:
        """Return whether the newest one does not sign yet."""
        return self.newest.certificate != self.signing


def first_state(present: Pair) -> AuthorityState:
    """Return the state of an authority that is the only one, as all were before there was one."""
    certificate = _clean(present.certificate)
    return AuthorityState((TrustedAuthority(certificate, _ALWAYS),), certificate)


def next_state(
    state: AuthorityState,
    present: Pair,
    policy: AuthorityPolicy,
    now: datetime,
    *,
    request: str = "",
    make: Make | None = None,
    given: str | None = None,
) -> AuthorityState:
    """Return the state as it must be now.

    `present` is the authority in its Secret. `make` makes another one, by its name; None: the user
    replaces it. `request` begins with one of the words above, if it says anything. `given` has all
    that brokers were given to trust; None: whatever is published.
    """
    state = _follow(state, present, now)
    if make is not None:
        begins = request.startswith(BEGIN) and request != state.seen
        ends_soon = state.newest.ends - now < policy.renewal
        if state.following is None and (begins or ends_soon):
            state = _publish_next(state, make, now)
    if request != state.seen:
        state = replace(state, seen=request, asked=state.generation)
    elif state.asked != state.generation:
        # It was left there by whoever hastened a former renewal.
        request = ""
    if state.renewing and _may_sign(state, policy, now, request):
        reached = given is None or state.newest.certificate in given
        if reached or _has_ended(state, now):
            state = _promote(state, now)
        else:
            state = _postpone(state, policy, now, request)
    kept = tuple(one for one in state.trusted if _is_trusted(state, one, policy, now, request))
    return replace(state, trusted=kept)


def why_renew(
    state: AuthorityState, pair: Pair, hosts: Collection[str], whom: x509.Name, now: datetime
) -> str | None:
    """Return why a certificate must be signed anew; None: it serves for a while yet."""
    found: str | None = None
    for issuer in (state.newest.certificate, state.signing):
        found = certificates.why_renew(pair, issuer, hosts, whom, now)
        if found is None:
            break
    return found


def signing_pair(state: AuthorityState, present: Pair) -> Pair:
    """Return the authority that signs; `present` where the key of the former one is gone."""
    following = state.following
    if following is not None and _clean(following.certificate) == state.signing:
        return following
    return present


def signs(state: AuthorityState, certificate: str) -> bool:
    """Return whether an authority signs now: brokers have trusted it for a while."""
    return _clean(certificate) == state.signing


def _follow(state: AuthorityState, present: Pair, now: datetime) -> AuthorityState:
    """Take note of what the Secret has: the operator's next one, or another one of the user's.

    That may be one of before, which its owner put back.
    """
    certificate = _clean(present.certificate)
    following = None if state.following is None else _clean(state.following.certificate)
    if following == certificate:
        return replace(state, following=None)
    known = next((one for one in state.trusted if one.certificate == certificate), None)
    if following is None:
        expected = state.newest.certificate == certificate
    else:
        # The next one comes into the Secret once it signs.
        expected = known is not None and state.signing in (certificate, following)
    if expected:
        return state
    # Somebody else's: what was to sign next is not wanted any more.
    others = (
        one if one.certificate == state.signing or one.retired else replace(one, retired=now)
        for one in state.trusted
        if one.certificate not in (certificate, following)
    )
    newest = replace(known or TrustedAuthority(certificate, now), retired=None)
    return replace(
        state,
        trusted=(*others, newest),
        following=None,
        generation=state.generation + 1,
    )


def _publish_next(state: AuthorityState, make: Make, now: datetime) -> AuthorityState:
    generation = state.generation + 1
    following = make(f"v{generation}")
    published = TrustedAuthority(_clean(following.certificate), now)
    return replace(
        state,
        trusted=(*state.trusted, published),
        following=following,
        generation=generation,
    )


def _may_sign(state: AuthorityState, policy: AuthorityPolicy, now: datetime, request: str) -> bool:
    if _has_ended(state, now):
        return True
    return now - state.newest.since >= _waits(policy, request)


def _waits(policy: AuthorityPolicy, request: str) -> timedelta:
    return PROPAGATION if request.startswith(SIGN) else max(PROPAGATION, policy.overlap)


def _has_ended(state: AuthorityState, now: datetime) -> bool:
    """Return whether the one that signs can do so no more."""
    signing = next((one for one in state.trusted if one.certificate == state.signing), None)
    return signing is None or signing.ends <= now


def _postpone(
    state: AuthorityState, policy: AuthorityPolicy, now: datetime, request: str
) -> AuthorityState:
    """Give brokers time to learn of the newest: their Secret could not be written meanwhile."""
    newest = replace(state.newest, since=now + PROPAGATION - _waits(policy, request))
    return replace(state, trusted=(*state.trusted[:-1], newest))


def _promote(state: AuthorityState, now: datetime) -> AuthorityState:
    newest = state.newest.certificate
    retired = tuple(
        one if one.certificate == newest or one.retired is not None else replace(one, retired=now)
        for one in state.trusted
    )
    return replace(state, trusted=retired, signing=newest)


def _is_trusted(
    state: AuthorityState,
    one: TrustedAuthority,
    policy: AuthorityPolicy,
    now: datetime,
    request: str,
) -> bool:
    if one.certificate in (state.signing, state.newest.certificate):
        return True
    if one.ends <= now:
        return False
    if one.retired is None:
        return True
    waits = PROPAGATION if request.startswith(DROP) else policy.kept
    return now - one.retired < waits


def _clean(certificate: str) -> str:
    return f"{certificate.strip()}\n"


# --- kept in a Secret -----------------------------------------------------------------------------


def key_of(kind: str) -> str:
    """Return the key of a kind of authority in the Secret."""
    return f"{kind}.json"


def encode(state: AuthorityState) -> str:
    """Return a state as the Secret has it."""
    following = state.following
    return json.dumps(
        {
            "trusted": [
                {
                    "certificate": one.certificate,
                    "since": one.since.isoformat(),
                    "retired": one.retired.isoformat() if one.retired else None,
                }
                for one in state.trusted
            ],
            "signing": state.signing,
            "following": None
            if following is None
            else {"certificate": following.certificate, "key": following.key},
            "generation": state.generation,
            "seen": state.seen,
            "asked": state.asked,
        },
        sort_keys=True,
    )


def decode(text: str) -> AuthorityState | None:
    """Read what `encode` wrote; None for anything else."""
    try:
        raw = json.loads(text)
        trusted = tuple(map(_trusted, raw["trusted"]))
        following = raw["following"]
        found = AuthorityState(
            trusted,
            str(raw["signing"]),
            None if following is None else Pair(following["certificate"], following["key"]),
            int(raw["generation"]),
            str(raw["seen"]),
            int(raw.get("asked", raw["generation"])),
        )
    except (ValueError, TypeError, KeyError, UnusableError):
        return None
    return found if trusted else None


def _trusted(raw: Any) -> TrustedAuthority:
    certificates.load(raw["certificate"])
    retired = raw["retired"]
    return TrustedAuthority(
        raw["certificate"],
        datetime.fromisoformat(raw["since"]),
        datetime.fromisoformat(retired) if retired else None,
    )
