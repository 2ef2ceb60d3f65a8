from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from odradek.zk.znodes import TopicPartition
from odradek_spark import endpoint, lag

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
NOW_MS = 1_000_000


def test_lag_is_what_lies_between_commit_and_end() -> None:
    measured = lag.measure({T0: 5, T1: 7}, {T0: 8, T1: 7}, {T0: NOW_MS - 2500}, 1, NOW_MS)
    assert [(part.lag, part.seconds) for part in measured.partitions] == [(3, 2.5), (0, 0.0)]
    assert (measured.total, measured.max_seconds) == (3, 2.5)


def test_topic_made_anew_has_no_lag_below_zero() -> None:
    assert lag.measure({T0: 50}, {T0: 2}, {}, 1, NOW_MS).total == 0


def test_partition_without_a_commit_is_no_backlog() -> None:
    measured = lag.measure({T0: 1}, {T0: 1, T1: 9}, {}, 1, NOW_MS)
    assert measured.total == 0
    assert measured.partitions[1].lag is None


def test_record_that_could_not_be_read_leaves_the_age_open_and_not_zero() -> None:
    assert lag.measure({T0: 1}, {T0: 2}, {}, 1, NOW_MS).partitions[0].seconds is None


def test_clock_behind_the_producers_gives_no_age_below_zero() -> None:
    assert lag.measure({T0: 1}, {T0: 2}, {T0: NOW_MS + 9}, 1, NOW_MS).max_seconds == 0


def test_only_partitions_with_records_left_are_asked_for_their_oldest() -> None:
    assert lag.behind({T0: 5, T1: 7}, {T0: 8, T1: 7, U0: 3}) == {T0: 5}


@pytest.fixture
def served() -> Iterator[tuple[list[endpoint.Status], str]]:
    """Yield a list whose last status is served, and the server's address."""
    statuses = [endpoint.Status()]

    def healthy() -> bool:
        return statuses[-1].state != endpoint.FAILED

    server = endpoint.Endpoint("g", 0, lambda: statuses[-1], healthy)
    server.start()
    yield statuses, f"http://127.0.0.1:{server.port}"
    server.stop()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def test_lag_has_the_names_that_dashboards_know(
    served: tuple[list[endpoint.Status], str],
) -> None:
    statuses, url = served
    measured = lag.measure({T0: 5}, {T0: 8, T1: 4}, {T0: NOW_MS - 1000}, 2, NOW_MS)
    statuses.append(endpoint.Status(endpoint.RUNNING, 7, 1.5, 3, measured))
    text = get(f"{url}/metrics")
    for line in (
        'kafka_consumergroup_lag{consumergroup="g",partition="0",topic="t"} 3.0',
        'kafka_consumergroup_lag_sum{consumergroup="g",topic="t"} 3.0',
        'kafka_consumergroup_current_offset{consumergroup="g",partition="0",topic="t"} 5.0',
        'kafka_topic_partition_current_offset{partition="0",topic="t"} 8.0',
        'kafka_topic_partition_current_offset{partition="1",topic="t"} 4.0',
        'odradek_consumergroup_lag_seconds{consumergroup="g",partition="0",topic="t"} 1.0',
        'odradek_consumergroup_no_commit{consumergroup="g",partition="0",topic="t"} 0.0',
        'odradek_consumergroup_no_commit{consumergroup="g",partition="1",topic="t"} 1.0',
        'kafka_consumergroup_members{consumergroup="g"} 2.0',
        'odradek_job_last_batch_id{consumergroup="g"} 7.0',
        'odradek_job_batch_duration_seconds{consumergroup="g"} 1.5',
    ):
        assert line in text.splitlines()
    assert 'kafka_consumergroup_lag{consumergroup="g",partition="1"' not in text


def test_series_of_a_partition_that_is_gone_goes(
    served: tuple[list[endpoint.Status], str],
) -> None:
    statuses, url = served
    statuses.append(endpoint.Status(measured=lag.measure({U0: 1}, {U0: 1}, {}, 1, NOW_MS)))
    assert 'topic="u"' in get(f"{url}/metrics")
    statuses.append(endpoint.Status(measured=lag.measure({}, {}, {}, 1, NOW_MS)))
    assert 'topic="u"' not in get(f"{url}/metrics")


def test_operator_is_told_the_state_in_one_document(
    served: tuple[list[endpoint.Status], str],
) -> None:
    statuses, url = served
    assert json.loads(get(f"{url}/status"))["state"] == "Starting"
    assert json.loads(get(f"{url}/status"))["totalLag"] is None
    measured = lag.measure({T0: 5}, {T0: 8}, {T0: NOW_MS - 61_400}, 2, NOW_MS)
    statuses.append(endpoint.Status(endpoint.RUNNING, 7, 1.5, 3, measured))
    assert json.loads(get(f"{url}/status")) == {
        "state": "Running",
        "lastBatchId": 7,
        "totalLag": 3,
        "maxLagSeconds": 61,
        "executors": 3,
        "members": 2,
    }


def test_failed_query_is_not_healthy(served: tuple[list[endpoint.Status], str]) -> None:
    statuses, url = served
    assert get(f"{url}/healthz") == "ok\n"
    statuses.append(endpoint.Status(endpoint.FAILED))
    with pytest.raises(urllib.error.HTTPError) as answer:
        get(f"{url}/healthz")
    assert answer.value.code == 503
    answer.value.close()
