"""Pieces of answers that go through TLS: what shares one, and what counts as held."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from odradek.net import encrypted_outgoing
from odradek.net.encrypted_outgoing import PIECE_BYTES, EncryptedOutgoing
from odradek.protocol.regions import Part
from tests.support.file_regions import CountedRegion


@pytest.fixture
def records(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    """Give a file of three pieces, and what is in it."""
    content = os.urandom(3 * PIECE_BYTES)
    path = tmp_path / "records"
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor, content
    os.close(descriptor)


async def pieces_of(outgoing: EncryptedOutgoing) -> AsyncGenerator[bytes]:
    while not outgoing.done:
        if not outgoing.take_piece():
            await outgoing.read_piece()
        yield bytes(outgoing.piece)
        outgoing.skip(len(outgoing.piece))


async def test_piece_of_a_region_is_not_held_against_a_late_reader(
    records: tuple[int, bytes],
) -> None:
    # As of a fetch of two partitions: what is between the regions is in memory.
    regions = [CountedRegion(records[0], 0, 2 * PIECE_BYTES) for _ in range(2)]
    outgoing = EncryptedOutgoing([b"start", regions[0], b"between", regions[1]])
    assert outgoing.held_bytes() == len(b"start" + b"between")
    pieces = pieces_of(outgoing)
    assert len(await anext(pieces)) == PIECE_BYTES
    assert outgoing.held_bytes() == len(b"between")
    outgoing.close()
    await pieces.aclose()
    assert [region.closed for region in regions] == [1, 1]


@pytest.mark.parametrize("is_cold", [False, True])
async def test_parts_of_an_answer_share_pieces(
    records: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch, is_cold: bool
) -> None:
    descriptor, content = records
    middle = CountedRegion(descriptor, 3, 1000)
    if is_cold:
        cached = encrypted_outgoing._read_cached
        monkeypatch.setattr(
            encrypted_outgoing,
            "_read_cached",
            lambda region, *place: None if region is middle else cached(region, *place),
        )
    regions = [CountedRegion(descriptor, 0, 2000), middle, CountedRegion(descriptor, 7, 0)]
    parts: list[Part] = [b"start", regions[0], b"be", b"tween", middle, b"", regions[2], b"end"]
    pieces = [one async for one in pieces_of(EncryptedOutgoing(parts))]
    before, after = b"start" + content[:2000] + b"between", b"end"
    told = [before, content[3:1003], after] if is_cold else [before + content[3:1003] + after]
    assert pieces == told
    assert [region.closed for region in regions] == [1, 1, 1]


async def test_pieces_of_parts_of_any_sizes_are_the_answer(records: tuple[int, bytes]) -> None:
    descriptor, content = records
    sizes = (1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES + 17)
    for first, second, third in itertools.product(sizes, repeat=3):
        region = CountedRegion(descriptor, 5, second)
        before, after = content[:first], memoryview(content)[9 : 9 + third]
        pieces = [one async for one in pieces_of(EncryptedOutgoing([before, region, after]))]
        assert max(map(len, pieces)) <= PIECE_BYTES
        assert b"".join(pieces) == before + content[5 : 5 + second] + after
        assert region.closed == 1
