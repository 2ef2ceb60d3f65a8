"""Authorities through decades of virtual time: each phase, and that nobody is cut off in any.

Certificates are real. OpenSSL would judge them by the machine's clock, so `cryptography`'s verifier
does, at the virtual time.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from odradek_operator.shared import authorities, certificates
from odradek_operator.shared.authorities import AuthorityPolicy, AuthorityState
from odradek_operator.shared.certificates import Pair
from tests.support.sampling import how_many

START = datetime(2026, 11, 25, tzinfo=UTC)
DAY = timedelta(days=1)
CLUSTER = AuthorityPolicy(60 * DAY, 30 * DAY, DAY)
CLIENTS = AuthorityPolicy(60 * DAY, timedelta(0), 90 * DAY)
HOSTS = ["main-brokers.logs.svc"]
WHOM = certificates.subject("main-broker", "odradek")


class Authority:
    """An authority in its Secret, what it signed, and the operator that looks after both."""

    def __init__(self, policy: AuthorityPolicy, valid: timedelta, *, own: bool = True) -> None:
        self.policy, self.valid, self.own, self.now = policy, valid, own, START
        self.present = certificates.make_authority("ca", START, valid)
        self.state: AuthorityState | None = None
        self.leaf = Pair("", "")
        self.signed = 0
        self.request = ""

    def make(self, suffix: str) -> Pair:
        return certificates.make_authority(f"ca-{suffix}", self.now, self.valid)

    def look(self) -> AuthorityState:
        """Do what the operator does in one pass."""
        state = authorities.next_state(
            self.state or authorities.first_state(self.present),
            self.present,
            self.policy,
            self.now,
            request=self.request,
            make=self.make if self.own else None,
        )
        # It is kept as text.
        self.state = authorities.decode(authorities.encode(state))
        assert self.state == state
        signer = authorities.signing_pair(state, self.present)
        if self.own:
            self.present = signer
        if authorities.why_renew(state, self.leaf, HOSTS, WHOM, self.now) is not None:
            self.leaf = certificates.sign_server(signer, WHOM, HOSTS, self.now)
            self.signed += 1
        return state


def believes(bundle: str, leaf: Pair, now: datetime) -> bool:
    """Return whether a client that trusts a bundle believes a broker."""
    verifier = (
        PolicyBuilder()
        .store(Store(certificates.load(bundle)))
        .time(now.replace(tzinfo=None))
        .build_server_verifier(x509.DNSName(HOSTS[0]))
    )
    try:
        verifier.verify(certificates.load(leaf.certificate)[0], [])
    except x509.verification.VerificationError:
        return False
    return True


@pytest.mark.parametrize("policy", [CLUSTER, CLIENTS], ids=["cluster", "clients"])
def test_nobody_is_cut_off_in_years_of_renewals(policy: AuthorityPolicy) -> None:
    years = how_many(6, full=30)
    one = Authority(policy, 1000 * DAY)
    bundles: list[tuple[datetime, str]] = []
    leaves: list[tuple[datetime, Pair]] = []
    for _ in range(years * 365 // 5):
        state = one.look()
        if not bundles or bundles[-1][1] != state.bundle:
            bundles.append((one.now, state.bundle))
        if not leaves or leaves[-1][1] != one.leaf:
            leaves.append((one.now, one.leaf))
        # Who took the bundle anew within the overlap believes who serves the present certificate.
        old_enough = [text for at, text in bundles if at <= one.now - policy.overlap]
        for bundle in (state.bundle, *old_enough[-1:]):
            assert believes(bundle, one.leaf, one.now), one.now
        # Who shows a certificate as long as it may is believed by all who trust the bundle of now.
        if policy is CLIENTS:
            shown = [leaf for at, leaf in leaves if one.now - at <= 85 * DAY]
            assert all(believes(state.bundle, leaf, one.now) for leaf in shown[-1:])
        assert len(state.trusted) <= 2
        one.now += 5 * DAY
    assert one.state is not None
    assert one.state.generation == years * 365 // 940
    assert len(leaves) > years * 365 // 90


def test_phases_of_a_renewal_that_a_user_asks_for() -> None:
    one = Authority(CLUSTER, 3650 * DAY)
    first = one.look()
    one.request = "begin"
    trusted = one.look()
    assert (len(trusted.trusted), trusted.renewing, one.signed) == (2, True, 1)
    assert trusted.bundle.startswith(first.bundle)
    # Again is the same request.
    assert one.look() == trusted
    one.request = "sign"
    one.now += timedelta(minutes=4)
    assert one.look().renewing
    one.now += timedelta(minutes=2)
    signs = one.look()
    assert (len(signs.trusted), signs.renewing, one.signed) == (2, False, 2)
    assert believes(first.bundle, one.leaf, one.now) is False
    assert believes(trusted.bundle, one.leaf, one.now)
    one.now += timedelta(minutes=6)
    assert len(one.look().trusted) == 2
    one.request = "drop"
    dropped = one.look()
    assert len(dropped.trusted) == 1
    assert believes(dropped.bundle, one.leaf, one.now)
    one.request = "begin"
    assert one.look().generation == 2


def test_request_that_was_left_there_hastens_no_later_renewal() -> None:
    one = Authority(CLUSTER, 365 * DAY)
    one.look()
    for request in ("begin", "sign", "drop"):
        one.request = request
        one.look()
        one.now += timedelta(minutes=6)
        one.look()
    assert (one.look().generation, one.signed) == (1, 2)
    one.now += 310 * DAY
    one.look()
    before = one.leaf
    one.now += DAY
    state = one.look()
    assert (state.generation, state.renewing) == (2, True)
    one.now += 29 * DAY
    assert not one.look().renewing
    assert one.leaf != before
    one.now += timedelta(minutes=6)
    assert len(one.look().trusted) == 2


def test_authority_that_a_user_replaced_takes_the_same_phases() -> None:
    one = Authority(CLUSTER, 3650 * DAY, own=False)
    one.look()
    before = one.leaf
    one.present = certificates.make_authority("mine", START)
    trusted = one.look()
    assert trusted.renewing
    assert one.leaf == before
    one.now += 29 * DAY
    assert one.look().renewing
    assert one.leaf == before
    # The key of the former one is gone: what must be signed meanwhile is by the new one.
    HOSTS.append("10.0.0.9")
    try:
        one.look()
        assert one.leaf != before
        signed = one.leaf
        one.look()
        assert one.leaf == signed
    finally:
        HOSTS.remove("10.0.0.9")
    one.now += 2 * DAY
    assert not one.look().renewing
    one.now += 2 * DAY
    assert len(one.look().trusted) == 1
    # It is the user's to renew.
    one.now += 3600 * DAY
    assert one.look().generation == 1


@pytest.mark.parametrize("days", [1, 31], ids=["before it signed", "after it signed"])
def test_authority_that_a_user_put_back_signs_again(days: int) -> None:
    one = Authority(CLUSTER, 3650 * DAY, own=False)
    one.look()
    first = one.present
    one.present = certificates.make_authority("mine", START)
    one.look()
    one.now += days * DAY
    one.look()
    one.present = first
    one.look()
    signed = one.signed
    for _ in range(3):
        state = one.look()
        assert not state.renewing
        assert believes(state.bundle, one.leaf, one.now)
        assert believes(first.certificate, one.leaf, one.now)
        one.now += DAY
    # No certificate is signed again and again.
    assert one.signed == signed
    assert len(one.look().trusted) == 1


def test_authority_that_brokers_were_not_given_does_not_sign() -> None:
    one = Authority(CLIENTS, 3650 * DAY)
    known = one.look().bundle

    def look(given: str, request: str = "begin") -> AuthorityState:
        assert one.state is not None
        one.state = authorities.next_state(
            one.state, one.present, CLIENTS, one.now, request=request, make=one.make, given=given
        )
        return one.state

    published = look(known).bundle
    # Something holds up what brokers get.
    one.now += DAY
    assert look(known).renewing
    one.now += timedelta(minutes=1)
    # They have it in their Secret now, and read it soon.
    assert look(published).renewing
    one.now += timedelta(minutes=5)
    assert not look(published).renewing
    # One that has ended can sign no more, whoever knows the next one.
    look(published, "begin-2")
    one.now += 3651 * DAY
    assert not look("").renewing


def test_operator_that_was_away_for_years_begins_anew() -> None:
    one = Authority(CLUSTER, 365 * DAY)
    one.look()
    one.now += 800 * DAY
    state = one.look()
    assert not state.renewing
    assert believes(state.bundle, one.leaf, one.now)
    assert len(state.trusted) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"trusted": []}', '{"trusted": [{}]}'])
def test_a_state_that_somebody_edited_is_none(text: str) -> None:
    assert authorities.decode(text) is None


def test_crash_between_the_writes_of_a_renewal_repeats_them() -> None:
    one = Authority(CLUSTER, 3650 * DAY)
    one.look()
    one.request = "begin"
    one.look()
    former = one.present
    one.now += 31 * DAY
    state = one.look()
    # The Secret of the authority has the former one still.
    again = authorities.next_state(state, former, CLUSTER, one.now, make=one.make)
    assert again == replace(state, seen="")
    assert authorities.signing_pair(again, former) == one.present
    done = authorities.next_state(state, one.present, CLUSTER, one.now, make=one.make)
    assert done.following is None
