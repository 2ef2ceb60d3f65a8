"""Sessions of the operator with a real ZooKeeper: which live, and what becomes of one that died."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from odradek.zk.operations import Create
from odradek_operator.shared import zookeeper
from tests.reconcile.conftest import once_reachable
from tests.support import zookeeper as server
from tests.support.kubectl import eventually


def test_a_client_that_died_unnoticed_is_replaced(
    zk: server.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = zookeeper.Pool(lambda: None)
    try:
        first = once_reachable(lambda: pool.get(zk.connect))
        assert once_reachable(lambda: pool.get(zk.connect)) is first
        # What a thread of kazoo's that dies leaves behind: no connection, and nobody who makes one.
        first._client.stop()
        with pytest.raises(zookeeper.UnreachableError):
            pool.get(zk.connect)
        monkeypatch.setattr(zookeeper, "GIVEN_UP_SECONDS", 0.0)
        second = once_reachable(lambda: pool.get(zk.connect))
        assert second is not first
        assert second.children(["/"])["/"] is not None
    finally:
        pool.close()


def test_session_without_a_connection_is_dead_after_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "SESSION_SECONDS", 4.0)
    pool = zookeeper.Pool(lambda: None)
    try:
        with server.Server(tmp_path) as ensemble:
            once_reachable(lambda: pool.get(ensemble.connect))
            # kazoo is connected a moment before it says so.
            eventually(lambda: pool.sessions()[ensemble.connect] > 0, "a session", pause_s=0.1)
        # Nobody is left who could say that it ended.
        eventually(lambda: pool.sessions() == {ensemble.connect: 0.0}, "the end", pause_s=0.1)
    finally:
        pool.close()


def test_nothing_waits_for_a_connection_that_is_away_and_writes_are_not_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = zookeeper.Pool(lambda: None)
    try:
        with server.Server(tmp_path) as ensemble:
            session = once_reachable(lambda: pool.get(ensemble.connect))
            once_reachable(lambda: session.commit([Create("/kept")]))
            ensemble.kill()
            eventually(lambda: session.away_seconds > 0, "the end of the connection", pause_s=0.1)
            # Each question of each pass would wait for the whole outage otherwise.
            session.away_since = time.monotonic() - zookeeper.CONNECT_SECONDS
            with monkeypatch.context() as impatient:
                impatient.setattr(zookeeper, "time", SimpleNamespace(monotonic=time.monotonic))
                with pytest.raises(zookeeper.UnreachableError, match="no connection to"):
                    session.require()
            # With the connection as it was when the caller looked; nobody answers before `start`.
            with pytest.raises(zookeeper.UnreachableError):
                session.commit([Create("/late")])
            with pytest.raises(zookeeper.UnreachableError):
                session.ensure(["/late"])
            with pytest.raises(zookeeper.UnreachableError):
                session.delete_tree("/kept")
            ensemble.start()
            later = once_reachable(lambda: pool.get(ensemble.connect))
            found = once_reachable(lambda: later.read(["/kept", "/late"]))
            assert {path: one is not None for path, one in found.items()} == {
                "/kept": True,
                "/late": False,
            }
    finally:
        pool.close()
