"""How brokers come to authenticate to ZooKeeper, and what Secrets may say, without any server."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)

from odradek import zookeeper_settings
from odradek.zk import access_files
from odradek_operator.cluster import zookeeper_plan, zookeeper_step
from odradek_operator.cluster.rollout import BrokerPod, ClusterView
from odradek_operator.cluster.zookeeper_plan import ZooKeeperPlan, ZooKeeperStep
from odradek_operator.shared import certificates, zookeeper_credentials, zookeeper_login
from odradek_operator.shared.spec import ResourceMeta
from odradek_operator.shared.zookeeper_credentials import (
    UnusableCredentialsError,
    ZooKeeperCredentials,
)

NOW = datetime.now(UTC)
NOBODY, LOGIN, SECURING = ZooKeeperPlan(), ZooKeeperPlan(("a",)), ZooKeeperPlan(("a",), True)
OTHER, BOTH = ZooKeeperPlan(("b",), True), ZooKeeperPlan(("a", "b"), True)
OPEN, CLOSED = {"/brokers": False}, {"/brokers": True}


def step(
    applied: ZooKeeperPlan | None,
    wanted: ZooKeeperPlan,
    secured: dict[str, bool] | None,
    *,
    settled: bool = True,
    alive: bool = True,
) -> ZooKeeperStep:
    return zookeeper_plan.next_step(applied, wanted, settled=settled, alive=alive, secured=secured)


def test_brokers_secure_znodes_once_all_of_them_have_the_login() -> None:
    assert step(None, SECURING, OPEN).plan == SECURING
    first = step(NOBODY, SECURING, OPEN)
    assert first.plan == LOGIN
    assert first.waits
    assert step(LOGIN, SECURING, OPEN, settled=False).plan == LOGIN
    assert step(LOGIN, SECURING, OPEN).plan == SECURING
    assert step(SECURING, LOGIN, CLOSED, settled=False).plan == LOGIN


def test_brokers_that_would_be_locked_out_stay_who_they_are() -> None:
    for wanted in (NOBODY, OTHER):
        assert "setAcl to false" in step(SECURING, wanted, CLOSED).refused
        assert "/brokers are secured" in step(LOGIN, wanted, CLOSED).refused
        # Nobody can tell whether they would be.
        assert step(LOGIN, wanted, None).refused
        assert step(LOGIN, wanted, CLOSED).plan == LOGIN
    assert step(LOGIN, NOBODY, OPEN) == ZooKeeperStep(NOBODY)
    assert step(LOGIN, OTHER, OPEN).plan == ZooKeeperPlan(("b",))
    # One that has the former identity too is let in.
    assert step(SECURING, BOTH, CLOSED).plan == BOTH
    # Who may not create below the root makes no controller.
    assert "/ are secured" in step(LOGIN, OTHER, {"/": True, "/brokers": False}).refused


def test_a_login_that_never_worked_can_be_replaced_at_once() -> None:
    assert step(SECURING, OTHER, {}, settled=False, alive=False) == ZooKeeperStep(OTHER)
    # Somebody made the chroot for a login of theirs, and no broker was ever let in.
    made = step(SECURING, OTHER, {"/": True}, settled=False, alive=False)
    assert made == ZooKeeperStep(OTHER)
    assert step(SECURING, OTHER, CLOSED, settled=False, alive=False).refused


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"ids": 3}'])
def test_an_annotation_that_somebody_edited_counts_as_open(text: str) -> None:
    edited = {"metadata": {"annotations": {zookeeper_plan.ANNOTATION: text}}}
    assert zookeeper_plan.applied_plan(edited) == NOBODY
    kept = {"metadata": {"annotations": {zookeeper_plan.ANNOTATION: zookeeper_plan.encode(BOTH)}}}
    assert zookeeper_plan.applied_plan(kept) == BOTH


def test_condition_says_what_is_open() -> None:
    here = ZooKeeperStep(SECURING)
    marks = [zookeeper_plan.stamp(SECURING)] * 2

    def reason(secured: dict[str, bool] | None, marks: list[str] = marks) -> str:
        judged = zookeeper_plan.judge(SECURING, here, marks, secured, tls=True, command="")
        return judged.reason

    assert reason(CLOSED) == "Secured"
    assert reason({"/brokers": True, "/config": False}) == "OpenZnodes"
    # The controller's znode is not secured as long as everybody may delete it.
    assert reason({"/": False, "/brokers": True, "/controller": True}) == "OpenZnodes"
    assert reason(None) == "ZooKeeperUnreachable"
    assert reason(CLOSED, [marks[0], "former"]) == "Rolling"
    anonymous = zookeeper_plan.judge(
        NOBODY, ZooKeeperStep(NOBODY), [], CLOSED, tls=True, command=""
    )
    assert (anonymous.status, anonymous.reason) == (False, "NoAuthentication")


def brokers(*ready: bool) -> ClusterView:
    mark = zookeeper_plan.stamp(SECURING)
    pods = (
        BrokerPod(number, f"main-broker-{number}", None, None, None, one, True, zookeeper=mark)
        for number, one in enumerate(ready)
    )
    return ClusterView(tuple(pods), 0, None, None)


@pytest.mark.parametrize(
    ("authority", "inside"),
    [
        ("", "odradek zookeeper secure --zookeeper zk:2182/logs"),
        (
            "a certificate",
            "sh -c 'grep ^zookeeper.ssl /etc/odradek/server.properties >/tmp/zookeeper.properties; "
            "odradek zookeeper secure --zookeeper zk:2182/logs "
            "--zk-tls-config-file /tmp/zookeeper.properties'",
        ),
    ],
)
def test_condition_has_the_command_that_secures_znodes_of_before(
    authority: str, inside: str
) -> None:
    state = zookeeper_step.ZooKeeperState(
        ZooKeeperStep(SECURING),
        SECURING,
        ZooKeeperCredentials("kafka", "secret", authority),
        {"/brokers": True, "/config": False, "/admin": False},
    )
    meta = ResourceMeta("KafkaCluster", "shop", "main", "uid", 1, NOW, None, has_finalizer=True)
    (condition,) = state.condition(brokers(False, True), meta, "zk:2182/logs")
    assert condition.message == (
        f"everybody may change /admin, /config: run kubectl exec -n shop main-broker-1 -- {inside}"
    )


# --- Secrets --------------------------------------------------------------------------------------


def secret(**texts: str | bytes) -> dict[str, object]:
    raw = {
        key.replace("__", "."): one if isinstance(one, bytes) else one.encode()
        for key, one in texts.items()
    }
    return {"data": {key: base64.b64encode(one).decode() for key, one in raw.items()}}


AUTHORITY = certificates.make_authority("zookeeper-ca", NOW)
PAIR = certificates.sign_client(AUTHORITY, certificates.subject("brokers"), NOW)
ENDED = certificates.sign_client(
    AUTHORITY, certificates.subject("brokers"), NOW - timedelta(days=200)
)


def store(password: str) -> bytes:
    return pkcs12.serialize_key_and_certificates(
        b"brokers",
        load_pem_private_key(PAIR.key.encode(), None),  # type: ignore[arg-type]
        x509.load_pem_x509_certificate(PAIR.certificate.encode()),
        None,
        BestAvailableEncryption(password.encode()),
    )


@pytest.mark.parametrize(
    "texts",
    [
        {"user__crt": PAIR.certificate, "user__key": PAIR.key},
        {"tls__crt": PAIR.certificate, "tls__key": PAIR.key},
        {"user__p12": store("word"), "user__password": "word"},
    ],
    ids=["user.crt", "tls.crt", "user.p12"],
)
def test_each_form_of_a_certificate_is_the_same_to_zookeeper(
    texts: dict[str, str | bytes], tmp_path: Path
) -> None:
    found = zookeeper_credentials.read(secret(**texts, ca__crt=AUTHORITY.certificate), NOW)
    assert found.subject == "CN=brokers"
    assert found.tls
    for name, text in zookeeper_credentials.files(found).items():
        (tmp_path / name).write_text(text)
    access = access_files.of_folder(tmp_path)
    assert access.context is not None
    assert access.context().get_ca_certs()[0]["subject"] == ((("commonName", "zookeeper-ca"),),)
    settings = zookeeper_credentials.broker_settings(found, set_acl=True)
    moved = {
        name: text.replace(zookeeper_credentials.MOUNT, str(tmp_path))
        for name, text in settings.items()
    }
    assert zookeeper_settings.read(moved, {}).authenticates


@pytest.mark.parametrize("ca", [AUTHORITY.certificate, ""], ids=["of the Secret", "of the image"])
def test_clients_without_a_login_use_tls_as_brokers_do(ca: str, tmp_path: Path) -> None:
    texts = {"user__crt": PAIR.certificate, "user__key": PAIR.key}
    found = zookeeper_credentials.read(secret(**texts, **({"ca__crt": ca} if ca else {})), NOW)
    for name, text in zookeeper_credentials.trust_files(found).items():
        (tmp_path / name).write_text(text)
    access = access_files.of_folder(tmp_path)
    assert access.context is not None
    trusted = access.context().get_ca_certs()
    assert (len(trusted) == 1) is bool(ca)
    assert zookeeper_credentials.trust_files(ZooKeeperCredentials("kafka", "word")) == {}


@pytest.mark.parametrize("word", ['qu"ote', "back\\slash", "sp ace; }", "κάφκα", "a" * 1024])
def test_login_survives_the_way_through_the_file(word: str, tmp_path: Path) -> None:
    found = zookeeper_credentials.read(secret(username=word, password=word), NOW)
    for name, text in zookeeper_credentials.files(found).items():
        (tmp_path / name).write_text(text)
    access = access_files.of_folder(tmp_path)
    assert access.context is None
    assert access.login is not None
    assert (access.login().username, access.login().password) == (word, word)
    assert "password" not in repr(found)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ({}, "neither username and password"),
        ({"username": "kafka"}, "username and no password"),
        ({"password": "s3cret"}, "password and no username"),
        ({"username": "kafka", "password": "s3cret\n"}, "password has a line break"),
        ({"username": "k" * 1025, "password": "s3cret"}, "username is longer"),
        ({"username": "kafka", "password": b"s3cret\xff"}, "password is not UTF-8"),
        ({"ca__crt": "s3cret"}, "ca.crt: it has no certificate"),
        ({"user__crt": PAIR.certificate}, "it has no user.key"),
        ({"tls__key": PAIR.key}, "it has no tls.crt"),
        ({"user__crt": PAIR.certificate, "user__key": AUTHORITY.key}, "does not fit"),
        ({"user__crt": ENDED.certificate, "user__key": ENDED.key}, "ended on"),
        ({"user__p12": store("word"), "user__password": "s3cret"}, "is not its password"),
        ({"user__p12": b"s3cret"}, "user.p12 is no PKCS12"),
    ],
)
def test_unusable_secret_is_told_without_what_is_secret(
    texts: dict[str, str | bytes], why: str
) -> None:
    with pytest.raises(UnusableCredentialsError, match=why) as caught:
        zookeeper_credentials.read(secret(**texts), NOW)
    assert "s3cret" not in str(caught.value)


def test_another_password_is_the_same_identity_and_another_user_is_none() -> None:
    def ids(**texts: str) -> tuple[str, ...]:
        return zookeeper_credentials.read(secret(**texts), NOW).ids

    assert ids(username="kafka", password="a") == ids(username="kafka", password="b")
    assert ids(username="kafka", password="a") != ids(username="other", password="a")
    assert ids(ca__crt=AUTHORITY.certificate) == ()


def test_a_login_that_the_spec_has_no_more_holds_nothing_up() -> None:
    """It may have been taken out before there was a StatefulSet, as while a certificate is missing.

    Only whole statuses lose fields, and the pass ends before it writes one.
    """
    former = {"status": {zookeeper_login.REMEMBERED: {"setAcl": True}}}
    assert zookeeper_step.ZooKeeperState().is_remembered(former)
