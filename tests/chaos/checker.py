"""What a history must not show. Pure functions; each returns one line per violation.

The promises are those of acks=all with min.insync.replicas 2 and idempotent producers: a record
that was acknowledged stays at its offset, an offset has one value for ever, no value has two
offsets, and what a consumer once read does not vanish. Epochs only rise, a leader is in sync, and
replicas hold the same bytes below the high watermark.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from tests.chaos.history import UNKNOWN, Commit, History, Place

# Where a batch of magic 2 tells its base offset and length, last offset delta, producer and epoch.
_HEAD = struct.Struct(">qi")
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23
_PRODUCER = struct.Struct(">qh")
_PRODUCER_AT = 43
_SMALLEST_BATCH = 61


def lost(history: History) -> list[str]:
    """Return acknowledged records that the final read does not show at their offset."""
    final = {place: dict(records) for place, records in history.final.items()}
    present = {place: set(records.values()) for place, records in final.items()}
    found = []
    for one in history.acknowledged:
        if one.offset == UNKNOWN:
            if one.value not in present.get(one.place, ()):
                found.append(f"{one.value} was acknowledged, and is nowhere in {one.place}")
        elif (there := final.get(one.place, {}).get(one.offset)) != one.value:
            found.append(f"{one.value} was acknowledged at {one.place}@{one.offset}: {there}")
    return found


def duplicated(history: History) -> list[str]:
    """Return values that the final read shows more than once: the producers were idempotent.

    A librdkafka producer with several requests in flight takes a new producer epoch once a request
    overtakes one that was refused, and sends whatever is unanswered again under it; no broker can
    tell that from new records. Of such a producer only copies within one epoch count.
    """
    copies: dict[str, list[tuple[Place, int]]] = defaultdict(list)
    for place, records in history.final.items():
        for offset, value in records:
            copies[value].append((place, offset))
    epochs = producer_epochs(history)
    found = []
    for value, at in copies.items():
        if value.rpartition(":")[0] in history.pipelined:
            counted = Counter(epochs.get(one) for one in at).most_common(1)[0][1]
        else:
            counted = len(at)
        if counted > 1:
            found.append(f"{value} is at {', '.join(f'{place}@{offset}' for place, offset in at)}")
    return found


def producer_epochs(history: History) -> dict[tuple[Place, int], tuple[int, int]]:
    """Return the producer id and epoch of each record, from one image per partition."""
    found: dict[tuple[Place, int], tuple[int, int]] = {}
    for image in {one.place: one for one in history.images}.values():
        for position, base, last in batches(image.data):
            producer = _PRODUCER.unpack_from(image.data, position + _PRODUCER_AT)
            found.update({(image.place, offset): producer for offset in range(base, last + 1)})
    return found


def inconsistent(history: History) -> list[str]:
    """Return offsets at which any two readers saw different values."""
    values: dict[tuple[Place, int], set[str]] = defaultdict(set)
    for place, offset, value in _observed(history):
        values[place, offset].add(value)
    return [
        f"{place}@{offset} had the values {', '.join(sorted(found))}"
        for (place, offset), found in values.items()
        if len(found) > 1
    ]


def _observed(history: History) -> Iterator[tuple[Place, int, str]]:
    for one in history.acknowledged:
        if one.offset != UNKNOWN:
            yield one.place, one.offset, one.value
    for read in history.reads:
        yield read.place, read.offset, read.value
    for place, records in history.final.items():
        for offset, value in records:
            yield place, offset, value


def vanished(history: History) -> list[str]:
    """Return records that a consumer received and that the final read does not have."""
    final = {place: dict(records) for place, records in history.final.items()}
    return [
        f"{one.reader} read {one.value} at {one.place}@{one.offset}, gone in the end"
        for one in history.reads
        if one.offset not in final.get(one.place, {})
    ]


def invented(history: History) -> list[str]:
    """Return values in the final read that no producer sent."""
    found = []
    for place, records in history.final.items():
        for offset, value in records:
            producer, _, number = value.rpartition(":")
            if not number.isdecimal() or int(number) >= history.sent.get(producer, 0):
                found.append(f"{value} at {place}@{offset} was never sent")
    return found


def skipped(history: History) -> list[str]:
    """Return steps of an assigned consumer or the final read to another than the next offset."""
    positions: dict[tuple[str, Place], int] = {}
    found = []
    steps = [(one.reader, one.place, one.offset) for one in history.reads]
    steps += [
        ("final", place, offset) for place, all_ in history.final.items() for offset, _ in all_
    ]
    for reader, place, offset in steps:
        before = positions.get((reader, place), -1)
        if offset != before + 1:
            found.append(f"{reader} stepped from {before} to {offset} in {place}")
        positions[reader, place] = offset
    return found


def disordered(history: History) -> list[str]:
    """Return records of one producer epoch that lie in another order than they were sent."""
    epochs = producer_epochs(history)
    last: dict[tuple[Place, str, object], int] = {}
    found = []
    for place, records in history.final.items():
        for offset, value in records:
            producer, _, text = value.rpartition(":")
            number = int(text) if text.isdecimal() else -1
            key = (place, producer, epochs.get((place, offset)))
            if number <= last.get(key, -1):
                found.append(f"{value} at {place}@{offset} follows {last[key]}")
            last[key] = number
    return found


def out_of_time(history: History) -> list[str]:
    """Return records that lie before one that was acknowledged before they were sent."""
    found = []
    places: dict[Place, list[tuple[int, int]]] = defaultdict(list)
    known = [one for one in history.acknowledged if one.offset != UNKNOWN]
    for one in known:
        places[one.place].append((one.acknowledged_ns, one.offset))
    highest: dict[Place, tuple[list[int], list[int]]] = {
        place: _running_maximum(pairs) for place, pairs in places.items()
    }
    for one in known:
        times, maxima = highest[one.place]
        earlier = bisect_left(times, one.sent_ns) - 1
        if earlier >= 0 and one.offset <= maxima[earlier]:
            found.append(
                f"{one.value} was sent after {one.place}@{maxima[earlier]} was acknowledged "
                f"and lies at {one.offset}"
            )
    return found


def _running_maximum(pairs: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    times: list[int] = []
    maxima: list[int] = []
    for time, offset in sorted(pairs):
        times.append(time)
        maxima.append(max(offset, maxima[-1]) if maxima else offset)
    return times, maxima


def uncommitted(history: History) -> list[str]:
    """Return group offsets that fell: read back lower than a commit that had succeeded."""
    found = []
    places: dict[Place, list[tuple[int, int]]] = defaultdict(list)
    for one in history.commits:
        places[one.place].append((one.ended_ns, one.offset))
    highest = {place: _running_maximum(pairs) for place, pairs in places.items()}

    def check(one: Commit, what: str) -> None:
        times, maxima = highest.get(one.place, ([], []))
        earlier = bisect_left(times, one.began_ns) - 1
        if earlier >= 0 and one.offset < maxima[earlier]:
            found.append(
                f"{one.place} was committed at {maxima[earlier]}, then {what} {one.offset}"
            )

    for one in history.commits:
        check(one, "committed at")
    for one in history.committed_seen:
        check(one, "read back as")
    return found


def fallen_epochs(history: History) -> list[str]:
    """Return controller or leader epochs that fell, and leader epochs with two leaders."""
    found = []
    for before, after in zip(
        history.controller_epochs, history.controller_epochs[1:], strict=False
    ):
        if after < before:
            found.append(f"controller epoch fell from {before} to {after}")
    last: dict[Place, int] = {}
    leaders: dict[tuple[Place, int], int] = {}
    for one in history.states:
        before = last.get(one.place, -1)
        if one.leader_epoch < before:
            found.append(f"leader epoch of {one.place} fell from {before} to {one.leader_epoch}")
        last[one.place] = one.leader_epoch
        first = leaders.setdefault((one.place, one.leader_epoch), one.leader)
        if first != one.leader:
            found.append(
                f"{one.place} had leaders {first} and {one.leader} in epoch {one.leader_epoch}"
            )
    return found


def broken_states(history: History) -> list[str]:
    """Return states whose leader is not in sync, or whose ISR is empty or not of the replicas."""
    return [
        f"{one.place}: leader {one.leader}, in sync {one.isr}, replicas {one.replicas}"
        for one in dict.fromkeys(history.states)
        if not one.isr
        or not set(one.isr) <= set(one.replicas)
        or (one.leader != -1 and one.leader not in one.isr)
    ]


def diverged(history: History) -> list[str]:
    """Return replicas whose bytes below the high watermark differ from the first replica's."""
    found = []
    for place, mark in history.high_watermarks.items():
        images = [one for one in history.images if one.place == place]
        if not images:
            found.append(f"{place} has no replica on any disk")
            continue
        first, *others = [(one.broker, below(one.data, mark)) for one in images]
        for broker, data in others:
            if data != first[1]:
                found.append(
                    f"{place} below {mark}: {len(first[1])} bytes on broker {first[0]} differ "
                    f"from {len(data)} on broker {broker}"
                )
    return found


