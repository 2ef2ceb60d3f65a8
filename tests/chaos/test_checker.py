"""The checker finds each violation that is planted in a history, and nothing in a sound one."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable

import pytest

from odradek.log.records import records
from tests.chaos import checker
from tests.chaos.history import (
    UNKNOWN,
    Acknowledged,
    Commit,
    History,
    Image,
    Place,
    Read,
    State,
    value_of,
)

PLACE = Place("t", 0)
COUNT = 5


def batch(offset: int, value: str, producer_epoch: int = 0) -> bytes:
    options = records.BatchOptions(producer_id=7, producer_epoch=producer_epoch, base_sequence=0)
    data = records.make([(None, value.encode())], 1_700_000_000_000, options)
    return struct.pack(">q", offset) + data[8:]


def sound() -> History:
    """Return five records of one producer, read, committed and replicated correctly."""
    values = [value_of("p", number) for number in range(COUNT)]
    data = b"".join(batch(offset, value) for offset, value in enumerate(values))
    return History(
        acknowledged=[
            Acknowledged("p", number, PLACE, number, number * 100, number * 100 + 50)
            for number in range(COUNT)
        ],
        sent={"p": COUNT},
        reads=[Read("r", PLACE, offset, value) for offset, value in enumerate(values)],
        commits=[Commit(PLACE, 2, 0, 10), Commit(PLACE, 4, 20, 30)],
        committed_seen=[Commit(PLACE, 4, 40, 50)],
        states=[
            State(PLACE, (1, 2, 3), (1, 2, 3), 1, 0, 1),
            State(PLACE, (1, 2, 3), (2, 3), 2, 1, 1),
        ],
        controller_epochs=[1, 1, 2],
        final={PLACE: list(enumerate(values))},
        high_watermarks={PLACE: COUNT},
        images=[Image(broker, PLACE, data) for broker in (1, 2, 3)],
    )


def test_sound_history_has_no_violation() -> None:
    assert checker.check(sound()) == {}


def test_send_without_an_answer_binds_nobody() -> None:
    history = sound()
    del history.acknowledged[3:]
    history.sent["p"] = COUNT + 3
    assert checker.check(history) == {}


def test_bytes_above_the_high_watermark_may_differ() -> None:
    history = sound()
    longer = history.images[0].data + batch(COUNT, "uncommitted")
    history.images[0] = Image(1, PLACE, longer)
    assert checker.check(history) == {}


def copy_of_the_third_record(producer_epoch: int) -> History:
    history = sound()
    history.pipelined = frozenset(["p"])
    history.final[PLACE].append((COUNT, value_of("p", 2)))
    history.high_watermarks[PLACE] += 1
    copy = batch(COUNT, value_of("p", 2), producer_epoch)
    history.images = [Image(one.broker, PLACE, one.data + copy) for one in history.images]
    return history


def test_copy_under_a_new_epoch_is_the_doing_of_a_pipelined_producer() -> None:
    assert checker.check(copy_of_the_third_record(producer_epoch=1)) == {}


def test_copy_within_one_epoch_of_a_pipelined_producer_is_found() -> None:
    assert "duplicated" in checker.check(copy_of_the_third_record(producer_epoch=0))


def lose_the_last(history: History) -> None:
    history.final[PLACE].pop()
    history.high_watermarks[PLACE] -= 1
    history.reads.pop()


def lose_a_whole_partition(history: History) -> None:
    history.final.clear()
    history.reads.clear()


def lose_one_of_unknown_offset(history: History) -> None:
    one = history.acknowledged[1]
    history.acknowledged[1] = dataclasses.replace(one, number=COUNT, offset=UNKNOWN)


def acknowledge_twice(history: History) -> None:
    history.final[PLACE].append((COUNT, value_of("p", 2)))


def change_a_value_after_it_was_read(history: History) -> None:
    history.reads[1] = Read("r", PLACE, 1, "p:9")


def roll_the_high_watermark_back(history: History) -> None:
    history.reads.append(Read("r", PLACE, COUNT, value_of("p", COUNT)))


def write_what_nobody_sent(history: History) -> None:
    history.final[PLACE].append((COUNT, value_of("p", COUNT)))


def skip_an_offset(history: History) -> None:
    del history.reads[2]


def step_back(history: History) -> None:
    history.reads.append(history.reads[3])


def start_late(history: History) -> None:
    del history.reads[0]


def swap_two(history: History) -> None:
    final = history.final[PLACE]
    final[1], final[2] = (1, final[2][1]), (2, final[1][1])


def acknowledge_below_what_was_acknowledged(history: History) -> None:
    one = history.acknowledged[1]
    history.acknowledged[1] = dataclasses.replace(one, sent_ns=1000, acknowledged_ns=1050)


def forget_a_commit(history: History) -> None:
    history.committed_seen.append(Commit(PLACE, 3, 60, 70))


def forget_every_commit(history: History) -> None:
    history.committed_seen.append(Commit(PLACE, -1, 60, 70))


def let_an_old_member_commit(history: History) -> None:
    history.commits.append(Commit(PLACE, 2, 60, 70))


def lower_the_leader_epoch(history: History) -> None:
    history.states.reverse()


def let_two_lead(history: History) -> None:
    history.states.append(dataclasses.replace(history.states[-1], leader=3))


def lower_the_controller_epoch(history: History) -> None:
    history.controller_epochs.append(1)


def lead_out_of_sync(history: History) -> None:
    history.states.append(State(PLACE, (1, 2, 3), (2, 3), 1, 2, 1))


def empty_the_in_sync_set(history: History) -> None:
    history.states.append(State(PLACE, (1, 2, 3), (), -1, 2, 1))


def add_a_stranger_to_the_in_sync_set(history: History) -> None:
    history.states.append(State(PLACE, (1, 2, 3), (2, 4), 2, 2, 1))


def flip_a_bit(history: History) -> None:
    data = bytearray(history.images[1].data)
    data[-1] ^= 1
    history.images[1] = Image(2, PLACE, bytes(data))


def cut_a_committed_record(history: History) -> None:
    whole = history.images[2].data
    history.images[2] = Image(3, PLACE, whole[: len(whole) - len(batch(4, "p:4"))])


def lose_every_image(history: History) -> None:
    history.images.clear()


def fail_a_producer(history: History) -> None:
    history.client_failures.append("p: fatal")


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (lose_the_last, "lost"),
        (lose_a_whole_partition, "lost"),
        (lose_one_of_unknown_offset, "lost"),
        (acknowledge_twice, "duplicated"),
        (change_a_value_after_it_was_read, "two values at an offset"),
        (roll_the_high_watermark_back, "vanished"),
        (write_what_nobody_sent, "invented"),
        (skip_an_offset, "skipped"),
        (step_back, "skipped"),
        (start_late, "skipped"),
        (swap_two, "producer order"),
        (acknowledge_below_what_was_acknowledged, "real-time order"),
        (forget_a_commit, "group offsets"),
        (forget_every_commit, "group offsets"),
        (let_an_old_member_commit, "group offsets"),
        (lower_the_leader_epoch, "epochs"),
        (let_two_lead, "epochs"),
        (lower_the_controller_epoch, "epochs"),
        (lead_out_of_sync, "states"),
        (empty_the_in_sync_set, "states"),
        (add_a_stranger_to_the_in_sync_set, "states"),
        (flip_a_bit, "replicas differ"),
        (cut_a_committed_record, "replicas differ"),
        (lose_every_image, "replicas differ"),
        (fail_a_producer, "clients"),
    ],
)
def test_planted_violation_is_found(plant: Callable[[History], None], check: str) -> None:
    history = sound()
    plant(history)
    assert check in checker.check(history)


def test_every_check_has_a_planted_violation() -> None:
    marks = test_planted_violation_is_found.pytestmark  # type: ignore[attr-defined]
    assert {check for _, check in marks[0].args[1]} == set(checker.CHECKS)
