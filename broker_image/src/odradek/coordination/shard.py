"""A shard: what a coordinator knows from one partition of its topic, during one leadership.

A shard is loaded by reading the partition from its start. It serves requests once it is loaded, and
is dropped when the leadership ends.
"""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.log.records import batch, contents
from odradek.log.records.batch import CorruptBatchError

if TYPE_CHECKING:
    from odradek.log.partition.log import Log
    from odradek.log.records.batch import Header
    from odradek.log.records.records import Record
    from odradek.replica.partition import Partition

logger = logging.getLogger(__name__)


class LedShard(abc.ABC):
    """The part of a shard that does not depend on what is coordinated.

    `source` and `leadership_generation` name the leadership that it belongs to. A new leader epoch
    of the same leader leaves the log, and so the shard, as it is.
    """

    def __init__(self, source: Partition) -> None:
        self.source = source
        self.leadership_generation = source.leadership_generation
        self.partition = source.key.partition
        self.loaded = False
        self.retired = False

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """How many ids it knows."""

    @abc.abstractmethod
    def retire(self) -> None:
        """Set `retired` and drop everything, when the leadership ends."""

    async def _read(self, log: Log, read_bytes: int, take: Callable[[bytes, int], int]) -> None:
        """Read the whole partition in threads, until the end or until the shard is retired.

        `take` gets whole batches with the offset at which they begin, and returns the offset after
        the last one. Raises KafkaError, OSError or FileRetiredError, and what `take` raises.
        """
        position, end = log.log_start_offset, log.log_end_offset
        while position < end and not self.retired:
            piece = await asyncio.to_thread(log.reader.read, position, read_bytes)
            if piece.region is None:
                return
            with piece.region as region:
                data = await asyncio.to_thread(region.read)
            # Decoding takes long: use a thread, since nothing else uses the shard yet.
            following = await asyncio.to_thread(take, data, position)
            if following == position:
                return
            position = following

    def _decoded(self, data: bytes, at: int, header: Header) -> list[Record]:
        """Return the records of the batch at `at`, none if a client wrote it so that nobody can
        read it: a topic with `cleanup.policy=delete` takes such batches, and a coordinator writes
        none. Raises CorruptBatchError if it changed since: then it may have been a coordinator's.
        """
        if not header.record_count:
            return []
        try:
            return contents.decode(data, at)
        except CorruptBatchError as error:
            batch.check_crc(data, at, header)
            logger.warning("%s: skipping a batch: %s", self.source.key, error)
            return []
