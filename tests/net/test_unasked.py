"""How long a fetch may wait beside records that its client still works on."""

from odradek.net.unasked import KEYS, Unasked

MOST_MS = 500


def waits(unasked: Unasked, *asked: str) -> list[int]:
    """How long fetches wait, one after the other, that find nothing."""
    found: list[int] = []
    while not found or found[-1] < MOST_MS:
        found.append(unasked.wait_ms(asked, MOST_MS))
        unasked.answer([])
    return found


def test_nothing_is_shortened_where_all_that_was_given_is_asked_for() -> None:
    unasked = Unasked()
    assert unasked.wait_ms(["a", "b"], MOST_MS) == MOST_MS
    unasked.answer(["a", "b"])
    assert unasked.wait_ms(["b", "a", "c"], MOST_MS) == MOST_MS


def test_waits_beside_records_are_short_and_grow() -> None:
    unasked = Unasked()
    unasked.answer(["a"])
    assert waits(unasked, "b") == [5, 10, 20, 40, 80, 160, 320, MOST_MS]


def test_no_wait_is_longer_than_the_client_says() -> None:
    unasked = Unasked()
    unasked.answer(["a"])
    assert unasked.wait_ms(["b"], 1) == 1
    assert unasked.wait_ms(["b"], 0) == 0


def test_a_partition_that_was_given_up_does_not_shorten_waits_for_ever() -> None:
    unasked = Unasked()
    unasked.answer(["given up"])
    for _ in range(10):
        unasked.answer(["a"])
        assert len(waits(unasked, "a")) <= 8
    unasked.answer(["a"])
    assert waits(unasked, "a") == [MOST_MS]


def test_other_records_do_not_make_waits_longer() -> None:
    unasked = Unasked()
    unasked.answer(["a"])
    for _ in range(10):
        assert unasked.wait_ms(["b"], MOST_MS) == 5
        unasked.answer(["b"])


def test_few_partitions_are_remembered_of_a_connection() -> None:
    unasked = Unasked()
    unasked.answer(range(KEYS))
    assert unasked.wait_ms([0], MOST_MS) == 5
    unasked.answer(range(KEYS + 1))
    assert unasked.wait_ms([0], MOST_MS) == MOST_MS
