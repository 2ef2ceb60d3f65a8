"""What tests of several folders share."""

from collections.abc import Iterator

import pytest

from tests.support.apiserver import ApiServer


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One real API server for the whole run; tests use namespaces of their own."""
    with ApiServer(tmp_path_factory.mktemp("apiserver")) as server:
        yield server
