"""Two brokers with SCRAM over TLS for everybody, ACLs and quotas: who may do what, by name."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from odradek.listener_settings import SaslSettings, Store, TlsSettings
from odradek.net.client import PeerClient
from odradek.net.handshakes import Handshakes
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.client_quotas import (
    AlterClientQuotasRequest,
    QuotaAlteration,
    QuotaOperation,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.produce import ProduceResponse
from odradek.security import scram
from odradek.security.peers import ClientSecurity
from odradek.security.tls_contexts import TlsContexts
from odradek.zk import znodes
from tests.broker.test_secure_listeners import exchange
from tests.support import certificates
from tests.support.broker import STEADY, Cluster
from tests.support.clients import make_topic
from tests.support.quotas import LIMIT_MS, data, produce
from tests.support.secure_broker import SecureBroker, jaas

MECHANISM, PASSWORD = "SCRAM-SHA-512", "a-secret"
BROKERS = "brokers"  # the user who all brokers are
# A topic for each test, and one that users only see.
WORDS, LIMITED, LEFT, CLOSED = "words", "limited", "left", "closed"


class SecretBrokers(SecureBroker):
    protocols = {"SECRET": "SASL_SSL"}


@dataclass(frozen=True)
class Secured:
    """The brokers, and their administrator, who is a super user."""

    cluster: Cluster
    own: certificates.Issued

    def settings(self, user: str) -> dict[str, str]:
        """Return librdkafka's settings of a user."""
        brokers = [one for one in self.cluster.brokers.values() if isinstance(one, SecretBrokers)]
        return {
            **self.own.client(),
            "bootstrap.servers": ",".join(one.secure_address("SECRET") for one in brokers),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": PASSWORD,
        }

    def admin(self) -> AdminClient:
        return AdminClient({**self.settings(BROKERS)})

    @asynccontextmanager
    async def connected(self, user: str, broker_id: int) -> AsyncIterator[PeerClient]:
        """Yield a connection of a user to a broker."""
        key = Store("ssl.keystore", "PEM", str(self.own.pem_path))
        trust = Store("ssl.truststore", "PEM", str(self.own.authority_path))
        options = {MECHANISM: {"username": user, "password": PASSWORD}}
        sasl = SaslSettings((MECHANISM,), options, 0, 0, {}, MECHANISM)
        handshakes = Handshakes()
        contexts = TlsContexts("SECRET", TlsSettings(key, trust))
        broker = self.cluster.brokers[broker_id]
        assert isinstance(broker, SecretBrokers)
        client = PeerClient(
            "127.0.0.1",
            broker.ports["SECRET"],
            "same-client-id",
            security=ClientSecurity(handshakes, contexts.client, sasl.login()),
        )
        try:
            yield client
        finally:
            await client.close()
            handshakes.close()

    def leader(self, topic: str) -> int:
        return int(self.admin().list_topics(topic, 60).topics[topic].partitions[0].leader)

    def log_text(self) -> str:
        return "".join(one.log_text() for one in self.cluster.brokers.values())

    async def new_user(self, name: str, topic: str) -> None:
        """Make a user who may use a topic, and wait until all brokers know of its rights."""
        admin = self.admin()
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = UserScramCredentialUpsertion(name, credential, PASSWORD.encode())
        admin.alter_user_scram_credentials([made])[name].result(60)
        for one in admin.create_acls(acls(name, topic)).values():
            one.result(60)
        for broker_id in self.cluster.brokers:
            async with self.connected(name, broker_id) as client:
                while not await has_rights(client, topic):
                    pass


