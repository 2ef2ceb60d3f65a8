"""A coordinator, partitions and producers with one transactional id, in seeded histories.

The coordinator is the pure core with a log of encoded records. Each write has one of four ends:
durable, refused, or unknown, with or without the record in the log; then the coordinator waits
until it is loaded anew. Answers get lost and are asked for again. A producer that has its answer,
or was fenced, may still have older messages on their way. Every rule that must hold at each step
is asserted where it could break.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from odradek.protocol.errors import ErrorCode
from odradek.transaction import decisions, records
from odradek.transaction.decisions import LAST_EPOCH, Answer, ProducerIdNeeded, Write
from odradek.transaction.states import PREPARED, TransactionState
from odradek.transaction.transaction import (
    NO_PARTITIONS,
    NOT_STARTED_MS,
    ProducerIdAndEpoch,
    Transaction,
    TransactionEntry,
)
from odradek.values import TopicPartition

ID = "id"
TIMEOUT_MS = 1000
PARTITIONS = [TopicPartition("t", number) for number in range(3)]
RETRIABLE = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE}
FATAL = {
    "init": {ErrorCode.PRODUCER_FENCED},
    "add": {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING},
    "end": {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    },
}

Reply = Callable[[Answer], None]
Decision = Answer | Write | ProducerIdNeeded
Record = tuple[int, int]
"""The producer's number, and its transaction's."""


class Request(NamedTuple):
    """What a producer asks of the coordinator."""

    sender: int
    kind: str
    producer: ProducerIdAndEpoch | None
    partition: TopicPartition = PARTITIONS[0]
    commit: bool = False


class Partition:
    """The records of a partition, by what became of them."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = defaultdict(lambda: -1)
        self.open: dict[int, list[tuple[int, Record]]] = defaultdict(list)
        self.committed: Counter[Record] = Counter()

    def append(self, producer: ProducerIdAndEpoch, record: Record) -> bool:
        """Return whether the record was taken: its producer is not fenced here."""
        producer_id, epoch = producer
        if epoch < self.epochs[producer_id]:
            return False
        self.epochs[producer_id] = epoch
        # Whatever is open would become a part of this transaction.
        assert all(each == (epoch, record) for each in self.open[producer_id])
        self.open[producer_id].append((epoch, record))
        return True

    def mark(self, producer: ProducerIdAndEpoch, commit: bool) -> None:
        """End the producer's transaction."""
        producer_id, epoch = producer
        assert epoch >= self.epochs[producer_id]
        self.epochs[producer_id] = epoch
        ended = self.open.pop(producer_id, [])
        if commit:
            assert all(each == epoch for each, _ in ended)
            self.committed.update(record for _, record in ended)


