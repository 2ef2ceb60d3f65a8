"""What jobs did over the last hour: their batches, rows and lag, as the operator wrote them.

A rate is that of the last minutes, between two statuses that were seen. It is unknown, not 0, while
only one was, or while a number went back: the job began anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from odradek.tools.errors import ToolError
from odradek_console.groups import SAMPLE_S, SAMPLED_GROUPS, SAMPLES
from odradek_console.resources import Resource, ResourceReader

RATE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class JobSample:
    """A job at a time (Unix); what its status does not say is None."""

    at: float
    batch: int | None
    rows: int | None
    lag: int | None


def sample_of(at: float, one: Resource) -> JobSample:
    """Return what the status of a ConsumerGroup says of its job."""
    job = one.status.get("job", {})
    return JobSample(
        at,
        _number(job.get("lastBatchId")),
        _number(job.get("tableRows")),
        _number(one.status.get("totalLag")),
    )


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def rate(samples: Sequence[JobSample], of: Callable[[JobSample], int | None]) -> float | None:
    """Return how fast a number grew over the last minutes, per second; None: unknown."""
    if not samples or of(samples[-1]) is None:
        return None
    recent = [one for one in samples if one.at >= samples[-1].at - RATE_S]
    known = [(one.at, value) for one in recent if (value := of(one)) is not None]
    values = [value for _, value in known]
    seconds = known[-1][0] - known[0][0]
    if seconds <= 0 or values != sorted(values):
        return None
    return (values[-1] - values[0]) / seconds


class JobHistory:
    """The samples of at most `SAMPLED_GROUPS` jobs, the first by name."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str, str], deque[JobSample]] = {}

    def of(self, one: Resource) -> list[JobSample]:
        """Return what is known of a job; one that was made anew has another past."""
        return list(self._samples.get(_key(one), ()))

    def add(self, at: float, jobs: Iterable[Resource]) -> None:
        """Take in a round; jobs that are not in it are forgotten."""
        kept: dict[tuple[str, str, str], deque[JobSample]] = {}
        for one in list(jobs)[:SAMPLED_GROUPS]:
            samples = self._samples.get(_key(one), deque(maxlen=SAMPLES))
            samples.append(sample_of(at, one))
            kept[_key(one)] = samples
        self._samples = kept


def _key(one: Resource) -> tuple[str, str, str]:
    return one.namespace, one.name, str(one.body["metadata"].get("uid", ""))


async def sample(reader: ResourceReader, history: JobHistory) -> None:
    """Take samples until cancelled."""
    while True:
        # Where the API server does not answer, the pages say so.
        with contextlib.suppress(ToolError):
            history.add(time.time(), [one for one in await reader.groups() if one.has_job])
        await asyncio.sleep(SAMPLE_S)
