"""What tests of several folders share."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

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

FULL_TIMEOUT_S = 7200
# Workers take whole files in this order: one that comes last would be waited for.
LONGEST_FIRST = (
    "tests/spark/test_driver.py",
    "tests/peers/test_old_consumers.py",
    "tests/reconcile/test_with_brokers.py",
    "tests/peers/test_migration.py",
    "tests/peers/test_mixed_cluster.py",
    "tests/reconcile/test_outages.py",
    "tests/reconcile/test_watch_gaps.py",
    "tests/reconcile/test_reassignment_flow.py",
    "tests/reconcile/test_scale_up_under_load.py",
    "tests/peers/test_swap.py",
    "tests/peers/test_client_tools.py",
    "tests/reconcile/",
    "tests/broker/",
    "tests/simulator/",
    "tests/chaos/",
    "tests/peers/",
    "tests/spark/",
    "tests/fuzz/",
    "tests/chart/",
    "tests/tools/",
    "tests/log/",
)


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


def _place_in_the_run(item: pytest.Item) -> int:
    places = (place for place, path in enumerate(LONGEST_FIRST) if item.nodeid.startswith(path))
    return next(places, len(LONGEST_FIRST))


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One real API server for the whole run; tests use namespaces of their own."""
    with ApiServer(tmp_path_factory.mktemp("apiserver")) as server:
        yield server