class Coordinator:
    """The entry of one id, with its log and its markers."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ms = 0
        self.entry = TransactionEntry(ID)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.newest: dict[int, int] = {}
        self.producer_ids = 0
        self.partitions = {each: Partition() for each in PARTITIONS}
        self.unmarked: set[TopicPartition] = set()
        self.waiting: tuple[Write, Reply] | None = None
        self.holders: dict[ProducerIdAndEpoch, int] = {}
        self.states: Counter[TransactionState] = Counter()
        if random.random() < 0.5:
            self._start_near_the_last_epoch()

    def _start_near_the_last_epoch(self) -> None:
        self.producer_ids += 1
        epoch = LAST_EPOCH - self.random.randrange(4)
        state = TransactionState.EMPTY
        first = Transaction(
            ID, self.producer_ids, epoch, TIMEOUT_MS, state, NO_PARTITIONS, NOT_STARTED_MS, 0
        )
        self.log.append(records.encode(first))
        self.load()

    def take(self, request: Request, reply: Reply) -> None:
        """Decide a request, and answer it now or when its record is written."""
        decision = self._decide(request)
        if isinstance(decision, Write):
            self._check_holder(request)

        def answer(given: Answer) -> None:
            if request.kind == "init" and given.error is ErrorCode.NONE:
                holder = self.holders.setdefault(given.producer, request.sender)
                assert holder == request.sender, "two producers with one id and epoch"
                assert given.producer.epoch <= LAST_EPOCH, "a producer that cannot be fenced"
            reply(given)

        self._run(decision, answer)

    def _decide(self, request: Request) -> Decision:
        entry, now_ms = self.entry, self.now_ms
        if request.kind == "init":
            named = request.producer
            decision = decisions.initialize(entry, TIMEOUT_MS, named, None, now_ms)
            if isinstance(decision, ProducerIdNeeded):
                self.producer_ids += 1
                spare = self.producer_ids
                decision = decisions.initialize(entry, TIMEOUT_MS, named, spare, now_ms)
            return decision
        assert request.producer is not None
        if request.kind == "add":
            added = {request.partition}
            return decisions.add_partitions(entry, request.producer, added, now_ms)
        return decisions.end(entry, request.producer, request.commit, now_ms)

    def _check_holder(self, request: Request) -> None:
        """Only the current producer changes anything; at InitProducerId also one without a name."""
        current = self.entry.current
        if request.producer is None or current is None:
            assert request.kind == "init"
            return
        assert self.holders[request.producer] == request.sender
        if request.producer != current.producer:
            # It asks again for what it became.
            assert request.kind == "init"
            assert self.holders.get(current.producer, request.sender) == request.sender

    def _run(self, decision: Decision | None, reply: Reply) -> None:
        if isinstance(decision, Answer):
            reply(decision)
        elif isinstance(decision, Write):
            self.entry.begin(decision.following)
            self.waiting = (decision, reply)

    def _append(self, write: Write) -> None:
        following = write.following
        assert following.epoch >= self.newest.get(following.producer_id, 0), "an epoch fell"
        self.newest[following.producer_id] = following.epoch
        self.states[following.state] += 1
        self.log.append(records.encode(following))

    def finish_write(self, outcome: str) -> None:
        """End the write that is under way, if there is one."""
        if self.waiting is None:
            return
        (write, reply), self.waiting = self.waiting, None
        if outcome == "durable":
            self._append(write)
            self.entry.settle()
            self._note_markers()
            reply(write.answer)
        elif outcome == "refused":
            self.entry.give_up()
            reply(Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            if outcome == "unknown, written":
                self._append(write)
            reply(Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def load(self) -> None:
        """Start anew from the log, as after an election."""
        self.finish_write(self.random.choice(["unknown, written", "unknown, lost"]))
        self.entry = TransactionEntry(ID)
        key, value = self.log[-1] if self.log else (b"", None)
        if value is not None:
            self.entry.current = records.decode(records.decode_key(key), value)
        self._note_markers()

    def _note_markers(self) -> None:
        current = self.entry.current
        ends = current is not None and current.state in PREPARED
        self.unmarked = set(current.partitions) if current is not None and ends else set()

    def send_marker(self) -> None:
        """Write one marker of a transaction that ends; after the last one, complete it."""
        current = self.entry.current
        if current is None or self.entry.pending is not None or current.state not in PREPARED:
            return
        if self.unmarked:
            partition = self.random.choice(sorted(self.unmarked))
            self.unmarked.remove(partition)
            commit = current.state is TransactionState.PREPARE_COMMIT
            self.partitions[partition].mark(current.producer, commit)
        else:
            self._run(decisions.complete(self.entry, self.now_ms), lambda _: None)

    def look_at_clock(self) -> None:
        """Abort what has timed out; expire an id that is not used."""
        self._run(decisions.time_out(self.entry, self.now_ms), lambda _: None)
        if self.random.random() < 0.2:
            self._run(decisions.expire(self.entry, TIMEOUT_MS, self.now_ms), lambda _: None)


class Producer:
    """A client with the transactional id. It never learns that it is a zombie but by errors."""

    def __init__(self, number: int, coordinator: Coordinator, random: Random) -> None:
        self.number = number
        self.coordinator = coordinator
        self.random = random
        self.identity: ProducerIdAndEpoch | None = None
        self.transaction = 0
        self.added: set[TopicPartition] = set()
        self.request: Request | None = None
        self.former: list[Request] = []
        """Requests that it no longer waits for, some of them still on their way."""
        self.attempt = 0
        self.waits = False
        self.is_fenced = False
        self.written: dict[Record, Counter[TopicPartition]] = defaultdict(Counter)
        self.told: dict[Record, bool] = {}
        """The transactions whose end it was told, and whether that was a commit."""

    def act(self) -> None:
        """Do one thing: ask, ask again, or write a record."""
        if self.waits and self.random.random() < 0.95:
            return
        if self.request is None:
            if self.added and self.random.random() < 0.4:
                self._write()
                return
            self.request = self._next_request()
        elif self.request.kind == "end" and self.random.random() < 0.2:
            # It changes its mind, and must hear if it is too late.
            self.request = self.request._replace(commit=not self.request.commit)
        self.attempt += 1
        self.waits = True
        attempt, is_lost = self.attempt, self.random.random() < 0.15

        def hear(answer: Answer) -> None:
            if attempt == self.attempt:
                self.waits = False  # a lost answer closes the connection
                if not is_lost:
                    self._hear(answer)

        self.coordinator.take(self.request, hear)

    def _next_request(self) -> Request:
        if self.identity is None:
            return Request(self.number, "init", None)
        if not self.added and self.random.random() < 0.2:
            return Request(self.number, "init", self.identity)
        if self.added and self.random.random() < 0.4:
            commit = self.random.random() < 0.7
            return Request(self.number, "end", self.identity, commit=commit)
        return Request(self.number, "add", self.identity, self.random.choice(PARTITIONS))

    def _write(self) -> None:
        assert self.identity is not None
        key, record = self.random.choice(sorted(self.added)), (self.number, self.transaction)
        if self.coordinator.partitions[key].append(self.identity, record):
            self.written[record][key] += 1
        else:
            self.is_fenced = True

    def _hear(self, answer: Answer) -> None:
        request = self.request
        if request is None or answer.error in RETRIABLE:
            return
        self.request = None
        self.former.append(request)
        if answer.error is not ErrorCode.NONE:
            assert answer.error in FATAL[request.kind]
            self.is_fenced |= answer.error is not ErrorCode.INVALID_TXN_STATE
            self._leave_transaction()
        elif request.kind == "init":
            self.identity = answer.producer
            self.is_fenced = False
        elif request.kind == "add":
            self.added.add(request.partition)
        else:
            self.told[self.number, self.transaction] = request.commit
            self._leave_transaction()

    def _leave_transaction(self) -> None:
        self.transaction += 1
        self.added = set()

    def send_late(self) -> None:
        """Let a former request arrive once more.

        Not one of the present epoch: the protocol cannot tell it from a request of the present
        transaction (KIP-890).
        """
        late = [each for each in self.former if each.producer != self.identity]
        if self.is_fenced:
            late = self.former
        if late:
            self.coordinator.take(self.random.choice(late), lambda _: None)


class History:
    """Producers that come one after the other, each as if it were alone."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.coordinator = Coordinator(self.random)
        self.producers: list[Producer] = []
        self._add_producer()

    def _add_producer(self) -> None:
        number = len(self.producers)
        self.producers.append(Producer(number, self.coordinator, self.random))

    def run(self, steps: int) -> None:
        """Take that many steps, let all come to rest, and check what everyone was told."""
        for _ in range(steps):
            self._step()
        self._come_to_rest()
        self._check_records()
        self._check_fresh_producer()

    def _step(self) -> None:
        random, coordinator = self.random, self.coordinator
        dice = random.random()
        if dice < 0.45 or dice >= 0.93:
            # The newest does most, so that transactions end.
            is_newest = random.random() < 0.8
            (self.producers[-1] if is_newest else random.choice(self.producers)).act()
        elif dice < 0.7:
            outcomes = ("durable", "refused", "unknown, written", "unknown, lost")
            coordinator.finish_write(random.choices(outcomes, (30, 2, 1, 1))[0])
        elif dice < 0.85:
            coordinator.send_marker()
        elif dice < 0.88:
            coordinator.now_ms += random.choice([1, TIMEOUT_MS // 4, 2 * TIMEOUT_MS])
            coordinator.look_at_clock()
        elif dice < 0.9:
            coordinator.load()
        elif dice < 0.91:
            random.choice(self.producers).send_late()
        elif dice < 0.93 and len(self.producers) < 5:
            self._add_producer()

    def _come_to_rest(self) -> None:
        coordinator = self.coordinator
        coordinator.finish_write("durable")
        if coordinator.entry.pending is not None:
            coordinator.load()
        coordinator.now_ms += 2 * TIMEOUT_MS
        coordinator.look_at_clock()
        coordinator.finish_write("durable")
        self._finish_markers()
        assert coordinator.entry.pending is None

    def _finish_markers(self) -> None:
        for _ in range(len(PARTITIONS) + 1):
            self.coordinator.send_marker()
        self.coordinator.finish_write("durable")

    def _check_records(self) -> None:
        """A transaction is in all its partitions or in none, as its producer was told."""
        partitions = self.coordinator.partitions
        assert not any(any(each.open.values()) for each in partitions.values())
        for producer in self.producers:
            for record, written in producer.written.items():
                visible = Counter({key: each.committed[record] for key, each in partitions.items()})
                is_commit = producer.told.get(record, visible.total() > 0)
                assert +visible == (written if is_commit else Counter())

    def _check_fresh_producer(self) -> None:
        """It gets its identity at the second try, if not at the first."""
        answers: list[Answer] = []
        for number in (-1, -2):
            # It says no name, as a producer that has just been started.
            self.coordinator.take(Request(number, "init", None), answers.append)
            self.coordinator.finish_write("durable")
            self._finish_markers()
        assert answers[-1].error is ErrorCode.NONE
