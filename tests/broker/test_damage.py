"""A bit flips in a closed segment under a running broker: readers are told, and no replica copies
it.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import cast

from odradek.log.records import batch as batches
from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.zk import znodes
from tests.support.broker import STEADY, Broker, Cluster, wait_until
from tests.support.clients import create_topic, produce_all
from tests.support.logs import flip, whole_records

TOPIC = "watched"
# What a broker says that was just started.
STARTING = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
VALUES = [b"%d " % number * 120 for number in range(150)]


def read(broker: Broker) -> tuple[dict[int, bytes | None], list[int]]:
    """Every record by offset, and the offsets where the broker says CORRUPT_MESSAGE."""
    return asyncio.run(_read(broker))


async def _read(broker: Broker) -> tuple[dict[int, bytes | None], list[int]]:
    found: dict[int, bytes | None] = {}
    damaged: list[int] = []
    client = PeerClient("127.0.0.1", broker.port, "reader")
    offset = 0
    try:
        while offset < len(VALUES):
            wish = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=6000)
            request = FetchRequest(
                replica_id=-1,
                max_wait_ms=100,
                min_bytes=1,
                topics=[FetchTopic(topic=TOPIC, partitions=[wish])],
            )
            answer = (await client.call(request, 11, 60_000)).responses[0].partition_responses[0]
            if answer.error_code == ErrorCode.CORRUPT_MESSAGE:
                damaged.append(offset)
                offset += 1
                continue
            if answer.error_code in STARTING:
                await asyncio.sleep(0.2)
                continue
            assert answer.error_code == ErrorCode.NONE
            fetched = whole_records(cast("bytes", answer.record_set))
            records = [one for one in fetched if one.offset >= offset]
            assert records[0].offset == offset, "no record is passed over in silence"
            found |= {one.offset: one.value for one in records}
            offset = records[-1].offset + 1
    finally:
        await client.close()
    return found, damaged


def check(broker: Broker) -> list[int]:
    """Whatever is served is what was written; the offsets that are not served."""
    found, damaged = read(broker)
    assert all(VALUES[offset] == value for offset, value in found.items())
    assert len(found) + len(damaged) == len(VALUES)
    return damaged


def closed_segments(broker: Broker) -> list[Path]:
    return sorted(broker.partition_folders(TOPIC)[0].glob("*.log"))[:-1]


def test_flipped_bits_are_told_to_readers_and_copied_by_nobody(tmp_path: Path) -> None:
    with Cluster(tmp_path, 2, STEADY) as cluster, cluster.zookeeper.client() as client:
        leader, follower = cluster.brokers.values()
        create_topic(cluster.bootstrap, TOPIC, replicas=2, config={"segment.bytes": "20000"})
        follower.terminate()
        produce_all(leader.address, TOPIC, VALUES, **{"batch.num.messages": 3})
        assert not check(leader)
        chance = random.Random(31)
        for path in closed_segments(leader) * 2:
            heads = [(at, header.base_offset) for at, header in batches.scan(path.read_bytes())]
            position, offset = chance.choice(heads[:-1])
            bit = (position + chance.choice((3, 7, 9, 14, 16, 19, 25, 40, 60, 75, 150))) * 8
            flip(path, bit)
            assert offset in check(leader), (path.name, bit)
            flip(path, bit)
        path = closed_segments(leader)[2]
        flip(path, 5000 * 8)
        damaged = check(leader)
        assert damaged
        assert f"{path} is damaged" in leader.log_text()
        leader.terminate()
        leader.start()
        assert check(leader) == damaged

        follower.start()
        wait_until(
            lambda: "CORRUPT_MESSAGE; retrying" in follower.log_text(),
            "the follower is told",
        )
        copies = {
            record.offset: record.value
            for copy in sorted(follower.partition_folders(TOPIC)[0].glob("*.log"))
            for record in whole_records(copy.read_bytes())
        }
        assert copies == dict(enumerate(VALUES[: damaged[0]]))
        flip(path, 5000 * 8)
        state = znodes.state_path(TOPIC, 0)
        wait_until(
            lambda: len(znodes.decode_state(state, client.get(state)[0]).isr) == 2,
            "the follower goes on once the bytes are sound",
        )