def below(data: bytes, mark: int) -> bytes:
    """Return the whole batches of a replica that end below an offset."""
    end = len(data)
    for position, _, last in batches(data):
        if last >= mark:
            return data[:position]
        end = position + _HEAD.size + _HEAD.unpack_from(data, position)[1]
    return data[:end]


def batches(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield position, first and last offset of each whole batch (magic 2)."""
    position = 0
    while position + _SMALLEST_BATCH <= len(data):
        base, length = _HEAD.unpack_from(data, position)
        end = position + _HEAD.size + length
        if end > len(data) or length < _SMALLEST_BATCH - _HEAD.size:
            return
        (delta,) = _LAST_DELTA.unpack_from(data, position + _LAST_DELTA_AT)
        yield position, base, base + delta
        position = end


def failed_clients(history: History) -> list[str]:
    """Return errors after which a client cannot continue; no fault here excuses one."""
    return list(history.client_failures)


CHECKS: dict[str, Callable[[History], list[str]]] = {
    "lost": lost,
    "duplicated": duplicated,
    "two values at an offset": inconsistent,
    "vanished": vanished,
    "invented": invented,
    "skipped": skipped,
    "producer order": disordered,
    "real-time order": out_of_time,
    "group offsets": uncommitted,
    "epochs": fallen_epochs,
    "states": broken_states,
    "replicas differ": diverged,
    "clients": failed_clients,
}


def check(history: History) -> dict[str, list[str]]:
    """Return the violations by check, for the checks that found some."""
    found = {name: rule(history) for name, rule in CHECKS.items()}
    return {name: violations for name, violations in found.items() if violations}
