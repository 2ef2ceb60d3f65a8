"""Rates of jobs: what two statuses say, and unknown where they say nothing."""

from __future__ import annotations

from typing import Any

import pytest

from odradek_console.job_history import JobHistory, JobSample, rate, sample_of
from odradek_console.resources import Resource


def job(uid: str = "u", **status: Any) -> Resource:
    metadata = {"name": "counts", "namespace": "logs", "uid": uid}
    return Resource({"metadata": metadata, "spec": {"job": {"sql": "x"}}, "status": status})


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([], None),
        ([5], None),
        ([5, 5], 0.0),
        ([5, 6, 8], 0.15),
        ([None, 6, 8], 0.2),
        # The newest status does not say: what was before is no rate of now.
        ([5, 6, None], None),
        # The job began anew.
        ([5, 6, 0, 1], None),
        # Only the last five minutes count.
        ([0, *[100] * 31], 0.0),
    ],
)
def test_a_rate_is_that_of_the_last_minutes_or_unknown(
    batches: list[int | None], expected: float | None
) -> None:
    samples = [JobSample(10.0 * at, one, None, None) for at, one in enumerate(batches)]
    assert rate(samples, lambda one: one.batch) == expected
    assert rate(samples, lambda one: one.rows) is None


def test_a_status_that_says_nothing_is_unknown() -> None:
    assert sample_of(1.0, job()) == JobSample(1.0, None, None, None)
    said = job(totalLag=7, job={"lastBatchId": 3, "tableRows": 40})
    assert sample_of(1.0, said) == JobSample(1.0, 3, 40, 7)


def test_a_job_that_is_made_anew_has_no_past_and_one_that_is_gone_is_forgotten() -> None:
    history = JobHistory()
    history.add(1.0, [job(totalLag=7)])
    assert [one.lag for one in history.of(job())] == [7]
    assert history.of(job("another")) == []
    history.add(2.0, [])
    assert history.of(job()) == []
