"""Requests to brokers over Kafka's protocol, blocking, for the threads of the work queues.

A connection lasts for a few requests: the operator asks seldom, and an idle connection would only
become stale. Versions are those that every broker since Kafka 2.4 answers.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from odradek.protocol import api, codec, headers
from odradek.protocol.primitives import MalformedError
from odradek.protocol.schema import Request
from odradek_operator.shared.broker_security import OperatorSecurity

ResponseT = TypeVar("ResponseT")

# A broker that is frozen must not hold up the other resources of its cluster for long.
TIMEOUT_SECONDS: Final = 4.0
_LENGTH: Final = struct.Struct(">i")
_LARGEST_ANSWER: Final = 64 * 1024 * 1024


class BrokerError(Exception):
    """A broker did not answer, or answered with an error; nothing is known."""


class OperatorClient:
    """The registered brokers of one cluster, by id. A context manager that closes connections.

    Without `security` they are plain.
    """

    def __init__(
        self, addresses: Mapping[int, tuple[str, int]], security: OperatorSecurity | None = None
    ) -> None:
        self.addresses = addresses
        self._security = security or OperatorSecurity()
        self._open: dict[int, socket.socket] = {}
        self._numbers = itertools.count(1)

    def call(self, broker_id: int, request: Request[ResponseT], version: int) -> ResponseT:
        """Ask one broker. Raises BrokerError."""
        (answer,) = self.call_together(broker_id, [request], version)
        return answer

    def call_together(
        self, broker_id: int, requests: Sequence[Request[ResponseT]], version: int
    ) -> list[ResponseT]:
        """Ask one broker several things of one kind in one round trip. Raises BrokerError.

        All requests are sent before an answer is read, so they must be few and small: a broker may
        read no more of them before its answers are taken.
        """
        address = self.addresses.get(broker_id)
        if address is None:
            raise BrokerError(f"broker {broker_id} is not registered")
        if not requests:
            return []
        entry = api.of_request(type(requests[0]))
        numbered = [(next(self._numbers), request) for request in requests]
        frames = b"".join(_frame(entry.key, version, *one) for one in numbered)
        try:
            connection = self._open.get(broker_id)
            if connection is None:
                connection = self._connect(address)
                self._open[broker_id] = connection
            connection.sendall(frames)
            answers = [_answer(connection, entry, version, number) for number, _ in numbered]
        except (OSError, MalformedError) as error:
            self._close(broker_id)
            raise BrokerError(f"broker {broker_id}: {entry.name}: {error}") from error
        return answers

    def _connect(self, address: tuple[str, int]) -> socket.socket:
        if self._security.problem is not None:
            raise ConnectionError(self._security.problem)
        plain = socket.create_connection(address, TIMEOUT_SECONDS)
        connection = self._security.secure(plain, address[0])

        def ask(request: Request[ResponseT], version: int) -> ResponseT:
            entry, number = api.of_request(type(request)), next(self._numbers)
            connection.sendall(_frame(entry.key, version, number, request))
            answer: ResponseT = _answer(connection, entry, version, number)
            return answer

        try:
            self._security.authenticate(ask)
        except BaseException:
            connection.close()
            raise
        return connection

    def _close(self, broker_id: int) -> None:
        connection = self._open.pop(broker_id, None)
        if connection is not None:
            connection.close()

    def __enter__(self) -> OperatorClient:
        return self

    def __exit__(self, *_: object) -> None:
        for broker_id in list(self._open):
            self._close(broker_id)


def _frame(key: int, version: int, number: int, request: Request[ResponseT]) -> bytes:
    header = headers.encode_request_header(
        headers.RequestHeader(key, version, number, "odradek-operator")
    )
    body = codec.encode(request, version)
    return _LENGTH.pack(len(header) + len(body)) + header + body


def _answer(connection: socket.socket, entry: api.Api, version: int, number: int) -> Any:
    """Read the answer to a request. Raises OSError, or MalformedError."""
    frame = _read_frame(connection)
    answered, position = headers.decode_response_header(entry, version, frame)
    if answered != number:
        raise MalformedError(f"answer {answered} to request {number}")
    return codec.decode(entry.response, version, frame, position)[0]


def _read_frame(connection: socket.socket) -> bytes:
    (size,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    if not 0 <= size <= _LARGEST_ANSWER:
        raise MalformedError(f"an answer of {size} bytes")
    return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise ConnectionError("the connection was closed")
        data += piece
    return bytes(data)
