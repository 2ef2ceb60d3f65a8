"""The coordinator of the transactional ids whose `__transaction_state` partition this broker leads.

An id belongs to partition abs(hash(id)) mod n, and that partition's leader coordinates it (KIP-98).
`decisions` says what a request does to an id; this module writes the records, has markers sent, and
runs the timers. What was decided counts once its record is acknowledged by all in-sync replicas.
After a write whose outcome is unknown, the partition is read again: nothing is guessed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from odradek import slices
from odradek.clock import monotonic_ms, wall_ms
from odradek.coordination.partitioning import PartitionCount
from odradek.coordination.replicas import Replicas
from odradek.log.records import records as batches
from odradek.log.records.batch import Origin
from odradek.net.client import PeerClient
from odradek.net.rare_log import RareLog
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.quarantine import Quarantines, Work
from odradek.transaction import decisions, records
from odradek.transaction.decisions import Answer, ProducerIdNeeded, Write
from odradek.transaction.markers import EndedTransaction, Leaders, MarkerFencedError, MarkerSender
from odradek.transaction.shard import TransactionShard
from odradek.transaction.shards import TransactionShards
from odradek.transaction.states import PREPARED, TransactionState
from odradek.transaction.timers import TransactionTimers
from odradek.transaction.transaction import ProducerIdAndEpoch, Transaction, TransactionEntry
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.replica.partition import Partition

TICK_S: Final = 1.0
WRITE_TIMEOUT_MS: Final = 5_000
"""How long replicas may take to acknowledge a record, as for a group's."""
RETRY_S: Final = 0.5

# Nothing was written.
_REFUSALS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
# The record may be in the log, or come into it.
_UNKNOWN_OUTCOMES: Final = {
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}

logger = logging.getLogger(__name__)
_rare_log = RareLog(logger)


class ProducerIds(Protocol):
    """What the coordinator needs of the `ProducerIdManager`."""

    async def take(self) -> int:
        """Return an id that nobody has. Raises KafkaError."""


