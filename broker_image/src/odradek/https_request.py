"""One request over HTTPS: to an issuer of tokens, for its keys or for a token.

Redirections are not followed, and proxies are not used: what answers is what the settings name.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

LIMIT_S: Final = 10.0
MOST_BYTES: Final = 1024 * 1024
_PIECE: Final = 64 * 1024


def fetch(
    url: str,
    context: ssl.SSLContext | None,
    form: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Return the HTTP status and the body of the answer to a GET, or with `form` to a POST of it.

    Raises OSError, HTTPException, or ValueError for a body of more than MOST_BYTES.
    """
    until = time.monotonic() + LIMIT_S
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPSConnection(
        parts.hostname, parts.port, timeout=LIMIT_S, context=context
    )
    with contextlib.closing(connection):
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        method = "GET" if form is None else "POST"
        connection.request(method, target, form, {"Accept": "application/json", **(headers or {})})
        # It may own the socket.
        with connection.getresponse() as answer:
            data = bytearray()
            while piece := answer.read1(_PIECE):
                data += piece
                if len(data) > MOST_BYTES:
                    raise ValueError(f"it has more than {MOST_BYTES} bytes")
                if time.monotonic() > until:
                    raise TimeoutError("it answers too slowly")
            return answer.status, bytes(data)
