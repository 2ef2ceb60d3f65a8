"""The driver as a process that keeps its checkpoint and a Delta table on a store that speaks S3."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import broker, spark_jvm
from tests.support.delta_table import DeltaTable
from tests.support.s3_store import BUCKET, KEYS, S3Store
from tests.support.sampling import FULL
from tests.support.spark_driver import Driver

pytestmark = pytest.mark.timeout(2400)

# Kills the driver when the sink has this batch and nothing is committed of it.
CRASHING_DRIVER = """
import os, signal
from odradek_spark import sinks
open_sink = sinks.open_sink

def open_crashing(sink, context):
    write = open_sink(sink, context)
    def write_and_die(rows, batch_id):
        write(rows, batch_id)
        if batch_id == int(os.environ["DIES_AFTER_BATCH"]):
            os.kill(os.getpid(), signal.SIGKILL)
    return write_and_die

sinks.open_sink = open_crashing
from odradek_spark.__main__ import main
main()
"""
PER_MINUTE = 20
WINDOWS = """
select window(at, '1 minute').start as minute, count(*) as lines, sum(n) as total
from records group by window(at, '1 minute')
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[broker.Cluster]:
    with broker.Cluster(
        tmp_path_factory.mktemp("cluster"), settings=dict(broker.STEADY)
    ) as running:
        yield running


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Store]:
    with S3Store(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def driver(
    cluster: broker.Cluster,
    store: S3Store,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    drivers_jvm: spark_jvm.SharedJvm,
) -> Iterator[Driver]:
    one = Driver(cluster, tmp_path, request.param, drivers_jvm)
    one.environment = dict(KEYS)
    one.seam = {"checkpointUrl": f"{store.url}/checkpoints/{one.group}"}
    one.value = lambda n: {"n": n, "at": f"2026-11-23T06:{n // PER_MINUTE:02d}:{n % PER_MINUTE}Z"}
    yield one
    one.kill()


@pytest.mark.parametrize("driver", ["windows-1"], indirect=True)
@pytest.mark.full(
    "tests/spark/test_driver.py::test_crash_between_sink_and_commit_replays_the_batch_and_nothing_is_lost_or_doubled"
)
def test_windows_are_in_the_table_once_whenever_the_driver_dies(
    driver: Driver, store: S3Store
) -> None:
    table = f"{store.url}/tables/windows"
    job: dict[str, Any] = {
        "schema": "n int, at timestamp",
        "watermark": {"column": "at", "delay": "0 seconds"},
        "sql": WINDOWS,
        "sink": {"delta": {"path": table}},
        "sparkConf": store.spark_conf,
        "trigger": "availableNow",
    }

    def dies_after(batch: int) -> None:
        driver.environment["DIES_AFTER_BATCH"] = str(batch)
        driver.start(CRASHING_DRIVER, **job)
        assert driver.wait() == -signal.SIGKILL, driver.log.read_text()[-3000:]
        driver.end_session()

    def result() -> dict[str, tuple[int, int]]:
        rows = DeltaTable(store.folder / BUCKET / "tables" / "windows").rows()
        found = {f"{row['minute']:%M}": (row["lines"], row["total"]) for row in rows}
        assert len(found) == len(rows)
        return found

    driver.produce(range(100))
    dies_after(1)  # batch 0 reads, batch 1 closes the windows
    # The sink has more than is known to be done: the crash was where it was meant to be.
    assert len(result()) == 4
    commits = store.folder / BUCKET / "checkpoints" / "windows-1" / "commits"
    assert [path.name for path in commits.iterdir()] == ["0"]
    driver.produce(range(100, 250))
    if FULL:
        dies_after(3)
    driver.produce(range(250, 300))
    driver.start(**job)
    assert driver.wait() == 0, driver.log.read_text()[-3000:]
    # The last window is open as long as no later record comes.
    read = range(300 - PER_MINUTE)
    lines = Counter(n // PER_MINUTE for n in read)
    totals = {minute: sum(n for n in read if n // PER_MINUTE == minute) for minute in lines}
    assert result() == {f"{minute:02d}": (lines[minute], totals[minute]) for minute in lines}
    assert driver.committed() == 300
    assert driver.registered() == []


@pytest.mark.parametrize("driver", ["denied-1"], indirect=True)
def test_store_that_does_not_let_the_job_in_ends_it_with_one_line(
    driver: Driver, tmp_path: Path
) -> None:
    with S3Store(tmp_path, secret_key="another-secret") as store:
        driver.start(sink={"delta": {"path": f"{store.url}/t"}}, sparkConf=store.spark_conf)
        assert driver.wait() == 1, driver.log.read_text()[-3000:]
    assert driver.last_line().startswith("odradek-spark: s3a://lake/checkpoints/denied-1: java.nio")
