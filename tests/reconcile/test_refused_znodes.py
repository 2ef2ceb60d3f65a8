"""What ZooKeeper refuses the operator is named, and is not taken for a ZooKeeper that is away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, KazooException, NoAuthError

from odradek_operator.shared.zookeeper import RefusedError, UnreachableError, ZooKeeper


class Failing:
    """A client whose requests all fail."""

    chroot = ""

    def __init__(self, failure: KazooException) -> None:
        self._failure = failure

    def create(self, path: str, data: bytes | None, acl: object) -> str:
        raise self._failure

    def get_async(self, path: str, watch: object) -> Failing:
        return self

    def get(self, timeout: float) -> Any:
        raise self._failure


@pytest.fixture
def zookeeper() -> Iterator[ZooKeeper]:
    made = ZooKeeper("127.0.0.1:1", lambda: None)
    own = made._client
    yield made
    made._client = own
    made.close()


def test_a_refusal_names_the_znode(zookeeper: ZooKeeper) -> None:
    zookeeper._client = Failing(NoAuthError("/logs/config"))
    with pytest.raises(RefusedError, match=r"does not let me write /logs/config$"):
        zookeeper.ensure(["/config/users"])
    with pytest.raises(RefusedError, match=r"does not let me read /logs/config$"):
        zookeeper.read(["/config"])


def test_a_lost_connection_is_no_refusal_and_is_said_in_words(zookeeper: ZooKeeper) -> None:
    zookeeper._client = Failing(ConnectionLoss())
    for ask in (zookeeper.ensure, zookeeper.read):
        with pytest.raises(UnreachableError, match="the connection was lost") as failed:
            ask(["/config"])
        assert not isinstance(failed.value, RefusedError)
