"""What a history of transactions must not show. Pure functions; each returns a line per violation.

A transaction is read completely, exactly once, after its commit was acknowledged, and not at all
after its abort was, or after its producer was fenced. Without an answer it is one of both. The last
stable offset never falls, and reaches the high watermark once all transactions have ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from tests.chaos import checker
from tests.chaos import history as plain
from tests.chaos.history import Place
from tests.chaos.transactions.history import (
    NEVER,
    History,
    Outcome,
    StableOffset,
    original_of,
)


def lost(history: History) -> list[str]:
    """Return records of committed transactions that are not in their partition."""
    shown = _shown(history)
    return [
        f"{sent.value} of {attempt} is not in {sent.place}"
        for attempt in history.attempts
        if attempt.outcome is Outcome.COMMITTED
        for sent in attempt.sent
        if sent.value not in shown[sent.place]
    ]


def aborted_reads(history: History) -> list[str]:
    """Return records of aborted transactions that a reader of committed records received."""
    aborted = {
        sent.value: attempt
        for attempt in history.attempts
        if attempt.outcome is Outcome.ABORTED
        for sent in attempt.sent
    }
    found = {(place, offset, value) for place, offset, value in _received(history)}
    return [
        f"{value} at {place}@{offset} of {aborted[value]} was read"
        for place, offset, value in sorted(found)
        if value in aborted
    ]


def torn(history: History) -> list[str]:
    """Return transactions with an unknown outcome of which some records are shown, not all."""
    shown = _shown(history)
    found = []
    for attempt in history.attempts:
        if attempt.outcome is Outcome.UNKNOWN:
            missing = [sent for sent in attempt.sent if sent.value not in shown[sent.place]]
            if missing and len(missing) < len(attempt.sent):
                found.append(
                    f"{len(missing)} of {len(attempt.sent)} records of {attempt} are missing: "
                    f"{', '.join(f'{value} in {place}' for place, value in missing)}"
                )
    return found


def duplicated(history: History) -> list[str]:
    """Return values that are shown more than once."""
    copies: dict[str, list[str]] = defaultdict(list)
    for place, records in history.committed.items():
        for offset, value in records:
            copies[value].append(f"{place}@{offset}")
    return [f"{value} is at {', '.join(at)}" for value, at in copies.items() if len(at) > 1]


def invented(history: History) -> list[str]:
    """Return values that no transaction sent to their partition."""
    sent = {one for attempt in history.attempts for one in attempt.sent}
    return [
        f"{value} at {place}@{offset} was never sent"
        for place, records in history.everything.items()
        for offset, value in records
        if (place, value) not in sent
    ]


def disordered(history: History) -> list[str]:
    """Return records that a producer sent earlier than one before them in the partition."""
    order = {
        sent.value: (attempt.instance, attempt.number, index)
        for attempt in history.attempts
        for index, sent in enumerate(attempt.sent)
    }
    ids = {sent.value: one.transactional_id for one in history.attempts for sent in one.sent}
    found = []
    for place, records in history.committed.items():
        latest: dict[str, str] = {}
        for offset, value in records:
            if value not in order:
                continue
            before = latest.get(ids[value])
            if before is not None and order[value] < order[before]:
                found.append(f"{value} at {place}@{offset} is behind {before}")
            latest[ids[value]] = value
    return found


def differently_read(history: History) -> list[str]:
    """Return partitions of which the reader during the run saw another sequence of records."""
    reads: dict[Place, list[tuple[int, str]]] = defaultdict(list)
    for read in history.reads:
        reads[read.place].append((read.offset, read.value))
    found = []
    for place, records in reads.items():
        final = history.committed.get(place, [])
        different = [
            number
            for number, one in enumerate(records)
            if number >= len(final) or final[number] != one
        ]
        if different:
            at = different[0]
            then, last = records[at], final[at] if at < len(final) else None
            found.append(f"{place}: record {at} was read as {then}, at last it is {last}")
    return found


def zombies(history: History) -> list[str]:
    """Return transactions that were committed by producers that knew themselves replaced."""
    ready = {(one.transactional_id, one.instance): one.at_ns for one in history.ready}
    found = []
    for attempt in history.attempts:
        replaced_ns = ready.get((attempt.transactional_id, attempt.instance + 1))
        if (
            attempt.outcome is Outcome.COMMITTED
            and replaced_ns is not None
            and attempt.commit_began_ns != NEVER
            and replaced_ns < attempt.commit_began_ns
        ):
            found.append(f"{attempt}: a later producer was ready before the commit began")
    return found


def fallen(history: History) -> list[str]:
    """Return last stable offsets below one that was told before they were asked for."""
    by_place: dict[Place, list[StableOffset]] = defaultdict(list)
    for one in history.stable:
        by_place[one.place].append(one)
    found = []
    for place, told in by_place.items():
        told.sort(key=lambda one: one.ended_ns)
        ends = [one.ended_ns for one in told]
        highest: list[StableOffset] = []
        for one in told:
            known = bisect_left(ends, one.began_ns)
            before = highest[known - 1] if known else None
            if before is not None and one.offset < before.offset and not _is_stale(history, one):
                found.append(f"{place}: {before.offset} was told before {one.offset}")
            highest.append(max(highest[-1], one, key=lambda at: at.offset) if highest else one)
    return found


def _is_stale(history: History, one: StableOffset) -> bool:
    return any(began <= one.ended_ns and one.began_ns <= ended for began, ended in history.stale)


def hanging(history: History) -> list[str]:
    """Return partitions in which a transaction is open although all have ended."""
    return [
        f"{place}: the last stable offset is {ends.stable}, the end {ends.high_watermark}"
        for place, ends in history.ends.items()
        if ends.stable != ends.high_watermark
    ]


def miscopied(history: History) -> list[str]:
    """Return records of the source whose copies are not exactly one."""
    counts = {
        topic: Counter(
            convert(value)
            for place, records in history.committed.items()
            if place.topic == topic
            for _, value in records
        )
        for topic, convert in ((history.source, str), (history.copy, original_of))
    }
    source, copies = counts[history.source], counts[history.copy]
    return [
        f"{value} is {source[value]} times in {history.source}, {copies[value]} in {history.copy}"
        for value in sorted(source | copies)
        if source[value] != copies[value]
    ]


def diverged(history: History) -> list[str]:
    """Return replicas whose bytes below the high watermark differ from the first replica's."""
    marks = {place: ends.high_watermark for place, ends in history.ends.items()}
    return checker.diverged(plain.History(high_watermarks=marks, images=history.images))


