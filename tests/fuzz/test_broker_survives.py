"""A thousand damaged frames (two hundred thousand in `make chaos`), slow senders and memory
bombs against one real broker.

After each round a sound client produces and consumes, the broker's memory has not grown, and its
log has no error of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from odradek.log.records.records import DEFAULT_LIMIT
from odradek.protocol import headers
from odradek.protocol.api import ApiKey
from tests.fuzz import attack, corpus, forge
from tests.fuzz.siege import Siege
from tests.support.sampling import how_many

MEBIBYTE = 1024 * 1024
# Bytes that are damaged blindly seldom get past decoding: the grammar has the larger share.
FRAMES = how_many(1_000, full=200_000)
SEED = 7


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    with Siege(tmp_path_factory.mktemp("siege")) as begun:
        yield begun


@pytest.mark.timeout(3600)
def test_damaged_frames_neither_stop_the_broker_nor_stay_in_its_memory(siege: Siege) -> None:
    tally = siege.endure(FRAMES, SEED)
    assert tally.dispatched >= FRAMES
    # Both kinds are there in numbers: what is refused at decoding and what reaches the handlers.
    assert min(tally.answered, tally.refused) > FRAMES // 10


def test_slow_senders_of_announced_giants_cost_what_they_sent(siege: Siege) -> None:
    frame = corpus.generated()[0]

    async def drip_all() -> list[int]:
        return await asyncio.gather(
            *(
                attack.drip(siege.address, frame * 10, announced, seconds=2)
                for announced in [100 * MEBIBYTE] * 100 + [len(frame) * 20] * 100
            )
        )

    began = time.monotonic()
    sent = asyncio.run(drip_all())
    assert time.monotonic() - began >= 2
    assert min(sent) > 4
    siege.check()


@pytest.mark.parametrize(
    ("key", "version", "element"),
    [
        (ApiKey.METADATA, 9, b"\1\0"),
        (ApiKey.METADATA, 1, b"\0\0"),
        (ApiKey.DELETE_GROUPS, 2, b"\1"),
    ],
)
def test_small_elements_in_huge_numbers_are_refused_before_they_become_objects(
    siege: Siege, key: ApiKey, version: int, element: bytes
) -> None:
    count = 40_000_000
    header = headers.encode_request_header(headers.RequestHeader(key, version, 1, "bomb"))
    announced = b"\x81\xb4\x89\x13" if version > 1 else count.to_bytes(4)
    shot = attack.Shot(header + announced + element * count, sound=False)
    peak_before = siege.peak_bytes()
    assert siege.fire(shot) == b""
    # The frame itself has to be held, and its buffer doubles while it arrives.
    assert siege.peak_bytes() - peak_before < 400 * MEBIBYTE
    siege.check()


@pytest.mark.parametrize(("version", "codec"), [(7, 4), (1, 1), (2, 3)])
def test_small_batches_of_a_large_nothing_cost_no_more_than_the_bound_of_a_batch(
    siege: Siege, version: int, codec: int
) -> None:
    """New batches are not unpacked; old ones must be, and then memory is bounded."""
    allowed = 24 * MEBIBYTE if version >= 3 else 2 * DEFAULT_LIMIT + 64 * MEBIBYTE
    peak_before = siege.peak_bytes()
    shot = attack.Shot(forge.bomb(codec, version), sound=True)
    assert len(shot.frame) < MEBIBYTE
    assert siege.fire(shot)
    assert siege.peak_bytes() - peak_before < allowed
    siege.check()