class TransactionCoordinator:
    """Built and run by the server. Every method belongs to the event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        replicas: Replicas,
        partition_count: PartitionCount,
        producer_ids: ProducerIds,
        leaders: Leaders,
        connect: Callable[[int], PeerClient | None],
        end_offset_confirmed: Callable[[Partition], bool],
        confirm_end_offset: Callable[[Partition], Awaitable[bool]],
        quarantines: Quarantines,
        clock_ms: Callable[[], int] = monotonic_ms,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._config = config
        self._replicas = replicas
        self.partition_count = partition_count
        self._producer_ids = producer_ids
        self._end_offset_confirmed = end_offset_confirmed
        self._confirm_end_offset = confirm_end_offset
        self._quarantines = quarantines
        self._clock_ms = clock_ms
        self._now_ms = now_ms
        self._shards = TransactionShards(
            replicas,
            partition_count,
            config.max_transactional_ids,
            config.transaction_state_log_load_buffer_size,
            self._confirm,
            lambda shard: None,
            clock_ms,
            quarantines,
        )
        self.spawn = self._shards.spawn
        self._markers = MarkerSender(leaders, connect, config.request_timeout_ms, self.spawn)
        self._timers = TransactionTimers(self._shards, self._write, now_ms)

    # --- requests -----------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, named: ProducerIdAndEpoch | None
    ) -> Answer:
        """Handle InitProducerId; `named` is what the producer says that it was until now."""
        spare: int | None = None
        try:
            while True:
                shard = self._shard_of(transactional_id)
                entry = _entry_of(shard, transactional_id)
                if entry.current is None and entry.pending is None:
                    self._shards.check_room(transactional_id)
                found = decisions.initialize(entry, timeout_ms, named, spare, self._now_ms())
                if not isinstance(found, ProducerIdNeeded):
                    return await self._carried_out(shard, entry, found)
                spare = await self._producer_ids.take()
        except KafkaError as refusal:
            return Answer(refusal.code)

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: AbstractSet[TopicPartition],
    ) -> ErrorCode:
        """Handle AddPartitionsToTxn, and AddOffsetsToTxn with the group's partition."""
        return await self._decided(
            transactional_id,
            lambda entry: decisions.add_partitions(entry, producer, partitions, self._now_ms()),
        )

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: AbstractSet[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Handle AddPartitionsToTxn that verifies only: return NONE for each partition that is in
        the producer's ongoing transaction.
        """
        try:
            shard = self._shard_of(transactional_id)
        except KafkaError as refusal:
            return dict.fromkeys(partitions, refusal.code)
        if not self._end_offset_confirmed(shard.source):
            # A newer coordinator may have ended the transaction.
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return decisions.verify(_entry_of(shard, transactional_id), producer, partitions)

    async def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, commits: bool
    ) -> ErrorCode:
        """Handle EndTxn: the outcome is durable with the answer, and markers follow."""
        return await self._decided(
            transactional_id,
            lambda entry: decisions.end(entry, producer, commits, self._now_ms()),
        )

    async def _decided(
        self, transactional_id: str, decide: Callable[[TransactionEntry], Answer | Write]
    ) -> ErrorCode:
        """Carry out what is decided about an id; return the error for the client."""
        try:
            shard = self._shard_of(transactional_id)
        except KafkaError as refusal:
            return refusal.code
        entry = _entry_of(shard, transactional_id)
        return (await self._carried_out(shard, entry, decide(entry))).error

    def _shard_of(self, transactional_id: str) -> TransactionShard:
        """Return the shard of an id, which is never empty. Raises KafkaError as `LedShards.of`."""
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        shard = self._shards.of(transactional_id)
        if not shard.confirmed:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    # --- writes -------------------------------------------------------------------------------

    async def _carried_out(
        self, shard: TransactionShard, entry: TransactionEntry, found: Answer | Write
    ) -> Answer:
        """Return the answer of a decision once its record is written.

        The write goes on if the client goes. Nothing else runs between a decision and its begin.
        """
        if isinstance(found, Answer):
            return await self._certain(shard, found)
        entry.begin(found.following)
        shard.entries[entry.transactional_id] = entry
        error = await self._shards.carry_out(
            self._write(shard, entry, found.following), ErrorCode.NOT_COORDINATOR
        )
        return found.answer if error is ErrorCode.NONE else Answer(error)

    async def _certain(self, shard: TransactionShard, found: Answer) -> Answer:
        """Return an answer that needs no record once other replicas take this broker for the
        leader still. A former coordinator would confirm a later transaction by what it knows of an
        earlier one.

        A refusal waits for their next fetches, and for a record only if these do not come: who may
        only ask must not make the log grow. It is final for a producer, so it must not be said of
        what a newer coordinator knows better.
        """
        if found.error is ErrorCode.CONCURRENT_TRANSACTIONS:
            return found  # the client asks again
        if found.error is not ErrorCode.NONE and await self._confirm_end_offset(shard.source):
            return Answer(ErrorCode.NOT_COORDINATOR) if shard.retired else found
        error = await self._append_nothing(shard)
        if error is ErrorCode.NONE and not shard.retired:
            return found
        unknown = _UNKNOWN_OUTCOMES.get(error, ErrorCode.NOT_COORDINATOR)
        return Answer(_REFUSALS.get(error, unknown))

    async def _write(
        self, shard: TransactionShard, entry: TransactionEntry, following: Transaction
    ) -> ErrorCode:
        """Write the record of the pending state; return the error for the client."""
        if shard.retired:  # a later leadership of this broker may have read the log already
            return ErrorCode.NOT_COORDINATOR
        try:
            error = await self._append(shard, [records.encode(following)])
        except Exception as failure:
            self._quarantines.note(Work.TRANSACTION, shard.source.key, failure, "reading it again")
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        if shard.retired:
            return ErrorCode.NOT_COORDINATOR
        if error is ErrorCode.NONE:
            entry.settle()
            if entry.current is None:
                shard.entries.pop(entry.transactional_id, None)
            elif entry.current.state in PREPARED:
                self._shards.spawn(self._finish(shard, entry))
            return error
        if error in _REFUSALS:
            entry.give_up()
            if entry.current is None:
                shard.entries.pop(entry.transactional_id, None)
            if error is ErrorCode.NOT_ENOUGH_REPLICAS:
                _rare_log.log(
                    logging.WARNING,
                    "__transaction_state: a write was refused, as too few replicas are in sync: "
                    "start brokers that are down, or lower the topic's min.insync.replicas",
                )
            return _REFUSALS[error]
        logger.info("%s: a write ended with %s; reading it again", shard.source.key, error.name)
        self._shards.reload(shard)
        return _UNKNOWN_OUTCOMES.get(error, ErrorCode.UNKNOWN_SERVER_ERROR)

    async def _append(
        self, shard: TransactionShard, pairs: Collection[tuple[bytes, bytes | None]]
    ) -> ErrorCode:
        outcomes = await self._replicas.append(
            [(shard.source.key, batches.make(pairs, self._now_ms()))],
            -1,
            WRITE_TIMEOUT_MS,
            Origin.COORDINATOR,
        )
        return outcomes[0].error

    async def _append_nothing(self, shard: TransactionShard) -> ErrorCode:
        """Append a tombstone for nobody's id."""
        return await self._append(shard, [(records.encode_key(""), None)])

    # --- markers ------------------------------------------------------------------------------

    async def _finish(self, shard: TransactionShard, entry: TransactionEntry) -> None:
        """Have the markers of a prepared transaction written, and then complete it."""
        current = entry.current
        assert current is not None
        ended = EndedTransaction(
            current.transactional_id,
            current.producer_id,
            current.epoch,
            shard.coordinator_epoch,
            current.state is TransactionState.PREPARE_COMMIT,
        )
        unmarked = entry.unmarked = set(current.partitions)
        if not await self._marked(shard, ended, unmarked):
            return
        while not shard.retired:
            found = decisions.complete(entry, self._now_ms())
            entry.begin(found.following)
            if await self._write(shard, entry, found.following) is ErrorCode.NONE:
                return
            await asyncio.sleep(RETRY_S)  # after which the shard is retired, if it is read again

    async def _marked(
        self,
        shard: TransactionShard,
        ended: EndedTransaction,
        unmarked: set[TopicPartition],
    ) -> bool:
        """Return True once all partitions have their marker, False if that is not for this
        coordinator any more. What nobody foresaw must not end this: the id would wait for ever.
        """
        subject = f"transactional id {ended.transactional_id}"
        try:
            while not shard.retired:
                try:
                    await self._markers.send(ended, unmarked, lambda: not shard.retired)
                except MarkerFencedError as fenced:
                    logger.warning(
                        "%s: %s: another coordinator ends its transaction", subject, fenced
                    )
                    return False
                except Exception as failure:
                    await asyncio.sleep(self._quarantines.put(Work.TRANSACTION, subject, failure))
                else:
                    break
        finally:
            self._quarantines.release(Work.TRANSACTION, subject)
        return not shard.retired

    # --- leadership ---------------------------------------------------------------------------

    async def _confirm(self, shard: TransactionShard) -> None:
        """Serve a loaded shard once all that was read is committed, and go on with what was ended.

        A leader reads records that no other replica may have yet. A decision is not acted upon
        before it is certain, so something is written behind them.
        """
        while shard.entries and not shard.retired:
            try:
                if await self._append_nothing(shard) is ErrorCode.NONE:
                    break
            except Exception as failure:
                self._quarantines.note(Work.TRANSACTION, shard.source.key, failure, "retrying")
            await asyncio.sleep(RETRY_S)
        for few in slices.cut([*shard.entries.values()]):
            for entry in few:
                if entry.current is not None and entry.current.state in PREPARED:
                    self._shards.spawn(self._finish(shard, entry))
            if len(few) == slices.STEPS_PER_SLICE:
                await slices.pause()
        # Not before: what a request ends meanwhile would be finished twice, and the markers of the
        # second time could end the next transaction.
        shard.confirmed = True

    async def run(self) -> None:
        """Notice new and lost leaderships, end transactions that timed out, and forget ids that
        nobody uses, until cancelled.
        """
        config = self._config
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat("leaderships", 0, self._shards.update))
            tasks.create_task(
                self._repeat(
                    "timed-out transactions",
                    config.transaction_abort_timed_out_interval_ms,
                    self._timers.abort_timed_out,
                )
            )
            # Apart from the others: each write may take until its time-out.
            tasks.create_task(
                self._repeat(
                    "expired ids",
                    config.transaction_remove_expired_interval_ms,
                    lambda: self._timers.expire(config.transactional_id_expiration_ms),
                )
            )

    async def _repeat(
        self, subject: str, interval_ms: int, work: Callable[[], Awaitable[None]]
    ) -> None:
        """Do the work once per interval, at most once per tick, whatever it raises."""
        following = self._clock_ms() + interval_ms
        while True:
            if self._clock_ms() >= following:
                following = self._clock_ms() + interval_ms
                with self._quarantines.guard(Work.TRANSACTION, f"coordinator: {subject}"):
                    await work()
            await asyncio.sleep(TICK_S)

    def notice_roles(self) -> None:
        """Notice new and lost leaderships in the background: clients send requests at once."""
        self._shards.notice_roles()

    # --- metrics ------------------------------------------------------------------------------

    @property
    def timed_out(self) -> int:
        """Return how many transactions were aborted because they took too long."""
        return self._timers.timed_out

    @property
    def refused(self) -> int:
        """Return how many times a new id was refused because there were too many."""
        return self._shards.refused

    # --- looking ------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Transaction:
        """Return the current state of an id; of a transaction that ends, only with the partitions
        that have no marker yet. Raises KafkaError, also for an id that is unknown.
        """
        entry = _entry_of(self._shard_of(transactional_id), transactional_id)
        if entry.current is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        if entry.unmarked is None:
            return entry.current
        return replace(entry.current, partitions=frozenset(entry.unmarked))

    def all_current(self) -> Generator[None, None, list[Transaction]]:
        """Return the current states of all ids that this broker coordinates, in slices.

        Raises KafkaError COORDINATOR_LOAD_IN_PROGRESS while some of them are loaded.
        """
        shards = self._shards.all()
        if not all(one.confirmed for one in shards):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        found: list[Transaction] = []
        for shard in shards:
            for few in slices.cut([*shard.entries.values()], slices.KEYS_AT_ONCE):
                found += [entry.current for entry in few if entry.current is not None]
                yield
        return found

    def count_by_state(self) -> Counter[TransactionState]:
        """Return how many ids are in each state. May be called from any thread."""
        return Counter(
            current.state
            for shard in self._shards.loaded()
            for entry in [*shard.entries.values()]
            if (current := entry.current) is not None
        )

    async def close(self) -> None:
        """Give up all ids, when the server stops."""
        self._shards.close()
        await self._markers.close()


def _entry_of(shard: TransactionShard, transactional_id: str) -> TransactionEntry:
    """Return what is known of an id; nothing of one that is new."""
    return shard.entries.get(transactional_id) or TransactionEntry(transactional_id)
