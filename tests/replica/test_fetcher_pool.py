"""How the partitions of this broker are divided among fetchers, while their number changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.support.replicas import Replicas

TOPICS = [f"t{number}" for number in range(12)]


def copied(broker: Replicas) -> dict[str, list[int]]:
    """Return the fetchers of each topic's partition."""
    found: dict[str, list[int]] = {topic: [] for topic in TOPICS}
    for (_, number), fetcher in broker.manager._fetchers._fetchers.items():
        for partition in fetcher.partitions():
            found[partition.key.topic].append(number)
    return found


async def test_every_partition_has_one_fetcher_after_their_number_changed(tmp_path: Path) -> None:
    async with Replicas(tmp_path) as broker:
        for topic in TOPICS:
            await broker.take(leader=2, isr=(1, 2), replicas=(1, 2), topic=topic)
        assert copied(broker) == {topic: [0] for topic in TOPICS}
        for count in (4, 2, 2, 1):
            await broker.manager.resize_fetchers(count)
            places = copied(broker)
            for key in broker.manager.partitions:
                assert places[key.topic] == [hash(key) % count]
        assert Counter(map(tuple, copied(broker).values())) == {(0,): len(TOPICS)}
