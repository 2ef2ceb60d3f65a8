"""Some hundred bent requests of every key and version against three real brokers, and a producer
beside them that loses nothing and gets nothing twice. `make chaos` sends a million to brokers that
have the machine to themselves.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from odradek.handlers.dispatch import SERVED
from odradek.protocol.api import ApiKey
from odradek.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from tests.fuzz import aim, attack, corpus, edges, grammar
from tests.fuzz.cluster_siege import ClusterSiege
from tests.support.sampling import how_many

FRAMES = how_many(600, full=100_000)
SEED = 11


@pytest.mark.timeout(7200)
def test_bent_requests_neither_stop_the_brokers_nor_a_producer_beside_them(tmp_path: Path) -> None:
    with ClusterSiege(tmp_path) as siege:
        tally = siege.endure(FRAMES, SEED, print)
        siege.check_end()
        producer = siege.producer
    # Both kinds are there in numbers: what is refused at decoding and what reaches the handlers.
    assert min(tally.answered, tally.refused) > FRAMES // 10
    # Records went on being acknowledged. How fast says something about the machine and the other
    # tests: the long run, which is alone, allows no gap over a second.
    assert producer.acknowledged > FRAMES // 100


def test_requests_follow_from_the_seed_alone() -> None:
    def some(seed: int) -> list[bytes]:
        random = Random(seed)
        return [grammar.frame(random) for _ in range(100)]

    assert some(1) == some(1)
    assert some(1) != some(2)


@pytest.mark.parametrize("key", SERVED, ids=lambda key: ApiKey(key).name)
def test_every_version_is_bent_and_mostly_still_understood(key: ApiKey) -> None:
    served = SERVED[key]
    for version in range(served.lowest, served.highest + 1):
        random = Random(version)
        shots = [attack.judged(grammar.of(key, version, random)) for _ in range(40)]
        # The oldest ControlledShutdown is one number: whatever it is can be decoded.
        always_sound = key is ApiKey.CONTROLLED_SHUTDOWN and version == 0
        assert {shot.sound for shot in shots} == {True, always_sound}


def test_what_a_broker_would_rightly_obey_is_not_aimed_at_the_producer() -> None:
    deletion = SERVED[ApiKey.DELETE_TOPICS].api.request(
        topic_names=[edges.STEADY_TOPIC], timeout_ms=1
    )
    assert aim.harms(corpus.frame_of(deletion, 0))
    shutdown = SERVED[ApiKey.CONTROLLED_SHUTDOWN].api.request(broker_id=2)
    assert aim.harms(corpus.frame_of(shutdown, 1))
    growth = corpus.plausible(SERVED[ApiKey.CREATE_PARTITIONS].api.request, 0)
    growth.topics[0].count, growth.validate_only = 9_000, False
    assert aim.harms(corpus.frame_of(growth, 0))
    strange = [CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 9])]
    topic = CreatableTopic(
        name=edges.PASSING_TOPICS[0],
        num_partitions=-1,
        replication_factor=-1,
        assignments=strange,
        configs=[],
    )
    assert aim.harms(corpus.frame_of(CreateTopicsRequest(topics=[topic]), 0))
    topic.assignments[0].broker_ids = [1, 3]
    assert not aim.harms(corpus.frame_of(CreateTopicsRequest(topics=[topic]), 0))
    random = Random(3)
    assert not any(aim.harms(grammar.frame(random)) for _ in range(300))
