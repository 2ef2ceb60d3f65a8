"""The log as a state machine: whatever happens to it, it reads like a list of records."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from odradek.log.partition import cleaner
from odradek.log.partition.log import Log
from odradek.log.records import records
from odradek.topic_config import TopicConfig
from tests.support.logs import START_MS, Partition, batch, read_all, whole_records
from tests.support.sampling import how_many

pytestmark = pytest.mark.usefixtures("without_fsync")
KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
VALUES = st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=5)


class LogMachine(RuleBasedStateMachine):
    """A log beside a list of batches, each a list of (offset, timestamp, value)."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="odradek-log-"))
        config = TopicConfig(
            segment_bytes=600,
            segment_index_bytes=96,
            index_interval_bytes=100,
            retention_bytes=2000,
            retention_ms=-1,
            file_delete_delay_ms=0,
        )
        self.partition = Partition(self.folder / "topic-0", config)
        self.log: Log = self.partition.open(clean=True)
        self.model: list[list[tuple[int, int, bytes]]] = []
        self.start = 0
        self.end = 0
        self.epochs: list[tuple[int, int]] = []
        # Of the newest record that was deleted from the start. No leader has an older one.
        self.deleted_epoch = 0

    def teardown(self) -> None:
        self.log.abandon()
        shutil.rmtree(self.folder)

    @rule(
        values=VALUES,
        codec=st.integers(0, 4),
        epoch_step=st.integers(0, 1),
        later=st.integers(-9, 99),
    )
    def append(self, values: list[bytes], codec: int, epoch_step: int, later: int) -> None:
        timestamp = START_MS + later
        epoch = max(self.log.latest_epoch, self.deleted_epoch) + epoch_step
        data = batch(*values, timestamp=timestamp, codec=codec)
        info = self.log.append_as_leader(data, epoch)
        assert info.base_offset == self.end
        self._grow(values, timestamp, epoch)

    def _grow(self, values: list[bytes], timestamp: int, epoch: int) -> None:
        if not self.epochs or self.epochs[-1][0] < epoch:
            # One that has no record is forgotten for one that begins where it did.
            self.epochs = [entry for entry in self.epochs if entry[1] < self.end]
            self.epochs.append((epoch, self.end))
        self.model.append(
            [(self.end + number, timestamp, value) for number, value in enumerate(values)]
        )
        self.end += len(values)

    @rule(batches=st.lists(VALUES, min_size=1, max_size=4), torn=st.integers(0, 70))
    def follow(self, batches: list[list[bytes]], torn: int) -> None:
        """Several batches as a leader sends them, the last one possibly cut off."""
        from odradek.log.records import batch as codec

        epoch = max(self.log.latest_epoch, self.deleted_epoch)
        data, expected, offset = b"", [], self.end
        for values in batches:
            plain = batch(*values)
            parts = codec.stamp(plain, codec.parse(plain), offset, epoch)
            data += b"".join(parts)
            expected.append(values)
            offset += len(values)
        if torn:
            data = data[:-torn]
            kept = sum(1 for _ in codec.scan(data))
            expected = expected[:kept]
        self.log.append_as_follower(data)
        for values in expected:
            self._grow(values, START_MS, epoch)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = self.start + int((self.end - self.start) * share)
        self.log.truncate_to(offset)
        if offset >= self.end:
            self.epochs = [entry for entry in self.epochs if entry[1] < self.end]
            return
        end = offset
        while self.model and self.model[-1][-1][0] >= offset:
            end = min(offset, self.model.pop()[0][0])
        if offset <= self.start or end <= self.start:
            # Nothing is left; the log starts over where it was cut, or at its start.
            self.start = self.end = min(offset, self.start)
            self.model, self.epochs = [], []
        else:
            self.end = end
            self.epochs = [entry for entry in self.epochs if entry[1] < end]

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def retain(self) -> None:
        self.log.high_watermark = self.end
        self.log.apply_retention()
        self.log.delete_due()
        assert self.log.log_start_offset >= self.start
        if self.log.segments.size > 2000 + 600:
            raise AssertionError(f"{self.log.segments.size} bytes after retention")
        self._start_at(self.log.log_start_offset)

    @precondition(lambda self: self.end > self.start)
    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = self.start + int((self.end - self.start) * share)
        self.log.high_watermark = self.end
        self.log.advance_log_start(offset)
        self.partition.log_start = self.log.log_start_offset
        self._start_at(offset)

    def _start_at(self, offset: int) -> None:
        self.start = offset
        self.model = [one for one in self.model if one[-1][0] >= offset]
        for epoch, first in self.epochs:
            if first < offset:
                self.deleted_epoch = max(self.deleted_epoch, epoch)
        spanning = [entry for entry in self.epochs if entry[1] <= offset]
        if spanning:
            self.epochs = [(spanning[-1][0], offset), *self.epochs[len(spanning) :]]

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.partition.recovery_point = self.log.recovery_point

    @rule()
    def idle(self) -> None:
        self.log.release_idle()

    @rule()
    def reopen_cleanly(self) -> None:
        self.partition.close(self.log)
        self.log = self.partition.open(clean=True)
        assert self.partition.report is not None
        assert self.partition.report.scanned_segments == 0

    @rule()
    def reopen_after_crash(self) -> None:
        self.partition.crash(self.log)
        self.log = self.partition.open(clean=False)
        assert self.partition.report is not None
        assert self.partition.report.truncated_bytes == 0
        self._start_at(max(self.start, self.log.log_start_offset))
        self._learn_epoch()

    @rule(garbage=st.binary(min_size=1, max_size=200))
    def crash_with_a_torn_tail(self, garbage: bytes) -> None:
        self.partition.crash(self.log)
        with open(self.log.segments.active.log.path, "ab") as file:
            file.write(garbage)
        self.log = self.partition.open(clean=False)
        self._learn_epoch()

    def _learn_epoch(self) -> None:
        """Deleted records that are on the disk still tell their epoch, if it was forgotten."""
        deleted = [(self.deleted_epoch, self.start)]
        if self.start == self.end and not self.epochs and self.log.epochs.entries == deleted:
            self.epochs = deleted

    @invariant()
    def offsets_agree(self) -> None:
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)

    @invariant()
    def reads_agree(self) -> None:
        found = [
            (one.offset, one.timestamp, one.value) for one in read_all(self.log, max_bytes=300)
        ]
        assert found == [one for each in self.model for one in each if one[0] >= self.start]

    @invariant()
    def epochs_agree(self) -> None:
        assert self.log.epochs.entries == self.epochs

    @rule(share=st.floats(0, 1), bound_share=st.floats(0, 1), max_bytes=st.integers(1, 800))
    def read_below_a_bound(self, share: float, bound_share: float, max_bytes: int) -> None:
        offset = self.start + int((self.end - self.start) * share)
        bound = self.start + int((self.end - self.start) * bound_share)
        piece = self.log.reader.read(offset, max_bytes, bound)
        visible = [one for one in self.model if one[-1][0] >= offset and one[-1][0] < bound]
        if piece.region is None:
            assert offset >= bound or not visible
            return
        with piece.region as region:
            data = region.read()
        got = [record.offset for record in whole_records(data)]
        assert got == [one[0] for each in visible for one in each][: len(got)]
        assert got, "the first batch goes out whole"
        assert len(data) <= max(max_bytes, 600)

    @rule(later=st.integers(-20, 120))
    def look_up_by_time(self, later: int) -> None:
        found = self.log.reader.offset_for_timestamp(START_MS + later)
        expected = [
            one
            for each in self.model
            for one in each
            if one[1] >= START_MS + later and one[0] >= self.start
        ]
        if expected:
            assert found is not None
            assert (found.offset, found.timestamp) == expected[0][:2]
        else:
            assert found is None


