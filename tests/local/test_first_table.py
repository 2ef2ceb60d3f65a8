"""The whole first look: `odradek local --once`, from an empty folder to a table with rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odradek_spark import show
from tests.support import spark_jars
from tests.support.local_run import LocalRun, assert_gone

pytestmark = pytest.mark.timeout(2400)


def test_first_table_has_rows_and_nothing_is_left_running(tmp_path: Path) -> None:
    environment = {
        "SPARK_HOME": str(spark_jars.home()),
        "SPARK_SUBMIT_OPTS": " ".join(spark_jars.java_options()),
    }
    with LocalRun(tmp_path / "data", "--once", environment=environment) as one:
        # ZooKeeper, three brokers, the generator, the job, and, after the first table, the console.
        note = one.note(7)
        assert one.wait() == 0, one.output()
        lines = one.output().splitlines()
    steps = [line.split("  ")[1] for line in lines if line.endswith(" s")]
    assert steps == [
        *("ZooKeeper", "Brokers", "Topics", "Records", "Spark"),
        *("First table", "Lag", "Console"),
    ]
    table = Path(next(line.split()[-1] for line in lines if line.startswith("  rows of ")))
    names, rows = show.read(table)
    assert names == ["request", "status", "requests", "bytes"]
    assert all(row[2] > 0 for row in rows)
    shown = [line.split() for line in lines]
    assert ["request", "status", "requests", "bytes"] in shown
    (asked,) = (place for place, line in enumerate(lines) if "Try this in another" in line)
    tried = lines[asked + 1 : lines.index("", asked)]
    assert len(tried) == 3
    assert all("odradek" in line for line in tried)
    lag = next(line.split() for line in lines if line.startswith("  lag of click-counts"))
    assert lag[-1] == "records"
    assert int(lag[-2]) >= 0
    assert lines[-1] == f"Stopped. The data stay in {tmp_path / 'data'}"
    assert json.loads((tmp_path / "data/cluster.json").read_text())["brokers"] == 3
    assert_gone(note)
