"""What a User plans: pure functions, without an API server."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from odradek.quotas.entities import QuotaKey
from odradek.security import acl_znodes
from odradek.security.acls import AclEntry, ResourcePattern, ResourceType
from odradek_operator.shared import certificates, spec, user_znodes
from odradek_operator.shared.spec import InvalidSpec
from odradek_operator.shared.views import ClusterState, Owner
from odradek_operator.user import plan, secret, secret_step, user_spec
from odradek_operator.user.plan import Target, UserCluster
from odradek_operator.user.secret_step import SecretPlan
from odradek_operator.user.user_spec import WrittenByUser
from tests.reconcile.users import SECURED, acl, user
from tests.support.memory import MemoryKube, MemoryZooKeeper, context

META = spec.parse_meta(
    {
        "kind": "User",
        "metadata": {"name": "u", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
    }
)
PRESENT = ClusterState(Owner.PRESENT)


def admitted(name: str = "u", type_: str = "scram-sha-512", **fields: Any) -> dict[str, Any]:
    """A User as the API server gives it out, with the defaults of its CRD."""
    body = user(name, type_, **fields)
    for one in body["spec"].get("authorization", {}).get("acls", ()):
        one["resource"].setdefault("patternType", "literal")
        one.setdefault("host", "*")
        one.setdefault("type", "allow")
    return body


def rights(count: int, prefix: str) -> dict[str, Any]:
    return {"acls": [acl("topic", f"{prefix}{one}", "Read", "Write") for one in range(count)]}


def test_acls_stand_in_the_status_as_in_the_spec() -> None:
    wanted = admitted(authorization={"acls": [acl("topic", "t", "Read"), acl("group", "g", "All")]})
    bindings = user_spec.parse(wanted).acls
    shown = user_spec.shown_acls(bindings)
    assert shown == wanted["spec"]["authorization"]["acls"]
    assert user_spec.written({**wanted, "status": {"acls": shown}}).acls == bindings


def test_one_change_of_the_largest_spec_fits_into_the_status_and_two_may_not() -> None:
    first, second, third = (
        user_spec.parse(admitted(authorization=rights(200, prefix))).acls for prefix in "abc"
    )
    written = WrittenByUser(acls=first)
    claimed = plan.claim(Target(acls=second), written)
    assert plan.fits(claimed)
    again = plan.claim(Target(acls=third + first[:2]), claimed)
    assert not plan.fits(again)
    left = plan.without_new_acls(Target(acls=third + first[:2]), claimed)
    assert left.acls == first[:2]


@pytest.mark.parametrize("host", ["1.2.3", "1.2.3.4.5", ":::", "beef"])
def test_hosts_that_are_no_addresses_are_invalid(host: str) -> None:
    with pytest.raises(InvalidSpec, match="is no IP address"):
        user_spec.parse(admitted(authorization={"acls": [acl("topic", "t", "Read", host=host)]}))


def cluster(**fields: Any) -> UserCluster:
    return plan.view_cluster(PRESENT, {"spec": {"brokers": {}, **fields}})


def test_user_is_effective_where_its_cluster_asks() -> None:
    plain, secured = cluster(), cluster(**SECURED)
    listeners_only = cluster(listeners=SECURED["listeners"])
    may = user_spec.parse(admitted(authorization=rights(1, "t")))
    certified = user_spec.parse(admitted("u", "tls-external", authorization=rights(1, "t")))
    other = user_spec.parse(admitted("u", "scram-sha-256"))
    without = user_spec.parse(admitted())
    reasons = {
        (name, who): plan.effective(whose, where).reason
        for name, where in (("plain", plain), ("secured", secured), ("open", listeners_only))
        for who, whose in (("may", may), ("cert", certified), ("256", other), ("no acls", without))
    }
    assert reasons == {
        **{("plain", who): "NoListener" for who in ("may", "cert", "256", "no acls")},
        **{("secured", who): "AsListed" for who in ("may", "cert", "no acls")},
        ("secured", "256"): "NoListener",
        ("open", "may"): "NoAuthorization",
        ("open", "cert"): "NoAuthorization",
        ("open", "256"): "NoListener",
        ("open", "no acls"): "AsListed",
    }


@pytest.mark.parametrize(
    ("name", "type_", "fields", "refused"),
    [
        ("admin", "scram-sha-512", {"authorization": {"superUsers": ["User:admin"]}}, True),
        ("admin", "tls", {"authorization": {"superUsers": ["User:admin"]}}, False),
        ("admin", "tls", {"authorization": {"superUsers": ["User:CN=admin"]}}, True),
        ("ops", "tls", {"brokers": {"config": {"super.users": "User:a;User:CN=ops"}}}, True),
        ("User", "scram-sha-512", {"brokers": {"config": {"super.users": ""}}}, False),
    ],
)
def test_super_users_are_refused(
    name: str, type_: str, fields: dict[str, Any], refused: bool
) -> None:
    found = plan.refuse(user_spec.parse(admitted(name, type_)), cluster(**fields))
    assert (found is not None) == refused
    assert not refused or (found is not None and found[0].reason == "SuperUser")


def test_only_what_was_written_is_removed() -> None:
    target = Target("SCRAM-SHA-512", "word", {QuotaKey.PRODUCE: 5})
    present = {"SCRAM-SHA-256": "x", "producer_byte_rate": "5.0", "consumer_byte_rate": "7"}
    changes = plan.entry_changes(target, WrittenByUser(), present)
    assert changes.keys() == {"SCRAM-SHA-512"}
    written = WrittenByUser(("SCRAM-SHA-256",), ("consumer_byte_rate", "request_percentage"))
    changes = plan.entry_changes(target, written, present)
    assert changes.pop("SCRAM-SHA-512")
    assert changes == {"SCRAM-SHA-256": None, "consumer_byte_rate": None}


def test_the_largest_quota_that_a_spec_can_have_is_written_once() -> None:
    most = 2**63 - 1
    target = Target(quotas={QuotaKey.PRODUCE: most, QuotaKey.FETCH: 2**53 + 1})
    first = plan.entry_changes(target, WrittenByUser(), {})
    assert first["producer_byte_rate"] == str(most)
    written = {name: text for name, text in first.items() if text is not None}
    assert plan.entry_changes(target, WrittenByUser(), written) == {}


def test_reports_tell_no_secret() -> None:
    target = Target("SCRAM-SHA-512", "word-of-mouth")
    changes = plan.entry_changes(target, WrittenByUser(), {})
    told = plan.describe(changes, {}, {})
    assert told == "set SCRAM-SHA-512"
    assert "word-of-mouth" not in repr(target)


@pytest.mark.parametrize("text", ["a\nb", "a\0", "\u0085", "x" * 1025])
def test_passwords_that_clients_would_mistake_are_refused(text: str) -> None:
    meta = {"data": secret.build(META, "c", {"password": text})["data"]}
    with pytest.raises(secret.UnusableSecretError) as refused:
        secret.read_password(meta, "password")
    assert text not in str(refused.value)


def held(name: str, texts: dict[str, bytes], owner: str = "1") -> dict[str, Any]:
    """A Secret as the API server gives it out; of the User."""
    owners = [{"uid": owner}] if owner else []
    data = {key: base64.b64encode(text).decode() for key, text in texts.items()}
    meta = {"name": name, "namespace": "", "ownerReferences": owners}
    return {"kind": "Secret", "metadata": meta, "data": data}


def test_secret_that_is_no_text_any_more_is_written_again_with_the_source() -> None:
    source = {"valueFrom": {"secretKeyRef": {"name": "mine", "key": "p"}}}
    wanted = admitted(authentication={"type": "scram-sha-512", "password": source})
    kube = MemoryKube(held("mine", {"p": b"secret"}, ""), held("u", {"password": b"\xff\xfe"}))
    found = secret_step.look(context(kube), META, user_spec.parse(wanted))
    assert isinstance(found, SecretPlan)
    assert (found.password, found.is_due) == ("secret", True)


def test_authority_that_has_ended_is_a_reason() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    authority = certificates.make_authority("theirs", now - timedelta(days=3651))
    pair = {"ca.crt": authority.certificate.encode(), "ca.key": authority.key.encode()}
    wanted = user_spec.parse(admitted("u", "tls"))
    kube = MemoryKube(held(f"{wanted.cluster}-clients-ca", pair, ""))
    found = secret_step.look(context(kube, now=lambda: now), META, wanted)
    assert isinstance(found, tuple)
    assert "ended on 2025-12-31" in found[0].message


@pytest.mark.parametrize("lost", ["user.p12", "user.password", "user.crt", "ca.crt"])
def test_secret_of_a_certificate_is_made_whole_again(lost: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    authority = certificates.make_authority("theirs", now)
    pair = {"ca.crt": authority.certificate.encode(), "ca.key": authority.key.encode()}
    wanted = user_spec.parse(admitted("u", "tls"))
    kube = MemoryKube(held(f"{wanted.cluster}-clients-ca", pair, ""))
    effects = context(kube, now=lambda: now)
    made = secret_step.look(effects, META, wanted)
    assert isinstance(made, SecretPlan)
    assert made.wanted is not None
    kube.create(made.wanted)
    again = secret_step.look(effects, META, wanted)
    assert isinstance(again, SecretPlan)
    assert not again.is_due
    made.wanted["data"].pop(lost)
    again = secret_step.look(effects, META, wanted)
    assert isinstance(again, SecretPlan)
    assert again.is_due


def test_acls_of_a_pattern_that_many_users_share_are_decoded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = ResourcePattern(ResourceType.TOPIC, "shared-by-many-users")
    path, decoded, decode = acl_znodes.acl_path(shared), 0, acl_znodes.decode_acls
    entries = tuple(
        one.entry for one in user_spec.parse(admitted(authorization=rights(1, "t"))).acls
    )
    reader = MemoryZooKeeper({path: acl_znodes.encode_acls(entries)})

    def counted(path: str, data: bytes | None) -> tuple[AclEntry, ...]:
        nonlocal decoded
        decoded += 1
        return decode(path, data)

    monkeypatch.setattr(acl_znodes, "decode_acls", counted)
    for _ in range(3):
        assert user_znodes.read_acls(reader, [shared]) == {shared: entries}
    assert decoded == 1
    reader.put(path, acl_znodes.encode_acls(entries[:1]))
    assert user_znodes.read_acls(reader, [shared]) == {shared: entries[:1]}
