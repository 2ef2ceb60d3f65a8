"""What tests of several folders share."""

import fnmatch
import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.support import apiserver
from tests.support.apiserver import ApiServer
from tests.support.sampling import FULL, how_many

# How long an example takes says something about the machine, not about the code.
settings.register_profile(
    "any",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=how_many(30, full=300),
)
settings.load_profile("any")

# A run in the background of a shell ignores SIGINT, and so would the programs that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Under nohup they would ignore SIGHUP, too. A handler, unlike "ignore", is not inherited.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

FULL_TIMEOUT_S = 7200
# Of Python's three generations: 700, 10 and 10 by default.
GARBAGE = (20_000, 20, 50)
# Workers take whole files in this order: one that comes last would be waited for.
LONGEST_FIRST = (
    # Drivers and shells come before the session that takes their JVM and keeps it.
    "tests/spark/test_driver",
    "tests/spark/test_secured_driver",
    # It needs no Spark: another worker takes it.
    "tests/spark/sql/test_secured.py",
    "tests/spark/sql/",
    # They wait most of the time, while others compute.
    "tests/reconcile/test_zookeeper_login.py",
    "tests/reconcile/test_outages.py",
    "tests/local/",
    "tests/reconcile/test_exposed_flow.py",
    "tests/reconcile/test_upgrade_flow.py",
    # They need no Spark, and the worker with Spark has most to do.
    "tests/spark/test_topic_guard.py",
    "tests/spark/test_membership.py",
    "tests/spark/test_",
    "tests/reconcile/test_job_account.py",
    "tests/reconcile/test_watch_gaps.py",
    "tests/chaos/test_sample.py",
    "tests/chaos/transactions/test_sample.py",
    "tests/fuzz/test_cluster_survives.py",
    "tests/broker/test_group_crashes.py",
    "tests/broker/test_restart.py",
    "tests/reconcile/test_moves_with_brokers.py",
    "tests/peers/test_old_consumers.py",
    "tests/peers/test_transactional_clients.py",
    "tests/peers/test_transactional_copy.py",
    "tests/peers/test_streams.py",
    "tests/peers/test_connect.py",
    "tests/reconcile/test_kills.py",
    "tests/peers/test_migration.py",
    "tests/peers/test_mixed_cluster.py",
    "tests/peers/test_secured_migration.py",
    "tests/peers/test_secured_clients.py",
    "tests/reconcile/test_secured_flow.py",
    "tests/reconcile/test_secured_clients.py",
    "tests/reconcile/test_users_with_brokers.py",
    "tests/reconcile/test_groups_with_brokers.py",
    "tests/reconcile/test_reassignment_flow.py",
    "tests/reconcile/test_scale_up_under_load.py",
    "tests/peers/test_swap.py",
    "tests/peers/test_old_tools.py",
    "tests/reconcile/",
    "tests/broker/",
    "tests/simulator/",
    "tests/chaos/",
    "tests/release/",
    "tests/peers/",
    "tests/fuzz/",
    "tests/console/",
    "tests/chart/",
    "tests/zk/test_secure_sessions.py",
    "tests/security/test_acl_watcher.py",
    "tests/exporter/",
    "tests/collector/",
    "tests/tools/",
    "tests/docs/",
    "tests/layout/",
    "tests/support/",
    "tests/replica/test_long_lived.py",
    "tests/net/test_owed_answers.py",
    "tests/controller/",
    "tests/log/",
)

# Files of tests/local/ look for free ports in the same place, one after the other.
# A Spark session takes seven seconds of a processor, a JVM with Kafka's tools three. Files that are
# among the longest themselves have a worker each. Those of the layout parse every file once.
TOGETHER = (
    "tests/spark/*",
    "tests/peers/test_*_tools.py",
    "tests/local/*",
    "tests/layout/*",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Let no collection of garbage look through modules and tests, of which none goes away.

    Nor through what tests make more often than after so many new objects: pytest keeps reports, and
    a tenth of what this process computes would be looking through them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(*GARBAGE)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only long runs do, and give these the time for it; long files come first."""
    items.sort(key=_place_in_the_run)
    if FULL:
        for item in items:
            item.add_marker(pytest.mark.timeout(FULL_TIMEOUT_S), append=False)
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a test at once when it fails: the whole run takes minutes."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.when} failed: {report.nodeid}", flush=True)


def _place_in_the_run(item: pytest.Item) -> int:
    places = (place for place, path in enumerate(LONGEST_FIRST) if item.nodeid.startswith(path))
    return next(places, len(LONGEST_FIRST))


class FilesTogether(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives whole files to workers, and files that share an expensive process to the same one."""

    def _split_scope(self, nodeid: str) -> str:
        path = str(super()._split_scope(nodeid))
        if path in LONGEST_FIRST:
            return path
        together = (shared for shared in TOGETHER if fnmatch.fnmatchcase(path, shared))
        return next(together, path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Choose how tests are spread over workers; None: as the option says."""
    return FilesTogether(config, log) if config.option.dist == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist whether one worker runs all tests of a file."""
    node.workerinput["whole_files"] = node.config.option.dist == "loadfile"


@pytest.fixture(scope="session")
def api_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiServer]:
    """One real API server for the whole run; test files use namespaces of their own.

    Workers that share the tests of a file have a server each.
    """
    folder = tmp_path_factory.getbasetemp()
    if getattr(request.config, "workerinput", {}).get("whole_files"):
        folder = folder.parent
    with apiserver.shared(folder / "apiserver") as server:
        yield server