async def has_rights(client: PeerClient, topic: str) -> bool:
    """Return whether a broker knows the ACLs of the client's user."""
    wanted = [MetadataRequestTopic(name=one) for one in (topic, CLOSED)]
    told = await client.call(MetadataRequest(topics=wanted), 1, LIMIT_MS)
    found = await client.call(FindCoordinatorRequest(key=f"of-{topic}"), 0, LIMIT_MS)
    codes = [found.error_code, *(one.error_code for one in told.topics)]
    denials = (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return not any(one in denials for one in codes)


def acls(user: str, topic: str) -> list[AclBinding]:
    return [
        AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for kind, name, operation in (
            (ResourceType.TOPIC, topic, AclOperation.READ),
            (ResourceType.TOPIC, topic, AclOperation.WRITE),
            (ResourceType.GROUP, f"of-{topic}", AclOperation.READ),
            (ResourceType.TOPIC, CLOSED, AclOperation.DESCRIBE),
        )
    ]


async def sent(client: PeerClient, topic: str) -> ProduceResponse:
    """Produce one record."""
    return await client.call(produce(topic, 5000), 8, LIMIT_MS)


def code(answer: ProduceResponse) -> int:
    return answer.responses[0].partition_responses[0].error_code


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder: Path = tmp_path_factory.mktemp("secured")
    own = certificates.Authority(folder).issue("broker", ["127.0.0.1"])
    settings = {
        **STEADY,
        **own.settings(),
        "inter.broker.listener.name": "SECRET",
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "listener.name.secret.scram-sha-512.sasl.jaas.config": jaas(
            MECHANISM, username=BROKERS, password=PASSWORD
        ),
        "connection.failed.authentication.delay.ms": "1",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:{BROKERS}",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "2",
    }
    made = Cluster(folder, 2, settings, kind=SecretBrokers)
    made.zookeeper.start()
    # The first user comes from Kafka's tool, which writes to ZooKeeper.
    salt = b"of-the-brokers"
    salted = hashlib.pbkdf2_hmac("sha512", PASSWORD.encode(), salt, 4096)
    entry = {MECHANISM: scram.credential(MECHANISM, salted, salt, 4096).encoded()}
    with made.zookeeper.client() as client:
        path = znodes.config_path("users", BROKERS)
        client.create(path, znodes.encode_config(entry), makepath=True)
    with made as cluster:
        running = Secured(cluster, own)
        for topic in (WORDS, LIMITED, LEFT, CLOSED):
            config = {"min.insync.replicas": "2"}
            make_topic(running.admin(), NewTopic(topic, 1, 2, config=config))
        yield running


async def test_user_may_do_what_its_acls_allow_and_nothing_else(secured: Secured) -> None:
    # A name that is another one in ZooKeeper.
    alice = "CN=alice,O=b/c"
    await secured.new_user(alice, WORDS)
    values = [b"%d" % number for number in range(20)]
    assert exchange(secured.settings(alice), WORDS, values) == values
    async with secured.connected(alice, secured.leader(CLOSED)) as client:
        assert code(await sent(client, CLOSED)) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    log = secured.log_text()
    denial = f"Principal = User:{alice} is Denied Operation = Write from host = 127.0.0.1"
    assert f"{denial} on resource = Topic:LITERAL:{CLOSED}" in log
    assert f"User:{BROKERS} is Denied" not in log
    assert "refuse each other" not in log


async def test_quota_is_of_the_user_who_authenticated(secured: Secured) -> None:
    limited, free = "limited/1", "free/1"
    for user in (limited, free):
        await secured.new_user(user, LIMITED)
    leader = secured.leader(LIMITED)
    quota = QuotaOperation(key="producer_byte_rate", value=10.0, remove=False)
    alteration = QuotaAlteration(entity=data([("user", limited)]), ops=[quota])
    async with secured.connected(BROKERS, leader) as admin:
        request = AlterClientQuotasRequest(entries=[alteration], validate_only=False)
        assert (await admin.call(request, 1, LIMIT_MS)).entries[0].error_code == ErrorCode.NONE
    throttle_ms = 0
    while not throttle_ms:
        async with secured.connected(limited, leader) as client:
            answer = await sent(client, LIMITED)
            assert code(answer) == ErrorCode.NONE
            throttle_ms = answer.throttle_time_ms
    async with secured.connected(free, leader) as client:
        answer = await sent(client, LIMITED)
        assert (code(answer), answer.throttle_time_ms) == (ErrorCode.NONE, 0)


async def test_user_without_credential_and_acls_is_shut_out(secured: Secured) -> None:
    user = "leaves"
    await secured.new_user(user, LEFT)
    admin, leader = secured.admin(), secured.leader(LEFT)
    async with secured.connected(user, leader) as client:
        assert code(await sent(client, LEFT)) == ErrorCode.NONE
        deletion = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)
        admin.alter_user_scram_credentials([deletion])[user].result(60)
        for broker_id in secured.cluster.brokers:
            await refused(secured, user, broker_id)
        # The connection that is there stays, as in Kafka, until its rights go.
        assert code(await sent(client, LEFT)) == ErrorCode.NONE
        anything = AclBindingFilter(
            ResourceType.ANY,
            None,  # type: ignore[arg-type]  # its types do not say so
            ResourcePatternType.ANY,
            f"User:{user}",
            None,  # type: ignore[arg-type]
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        assert len(admin.delete_acls([anything])[anything].result(60)) == len(acls(user, LEFT))
        while (found := code(await sent(client, LEFT))) == ErrorCode.NONE:
            pass
        assert found == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert f"user '{user}': unknown user" in secured.log_text()


async def refused(secured: Secured, user: str, broker_id: int) -> None:
    """Connect until the broker knows that there is no such user."""
    reasons: list[str] = []
    while not reasons:
        async with secured.connected(user, broker_id) as client:
            try:
                await sent(client, LEFT)
            except ConnectionError as error:
                reasons.append(str(error))
    assert "SASL_AUTHENTICATION_FAILED" in reasons[0]