def failed_clients(history: History) -> list[str]:
    """Return errors that no fault here excuses."""
    return list(history.client_failures)


def _shown(history: History) -> defaultdict[Place, set[str]]:
    """Return the values of the last read of committed records."""
    shown: defaultdict[Place, set[str]] = defaultdict(set)
    for place, records in history.committed.items():
        shown[place] = {value for _, value in records}
    return shown


def _received(history: History) -> Iterator[tuple[Place, int, str]]:
    """Yield what readers of committed records received."""
    for read in history.reads:
        yield read.place, read.offset, read.value
    for place, records in history.committed.items():
        for offset, value in records:
            yield place, offset, value


CHECKS: dict[str, Callable[[History], list[str]]] = {
    "lost": lost,
    "aborted records read": aborted_reads,
    "torn": torn,
    "duplicated": duplicated,
    "invented": invented,
    "producer order": disordered,
    "readers differ": differently_read,
    "zombies": zombies,
    "fallen last stable offset": fallen,
    "hanging": hanging,
    "not copied once": miscopied,
    "replicas differ": diverged,
    "clients": failed_clients,
}


def check(history: History) -> dict[str, list[str]]:
    """Return the violations by check, for the checks that found some."""
    found = {name: rule(history) for name, rule in CHECKS.items()}
    return {name: violations for name, violations in found.items() if violations}
