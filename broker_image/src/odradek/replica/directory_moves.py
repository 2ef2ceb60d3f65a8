"""Moves of replicas between the log directories of this broker (AlterReplicaLogDirs, KIP-113).

A request creates a future log in the other directory; `num.replica.alter.log.dirs.threads` tasks
fill future logs, each one at a time, the first by name. A log is copied in threads, piece by piece,
and all no faster than `replica.alter.log.dirs.io.max.bytes.per.second`. Leader or follower, the
replica serves from its current log meanwhile. Once the copy is at the end, the last records are
copied in the event loop, which is the only place where records are appended, and the future log
takes over there and then (see `odradek.log.partition.future`). What is then left to do for the
disk, a thread does.

A move ends when the replica is deleted, when one of the two directories fails, or when a request
names the current directory. After a restart a move goes on as soon as the replica has a role.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeVar

from odradek.config import bounded_threads
from odradek.log.future_logs import check_name
from odradek.log.partition import future
from odradek.log.partition.appending import UnexpectedOffsetError
from odradek.log.segment.files import FileRetiredError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quarantine import Quarantines, Work
from odradek.replica.partition import Partition
from odradek.replica.quota import Rate
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.log.manager import LogManager, Replacement
    from odradek.log.partition.log import Log
    from odradek.replica.hosted import HostedPartitions
    from odradek.topic_config import TopicConfig

T = TypeVar("T")
HELD_BACK_S = 0.1
ROLES_PAUSE_S = 0.01
LONGEST_PAUSE_MS = 50
# What the event loop copies at once, about: a batch may be larger.
LAST_PIECE_BYTES = 262_144
# Copied between two fsyncs, so that none takes long.
FLUSH_BYTES = 16 * 1024 * 1024
# Attempts to catch up with a log that is flushed at each append, before the event loop flushes too.
PATIENCE = 20

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Move:
    partition: Partition
    not_before_ms: int = 0
    agreed: bool = False
    attempts: int = 0
    unflushed: int = 0
    switched: Replacement | None = None

    @property
    def key(self) -> TopicPartition:
        return self.partition.key


class DirectoryMoves:
    """The moves of this broker. Only the event loop may call its methods.

    `limit()` is the rate in bytes per second. `roles_change()` tells whether a change of roles is
    under way, which may use the folders of logs.
    """

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        hosted: HostedPartitions,
        topic_config: Callable[[str], TopicConfig],
        limit: Callable[[], int],
        roles_change: Callable[[], bool],
        clock_ms: Callable[[], int],
        quarantines: Quarantines,
    ) -> None:
        self._config = config
        self._logs = logs
        self._hosted = hosted
        self._topic_config = topic_config
        self._limit = limit
        self._roles_change = roles_change
        self._clock_ms = clock_ms
        self._quarantines = quarantines
        self._paths = tuple(map(os.path.abspath, config.log_dirs))
        self._moves: dict[TopicPartition, _Move] = {}
        # Heaps of what to look at, which may have ended meanwhile: now, and from when on.
        self._ready: list[TopicPartition] = []
        self._delayed: list[tuple[int, TopicPartition]] = []
        self._working: set[_Move] = set()
        self._idle: dict[TopicPartition, asyncio.Event] = {}
        self._changed = asyncio.Event()
        self._rate = Rate()

    # -- requests -------------------------------------------------------------------------------

    async def request(self, key: TopicPartition, path: str) -> None:
        """Begin the move of a replica to the log directory `path`, or end one where it is there
        already.

        Raises KafkaError as Kafka does: INVALID_TOPIC_EXCEPTION for a name that is too long to
        move, LOG_DIR_NOT_FOUND for a path that is none of log.dirs, KAFKA_STORAGE_ERROR for
        one that is offline. REPLICA_NOT_AVAILABLE where the partition has no replica here yet: if
        it ever has, its log is created in that directory.
        """
        check_name(key)
        if path not in self._paths:
            raise KafkaError(
                ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config."
            )
        if path not in self._logs.online_directories:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Log directory {path} is offline")
        partition = self._hosted.partitions.get(key)
        if partition is None:
            if self._hosted.metadata.partition(*key) is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{key} does not exist")
            self._logs.placement.prefer(key, path)
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{key} has no replica here")
        if partition.offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Partition {key} is offline")
        copy = self._logs.futures.get(key)
        if copy is not None and os.path.dirname(copy.directory) != path:
            await self.stop(key)
            for refusal in (await self._logs.disk.run(self._logs.futures.discard, [key])).values():
                raise refusal
            partition.log.compaction_paused = False
            copy = None
        if os.path.dirname(partition.log.directory) == path:
            return
        if copy is None:
            await self._logs.disk.run(
                self._logs.futures.create, key, partition.log, path, self._topic_config(key.topic)
            )
        self.resume(partition)

    def resume(self, partition: Partition) -> None:
        """Go on with the move of a replica, if it has a future log, and at once if it failed."""
        key = partition.key
        if self._logs.futures.get(key) is None or partition.offline:
            return
        move = self._moves.get(key)
        if move is None:
            logger.info("%s: moving from %s", key, os.path.dirname(partition.log.directory))
            move = self._moves[key] = _Move(partition)
        elif not move.not_before_ms:
            return  # its turn comes, or it is worked on
        move.not_before_ms = 0
        self._queue(move)

    async def stop(self, key: TopicPartition) -> None:
        """Stop the move of a replica, and wait until nothing works on it. Its future log stays."""
        move = self._moves.pop(key, None)
        while any(move.key == key for move in self._working):
            await self._idle.setdefault(key, asyncio.Event()).wait()
        if move is not None and move.switched is not None:
            # Else the former folder would keep the partition's name, beside a new log.
            with self._quarantines.guard(Work.MOVE, key, "left for the next start"):
                await self._finish(move, move.switched)
        self._quarantines.release(Work.MOVE, key)

    def drop_failed(self) -> None:
        """Stop the moves from and to failed directories."""
        for key in self._logs.futures.drop_failed():
            logger.error("%s: stopped moving: the other log directory is offline", key)
            partition = self._hosted.partitions.get(key)
            if partition is not None:
                partition.log.compaction_paused = False
            self._moves.pop(key, None)
        for key, move in tuple(self._moves.items()):
            if move.partition.offline:
                del self._moves[key]

    # -- work -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Move what is to be moved, until cancelled."""
        at_once = self._config.num_replica_alter_log_dirs_threads or len(self._paths)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(bounded_threads(at_once)):
                tasks.create_task(self._run_one())

    async def _run_one(self) -> None:
        while True:
            move = self._next()
            if move is None:
                await self._rest()
                continue
            with self._working_on(move):
                await self._carry_out(move)

    def _queue(self, move: _Move) -> None:
        heappush(self._delayed, (move.not_before_ms, move.key))
        self._changed.set()

    def _next(self) -> _Move | None:
        now = self._clock_ms()
        while self._delayed and self._delayed[0][0] <= now:
            heappush(self._ready, heappop(self._delayed)[1])
        while self._ready:
            move = self._moves.get(heappop(self._ready))
            # What is worked on is queued again afterwards.
            if move is not None and move.not_before_ms <= now and move not in self._working:
                return move
        return None

    async def _rest(self) -> None:
        """Wait for another move, or for the first delay to end."""
        self._changed.clear()
        pause_s = None
        if self._delayed:
            pause_s = max(0.001, (self._delayed[0][0] - self._clock_ms()) / 1000)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._changed.wait()

    @contextlib.contextmanager
    def _working_on(self, move: _Move) -> Iterator[None]:
        self._working.add(move)
        try:
            yield
        finally:
            self._working.discard(move)
            if self._moves.get(move.key) is move:
                self._queue(move)
            self._idle.pop(move.key, asyncio.Event()).set()

    async def _carry_out(self, move: _Move) -> None:
        """Move a replica until it is moved, stopped, or has to wait."""
        try:
            while self._moves.get(move.key) is move:
                if await self._advance(move) and self._moves.get(move.key) is move:
                    del self._moves[move.key]
                    self.resume(move.partition)  # where another move was asked for meanwhile
        except (KafkaError, FileRetiredError, UnexpectedOffsetError) as failure:
            self._failed(move, failure)
        except Exception as error:
            pause_s = self._quarantines.put(Work.MOVE, move.key, error)
            move.agreed = False
            move.not_before_ms = self._clock_ms() + int(pause_s * 1000)
        else:
            self._quarantines.release(Work.MOVE, move.key)

    def _failed(self, move: _Move, failure: Exception) -> None:
        if self._moves.get(move.key) is not move:
            return
        copy = self._logs.futures.get(move.key)
        if copy is None or copy.failure is not None or move.partition.log.failure is not None:
            del self._moves[move.key]  # a directory failed, which was logged
            return
        logger.error("%s: failed to move: %s; retrying", move.key, failure)
        move.agreed = False
        move.not_before_ms = self._clock_ms() + self._config.replica_fetch_backoff_ms

    async def _advance(self, move: _Move) -> bool:
        """Take one step of a move; return whether it is complete."""
        if move.switched is not None:
            return await self._finish(move, move.switched)
        current, copy = move.partition.log, self._logs.futures.get(move.key)
        if copy is None:
            return True
        if self._rate.per_second(self._clock_ms()) > self._limit():
            await asyncio.sleep(HELD_BACK_S)
            return False
        if not move.agreed:
            await self._in_thread(future.agree, current, copy)
            move.agreed = True
        end = current.log_end_offset
        size = await self._in_thread(future.copy, current, copy, self._piece_bytes())
        self._rate.record(size, self._clock_ms())
        move.unflushed += size
        if move.unflushed >= FLUSH_BYTES or (not move.attempts and copy.log_end_offset >= end):
            await self._in_thread(copy.flush)
            move.unflushed = 0
        if copy.log_end_offset < end:
            return False
        await self._in_thread(self._logs.futures.prepare, move.key, current)
        if self._roles_change():
            # Not a lock: whoever changes roles may wait for this move to stop.
            await asyncio.sleep(ROLES_PAUSE_S)
        return await self._switch(move, current, copy)

    def _piece_bytes(self) -> int:
        config = self._config
        return min(config.replica_fetch_max_bytes, config.replica_fetch_response_max_bytes)

    async def _switch(self, move: _Move, current: Log, copy: Log) -> bool:
        """Let the copy take over if it is at the end; return whether it did."""
        partition = move.partition
        move.attempts += 1
        async with partition.truncation_lock:
            if (
                self._moves.get(move.key) is not move
                or partition.offline
                or current.segments.was_cut
                or self._roles_change()
            ):
                return False
            self._rate.record(future.copy(current, copy, LAST_PIECE_BYTES), self._clock_ms())
            if move.attempts > PATIENCE and copy.recovery_point < current.recovery_point:
                copy.flush()
            done = self._logs.switch_to_future(move.key)
            if done is not None:
                partition.log, move.switched = done.log, done
        if done is None:
            # A flush may be under way: the former directory's disk may take its time.
            await asyncio.sleep(min(move.attempts, LONGEST_PAUSE_MS) / 1000)
            return False
        self._hosted.wake_all(move.key)
        return await self._finish(move, done)

    async def _finish(self, move: _Move, done: Replacement) -> bool:
        await self._in_thread(self._logs.finish_switch, move.key, done)
        move.switched = None
        logger.info("%s: moved to %s", move.key, os.path.dirname(done.log.directory))
        return True

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Run blocking work; if cancelled, wait until its thread is done with the logs."""
        running: Awaitable[T] = self._logs.disk.run(work, *arguments)
        task = asyncio.ensure_future(running)
        try:
            return await asyncio.shield(task)
        finally:
            if not task.done():
                await asyncio.wait((task,))
                task.exception()
