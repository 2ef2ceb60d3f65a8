"""Many requests of one connection to ZooKeeper, without a server: what is sent and read at once."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.exceptions import ConnectionClosedError, NoNodeError, OperationTimeoutError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.connection import CHANGED_EVENT, ConnectionDropped
from kazoo.protocol.serialization import Auth
from kazoo.protocol.states import KeeperState, WatchedEvent

from odradek.zk.batch_read import BatchRead, ReadAnswer
from odradek.zk.client import Client
from odradek.zk.pipelining import REQUESTS_AT_ONCE, PipelinedConnection, PromptWatch

NO_NODE = -101
CONNECTED = 3  # the state of a session in an event
SECONDS = 60.0


class Wire:
    """A client's connection that is open, and its other end."""

    def __init__(self) -> None:
        self.now = 0.0
        self.client = Client("127.0.0.1:1", 1, clock=lambda: self.now)
        self.client._state = KeeperState.CONNECTED
        self.client._stopped.clear()
        self.connection: PipelinedConnection = self.client._connection
        near, self.far = socket.socketpair()
        near.setblocking(False)
        self.connection._socket = near
        self.connection._xid = 0
        self.wakes, self.connection._write_sock = self.client.handler.create_socket_pair()
        self.connection._read_sock = self.wakes
        self.wakes.setblocking(False)

    def ask(self, count: int) -> list[Any]:
        """Queue reads; return their results."""
        return [self.client.get_async(f"/{number}") for number in range(count)]

    def send(self) -> None:
        self.connection._send_request(SECONDS, SECONDS)

    def read(self) -> None:
        self.connection._read_socket(SECONDS)

    def is_woken(self) -> bool:
        """Return whether the thread would send next."""
        try:
            return bool(self.wakes.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    def sent(self) -> list[int]:
        """Return the numbers of the requests that came."""
        received = self.far.recv(2**20)
        found = []
        while received:
            size, xid = struct.unpack_from(">ii", received)
            found.append(xid)
            received = received[4 + size :]
        return found

    def close(self) -> None:
        for one in (self.far, self.wakes, self.connection._socket, self.connection._write_sock):
            one.close()


def answer(xid: int) -> bytes:
    """Return the answer that there is no such znode."""
    return struct.pack(">iiqi", 16, xid, 1, NO_NODE)


def change(path: str) -> bytes:
    """Return the event that the data of a znode changed."""
    name = path.encode()
    body = struct.pack(">iqiiii", -1, -1, 0, CHANGED_EVENT, CONNECTED, len(name)) + name
    return struct.pack(">i", len(body)) + body


class NotedWatch(PromptWatch):
    """A watch that notes what it is told."""

    def __init__(self, told: list[Any]) -> None:
        self._told = told

    def __call__(self, event: WatchedEvent) -> None:
        self._told.append(event.path)


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


def test_requests_that_are_queued_go_out_in_one_write(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    write = PipelinedConnection._write

    def counted(connection: PipelinedConnection, message: bytes, timeout: float) -> None:
        writes.append(len(message))
        write(connection, message, timeout)

    monkeypatch.setattr(PipelinedConnection, "_write", counted)
    wire.ask(REQUESTS_AT_ONCE + 1)
    wire.send()
    assert len(writes) == 1
    assert wire.sent() == list(range(1, REQUESTS_AT_ONCE + 1))
    # For the one that is left.
    assert wire.is_woken()
    wire.send()
    assert wire.sent() == [REQUESTS_AT_ONCE + 1]
    assert not wire.is_woken()


def test_thread_is_woken_once_for_many_requests_and_again_for_those_after_it(wire: Wire) -> None:
    wire.ask(3)
    assert wire.wakes.recv(10, socket.MSG_PEEK) == b"\0"
    wire.send()
    assert not wire.is_woken()
    wire.ask(1)
    assert wire.is_woken()


def test_what_kazoo_sends_by_itself_leaves_the_rest_to_the_next_turn(wire: Wire) -> None:
    wire.ask(1)
    wire.client._queue.append(
        (Auth(0, "digest", "user:password"), wire.client.handler.async_result())
    )
    wire.ask(2)
    wire.send()
    assert wire.sent() == [1]
    wire.send()
    assert len(wire.sent()) == 1
    assert wire.is_woken()
    wire.send()
    assert wire.sent() == [2, 3]
    assert not wire.is_woken()


def test_wake_up_without_a_request_is_taken(wire: Wire) -> None:
    wire.connection._write_sock.send(b"\0")
    wire.send()
    assert not wire.is_woken()
    wire.ask(1)
    assert wire.is_woken()


def test_answers_that_came_are_handled_in_one_turn_and_told_at_once(wire: Wire) -> None:
    results = wire.ask(REQUESTS_AT_ONCE)
    told: list[Any] = []
    for result in results:
        result.rawlink(told.append)
    wire.send()
    wire.far.sendall(b"".join(map(answer, wire.sent())))
    wire.read()
    assert told == results
    assert all(isinstance(one.exception, NoNodeError) for one in results)


def test_change_is_told_before_what_was_read_after_it(wire: Wire) -> None:
    told: list[Any] = []
    wire.client._data_watchers["/0"].add(NotedWatch(told))
    [result] = wire.ask(1)
    result.rawlink(told.append)
    wire.send()
    wire.far.sendall(change("/0") + answer(1))
    wire.read()
    assert told == ["/0", result]


def test_watch_that_may_wait_is_told_in_another_thread(wire: Wire) -> None:
    threads: list[int] = []
    wire.client._data_watchers["/0"].add(lambda _: threads.append(threading.get_ident()))
    wire.client.handler.start()
    try:
        wire.far.sendall(change("/0"))
        wire.read()
    finally:
        wire.client.handler.stop()
    assert threads
    assert threading.get_ident() not in threads


def test_part_of_an_answer_waits_for_its_rest(wire: Wire) -> None:
    one, two = wire.ask(2)
    wire.send()
    both = answer(1) + answer(2)
    wire.far.sendall(both[:30])
    wire.read()
    assert (one.ready(), two.ready()) == (True, False)
    wire.far.sendall(both[30:])
    wire.read()
    assert two.ready()


def test_nothing_is_waited_for_after_a_record_of_tls_without_an_answer(wire: Wire) -> None:
    # As a ticket for a later session. Requests and pings go on meanwhile.
    wire.connection._read_socket(0)
    wire.ask(1)
    wire.send()
    wire.far.sendall(answer(1)[:10])
    with pytest.raises(KazooTimeoutError):
        wire.connection._read_socket(0)


def test_request_after_the_end_of_a_connection_that_was_woken_is_refused(wire: Wire) -> None:
    wire.ask(1)
    wire.connection._write_sock.close()
    [late] = wire.ask(1)
    assert isinstance(late.exception, ConnectionClosedError)


def test_answers_of_a_batch_are_handed_out_once_the_last_came(wire: Wire) -> None:
    done: list[list[ReadAnswer]] = []
    BatchRead(wire.client, ["/0", "/1", "/2"], None, done.append)
    wire.send()
    wire.far.sendall(answer(1) + answer(2))
    wire.read()
    assert not done
    wire.far.sendall(answer(3))
    wire.read()
    [answers] = done
    assert [type(one) for one in answers] == [NoNodeError] * 3


def test_batch_that_meets_the_end_of_the_connection_is_answered_once(wire: Wire) -> None:
    """What kazoo refused stays queued: it is refused again, or answered, later."""
    done: list[list[ReadAnswer]] = []
    wire.ask(1)
    wire.connection._write_sock.close()
    BatchRead(wire.client, ["/0", "/1"], None, done.append)
    wire.client._notify_pending(KeeperState.CONNECTING)
    [answers] = done
    assert [type(one) for one in answers] == [ConnectionClosedError] * 2


def test_connection_that_ends_between_answers_is_noticed(wire: Wire) -> None:
    wire.ask(1)
    wire.send()
    wire.far.sendall(answer(1)[:10])
    wire.far.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionDropped):
        wire.read()


def test_next_connection_does_not_begin_with_the_rest_of_an_answer(wire: Wire) -> None:
    wire.ask(1)
    wire.send()
    wire.far.sendall(answer(1) + b"rest")
    wire.read()
    assert wire.connection._received == b"rest"
    with pytest.raises(ConnectionDropped):
        wire.connection._connect("localhost", "127.0.0.1", 1)
    assert not wire.connection._received


def test_server_that_is_silent_is_left_though_there_are_requests(wire: Wire) -> None:
    wire.now = 10 * SECONDS  # nothing was due until now
    wire.ask(2)
    wire.send()
    wire.now += SECONDS
    wire.far.sendall(answer(1))
    wire.read()
    wire.now += SECONDS
    wire.ask(1)
    wire.send()
    wire.now += 1
    wire.ask(1)
    with pytest.raises(ConnectionDropped, match="no answer"):
        wire.send()


def test_requests_of_a_write_that_failed_are_not_sent_again(wire: Wire) -> None:
    # The server may have done those that were written whole.
    wire.ask(3)
    wire.far.close()
    with pytest.raises(ConnectionDropped):
        wire.send()
    assert not wire.client._queue
    assert len(wire.client._pending) == 3


def test_callback_that_fails_does_not_end_the_connection(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = wire.ask(2)
    one.rawlink(lambda _: 1 / 0)
    wire.send()
    wire.far.sendall(answer(1) + answer(2))
    with caplog.at_level(logging.ERROR):
        wire.read()
    assert two.ready()
    assert "failed to pass on an answer of ZooKeeper" in caplog.text


def test_who_waits_without_a_timeout_gets_that_of_the_client(wire: Wire) -> None:
    wire.client.answer_s = 0.001
    wire.client._state = KeeperState.CONNECTING  # kazoo keeps what is asked until it is connected
    with pytest.raises(OperationTimeoutError):
        wire.client.exists("/")
    answered = wire.client.handler.async_result()
    answered.set("value")
    assert answered.get() == "value"
    with pytest.raises(KazooTimeoutError):
        wire.client.handler.async_result().get(timeout=0.001)
