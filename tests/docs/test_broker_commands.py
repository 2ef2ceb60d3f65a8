"""The commands of the documents that ask brokers, pasted into a shell beside three real ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import blocks
from tests.support.broker import STEADY, Cluster
from tests.support.sampling import how_many

SETTINGS = {**STEADY, "offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "1"}
ORDERS = "".join(f"{number}:order {number}\n" for number in range(10))
# In this order: each finds what those before it left.
BLOCKS = [
    ("docs/start.md", "look", "controller"),
    ("docs/start.md", "topic", "a lamp"),
    ("docs/start.md", "group", "packing"),
    ("docs/how-to/troubleshoot.md", "brokers", "packing"),
    ("docs/how-to/reset-offsets.md", "dry", "orders"),
    ("docs/how-to/reset-offsets.md", "execute", "orders"),
    ("docs/start.md", "setting", "retention.ms"),
    ("docs/how-to/migrate.md", "verify", "controller"),
    ("docs/how-to/back-up.md", "look", "controller"),
    ("docs/commands.md", "tools", '"order 9"'),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 3, SETTINGS) as running:
        yield running


def test_commands_do_what_the_documents_say(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "orders.txt").write_text(ORDERS)
    environment = {
        "ODRADEK_BOOTSTRAP_SERVER": cluster.bootstrap,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for document, name, shown in BLOCKS[: how_many(3, full=len(BLOCKS))]:
        text = blocks.take(document, name).replace("localhost:9092", cluster.bootstrap)
        # The brokers of the tests begin at 1.
        text = text.replace("--broker 0", "--broker 1")
        said = blocks.run(text, environment, tmp_path)
        assert shown in said, f"{document} {name}: {said}"
        assert "Traceback" not in said
