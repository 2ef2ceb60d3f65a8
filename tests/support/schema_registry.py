"""A registry of schemas for tests: a small HTTP server that answers as Confluent's does."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeRegistry:
    """What is registered, by id; `failures` are statuses that come first."""

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: list[int] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)


@contextmanager
def serving() -> Iterator[FakeRegistry]:
    fake = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.asked[self.path] += 1
            found = fake.schemas.get(int(self.path.rpartition("/")[2]))
            status = fake.failures.pop(0) if fake.failures else 404 if found is None else 200
            missing = {"error_code": 40403, "message": "Schema not found"}
            body = json.dumps(found if status == 200 else missing).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_address[1]}/base"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield fake
        server.shutdown()
        thread.join()
