"""Sends the cases of authorization with several sets of rights; tells the codes of the answers.

The sender is User:ANONYMOUS from another address of this machine, of which ACLs speak: nobody needs
to authenticate for that. The same works with Apache Kafka.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import acls, admin, groups, sasl
from odradek.security import acl_znodes
from odradek.security.acls import AclEntry, PermissionType, ResourcePattern
from odradek.security.acls import AclOperation as Operation
from odradek.security.acls import ResourceType as Type
from odradek.values import ANONYMOUS
from tests.support import authorization_requests as requests
from tests.support.asking import ADMIN, SENDER, Connection
from tests.support.authorization_cases import CASES, Case
from tests.support.authorization_requests import (
    CLUSTER,
    GHOST,
    GROUP,
    OTHER,
    TOPIC,
    TRANSACTIONAL_ID,
    Right,
    creations,
)
from tests.support.broker import wait_until

_FRESH = re.compile("fresh-[0-9]+-[0-9]+")


NAMES = {
    *("name", "topic", "group_id", "topic_name", "resource_name", "group"),
    *("transactional_id", "transaction_state"),
}
_DENIALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
# Fields of versions that Kafka 2.8, which is compared with, does not know.
_LATER_FIELDS = {("AddPartitionsToTxnResponse", "error_code")}


def _codes(answer: Any) -> Iterator[str]:
    """Yield what an answer says, in words that do not depend on the order of its lists."""
    if not dataclasses.is_dataclass(answer):
        return
    name, values = "", []
    for one in dataclasses.fields(answer):
        value = getattr(answer, one.name)
        if (type(answer).__name__, one.name) in _LATER_FIELDS:
            continue
        if isinstance(value, list):
            for entry in value:
                yield from (f"{one.name}.{text}" for text in _codes(entry))
        elif one.name in NAMES:
            name = value
        elif one.name.endswith(("error_code", "authorized_operations")):
            values.append(value)
    yield f"{name}={','.join(map(str, values))}"


def codes(answer: Any) -> str:
    """Return what an answer says in one line; None is a closed connection."""
    if answer is None:
        return "closed"
    return " ".join(sorted({_FRESH.sub("FRESH", text) for text in _codes(answer)}))


def is_refused(answer: Any) -> bool:
    """Return whether an answer denies all that was asked for; None is a closed connection."""
    said = [*_innermost_errors(answer)]
    return answer is None or (bool(said) and set(said) <= _DENIALS)


def _innermost_errors(answer: Any) -> Iterator[int]:
    """Yield the errors of what has no others in its lists."""
    inner: list[int] = []
    for one in dataclasses.fields(answer):
        for entry in value if isinstance(value := getattr(answer, one.name), list) else ():
            if dataclasses.is_dataclass(entry):
                inner += _innermost_errors(entry)
    if inner:
        yield from inner
    elif hasattr(answer, "error_code"):
        yield answer.error_code


class Asker:
    """Sends the cases to one broker, whose first user is the administrator."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._admin = Connection(port, ADMIN)

    def prepare(self) -> None:
        """Make two topics, and commit an offset of the group, as administrator."""
        for name in (TOPIC, OTHER):
            made = self._admin.ask(requests.create(name), 5)
            while made.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR:
                made = self._admin.ask(requests.create(name), 5)  # it knows no brokers yet
            assert made.topics[0].error_code == 0, made
        while self._admin.ask(requests.commit(), 7).topics[0].partitions[0].error_code:
            self._admin.ask(groups.FindCoordinatorRequest(key=GROUP), 3)
        while self._admin.ask(requests.find_transactional_id(TRANSACTIONAL_ID), 3).error_code:
            pass
        while (made := self._admin.ask(requests.initialize(TRANSACTIONAL_ID), 4)).error_code:
            pass
        assert (made.producer_id, made.producer_epoch) == (0, 0)

    def begin_transaction(self) -> None:
        """Leave a transaction open that has both topics, as administrator."""
        assert "=0" in codes(self._admin.ask(requests.add(TOPIC, OTHER), 3))

    def results(self, cases: Sequence[Case] = CASES) -> dict[str, str]:
        """Return the codes by case and variant."""
        found = {}
        for number, case in enumerate(cases):
            if case.name == "OffsetDelete":
                self._admin.ask(requests.commit(), 7)
            for turn in range(9):
                fresh = f"fresh-{number}-{turn}"
                variants = dict(enumerate(case.variants(fresh)))
                if turn not in variants:
                    break
                said, rights = variants[turn]
                found[f"{case.name}, with {said}"] = self._one(case, fresh, rights)
            if case.name == "EndTxn":
                while (
                    self._admin.ask(requests.end(), 3).error_code
                    == ErrorCode.CONCURRENT_TRANSACTIONS
                ):
                    pass  # its markers are being written
        self._admin.close()
        return found

    def state(self) -> list[str]:
        """Return what requests could have changed: topics, records and where they are on disk,
        offsets, groups, configs, ACLs, quotas, users and moves.
        """
        everything = acls.DescribeAclsRequest(
            resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
        )
        told = self._admin.ask(requests.topic_metadata(None), 9)
        return [
            *sorted(f"{one.name}: {len(one.partitions)}" for one in told.topics),
            *(
                str(self._admin.ask(request, version))
                for request, version in (
                    (requests.latest_offsets(), 5),
                    (requests.listed_offsets(-2), 5),
                    (requests.committed(None), 7),
                    (groups.ListGroupsRequest(), 4),
                    (everything, 2),
                    (requests.described_configs(2, TOPIC), 3),
                    (requests.described_configs(4, "1", "log.retention.ms"), 3),
                    (requests.directories(TOPIC, OTHER, GHOST), 1),
                    (requests.every_quota(), 0),
                    (sasl.DescribeUserScramCredentialsRequest(users=None), 0),
                    (admin.ListPartitionReassignmentsRequest(), 0),
                )
            ),
        ]

    def expect_change(self, request: Any, version: int) -> None:
        """Send a request as administrator, and wait until it has changed something.

        It comes on the newest connection: a broker takes no request of a controller on an older
        one than the controller's own.
        """
        before = self.state()
        newest = Connection(self._port, ADMIN)
        answer = newest.ask(request, version)
        newest.close()
        wait_until(lambda: self.state() != before, f"something is changed: {answer}")

    def close(self) -> None:
        """End the connection."""
        self._admin.close()

    def _one(self, case: Case, fresh: str, rights: tuple[Right, ...]) -> str:
        created = self._admin.ask(acls.CreateAclsRequest(creations=creations(rights)), 2)
        assert not any(one.error_code for one in created.results), created
        sender = Connection(self._port, SENDER)
        before = self.state()
        answer = sender.ask(case.make(fresh), case.version)
        after = self.state()
        if not rights or is_refused(answer):
            assert after == before, f"{case.name} without a right did something"
        sender.close()
        if any(fresh in text and "=5," in text for text in _codes(answer)):
            # It is being created; the next case must not find it half done.
            while self._admin.ask(requests.topic_metadata([fresh]), 9).topics[0].error_code:
                pass
        self._admin.ask(
            acls.DeleteAclsRequest(
                filters=[
                    acls.DeleteAclsFilter(
                        resource_type_filter=1,
                        pattern_type_filter=1,
                        host_filter=SENDER,
                        operation=1,
                        permission_type=1,
                    )
                ]
            ),
            2,
        )
        return codes(answer)


SETTINGS = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "zookeeper.session.timeout.ms": "30000",
}


def allow_administrator(client: Any) -> None:
    """Let whoever comes from ADMIN do everything, in the ZooKeeper of brokers to be started."""
    entry = AclEntry(ANONYMOUS, PermissionType.ALLOW, Operation.ALL, ADMIN)
    for kind, name in (
        (Type.CLUSTER, CLUSTER),
        (Type.TOPIC, "*"),
        (Type.GROUP, "*"),
        (Type.TRANSACTIONAL_ID, "*"),
    ):
        path = acl_znodes.acl_path(ResourcePattern(kind, name))
        client.create(path, acl_znodes.encode_acls([entry]), makepath=True)
