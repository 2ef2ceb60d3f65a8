"""Whether bytes on the disk are still the batches that were appended, asked before they are served.

Checksums tell that of a batch's content. Its base offset and leader epoch are outside the checksum;
they are held against the batch before and the one behind. A reader that finds nothing at the offset
it asked for (in a compacted log) learns from the checked batches before the gap that it is none.
"""

from typing import NamedTuple

from odradek.log.records import batch
from odradek.log.records.batch import CorruptBatchError, Header
from odradek.log.segment import batch_file
from odradek.log.segment.batch_file import CutOffError, Order, OutOfOrderError
from odradek.log.segment.files import read_exactly
from odradek.log.segment.segment import Segment


class WrongIndexError(Exception):
    """The index led past a batch that it should have led to; the log itself is sound there."""


class Stretch(NamedTuple):
    """Bytes of a segment that answer a read from `offset`: from `position` to `end`.

    Where the segment ends before `offset` is reached, both are its size. `size` is what is
    published of the segment, `before` and `after` are its neighbours, `next_base` the base offset
    of what follows it.
    """

    segment: Segment
    offset: int
    position: int
    end: int
    size: int
    next_base: int
    before: Segment | None
    after: Segment | None


def damage(stretch: Stretch) -> tuple[int, CorruptBatchError | None]:
    """How far the whole batches of a stretch are sound, and what is wrong there.

    Raises WrongIndexError, OSError, and FileRetiredError.
    """
    segment, position, end = stretch.segment, stretch.position, stretch.end
    fd = segment.log.acquire()
    try:
        try:
            order = _order_at(fd, stretch)
        except CorruptBatchError as error:
            return position, error
        before = position
        try:
            for data, header in batch_file.whole_batches(fd, end, position):
                order.take(position, header)
                before, position = position, position + len(data)
            _check_following(fd, stretch, position, order)
        except CutOffError as error:
            if end >= stretch.size:
                return position, error
            if position == stretch.position:
                return end, None  # not even one batch: no reader takes it for one
            return _cut_off(fd, stretch, before, position, order)
        except OutOfOrderError as error:
            return before, error
        except CorruptBatchError as error:
            return position, error
        return end, None
    finally:
        segment.log.release()


def _cut_off(
    fd: int, stretch: Stretch, before: int, position: int, order: Order
) -> tuple[int, CorruptBatchError | None]:
    """The end of a stretch that ends inside a batch."""
    try:
        _check_following(fd, stretch, position, order)
    except OutOfOrderError as error:
        return before, error
    return stretch.end, None


def _check_following(fd: int, stretch: Stretch, position: int, order: Order) -> None:
    """Hold the last batch, which ends at `position`, against the one behind it."""
    if position >= stretch.size and order.next_offset > stretch.next_base:
        raise OutOfOrderError(
            position, f"the segment reaches {order.next_offset}, the next is {stretch.next_base}"
        )
    try:
        if position < stretch.size:
            following = _header(fd, position)
        elif stretch.after is not None and stretch.after.size:
            following = batch.parse(stretch.after.read(0, batch.HEADER_SIZE))
        else:
            return
    except CorruptBatchError:
        return  # whoever reads on learns of it
    order.take(position, following)


def _header(fd: int, position: int) -> Header:
    try:
        return batch.parse(read_exactly(fd, batch.HEADER_SIZE, position))
    except CorruptBatchError as error:
        raise CorruptBatchError(position, error.reason) from None


def _order_at(fd: int, stretch: Stretch) -> Order:
    """What the batches before a stretch let expect of its first.

    Raises CorruptBatchError when nothing begins at the offset asked for, and that may be due to
    damage before.
    """
    at_end = stretch.position >= stretch.size
    if at_end or _header(fd, stretch.position).base_offset > stretch.offset:
        return _order_behind_gap(fd, stretch)
    segment = stretch.segment
    order = Order(segment.base_offset)
    if stretch.position == 0:
        order.leader_epoch = _last_epoch(stretch.before)
        return order
    try:
        for at, header in segment.scan(segment.index.before(stretch.offset), stretch.position):
            try:
                order.take(at, header)
            except OutOfOrderError:
                order = Order(segment.base_offset)
                order.take(at, header)
    except CorruptBatchError:
        return Order(segment.base_offset)  # damaged, but not asked for
    return order


def _last_epoch(segment: Segment | None) -> int:
    """Leader epoch of a segment's last batch, -1 where it is not known."""
    epoch = batch.NO_EPOCH
    if segment is not None:
        try:
            for _, header in segment.scan(segment.index.last()[1]):
                epoch = header.leader_epoch
        except CorruptBatchError:
            return batch.NO_EPOCH
    return epoch


def _order_behind_gap(fd: int, stretch: Stretch) -> Order:
    """As `_order_at`, where the batches before end below the offset asked for, and must be sound
    for that to be believed.
    """
    segment = stretch.segment
    wrong: CorruptBatchError | None = None
    for start in (segment.index.before(stretch.offset), 0):
        order, at, reached = Order(segment.base_offset), start, False
        try:
            for data, header in batch_file.whole_batches(fd, stretch.position, max(start, 0)):
                order.take(at, header)
                at += len(data)
                reached = reached or header.last_offset >= stretch.offset
        except CorruptBatchError as error:
            wrong = error
            continue
        if reached or wrong is not None or at != stretch.position:
            raise WrongIndexError(segment.index.file.path)
        return order
    assert wrong is not None
    raise wrong
