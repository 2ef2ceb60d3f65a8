"""Groups in ZooKeeper, where connections are lost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, NoNodeError

from odradek.tools import zookeeper_client
from odradek.tools.group_stores import EMPTY, OldGroups
from odradek.values import TopicPartition
from odradek.zk import consumers, znodes

OFFSET = consumers.offset_path("g", "t", 0)
LINE = (
    "odradek: ZooKeeper: the connection was lost before the answer came (ConnectionLoss); "
    "retrying for up to 30 s"
)


class Lossy:
    """In place of kazoo's client: loses the answer to every request once."""

    def __init__(self, *paths: str) -> None:
        self.znodes = dict.fromkeys(paths, b"7")
        self._lost: set[tuple[str, ...]] = set()

    def _lose(self, *request: str) -> None:
        if request not in self._lost:
            self._lost.add(request)
            raise ConnectionLoss

    def get_children(self, path: str) -> list[str]:
        self._lose("get_children", path)
        if self._find(path) is None:
            raise NoNodeError
        below = [one.removeprefix(f"{path}/") for one in self.znodes if one.startswith(f"{path}/")]
        return sorted({one.partition("/")[0] for one in below})

    def exists(self, path: str) -> SimpleNamespace | None:
        self._lose("exists", path)
        return self._find(path)

    def _find(self, path: str) -> SimpleNamespace | None:
        there = any(one == path or one.startswith(f"{path}/") for one in self.znodes)
        return SimpleNamespace(czxid=1, mzxid=5) if there else None

    def get(self, path: str) -> tuple[bytes, SimpleNamespace]:
        self._lose("get", path)
        return self.znodes[path], SimpleNamespace(czxid=1, mzxid=5)

    def ensure_path(self, path: str) -> None:
        self._lose("ensure_path", path)

    def set(self, path: str, data: bytes) -> None:
        self.znodes[path] = data
        self._lose("set", path)

    def delete(self, path: str, recursive: bool) -> None:
        assert recursive
        self.znodes = {
            one: data for one, data in self.znodes.items() if not one.startswith(f"{path}/")
        }
        self._lose("delete", path)


async def test_lost_connections_end_no_command_for_groups_in_zookeeper(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(zookeeper_client, "_PAUSE_S", 0.0)
    client = Lossy(OFFSET, f"{consumers.offsets_path('g', 't')}/\u00b2", znodes.topic_path("t"))
    store = OldGroups(client)
    assert await store.states() == [("g", EMPTY)]
    described = await store.describe("g")
    assert (described.state, described.committed) == (EMPTY, {TopicPartition("t", 0): 7})
    await store.commit("g", {TopicPartition("t", 0): 9})
    assert client.znodes[OFFSET] == b"9"
    await store.delete("g")
    assert [*client.znodes] == [znodes.topic_path("t")]
    said = capsys.readouterr().err.splitlines()
    assert said
    assert set(said) == {LINE}


@pytest.mark.parametrize(
    ("error", "most_s", "asked"),
    [(ConnectionLoss, 0.0, 2), (ConnectionClosedError, 30.0, 1)],
    ids=["lost again and again", "closed for good"],
)
def test_a_connection_that_does_not_come_back_ends_a_command(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], most_s: float, asked: int
) -> None:
    monkeypatch.setattr(zookeeper_client, "_PAUSE_S", 0.0)
    monkeypatch.setattr(zookeeper_client, "_ANSWER_S", most_s)
    calls: list[str] = []

    def request(path: str) -> None:
        calls.append(path)
        raise error

    with pytest.raises(error):
        zookeeper_client.ask(request, "/consumers")
    assert calls == ["/consumers"] * asked
