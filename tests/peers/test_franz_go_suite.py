"""franz-go's own integration tests, as they are published with it, against three brokers."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.cluster import settings
from tests.cluster.tools import CLIENT_SOURCES
from tests.support.broker import STEADY, Cluster

RECORDS = 30_000
PACKAGE = "github.com/twmb/franz-go/pkg/kgo"
# Chains of consumers and producers in transactions, and of groups without, under each way to
# assign partitions; and what its users once reported.
NAMES = "TxnEtl|GroupETL|GroupSimple|Issue|Consume|Pause|AddRemove|Direct|Ping|Client_Produce"
TOP = re.compile(r"^--- (\w+): (\w+)", re.MULTILINE)


@pytest.mark.full(
    "tests/peers/test_transactional_clients.py::test_go_client_sees_whole_transactions_only",
    "tests/peers/test_go_and_node_clients.py::test_go_client",
)
def test_its_own_tests_pass(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=3, settings=STEADY) as cluster:
        own_tests_pass(cluster)


def own_tests_pass(cluster: Cluster) -> None:
    environment = {
        **os.environ,
        "GOMODCACHE": str(settings.paths().cache / "go/modules"),
        "KGO_SEEDS": cluster.bootstrap,
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_TEST_STABLE_FETCH": "1",
    }
    done = subprocess.run(
        ["go", "test", "-mod=mod", "-v", "-timeout=20m", f"-run=^Test({NAMES})", PACKAGE],
        cwd=CLIENT_SOURCES,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    ended = TOP.findall(done.stdout)
    assert done.returncode == 0, [each for each in ended if each[0] == "FAIL"] or done.stderr
    assert len(ended) > 15
    assert {how for how, _ in ended} == {"PASS"}
