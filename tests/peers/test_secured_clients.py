"""TLS, SASL and ACLs with everybody's clients: each in every way to say who it is, and refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.support import certificates, exchanges, oauth
from tests.support.broker import STEADY, Cluster
from tests.support.clients import QUIET, await_leaders
from tests.support.exchanges import CLIENTS, OAUTHBEARER, Exchange, Outcome
from tests.support.sampling import FULL, some_of
from tests.support.secure_broker import SecureBroker, jaas

# Names and passwords with what SCRAM, JAAS and certificates escape. kafka-python escapes no name.
SCRAM_USER, PLAIN_USER, CERTIFIED_USER = "a,user=1", "plain-user", "certified"
TOKEN_USER = "token-user"
ESCAPES_NOTHING = ("kafka-python",)
# With a wrong password it tries again for half a minute, and then speaks of a timeout.
TRIES_AGAIN = ("kafka-python",)
# A refused token is answered by a challenge (RFC 7628), which it takes for success; it tries again
# for two minutes after the closed connection.
TAKES_NO_CHALLENGE = ("kafkajs",)
PASSWORD = "p\u00e4ss, =2C w\u00f6rd"
SCRAM = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
CERTIFICATE = "certificate"
USERS = {**dict.fromkeys(SCRAM, SCRAM_USER), "PLAIN": PLAIN_USER, CERTIFICATE: CERTIFIED_USER}
WAYS = tuple(USERS)
PRINCIPALS = (
    *(f"User:{name}" for name in (SCRAM_USER, PLAIN_USER, TOKEN_USER)),
    f"User:CN={CERTIFIED_USER},O=Acme",
)
COUNT = 100
CLOSED = "closed"


class ManyWays(SecureBroker):
    protocols = {"SECRET": "SASL_SSL", "CERTIFIED": "SSL"}


@dataclass(frozen=True)
class Secured:
    """A broker at which every user has rights to topics and groups whose names begin with open."""

    broker: ManyWays
    own: certificates.Issued
    certified: certificates.Issued
    token: str
    wrong_tokens: tuple[str, ...]

    def exchange(self, client: str, way: str, topic: str) -> Exchange:
        """Return what the user of a way to authenticate does with a topic, by a client."""
        listener = "CERTIFIED" if way == CERTIFICATE else "SECRET"
        given = {
            "bootstrap": [self.broker.secure_address(listener)],
            "topic": topic,
            "group": topic,
            "count": COUNT,
            "authority": str(self.own.authority_path),
        }
        if way == CERTIFICATE:
            return exchanges.with_certificate(given, self.certified)
        if way == OAUTHBEARER:
            return Exchange(**given, mechanism=way, user=TOKEN_USER, password=self.token)  # type: ignore[arg-type]
        user = PLAIN_USER if client in ESCAPES_NOTHING else USERS[way]
        return Exchange(**given, mechanism=way, user=user, password=PASSWORD)  # type: ignore[arg-type]

    def wrong_passwords(self, way: str) -> tuple[str, ...]:
        """Return those, or the tokens, with which nobody is let in."""
        return self.wrong_tokens if way == OAUTHBEARER else ("guessed",)


def topic_of(client: str, way: str) -> str:
    return f"open-{client}-{way}"


# Four implementations, of which each logs in by another way.
SAMPLE = ["java-2.8.2", "franz-go", "kafkajs", "librdkafka"]


def ways_of(client: str) -> tuple[str, ...]:
    """Return the ways that a client tries: all, or in a sample one of them, by turns."""
    if not FULL:
        return (WAYS[list(CLIENTS).index(client) % len(WAYS)],)
    # Tokens that somebody else got; tests/peers/test_oauth_clients.py has clients that get them.
    return (*WAYS, OAUTHBEARER)


def right(principal: str, kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    prefixed = ResourcePatternType.PREFIXED
    return AclBinding(kind, name, prefixed, principal, "*", operation, AclPermissionType.ALLOW)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[oauth.Issuer]:
    with oauth.Issuer(tmp_path_factory.mktemp("issuer")) as running:
        yield running


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, issuer: oauth.Issuer) -> Iterator[Secured]:
    folder: Path = tmp_path_factory.mktemp("secured")
    with oauth.Issuer(tmp_path_factory.mktemp("other-issuer")) as other:
        foreign = other.token(TOKEN_USER)
    authority = certificates.Authority(folder)
    own = authority.issue("broker", ["127.0.0.1"])
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Acme"),
            x509.NameAttribute(NameOID.COMMON_NAME, CERTIFIED_USER),
        ]
    )
    settings = {
        **STEADY,
        **own.settings(),
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.name.certified.ssl.client.auth": "required",
        **issuer.settings("SECRET"),
        "listener.name.secret.sasl.enabled.mechanisms": ",".join([*SCRAM, "PLAIN", OAUTHBEARER]),
        "listener.name.secret.plain.sasl.jaas.config": jaas(
            "PLAIN", **{f"user_{PLAIN_USER}": PASSWORD}
        ),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
    }
    with Cluster(folder, 1, settings, kind=ManyWays) as cluster:
        broker = cluster.brokers[1]
        assert isinstance(broker, ManyWays)
        prepare(broker.address)
        certified = authority.issue(CERTIFIED_USER, subject=subject)
        expired = issuer.token(TOKEN_USER, exp=int(time.time()) - 600)
        yield Secured(broker, own, certified, issuer.token(TOKEN_USER), (expired, foreign))


def prepare(address: str) -> None:
    """Make users, their rights, and a topic for every exchange."""
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    made: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, ScramCredentialInfo(one, 4096), PASSWORD.encode())
        for one in SCRAM.values()
        for user in (SCRAM_USER, PLAIN_USER)
    ]
    for user in admin.alter_user_scram_credentials(made).values():
        user.result(60)
    rights = [
        right(principal, kind, name, operation)
        for principal in PRINCIPALS
        for kind, name, operation in (
            (ResourceType.TOPIC, "open", AclOperation.READ),
            (ResourceType.TOPIC, "open", AclOperation.WRITE),
            (ResourceType.TOPIC, CLOSED, AclOperation.DESCRIBE),
            (ResourceType.GROUP, "open", AclOperation.READ),
        )
    ]
    for one in admin.create_acls(rights).values():
        one.result(60)
    names = [CLOSED, *(topic_of(client, way) for client in CLIENTS for way in ways_of(client))]
    for topic in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        topic.result(60)
    for name in names:
        await_leaders(address, name)


@pytest.mark.parametrize("client", some_of([*CLIENTS], SAMPLE))
def test_client_is_served_and_learns_why_it_is_refused(
    secured: Secured, client: str, tmp_path: Path
) -> None:
    ways = ways_of(client)
    served = [secured.exchange(client, way, topic_of(client, way)) for way in ways]
    first = served[0]
    untold = (CERTIFICATE, OAUTHBEARER) if client in TAKES_NO_CHALLENGE else (CERTIFICATE,)
    mechanisms = [way for way in ways if way not in untold] or ["PLAIN"]
    if client in TRIES_AGAIN and not FULL:
        mechanisms = []
    wrong = [
        replace(secured.exchange(client, way, first.topic), password=password)
        for way in mechanisms
        for password in secured.wrong_passwords(way)
    ]
    said = CLIENTS[client]
    refused = [
        *((one, said.refusal_of(one.mechanism)) for one in wrong),
        (replace(first, topic=CLOSED), said.refusals[exchanges.TOPIC]),
        (replace(first, group=CLOSED), said.refusals[exchanges.GROUP]),
    ]
    outcomes = said.run([*served, *(one for one, _ in refused)], tmp_path)
    assert [sorted(one.read) for one in outcomes[: len(served)]] == [
        sorted(one.values) for one in served
    ]
    assert outcomes[len(served) :] == [Outcome([], name) for _, name in refused]
