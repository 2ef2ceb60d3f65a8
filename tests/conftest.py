"""What tests of several folders share."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.apiserver import ApiServer

# How long an example takes says something about the machine, not about the code.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One real API server for the whole run; tests use namespaces of their own."""
    with ApiServer(tmp_path_factory.mktemp("apiserver")) as server:
        yield server
