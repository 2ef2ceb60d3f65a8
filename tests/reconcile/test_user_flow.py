"""Users through the real operator process, the real API server and the real ZooKeeper."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import pkcs12
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from odradek.quotas.entities import QuotaKey
from odradek.security.acls import (
    AclEntry,
    AclOperation,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from odradek.values import Principal
from odradek.zk import znodes
from odradek_operator.shared import certificates, user_znodes, zookeeper
from tests.reconcile import users
from tests.reconcile.conftest import Operator, Place, once_reachable
from tests.reconcile.users import MECHANISM, SECURED, acl, by_secret, secret, user
from tests.support import zookeeper as server
from tests.support.apiserver import ApiServer
from tests.support.kubectl import eventually

NAMESPACE = "users"


class Users(Place):
    """A namespace with a secured cluster, and an operator that looks at its Users often."""

    operator: Operator
    # A session as the operator's, for writes of other people.
    theirs: zookeeper.ZooKeeper


@pytest.fixture(scope="module")
def place(
    api: ApiServer, zk: server.Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Users]:
    api.create_namespace(NAMESPACE)
    pool = zookeeper.Pool(lambda: None)
    theirs = once_reachable(lambda: pool.get(f"{zk.connect}/{NAMESPACE}"))
    theirs.ensure(())
    with zk.client(f"/{NAMESPACE}") as client:
        made = Users(api, zk, client, NAMESPACE)
        made.theirs = theirs
        made.kubectl.apply(
            {
                "apiVersion": "odradek.io/v1alpha1",
                "kind": "KafkaCluster",
                "metadata": {"name": "main"},
                "spec": {
                    "zookeeper": {"connect": zk.connect, "chroot": f"/{NAMESPACE}"},
                    "brokers": {"replicas": 3},
                    **SECURED,
                },
            }
        )
        log = tmp_path_factory.mktemp("users") / "operator.log"
        often = ("tests.reconcile.frequent_users",)
        with Operator(api, NAMESPACE, log, "operator-0", modules=often) as made.operator:
            yield made
        text = log.read_text()
        print(text)
        assert "Traceback" not in text
        assert "salt=" not in text
    pool.close()


def orders(name: str, operation: AclOperation) -> AclEntry:
    return AclEntry(Principal("User", name), PermissionType.ALLOW, operation)


ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")
ORDERS_PATH = "/kafka-acl/Topic/orders"


def test_user_whose_znode_others_have_secured_is_told_so_and_made_once_it_is_open(
    place: Users,
) -> None:
    path = user_znodes.user_path("locked")
    place.client.ensure_path(znodes.CONFIG_CHANGES_PATH)
    place.client.create(path, znodes.encode_config({}), makepath=True)
    place.client.set_acls(path, [make_acl("world", "anyone", read=True, admin=True)])
    place.kubectl.apply(user("locked"))
    refused = place.wait_for("user", "locked", "ZooKeeperRefuses")
    assert path in refused["message"]
    place.client.set_acls(path, OPEN_ACL_UNSAFE)
    place.wait_for("user", "locked", "Synced")
    assert users.has_password(place, "locked", secret(place, "locked")["password"])


def test_user_has_a_secret_rights_and_quotas_and_takes_only_its_own_along(place: Users) -> None:
    by_hand = orders("shop", AclOperation.DELETE)
    user_znodes.update_acls(place.theirs, ORDERS, [by_hand])
    user_znodes.set_quotas(place.theirs, "shop", {QuotaKey.FETCH: 77})
    wanted = user(
        "shop",
        authorization={
            "acls": [
                acl("topic", "orders", "Read", "Write"),
                {
                    "resource": {"type": "group", "name": "shop-", "patternType": "prefix"},
                    "operations": ["Read"],
                    "host": "10.0.0.1",
                    "type": "deny",
                },
                {"resource": {"type": "cluster"}, "operations": ["IdempotentWrite"]},
            ]
        },
        quotas={"producerByteRate": 1024, "requestPercentage": 12.5},
    )
    place.kubectl.apply(wanted)
    ready = place.wait_for("user", "shop", "Synced")
    assert (ready["status"], ready["message"]) == ("True", "")
    assert place.kubectl.condition("user", "shop", "Effective")["status"] == "True"
    held = secret(place, "shop")
    assert users.has_password(place, "shop", held["password"])
    assert held == {
        "password": held["password"],
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="shop" password="{held["password"]}";',
    }
    body = place.kubectl.get("user", "shop")
    assert (body["status"]["username"], body["status"]["secret"]) == ("shop", "shop")
    assert body["metadata"]["finalizers"] == ["odradek.io/finalizer"]
    (owner,) = place.kubectl.get("secret", "shop")["metadata"]["ownerReferences"]
    assert owner["uid"] == body["metadata"]["uid"]
    kept = users.entries(place, "shop")
    del kept[MECHANISM]
    quotas = {"producer_byte_rate": "1024", "request_percentage": "12.5"}
    assert kept == {**quotas, "consumer_byte_rate": "77"}
    (found,) = user_znodes.read_acls(place.theirs, [ORDERS]).values()
    wrote = (orders("shop", AclOperation.READ), orders("shop", AclOperation.WRITE))
    assert found == (by_hand, *wrote)
    denied = json.loads(users.acls(place, "/kafka-acl-extended/prefixed/Group/shop-"))
    assert denied["acls"] == [
        {
            "principal": "User:shop",
            "permissionType": "Deny",
            "operation": "Read",
            "host": "10.0.0.1",
        }
    ]
    assert users.acls(place, "/kafka-acl/Cluster/kafka-cluster")
    eventually(lambda: place.events("UserCreated"), "an Event", pause_s=0.2)

    # Fewer rights, other quotas, another mechanism.
    place.kubectl.apply(
        user(
            "shop",
            "scram-sha-256",
            authorization={"acls": [acl("topic", "orders", "Read")]},
            quotas={"producerByteRate": 2048},
        )
    )
    place.wait_for("user", "shop", "Synced")
    assert user_znodes.read_acls(place.theirs, [ORDERS])[ORDERS] == (by_hand, wrote[0])
    assert users.acls(place, "/kafka-acl-extended/prefixed/Group/shop-") == ""
    # The lag exporter has a right there, too.
    assert "User:shop" not in users.acls(place, "/kafka-acl/Cluster/kafka-cluster")
    kept = users.entries(place, "shop")
    assert users.has_password(place, "shop", held["password"], "SCRAM-SHA-256")
    assert kept.keys() == {"SCRAM-SHA-256", "producer_byte_rate", "consumer_byte_rate"}
    assert kept["producer_byte_rate"] == "2048"

    users.delete(place, "user", "shop")
    place.kubectl("wait", "--for=delete", "user/shop", "--timeout=120s")
    assert users.entries(place, "shop") == {"consumer_byte_rate": "77"}
    assert user_znodes.read_acls(place.theirs, [ORDERS])[ORDERS] == (by_hand,)
    eventually(lambda: place.events("UserDeleted"), "an Event", pause_s=0.2)


def test_password_of_secret_and_znode_agree_whoever_changes_them(place: Users) -> None:
    place.kubectl.apply(user("agree"))
    first = users.agreed(place, "agree")
    # Edited by hand: taken.
    users.make_secret(place, "agree", password='a "quoted" \\ word')
    assert users.agreed(place, "agree", other_than=first) == 'a "quoted" \\ word'
    eventually(
        lambda: (
            'password="a \\"quoted\\" \\\\ word";' in secret(place, "agree")["sasl.jaas.config"]
        ),
        "the line for JAAS",
        pause_s=0.2,
    )
    # Deleted: made anew.
    users.delete(place, "secret", "agree")
    second = users.agreed(place, "agree", other_than=first)
    assert second not in (first, 'a "quoted" \\ word')
    # Written to ZooKeeper by somebody else: mended, and said.
    user_znodes.set_password(place.theirs, "agree", MECHANISM, "forged")
    assert users.agreed(place, "agree") == second
    eventually(
        lambda: [one for one in place.events("UserRestored") if MECHANISM in one["message"]],
        "an Event",
        pause_s=0.2,
    )
    user_znodes.delete_credentials(place.theirs, "agree")
    assert users.agreed(place, "agree") == second


def test_password_of_the_users_own_secret_is_followed(place: Users) -> None:
    place.kubectl.apply(user("own", authentication=by_secret("vault", "word")))
    told = place.wait_for("user", "own", "InvalidPassword")
    assert told["message"] == "no Secret vault"
    users.make_secret(place, "vault", other="x")
    eventually(
        lambda: place.kubectl.condition("user", "own")["message"] == "Secret vault has no word",
        "the key that lacks",
        pause_s=0.2,
    )
    users.make_secret(place, "vault", word="first\n")
    eventually(
        lambda: "line break" in place.kubectl.condition("user", "own")["message"],
        "the line break",
        pause_s=0.2,
    )
    assert users.entries(place, "own") == {}
    users.make_secret(place, "vault", word="first")
    place.wait_for("user", "own", "Synced")
    assert users.agreed(place, "own") == "first"
    users.make_secret(place, "vault", word="second")
    assert users.agreed(place, "own", other_than="first") == "second"
    # Without its source the user keeps what it has.
    users.delete(place, "secret", "vault")
    place.wait_for("user", "own", "InvalidPassword")
    assert users.has_password(place, "own", "second")
    place.kubectl.apply(user("itself", authentication=by_secret("itself")))
    told = place.wait_for("user", "itself", "InvalidPassword")
    assert "is the one that the operator writes" in told["message"]


def test_rights_that_others_removed_come_back(place: Users) -> None:
    wanted = user("lost", authorization={"acls": [acl("topic", "lost", "Read")]})
    place.kubectl.apply({**wanted, "spec": {**wanted["spec"], "quotas": {"consumerByteRate": 9}}})
    place.wait_for("user", "lost", "Synced")
    pattern = ResourcePattern(ResourceType.TOPIC, "lost")
    entry = orders("lost", AclOperation.READ)
    user_znodes.update_acls(place.theirs, pattern, (), [entry])
    user_znodes.set_quotas(place.theirs, "lost", {})
    eventually(
        lambda: user_znodes.read_acls(place.theirs, [pattern])[pattern] == (entry,),
        "the ACL",
        pause_s=0.2,
    )
    eventually(
        lambda: users.entries(place, "lost").get("consumer_byte_rate") == "9",
        "the quota",
        pause_s=0.2,
    )
    eventually(
        lambda: [one for one in place.events("UserRestored") if "lost" in one["message"]],
        "an Event",
        pause_s=0.2,
    )


def test_what_cannot_be_is_said_and_nothing_is_written(place: Users) -> None:
    users.make_secret(place, "taken", password="of-somebody-else")
    place.kubectl.apply(
        user("taken"),
        user("admin"),
        user("nowhere", authorization={"acls": [acl("topic", "t", "Read", host="1.2.3")]}),
        {**user("lonely"), "spec": {**user("lonely")["spec"], "clusterRef": {"name": "other"}}},
        {**user("waits"), "spec": {**user("waits")["spec"], "paused": True}},
    )
    told = place.wait_for("user", "taken", "SecretInUse")
    assert told["message"] == (
        "Secret taken exists and does not belong to this User: delete or rename it, or give the "
        "User another name"
    )
    place.wait_for("user", "admin", "SuperUser")
    place.wait_for("user", "nowhere", "InvalidAcl")
    place.wait_for("user", "lonely", "ClusterNotFound")
    place.wait_for("user", "waits", "Paused")
    assert place.kubectl.condition("user", "waits", "Paused")["status"] == "True"
    assert secret(place, "taken") == {"password": "of-somebody-else"}
    for name in ("taken", "admin", "nowhere", "lonely", "waits"):
        assert users.entries(place, name) == {}
        if name != "taken":
            assert secret(place, name) == {}
    # Nothing holds them up.
    for name in ("taken", "admin", "nowhere", "lonely", "waits"):
        users.delete(place, "user", name)
        place.kubectl("wait", "--for=delete", f"user/{name}", "--timeout=120s")


def test_certificate_is_of_the_clients_authority_and_signed_anew_with_it(place: Users) -> None:
    rights = {"acls": [acl("topic", "seen", "Read")]}
    place.kubectl.apply(user("seen", "tls", authorization=rights), user("abroad", "tls-external"))
    # The operator makes an authority for the cluster; somebody replaces it twice.
    for number in range(2):
        authority = certificates.make_authority(f"clients-{number}", datetime.now(UTC))
        pair = {"ca.crt": authority.certificate, "ca.key": authority.key}
        users.make_secret(place, "main-clients-ca", **pair)

        def is_signed(authority: certificates.Pair = authority) -> dict[str, str]:
            held = secret(place, "seen")
            assert held.get("ca.crt") == authority.certificate
            return held

        held = eventually(is_signed, "a certificate of this authority", pause_s=0.2)
        issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
        own = x509.load_pem_x509_certificate(held["user.crt"].encode())
        own.verify_directly_issued_by(issuer)
        assert own.subject.rfc4514_string() == "CN=seen"
        raw = place.kubectl.get("secret", "seen")["data"]["user.p12"]
        store = pkcs12.load_pkcs12(base64.b64decode(raw), held["user.password"].encode())
        assert store.cert is not None
        assert store.cert.certificate == own
        assert [one.certificate for one in store.additional_certs] == [issuer]
    place.wait_for("user", "seen", "Synced")
    place.wait_for("user", "abroad", "Synced")
    assert secret(place, "abroad") == {}
    assert place.kubectl.get("user", "abroad")["status"]["username"] == "CN=abroad"
    assert '"User:CN=seen"' in users.acls(place, "/kafka-acl/Topic/seen")
    assert users.entries(place, "CN=seen") == {}
    eventually(lambda: place.events("CertificateRenewed"), "an Event", pause_s=0.2)
    users.make_secret(place, "main-clients-ca", **{"ca.key": "nonsense"})
    told = place.wait_for("user", "seen", "InvalidClientsAuthority")
    assert "nonsense" not in told["message"]
    users.delete(place, "user", "seen")
    place.kubectl("wait", "--for=delete", "user/seen", "--timeout=120s")
    assert users.acls(place, "/kafka-acl/Topic/seen") == ""


class Plain(Place):
    """A namespace with a ZooKeeper of its own."""

    ensemble: server.Server


@pytest.fixture
def plain(api: ApiServer, zk: server.Server, tmp_path: Path) -> Iterator[Plain]:
    """A namespace whose cluster asks nobody, with an operator; its ZooKeeper may be killed."""
    api.create_namespace("plain-users")
    folder = tmp_path / "zookeeper"
    folder.mkdir()
    with server.Server(folder) as own, own.client() as client:
        made = Plain(api, own, client, "plain-users")
        made.kubectl.apply(
            {
                "apiVersion": "odradek.io/v1alpha1",
                "kind": "KafkaCluster",
                "metadata": {"name": "main"},
                "spec": {"zookeeper": {"connect": own.connect}, "brokers": {"replicas": 1}},
            }
        )
        log = tmp_path / "operator.log"
        with Operator(api, "plain-users", log, "operator-0"):
            made.ensemble = own
            yield made
        print(log.read_text())


def test_deletion_outlasts_zookeeper_and_no_claim_is_made_of_a_plain_cluster(
    plain: Plain,
) -> None:
    rights = {"acls": [acl("topic", "t", "Read")]}
    plain.kubectl.apply(user("early", authorization=rights))
    told = plain.wait_for("user", "early", "Synced")
    nobody = "no listener of KafkaCluster main has authentication scram-sha-512"
    assert nobody in told["message"]
    effective = plain.kubectl.condition("user", "early", "Effective")
    assert (effective["status"], effective["reason"]) == ("False", "NoListener")
    assert users.agreed(plain, "early")

    plain.ensemble.kill()
    users.delete(plain, "user", "early")
    plain.wait_for("user", "early", "ZooKeeperUnreachable")
    assert plain.kubectl.get("user", "early")["metadata"]["finalizers"]
    plain.ensemble.start()
    began = datetime.now(UTC)
    plain.kubectl("wait", "--for=delete", "user/early", "--timeout=240s")
    print(f"gone {(datetime.now(UTC) - began).total_seconds():.1f} s after ZooKeeper was back")
    eventually(lambda: users.entries(plain, "early") == {}, "no credential", pause_s=0.2)
    assert users.acls(plain, "/kafka-acl/Topic/t") == ""
