"""Rates and token buckets against Kafka's, in virtual time."""

from pathlib import Path

from odradek.quotas.rates import LONGEST_THROTTLE_MS, BucketSensor, RateSensor, Window

WINDOW = Window()
# See tests/support/quota_vectors.py for how this was made.
SERIES = [
    (kind, float(limit), [pair.split(":") for pair in pairs])
    for kind, limit, *pairs in (
        line.split(" ")
        for line in Path(__file__).with_name("kafka_throttles.txt").read_text().splitlines()
    )
]


def test_throttle_times_are_those_of_kafka() -> None:
    assert {kind for kind, *_ in SERIES} == {"rate", "bucket", "strict"}
    assert sum(pair[-1] != "0" for *_, pairs in SERIES for pair in pairs) > 1000
    for kind, limit, pairs in SERIES:
        times = throttles(kind, limit, [(int(time), float(value)) for time, value, _ in pairs])
        assert times == [expected for *_, expected in pairs], (kind, limit)


def throttles(kind: str, limit: float, values: list[tuple[int, float]]) -> list[str]:
    """Return the throttle time after each value, with an x where a strict bucket refuses it."""
    rate, bucket = RateSensor(WINDOW, limit), BucketSensor(WINDOW, limit, values[0][0])
    times: list[str] = []
    for now_ms, value in values:
        if kind == "rate":
            rate.add(value, now_ms)
            times.append(str(rate.throttle_ms(now_ms)))
        elif kind == "bucket":
            bucket.take(value, now_ms)
            times.append(str(bucket.throttle_ms(now_ms)))
        elif wait_ms := bucket.throttle_ms(now_ms):
            times.append(f"x{wait_ms}")
        else:
            bucket.take(value, now_ms)
            times.append("0")
    return times


def test_who_waits_as_told_keeps_to_the_limit() -> None:
    sensor, now_ms, sent = RateSensor(WINDOW, 1000.0), 0, 0
    for _ in range(100):
        sensor.add(5000, now_ms)
        sent += 5000
        now_ms += max(sensor.throttle_ms(now_ms), 1)
    assert 0.9 < sent / (now_ms / 1000) / 1000 < 1.1


def test_what_is_taken_back_was_never_counted() -> None:
    sensor = RateSensor(WINDOW, 100.0)
    sensor.add(500, 0)
    assert not sensor.has_only(400)
    sensor.add(-500, 0)
    assert sensor.rate(0) == (0.0, 10_000)
    assert sensor.has_only(0)


def test_throttle_time_fits_into_its_field() -> None:
    bounded = RateSensor(WINDOW, 1.0, longest_ms=1000)
    bounded.add(1e9, 0)
    assert bounded.throttle_ms(0) == 1000
    for least in (1e-9, 5e-324):
        rate = RateSensor(WINDOW, least)
        rate.add(1e9, 0)
        assert rate.throttle_ms(0) == LONGEST_THROTTLE_MS
        bucket = BucketSensor(WINDOW, least, 0)
        bucket.take(1e9, 0)
        assert bucket.throttle_ms(0) == LONGEST_THROTTLE_MS


def test_a_window_of_one_sample_has_a_rate() -> None:
    sensor = RateSensor(Window(1, 1000), 1.0)
    sensor.add(10, 5)
    assert sensor.throttle_ms(5) > 0
