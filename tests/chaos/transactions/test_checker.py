"""The checker finds each violation that is planted in a history of transactions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tests.chaos.history import Image, Place, Read
from tests.chaos.transactions import checker
from tests.chaos.transactions.history import (
    Attempt,
    Ends,
    History,
    Outcome,
    Ready,
    Sent,
    StableOffset,
    copy_of,
    value_of,
)

SOURCE, OTHER, COPY = Place("source", 0), Place("other", 0), Place("copy", 0)


def attempt(name: str, instance: int, number: int, outcome: Outcome, *places: Place) -> Attempt:
    sent = tuple(
        Sent(place, value_of(name, instance, number, index)) for index, place in enumerate(places)
    )
    return Attempt(name, instance, number, sent, outcome, 100, 200, 300, "")


def sound() -> History:
    """Return transactions of two instances of an id, one copy, and correct reads of them."""
    committed = attempt("w", 0, 1, Outcome.COMMITTED, SOURCE, OTHER, SOURCE)
    aborted = attempt("w", 0, 2, Outcome.ABORTED, SOURCE)
    unknown = attempt("w", 1, 1, Outcome.UNKNOWN, OTHER, OTHER)
    copies = tuple(
        Sent(COPY, copy_of(value_of("c", 0, 1, index), committed.sent[at].value))
        for index, at in enumerate((0, 2))
    )
    copied = dataclasses.replace(attempt("c", 0, 1, Outcome.COMMITTED), sent=copies)
    shown = {
        SOURCE: [(0, "w/0/1/0"), (1, "w/0/1/2")],
        OTHER: [(0, "w/0/1/1"), (2, "w/1/1/0"), (3, "w/1/1/1")],
        COPY: [(0, copies[0].value), (1, copies[1].value)],
    }
    return History(
        "source",
        "copy",
        attempts=[committed, aborted, unknown, copied],
        ready=[Ready("w", 0, 50), Ready("w", 1, 400)],
        reads=[Read("r", place, *one) for place in shown for one in shown[place]],
        stable=[StableOffset(SOURCE, 2, 0, 10), StableOffset(SOURCE, 5, 20, 30)],
        committed=shown,
        everything={**shown, SOURCE: [*shown[SOURCE], (3, "w/0/2/0")]},
        ends={SOURCE: Ends(5, 5)},
        images=[Image(broker, SOURCE, b"") for broker in (1, 2, 3)],
    )


def test_sound_history_has_no_violation() -> None:
    assert checker.check(sound()) == {}


def lose_a_record(history: History) -> None:
    del history.committed[OTHER][0]
    history.reads.clear()


def lose_half_of_a_transaction(history: History) -> None:
    del history.committed[OTHER][2]
    history.reads.clear()


def read_an_aborted_record(history: History) -> None:
    history.reads.append(Read("r", SOURCE, 3, "w/0/2/0"))


def write_twice(history: History) -> None:
    history.committed[OTHER].append((5, "w/0/1/1"))


def invent(history: History) -> None:
    history.everything[OTHER].append((9, "w/9/9/9"))


def swap_two(history: History) -> None:
    first, second, third = history.committed[OTHER]
    history.committed[OTHER] = [first, (second[0], third[1]), (third[0], second[1])]


def read_something_else(history: History) -> None:
    history.reads[1] = dataclasses.replace(history.reads[1], offset=7)


def commit_after_a_successor(history: History) -> None:
    history.ready[1] = Ready("w", 1, 150)


def let_the_stable_offset_fall(history: History) -> None:
    history.stable.append(StableOffset(SOURCE, 4, 40, 50))


def leave_a_transaction_open(history: History) -> None:
    history.ends[SOURCE] = Ends(4, 5)


def copy_twice(history: History) -> None:
    copies = history.committed[COPY]
    copies.append((5, copies[0][1]))


def forget_a_copy(history: History) -> None:
    del history.committed[COPY][1]


def lose_the_replicas(history: History) -> None:
    history.images.clear()


def fail_a_client(history: History) -> None:
    history.client_failures.append("w: fatal")


PLANTED: dict[Callable[[History], None], str] = {
    lose_a_record: "lost",
    lose_half_of_a_transaction: "torn",
    read_an_aborted_record: "aborted records read",
    write_twice: "duplicated",
    invent: "invented",
    swap_two: "producer order",
    read_something_else: "readers differ",
    commit_after_a_successor: "zombies",
    let_the_stable_offset_fall: "fallen last stable offset",
    leave_a_transaction_open: "hanging",
    copy_twice: "not copied once",
    forget_a_copy: "not copied once",
    lose_the_replicas: "replicas differ",
    fail_a_client: "clients",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_violation_is_found(plant: Callable[[History], None]) -> None:
    history = sound()
    plant(history)
    assert PLANTED[plant] in checker.check(history)


def test_every_check_has_a_planted_violation() -> None:
    assert set(PLANTED.values()) == checker.CHECKS.keys()


def test_unknown_transaction_may_be_missing_completely() -> None:
    history = sound()
    del history.committed[OTHER][1:]
    history.reads = [read for read in history.reads if not read.value.startswith("w/1")]
    assert checker.check(history) == {}


def test_stable_offset_of_a_paused_broker_may_be_old() -> None:
    history = sound()
    let_the_stable_offset_fall(history)
    history.stale.append((35, 60))
    assert checker.check(history) == {}
