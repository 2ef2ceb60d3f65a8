"""What was promised survives a power loss, at any moment and whatever of the rest the disk has.

Each seed drives a log through appends, flushes, rolls, truncations, deletions and restarts, lets
the power fail at several moments (`power_loss` makes what the disk may hold then), starts again and
looks at what is there. Some starts are broken off by another power loss, and the last log that was
recovered goes on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from odradek import config_loading
from odradek.log.manager import LogManager
from odradek.log.partition.epochs import UNDEFINED_EPOCH
from odradek.log.partition.log import Log, LogEnvironment
from odradek.log.partition.producers import ProducerStates
from odradek.log.records import batch as batches
from odradek.log.records.batch import Header
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition
from tests.log.power_loss import SECTOR_BYTES, Disk, Recorder
from tests.support.logs import FakeClock, batch, new_log
from tests.support.sampling import how_many

pytestmark = pytest.mark.usefixtures("without_fsync")
KEY = TopicPartition("orders", 0)
PRODUCER = 7
SEEDS = how_many(30, full=2000)
ROUNDS = 3
STEPS = 14
LOSSES = 5
"""Power losses of each round."""


@dataclass(frozen=True)
class State:
    """A log after an operation. `written` has every batch with its offset since the last
    truncation, also those that were deleted from the start.
    """

    name: str
    at: int
    written: tuple[tuple[int, bytes], ...]
    start: int
    flushed: int
    durable_start: int


def start(folder: Path, topic: TopicConfig, clock: FakeClock) -> LogManager:
    settings, _ = config_loading.from_values(
        {
            "broker.id": "1",
            "zookeeper.connect": "unused",
            "log.dirs": str(folder),
            "log.cleaner.enable": "false",
        }
    )
    manager = LogManager(
        settings,
        "cluster",
        lambda name: topic,
        environment=LogEnvironment(now_ms=clock.now_ms, monotonic=clock.monotonic),
    )
    manager.load()
    return manager


def raw_batches(log: Log, end: int | None = None) -> list[tuple[int, bytes]]:
    """Every batch that a consumer gets up to `end`, with its offset."""
    found = []
    offset = log.log_start_offset
    end = log.log_end_offset if end is None else end
    while offset < end and (data := log.reader.read_bytes(offset, 1 << 20)):
        for position, header in batches.scan(data):
            batches.check_crc(data, position, header)
            found.append((header.base_offset, bytes(data[position : position + header.size])))
            offset = header.last_offset + 1
    return found


def last_of(one: tuple[int, bytes]) -> int:
    return batches.parse(one[1]).last_offset


class Broker:
    """A log in the hands of a leader, a follower and an administrator, driven by chance."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.clock = FakeClock()
        self.topic = TopicConfig(
            segment_bytes=self.chance.choice([1024, 2048, 4096]),
            segment_index_bytes=96,
            index_interval_bytes=self.chance.choice([100, 1000]),
            retention_ms=-1,
            retention_bytes=self.chance.choice([-1, -1, 6000]),
            file_delete_delay_ms=self.chance.choice([0, 60_000]),
            flush_messages=self.chance.choice([1, 1000]),
            preallocate=self.chance.random() < 0.4,
        )
        self.epoch = 0
        self.sequence = 0
        self.number = 0
        self.highest_start = 0
        folder.mkdir()
        self.open()
        self.written: list[tuple[int, bytes]] = []
        self.states: list[State] = []

    def begin(self, at: int) -> None:
        """Go on from what is in the folder."""
        self.written = []
        self.states = []
        self.note(at, "begin")

    def note(self, at: int, name: str) -> None:
        log = self.log
        present = raw_batches(log)
        first = present[0][0] if present else log.log_start_offset
        first = min(first, log.log_start_offset)
        self.written = [one for one in self.written if last_of(one) < first] + present
        self.highest_start = max(self.highest_start, log.log_start_offset)
        self.states.append(
            State(
                name,
                at,
                tuple(self.written),
                log.log_start_offset,
                log.recovery_point,
                log.durable_log_start,
            )
        )

    def step(self) -> str:
        works: list[tuple[int, Callable[[], object]]] = [
            (12, self.append),
            (3, self.follow),
            (2, self.lead),
            (3, self.flush),
            (2, self.roll),
            (2, self.truncate),
            (1, self.start_over),
            (2, self.delete_records),
            (2, self.retain),
            (3, self.keep_house),
            (1, self.restart),
        ]
        weights = [weight for weight, _ in works]
        [(_, work)] = self.chance.choices(works, weights)
        work()
        return work.__name__

    def make_batch(self) -> bytes:
        self.number += 1
        value = b"%d " % self.number
        size = self.chance.choice(
            [100, SECTOR_BYTES // 2, SECTOR_BYTES, self.chance.randint(90, 900)]
        )
        producer = self.chance.choice([-1, PRODUCER])
        count = self.chance.randint(1, 3)

        def made(length: int) -> bytes:
            return batch(
                *[value.ljust(length, b".")] * count,
                producer_id=producer,
                producer_epoch=0 if producer >= 0 else -1,
                base_sequence=self.sequence if producer >= 0 else -1,
            )

        data = made(max(0, size - len(made(0))) // count)
        excess = len(data) - size  # lengths of 64 and more take another byte
        data = made(max(0, size - len(made(0)) - excess) // count)
        if producer >= 0:
            self.sequence += count
        return data

    def append(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            self.log.append_as_leader(self.make_batch(), self.epoch)
            self.finish_append()

    def finish_append(self) -> None:
        if self.log.flush_required:
            self.log.flush()
        if self.chance.random() < 0.5:
            self.log.high_watermark = self.log.recovery_point

    def follow(self) -> None:
        data, offset = b"", self.log.log_end_offset
        for _ in range(self.chance.randint(1, 4)):
            made = self.make_batch()
            header = batches.parse(made)
            data += b"".join(batches.stamp(made, header, offset, self.epoch))
            offset += header.last_offset_delta + 1
        self.log.append_as_follower(data)
        self.finish_append()

    def lead(self) -> None:
        self.epoch += 1
        self.log.assign_epoch(self.epoch)

    def flush(self) -> None:
        self.log.flush()

    def roll(self) -> None:
        self.log.roll()

    def truncate(self) -> None:
        """Another leader has other records. The next producer's batches follow what is left."""
        bounds = [one[0] for one in self.written if one[0] >= self.log.high_watermark]
        if self.chance.random() < 0.3:
            bounds = [one[0] for one in self.written if one[0] >= self.log.log_start_offset]
        if bounds:
            self.log.truncate_to(self.chance.choice(bounds))
        self.resume()

    def start_over(self) -> None:
        if self.chance.random() < 0.3:
            self.log.truncate_fully_and_start_at(
                max(0, self.log.log_end_offset + self.chance.randint(-3, 3))
            )
            self.resume()

    def resume(self) -> None:
        """Another leader goes on behind the end."""
        self.epoch += 1
        known = self.log.producers.get(PRODUCER)
        self.sequence = 0 if known is None else known.last_sequence + 1

    def delete_records(self) -> None:
        self.log.high_watermark = self.log.log_end_offset
        self.log.advance_log_start(
            self.chance.randint(self.log.log_start_offset, self.log.log_end_offset)
        )
        self.manager._home_of(self.log).write_start_offsets()

    def retain(self) -> None:
        self.log.high_watermark = self.log.log_end_offset
        self.log.apply_retention()
        self.log.delete_due()

    def keep_house(self) -> None:
        if self.chance.random() < 0.5:
            self.clock.advance(61_000)
        self.manager.housekeep()
        self.manager.save_high_watermarks()

    def restart(self) -> None:
        self.manager.close()
        self.open()

    def open(self) -> None:
        self.manager = start(self.folder, self.topic, self.clock)
        found = self.manager.get(*KEY)
        self.log = found if found is not None else new_log(self.manager, *KEY, self.topic)
        # Without one, a start takes no gap for a loss: so it may be in the first minute of a log.
        self.manager._home_of(self.log).write_recovery_points()


def check_promises(log: Log, acked: State, attempted: State) -> None:
    """Look whether a log has what was flushed in `acked`, except what the operation that leads to
    `attempted` was to remove.
    """
    begin = log.log_start_offset
    assert begin >= min(acked.durable_start, attempted.durable_start, attempted.start)
    kept_from = max(begin, acked.start, attempted.start)
    promised = [
        one
        for one in acked.written
        if kept_from <= last_of(one) < acked.flushed and one in attempted.written
    ]
    if promised:
        found = raw_batches(log, last_of(promised[-1]) + 1)
        lost = [one[0] for one in promised if one not in found]
        assert not lost, f"lost {lost}, flushed up to {acked.flushed}"


def check_consistency(log: Log, states: Sequence[State], highest_start: int) -> None:
    """Look whether a log is as it was some time, up to where it ends now, and whether all else is
    as the log says.
    """
    begin, end = log.log_start_offset, log.log_end_offset
    found = raw_batches(log)
    headers = [batches.parse(data) for _, data in found]
    bounds = [(header.base_offset, header.last_offset + 1) for header in headers]
    assert all(one[1] == other[0] for one, other in pairwise(bounds)), f"a gap: {bounds}"
    if bounds:
        assert bounds[0][0] <= begin
        assert bounds[-1][1] == end
    else:
        assert begin == end
    assert begin == end or any(
        found == [one for one in state.written if begin <= last_of(one) and one[0] < end]
        for state in states
    ), "batches that were never in the log together"
    assert begin <= max(state.start for state in states)
    assert begin <= log.high_watermark <= end
    assert log.recovery_point <= end
    assert all(first <= end for _, first in log.epochs.entries)
    for header in headers:
        offset = max(header.base_offset, begin)
        known = log.epochs.epoch_of(offset)
        # What was to be deleted may be there again, and its epochs are not. So it is in Kafka.
        forgotten = known == UNDEFINED_EPOCH and offset < highest_start
        assert known == header.leader_epoch or forgotten, f"epoch {known} of {offset}"
    check_producers(log, headers)


def check_producers(log: Log, headers: list[Header]) -> None:
    expected = ProducerStates(1 << 60)
    for header in headers:
        expected.update(header)
    known, wanted = log.producers.get(PRODUCER), expected.get(PRODUCER)
    if wanted is None:
        assert known is None or known.last_offset < log.log_start_offset, "a batch of nobody"
        return
    assert known is not None, "an unknown producer"
    assert known.batches[-1] == wanted.batches[-1], "another last batch"


def lose_while_starting(broker: Broker, *, any_order: bool) -> None:
    """Let the power fail once more within the next start."""
    recorder = Recorder(broker.folder)
    before = len(recorder.events)
    with recorder.recording():
        broker.open()
    broker.manager.close()
    at = broker.chance.randint(before, len(recorder.events))
    broker.folder = broker.folder.with_name(f"{broker.folder.name}.again")
    Disk(recorder.events[:at], any_order=any_order).write(broker.folder, broker.chance)


def run(seed: int, folder: Path, rounds: int, *, any_order: bool) -> None:
    folder.mkdir()
    broker = Broker(folder / "0", seed)
    for turn in range(rounds):
        recorder = Recorder(broker.folder)
        broker.begin(len(recorder.events))
        with recorder.recording():
            for _ in range(STEPS):
                name = broker.step()
                broker.note(len(recorder.events), name)
        broker.manager.close()
        states = broker.states
        for loss in range(LOSSES):
            at = broker.chance.randint(states[0].at, len(recorder.events))
            done = sum(1 for state in states if state.at <= at)
            broker.folder = folder / f"{turn + 1}.{loss}"
            Disk(recorder.events[:at], any_order=any_order).write(broker.folder, broker.chance)
            try:
                if broker.chance.random() < 0.3:
                    lose_while_starting(broker, any_order=any_order)
                broker.open()
                check_promises(broker.log, states[done - 1], states[min(done, STEPS)])
                if not any_order:
                    check_consistency(broker.log, states[: done + 1], broker.highest_start)
            except Exception as error:
                names = " ".join(state.name for state in states[: done + 1])
                error.add_note(f"seed {seed}, round {turn}, loss {loss} within the last of {names}")
                raise
            if loss + 1 < LOSSES:
                broker.manager.close()
        broker.resume()
    broker.manager.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_promised_survives(tmp_path: Path, seed: int) -> None:
    run(seed, tmp_path / "journal", ROUNDS, any_order=False)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_flushed_survives_without_a_journal(tmp_path: Path, seed: int) -> None:
    """Of the rest, a segment may be missing between others then, and nothing tells that. So no log
    goes on.
    """
    run(seed, tmp_path / "any-order", 1, any_order=True)
