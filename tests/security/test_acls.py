"""ACLs as values: their znodes, and decisions that a table by chance would seldom show."""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Callable

import pytest

from odradek.security import acl_znodes, decisions
from odradek.security.acls import (
    AclEntry,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from odradek.security.decisions import Acls, plain_host
from odradek.values import Principal, parse_principal
from odradek.zk.payload import ZnodeError
from tests.support import steps

ALICE = Principal("User", "alice")
READ = AclEntry(ALICE, PermissionType.ALLOW, AclOperation.READ)
ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")
APP = ResourcePattern(ResourceType.GROUP, "app-", PatternType.PREFIXED)
PAYLOAD = (
    b'{"version":1,"acls":[{"principal":"User:alice","permissionType":"Allow",'
    b'"operation":"IdempotentWrite","host":"*"}]}'
)


LONG = b"Topic:" + b"t" * 32768


def test_payload_and_paths_are_those_of_kafka() -> None:
    entry = AclEntry(ALICE, PermissionType.ALLOW, AclOperation.IDEMPOTENT_WRITE)
    assert acl_znodes.encode_acls([entry]) == PAYLOAD
    assert acl_znodes.decode_acls("/p", PAYLOAD) == (entry,)
    assert acl_znodes.acl_path(ORDERS) == "/kafka-acl/Topic/orders"
    assert acl_znodes.acl_path(APP) == "/kafka-acl-extended/prefixed/Group/app-"
    paths = acl_znodes.persistent_paths()
    assert "/kafka-acl/TransactionalId" in paths
    assert "/kafka-acl-extended/prefixed/DelegationToken" in paths


def test_names_in_znodes_are_read_in_any_case_and_entries_once() -> None:
    one = json.loads(PAYLOAD)["acls"][0]
    shouted = {**one, "permissionType": "ALLOW", "operation": "IDEMPOTENT_WRITE"}
    data = json.dumps({"version": 1, "acls": [one, shouted]}).encode()
    assert len(acl_znodes.decode_acls("/p", data)) == 1
    assert acl_znodes.decode_acls("/p", b"") == ()


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"{",
        b'{"version":2,"acls":[]}',
        b'{"version":1}',
        b'{"version":1,"acls":[7]}',
        PAYLOAD.replace(b"Allow", b"Perhaps"),
        PAYLOAD.replace(b"IdempotentWrite", b"Any"),
        PAYLOAD.replace(b"User:alice", b"alice"),
        PAYLOAD.replace(b'"host"', b'"hosts"'),
        # No answer can hold them.
        PAYLOAD.replace(b'"*"', b'"%s"' % (b"h" * 32768)),
        PAYLOAD.replace(b"alice", b"a" * 32763),
    ],
)
def test_payloads_that_say_something_else_are_errors(data: bytes) -> None:
    with pytest.raises(ZnodeError):
        acl_znodes.decode_acls("/p", data)


@pytest.mark.parametrize("pattern", [ORDERS, APP, ResourcePattern(ResourceType.TOPIC, "a:b")])
def test_notice_names_the_pattern(pattern: ResourcePattern) -> None:
    notice = acl_znodes.change_notice(pattern)
    assert acl_znodes.decode_change(f"{notice.path}0000000007", notice.data) == pattern


def test_notice_of_old_brokers_is_read() -> None:
    path = "/kafka-acl-changes/acl_changes_0000000001"
    assert acl_znodes.decode_change(path, b"Topic:orders") == ORDERS


@pytest.mark.parametrize(
    "data", [b"", b"orders", b"Any:x", b"Topic:", b"Topic:..", b"Topic:a/b", LONG]
)
def test_notices_that_name_no_resource_are_errors(data: bytes) -> None:
    with pytest.raises(ZnodeError):
        acl_znodes.decode_change("/kafka-acl-changes/acl_changes_0000000001", data)


def test_principal_without_a_name_does_not_make_the_others_unreadable() -> None:
    """Kafka's tools write it where the variable of a script is empty."""
    one = json.loads(PAYLOAD)["acls"][0]
    data = json.dumps({"version": 1, "acls": [{**one, "principal": "User:"}, one]}).encode()
    nobody, alice = acl_znodes.decode_acls("/p", data)
    assert (nobody.principal, alice.principal) == (Principal("User", ""), ALICE)


@pytest.mark.parametrize("text", ["", "alice", ":alice", "User:", "User"])
def test_principal_without_type_or_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no principal"):
        parse_principal(text)


def test_colons_belong_to_the_name_of_a_principal() -> None:
    assert parse_principal("User:CN=a,O=b:c") == Principal("User", "CN=a,O=b:c")


