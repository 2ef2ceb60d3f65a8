"""`helm test` tells a release that serves from one that does not."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from charts.odradek.files import check_release
from tests.support import zookeeper
from tests.support.ports import free_port


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def operator() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_serving_release_passes(
    operator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zookeeper.Server(tmp_path) as server:
        addresses = [f"{operator}/readyz", f"zookeeper://{server.connect}"]
        assert check_release.main(addresses) == 0
    out = capsys.readouterr().out
    assert "/readyz 200" in out
    assert f"zookeeper://{server.connect} standalone" in out


def test_each_endpoint_that_does_not_serve_is_named(
    operator: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    addresses = [f"{operator}/other", f"zookeeper://{nobody}", f"{operator}/readyz"]
    assert check_release.main(addresses) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [" FAILED " in line for line in lines] == [True, True, False]
