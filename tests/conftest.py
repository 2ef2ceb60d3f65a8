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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only long runs do, and give these the time for it."""
    if FULL:
        for item in items:
            item.add_marker(pytest.mark.timeout(FULL_TIMEOUT_S), append=False)
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One real API server for the whole run; tests use namespaces of their own."""
    with ApiServer(tmp_path_factory.mktemp("apiserver")) as server:
        yield server