def _read(acls: Acls, host: str = "h", name: str = "orders") -> bool:
    return acls.allow(ALICE, host, AclOperation.READ, ResourceType.TOPIC, name)


def test_changed_acls_change_a_decision_that_is_remembered() -> None:
    acls = Acls()
    assert not _read(acls)
    acls.set(ORDERS, [READ])
    assert _read(acls)
    acls.set(ORDERS, [])
    assert not _read(acls)


def test_address_may_be_written_in_both_ways() -> None:
    acls = Acls()
    acls.set(ORDERS, [READ._replace(host="fe80::1")])
    assert _read(acls, plain_host("fe80:0:0:0:0:0:0:1"))
    assert not _read(acls, plain_host("fe80::2"))
    assert plain_host("::ffff:10.1.2.3") == "10.1.2.3"


def test_made_up_names_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "MOST_DECISIONS", 10)
    acls = Acls()
    acls.set(ORDERS, [READ])
    for number in range(35):
        assert not _read(acls, name=f"made-up-{number}")
    assert len(acls._decisions) <= 10
    assert _read(acls)


def _calls(work: Callable[[], object]) -> int:
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_cost_of_a_decision_does_not_depend_on_other_acls() -> None:
    """Counted in calls of Python functions, as time is not the same twice."""
    few, many = Acls(), Acls()
    for acls, count in ((few, 10), (many, 5000)):
        for number in range(count):
            name = f"{number:04}-other"
            acls.set(ResourcePattern(ResourceType.TOPIC, name), [READ])
            acls.set(ResourcePattern(ResourceType.TOPIC, name, PatternType.PREFIXED), [READ])
        acls.set(ORDERS, [READ])
    assert _calls(lambda: _read(few)) == _calls(lambda: _read(many))


def test_removed_prefix_is_looked_for_no_more() -> None:
    acls = Acls()
    longer = ResourcePattern(ResourceType.TOPIC, "ord", PatternType.PREFIXED)
    acls.set(longer, [READ])
    assert _read(acls)
    acls.set(longer, [])
    assert not _read(acls)
    assert not list(acls.patterns())


def test_exact_patterns_of_a_filter() -> None:
    topic = AclFilter(ResourceType.TOPIC, "orders")
    assert topic.exact_patterns() == (
        ORDERS,
        ORDERS._replace(pattern_type=PatternType.PREFIXED),
    )
    assert topic._replace(pattern_type=PatternType.LITERAL).exact_patterns() == (ORDERS,)
    assert topic._replace(pattern_type=PatternType.MATCH).exact_patterns() == ()
    assert topic._replace(name=None).exact_patterns() == ()


def test_hosts_do_not_matter_for_what_somebody_may_be_allowed() -> None:
    acls = Acls()
    acls.set(ORDERS, [READ._replace(host="10.0.0.1")])
    asked = (ALICE, AclOperation.DESCRIBE, ResourceType.TOPIC)
    assert acls.may_allow(*asked, "orders")
    assert not acls.may_allow(*asked, "others")


class Name(str):
    """A name that tells whether anybody keeps it."""

    __slots__ = ("__weakref__",)


def test_long_made_up_names_are_not_remembered() -> None:
    acls, kept = Acls(), []
    for text in ("orders", "x" * 30_000):
        name = Name(text)
        acls.allow(ALICE, "h", AclOperation.READ, ResourceType.TOPIC, name)
        kept.append(weakref.ref(name))
        del name
    assert [one() is not None for one in kept] == [True, False]


def test_removal_of_one_prefix_looks_at_no_other() -> None:
    def with_prefixes(count: int) -> Acls:
        acls = Acls()
        for number in range(count):
            prefix = ResourcePattern(ResourceType.GROUP, f"{number:04}-", PatternType.PREFIXED)
            acls.set(prefix, [READ])
        acls.set(APP, [READ])
        return acls

    few, many = (with_prefixes(count) for count in (10, 500))
    assert steps.count(few.set, APP, ()) == steps.count(many.set, APP, ())
    ten = ResourcePattern(ResourceType.GROUP, "0010-", PatternType.PREFIXED)
    assert many.allow(ALICE, "h", AclOperation.READ, ResourceType.GROUP, "0010-x")
    many.set(ten, ())
    assert not many.allow(ALICE, "h", AclOperation.READ, ResourceType.GROUP, "0010-x")
    assert many.allow(ALICE, "h", AclOperation.READ, ResourceType.GROUP, "0011-x")
