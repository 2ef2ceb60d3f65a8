"""Values that all components share: partitions, broker ids and epochs."""

from typing import NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ControllerEpoch = NewType("ControllerEpoch", int)

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""The topics that only brokers write to; patterns of consumers never match them."""

SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
"""Kafka's security protocols of listeners, and their numbers in requests."""

NO_BROKER_EPOCH = -1
"""In place of the broker epoch in requests of Kafka before 2.2 (KIP-380), and while a broker is not
registered.
"""

EPOCHS_ABOVE = 10_000
"""By how much leader epochs are raised that are below those in logs: more than are ever elected
between two copies of ZooKeeper.
"""

NO_LEADER = BrokerId(-1)
"""The leader of a partition without a leader, in znodes and in requests."""


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Principal(NamedTuple):
    """Who sends a request, as ACLs and quotas name it: `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
"""The principal of a connection without authentication (Kafka's KafkaPrincipal.ANONYMOUS)."""


def parse_principal(text: str) -> Principal:
    """Read `User:alice` as Kafka's SecurityUtils does. Raises ValueError for any other form."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise ValueError(f"{text[:80]!r} is no principal: expected TYPE:NAME, such as User:alice")
    return Principal(kind, name)