LogMachine.TestCase.settings = settings(
    max_examples=how_many(40, full=1000),
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
)
TestLogAgainstModel = LogMachine.TestCase


class CompactedLogMachine(RuleBasedStateMachine):
    """A compacted log beside a list of batches, each its offsets and what is left of its records
    as (offset, key, value).
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="odradek-log-"))
        config = TopicConfig(
            cleanup_policy=("compact",),
            segment_bytes=500,
            segment_index_bytes=96,
            index_interval_bytes=100,
            file_delete_delay_ms=0,
        )
        self.partition = Partition(self.folder / "topic-0", config)
        self.log: Log = self.partition.open(clean=True)
        self.model: list[tuple[range, list[tuple[int, bytes, bytes]]]] = []
        self.end = 0
        self.clean_to = 0

    def teardown(self) -> None:
        self.log.abandon()
        shutil.rmtree(self.folder)

    @rule(
        pairs=st.lists(st.tuples(KEYS, st.binary(min_size=1, max_size=60)), min_size=1, max_size=4),
        codec=st.integers(0, 4),
    )
    def append(self, pairs: list[tuple[bytes, bytes]], codec: int) -> None:
        data = records.make(pairs, START_MS, records.BatchOptions(codec=codec))
        assert self.log.append_as_leader(data, 0).base_offset == self.end
        offsets = range(self.end, self.end + len(pairs))
        self.model.append((offsets, [(at, *pair) for at, pair in zip(offsets, pairs, strict=True)]))
        self.end = offsets.stop

    @rule(max_keys=st.integers(4, 12))
    def compact(self, max_keys: int) -> None:
        self.log.high_watermark = self.end
        dirty = cleaner.dirty_range(self.log, self.clean_to, START_MS)
        self.clean_to = cleaner.clean(self.log, dirty, max_keys, cleaner.Throttle())
        self.log.delete_due()
        newest = {key: at for _, found in self.model for at, key, _ in found if at < self.clean_to}
        self.model = [
            (offsets, [one for one in found if one[0] >= self.clean_to or newest[one[1]] == one[0]])
            for offsets, found in self.model
        ]

    @precondition(lambda self: self.model)
    @rule(share=st.floats(0, 1, exclude_max=True))
    def truncate(self, share: float) -> None:
        """At the beginning of a batch, as leader epochs have it."""
        kept = int(len(self.model) * share)
        self.end = self.model[kept][0].start
        self.log.truncate_to(self.end)
        del self.model[kept:]
        self.clean_to = min(self.clean_to, self.end)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.partition.recovery_point = self.log.recovery_point

    @rule()
    def reopen_cleanly(self) -> None:
        self.partition.close(self.log)
        self.log = self.partition.open(clean=True)

    @rule()
    def reopen_after_crash(self) -> None:
        self.partition.crash(self.log)
        self.log = self.partition.open(clean=False)

    @invariant()
    def reads_agree(self) -> None:
        assert self.log.log_end_offset == self.end
        found = [(one.offset, one.key, one.value) for one in read_all(self.log, max_bytes=300)]
        assert found == [one for _, found in self.model for one in found]


CompactedLogMachine.TestCase.settings = LogMachine.TestCase.settings
TestCompactedLogAgainstModel = CompactedLogMachine.TestCase
