"""Typed requests to a broker, from one of this machine's addresses, which ACLs tell apart."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Sequence
from typing import Any

from odradek.protocol import codec, headers
from odradek.protocol.api import APIS, Api

ADMIN, SENDER = "127.0.0.1", "127.0.0.2"


class Connection:
    """A connection from one of this machine's addresses, which sends typed requests."""

    def __init__(self, port: int, host: str) -> None:
        self._numbers = itertools.count(1)
        self._socket = socket.create_connection(
            ("127.0.0.1", port), timeout=120, source_address=(host, 0)
        )

    def ask(self, request: Any, version: int) -> Any:
        """Return the answer, None if the connection was closed instead."""
        return self.ask_together([request], version)[0]

    def ask_together(self, requests: Sequence[Any], version: int) -> list[Any]:
        """Send requests of one kind at once; return the answers as `ask` does."""
        entry = self.send(requests, version)
        return [self._answer(entry, version) for _ in requests]

    def send(self, requests: Sequence[Any], version: int) -> Api:
        """Send requests of one kind at once; return what they are."""
        [entry] = [one for one in APIS.values() if one.request is type(requests[0])]
        frames = b""
        for request in requests:
            head = headers.encode_request_header(
                headers.RequestHeader(entry.key, version, next(self._numbers), "asker")
            )
            frame = head + codec.encode(request, version)
            frames += struct.pack(">i", len(frame)) + frame
        self._socket.sendall(frames)
        return entry

    def _answer(self, entry: Api, version: int) -> Any:
        size = self._receive(4)
        if size is None:
            return None
        answer = self._receive(struct.unpack(">i", size)[0])
        assert answer is not None
        _, position = headers.decode_response_header(entry, version, answer)
        return codec.decode(entry.response, version, answer, position)[0]

    def _receive(self, size: int) -> bytes | None:
        found = b""
        while len(found) < size:
            try:
                part = self._socket.recv(size - len(found))
            except ConnectionResetError:
                return None
            if not part:
                return None
            found += part
        return found

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
