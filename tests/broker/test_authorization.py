"""A broker with an authorizer: every API with one set of rights after another."""

from __future__ import annotations

import dataclasses
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.handlers.dispatch import SERVED
from odradek.protocol.api import APIS
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import acls
from odradek.security.acls import AclOperation, PatternType, PermissionType, ResourceType
from tests.support import authorization_asker, zookeeper
from tests.support.asking import ADMIN, SENDER, Connection
from tests.support.authorization_asker import Asker, is_refused
from tests.support.authorization_cases import CASES, NEWER_CASES
from tests.support.authorization_effects import effects
from tests.support.broker import Broker
from tests.support.ports import free_port

CODES = Path(__file__).with_name("authorization_codes.txt")
NEWER_CODES = CODES.with_name("newer_authorization_codes.txt")
METRICS_PORT = free_port()
WITHOUT_A_RULE = {"ApiVersions", "SaslAuthenticate", "SaslHandshake"}
# Kafka 2.8.2 answers it otherwise with its own protocol between brokers, with which the codes were
# recorded: tests/handlers/test_update_features.py has its rule.
OF_THE_PROTOCOL = {"UpdateFeatures"}
GOOD = acls.AclCreation(
    resource_type=ResourceType.TOPIC,
    resource_name="good",
    resource_pattern_type=PatternType.LITERAL,
    principal="User:alice",
    host="*",
    operation=AclOperation.READ,
    permission_type=PermissionType.ALLOW,
)
ANYTHING = acls.DeleteAclsFilter(
    resource_type_filter=ResourceType.ANY,
    pattern_type_filter=PatternType.ANY,
    operation=AclOperation.ANY,
    permission_type=PermissionType.ANY,
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose administrator comes from ADMIN, and that has two topics and a group."""
    chroot = zookeeper.Chroot()
    chroot.start()
    with chroot.client() as client:
        authorization_asker.allow_administrator(client)
    settings = {
        **authorization_asker.SETTINGS,
        "odradek.metrics.port": str(METRICS_PORT),
        # Kafka 2.8 verifies no transactions.
        "transaction.partition.verification.enable": "false",
    }
    running = Broker(tmp_path_factory.mktemp("authorized"), 1, chroot.connect, settings)
    running.start()
    yield running
    running.kill()


def test_codes_are_those_of_kafka(broker: Broker) -> None:
    recorded = dict(
        line.rstrip("\n").rsplit(": ", 1) for line in CODES.read_text().splitlines(keepends=True)
    )
    asker = Asker(broker.port)
    asker.prepare()
    assert asker.results() == recorded


def test_newer_codes_are_those_of_kafka(tmp_path: Path) -> None:
    chroot = zookeeper.Chroot()
    chroot.start()
    with chroot.client() as client:
        authorization_asker.allow_administrator(client)
    running = Broker(tmp_path, 1, chroot.connect, authorization_asker.SETTINGS)
    try:
        running.start()
        asker = Asker(running.port)
        asker.prepare()
        asker.begin_transaction()
        found = [f"{case}: {codes}" for case, codes in asker.results(NEWER_CASES).items()]
    finally:
        running.kill()
        chroot.close()
    assert found == NEWER_CODES.read_text().splitlines()


def test_refused_requests_change_nothing_that_they_could(tmp_path: Path) -> None:
    with zookeeper.Chroot() as chroot:
        with chroot.client() as client:
            authorization_asker.allow_administrator(client)
        settings = {**authorization_asker.SETTINGS, "auto.create.topics.enable": "true"}
        running = Broker(tmp_path, 1, chroot.connect, settings)
        running.start()
        try:
            asker = Asker(running.port)
            asker.prepare()
            with chroot.client() as client:
                broker_epoch = client.get("/brokers/ids/1")[1].czxid
                controller_epoch = int(client.get("/controller_epoch")[0])
            stranger = Connection(running.port, SENDER)
            requests = effects(broker_epoch, controller_epoch)
            before = asker.state()
            for request, version in requests:
                answer = stranger.ask(request, version)
                assert is_refused(answer), answer
                assert asker.state() == before, type(request).__name__
            stranger.close()
            # Each of them does something for who may send it.
            for request, version in requests:
                asker.expect_change(request, version)
            asker.close()
        finally:
            running.kill()


def test_every_api_has_a_case() -> None:
    keys = {one.request: key for key, one in APIS.items()}
    tried = {keys[type(case.make("fresh"))] for case in (*CASES, *NEWER_CASES)}
    names = {served.api.name for key, served in SERVED.items() if key not in tried}
    assert names == WITHOUT_A_RULE | OF_THE_PROTOCOL


@pytest.fixture
def administrator(broker: Broker) -> Iterator[Connection]:
    """A connection that may do everything."""
    connection = Connection(broker.port, ADMIN)
    yield connection
    connection.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_name": "a/b"},
        {"resource_name": ""},
        {"resource_name": ".."},
        {"resource_name": "a\0b"},
        {"resource_name": "a\U0001f600"},
        {"resource_type": ResourceType.CLUSTER},
        {"resource_type": ResourceType.ANY},
        {"resource_type": 99},
        {"resource_pattern_type": PatternType.MATCH},
        {"resource_pattern_type": 0},
        {"operation": AclOperation.ANY},
        {"operation": -1},
        {"permission_type": PermissionType.ANY},
        {"principal": "alice"},
        {"host": ""},
    ],
)
def test_wrong_acls_are_refused_and_others_created(
    administrator: Connection, wrong: dict[str, Any]
) -> None:
    bad = dataclasses.replace(GOOD, **wrong)
    answer = administrator.ask(acls.CreateAclsRequest(creations=[bad, GOOD]), 2)
    assert [one.error_code for one in answer.results] == [ErrorCode.INVALID_REQUEST, 0]
    assert answer.results[0].error_message
    mine = dataclasses.replace(ANYTHING, principal_filter="User:alice")
    [deleted] = administrator.ask(acls.DeleteAclsRequest(filters=[mine]), 2).filter_results
    [found] = deleted.matching_acls
    assert (found.resource_name, found.error_code) == ("good", 0)


def test_wrong_filters_are_refused_and_others_count(administrator: Connection) -> None:
    wrong = dataclasses.replace(ANYTHING, operation=77)
    none = dataclasses.replace(ANYTHING, principal_filter="User:nobody")
    odd = dataclasses.replace(
        ANYTHING, resource_type_filter=ResourceType.TOPIC, resource_name_filter="a/b"
    )
    answer = administrator.ask(acls.DeleteAclsRequest(filters=[wrong, none, odd]), 2)
    codes = [(one.error_code, one.matching_acls) for one in answer.filter_results]
    assert codes == [(ErrorCode.INVALID_REQUEST, []), (0, []), (0, [])]
    described = administrator.ask(
        acls.DescribeAclsRequest(
            resource_type_filter=ResourceType.ANY,
            pattern_type_filter=9,
            operation=AclOperation.ANY,
            permission_type=PermissionType.ANY,
        ),
        2,
    )
    assert described.error_code == ErrorCode.INVALID_REQUEST


def test_denials_and_age_are_metrics_and_denials_are_logged(broker: Broker) -> None:
    sender = Connection(broker.port, SENDER)
    sender.ask(acls.CreateAclsRequest(creations=[GOOD]), 2)
    sender.close()
    url = f"http://127.0.0.1:{METRICS_PORT}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values["odradek_authorizer_denials_total"]) > 0
    assert float(values["odradek_acl_age_seconds"]) == 0
    assert "Principal = User:ANONYMOUS is Denied Operation = " in broker.log_text()
