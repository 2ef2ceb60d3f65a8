"""Four hundred frames of strangers (two hundred thousand in `make chaos`) before authentication.

They come to listeners with SASL, with and without TLS. Nobody gets in, the broker's memory has not
grown, its log has no error of its own, and a user who authenticated goes on.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.fuzz import strangers
from tests.fuzz.siege import Siege
from tests.fuzz.steady import SteadyProducer
from tests.support import certificates, clients
from tests.support.broker import FreshBroker, wait_until
from tests.support.sampling import how_many
from tests.support.secure_broker import SecureBroker, jaas

FRAMES = how_many(400, full=200_000)
ROUND = 10_000
SEED = 11
PASSWORD = "a-secret"
STEADY_TOPIC = "steady"
# What a producer may wait for while handshakes compute on a busy machine.
LONGEST_GAP_S = 60


class Doors(FreshBroker, SecureBroker):
    protocols = {"OPEN": "SASL_PLAINTEXT", "SECRET": "SASL_SSL"}


@pytest.mark.timeout(3600)
def test_strangers_neither_get_in_nor_disturb_those_who_are(tmp_path: Path) -> None:
    own = certificates.Authority(tmp_path).issue("broker", ["127.0.0.1"])
    login = jaas("PLAIN", user_alice=PASSWORD)
    settings = {
        **own.settings(),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(one.decode() for one in strangers.MECHANISMS),
        "connection.failed.authentication.delay.ms": "1",
        # All of this machine are one address.
        "max.connection.creation.rate": "2147483647",
        "listener.name.open.plain.sasl.jaas.config": login,
        "listener.name.secret.plain.sasl.jaas.config": login,
    }
    with Siege(tmp_path, settings, Doors) as siege:
        clients.create_topic(siege.bootstrap, STEADY_TOPIC)
        admin = AdminClient({"bootstrap.servers": siege.bootstrap, **clients.QUIET})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        made = UserScramCredentialUpsertion("alice", info, PASSWORD.encode())
        admin.alter_user_scram_credentials([made])["alice"].result(60)
        ports = siege.broker(Doors).ports
        user = {
            **own.client(),
            "bootstrap.servers": f"127.0.0.1:{ports['SECRET']}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
        }
        context = ssl.create_default_context(cafile=str(own.authority_path))
        random, sent = Random(SEED), 0
        with SteadyProducer(siege.bootstrap, STEADY_TOPIC, 1, user) as producer:
            wait_until(lambda: producer.in_motion, "a user produces")
            while sent < FRAMES:
                count = min(ROUND, FRAMES - sent)
                tally = strangers.visit_all(ports["OPEN"], ports["SECRET"], context, count, random)
                assert not tally.surprises, tally.surprises[:5]
                # Handshakes and challenges are among the answers: it was not all refused at once.
                assert tally.answers > tally.frames // 10
                sent += tally.frames
                siege.check()
            before = producer.acknowledged
            wait_until(lambda: producer.acknowledged > before, "the user goes on")
        assert not producer.failures
        assert not producer.differences()
        assert producer.longest_gap_s() < LONGEST_GAP_S
