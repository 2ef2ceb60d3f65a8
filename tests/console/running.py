"""A console as a process of its own, and what every page of it must have."""

from __future__ import annotations

import http.client
import os
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlencode

from tests.support.broker import wait_until
from tests.support.preloaded import Program

HOSTILE = "<script>alert(1)</script>"


class Pages:
    """A console at a port of this machine, called over plain HTTP."""

    def __init__(self, port: int) -> None:
        self.port = port

    def call(
        self, method: str, path: str, body: str = "", **headers: str
    ) -> tuple[int, str, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            if method == "POST":
                named.setdefault("Content-Type", "application/x-www-form-urlencoded")
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers
        finally:
            connection.close()

    def page(self, path: str, status: int = 200) -> str:
        found, text, headers = self.call("GET", path)
        assert found == status, text
        assert "Traceback" not in text
        assert "script-src 'self'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        check_structure(text)
        return text

    def said(self, path: str, status: int) -> str:
        """Return the sentence of an error page."""
        found = re.search(r"</p>\n\n?<p>(.*?)</p>", self.page(path, status), re.DOTALL)
        assert found is not None
        return found[1]

    def log_in(self, name: str, password: str) -> str:
        """Return the cookies of a new session, nothing if it was refused."""
        _, page, headers = self.call("GET", "/login")
        browser = headers["Set-Cookie"].partition(";")[0]
        form = urlencode({"name": name, "password": password, "token": token_of(page)})
        status, _, headers = self.call("POST", "/login", form, Cookie=browser)
        assert status in (303, 401)
        session = headers.get("Set-Cookie", "").partition(";")[0]
        return f"{browser}; {session}" if status == 303 else ""

    def press(self, path: str, action: str, cookies: str, **fields: str) -> int:
        """Press a button of a page as its user does; return the status of the answer."""
        _, page, _ = self.call("GET", path, Cookie=cookies)
        form = urlencode({**fields, "token": token_of(page)})
        return self.call("POST", f"{path}/{action}", form, Cookie=cookies)[0]


def token_of(page: str) -> str:
    """Return the token of a page's forms."""
    found = re.search(r'name="token" value="(\w+)"', page)
    assert found is not None, page
    return found[1]


class Running(Pages):
    """A console process."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        *options: str,
        environment: dict[str, str] | None = None,
        limits: Mapping[int, int] | None = None,
    ) -> None:
        self.log = folder / f"console-{len(list(folder.iterdir()))}.log"
        words = ["--bootstrap-server", bootstrap, "--port", "0", *options]
        self.log.touch()
        self.process = Program(
            "odradek_console", words, environment or dict(os.environ), self.log, limits
        )
        try:
            wait_until(lambda: self._port() is not None, "the console serves")
        except BaseException:
            self.process.kill()
            raise
        port = self._port()
        assert port is not None
        super().__init__(port)

    def _port(self) -> int | None:
        assert self.process.poll() is None, self.log.read_text()
        found = re.search(r"Console on https?://[\d.]+:(\d+)/", self.log.read_text())
        return None if found is None else int(found[1])

    def end(self) -> None:
        """SIGTERM; it must end well."""
        self.process.terminate()
        assert self.process.wait(120) == 0, self.log.read_text()

    @staticmethod
    def mistake(
        folder: Path, options: list[str], environment: dict[str, str] | None = None
    ) -> tuple[int, str]:
        """Start one that cannot start, and return its exit code and what it said."""
        log = folder / "mistake.log"
        log.unlink(missing_ok=True)
        words = ["--port", "0", *options]
        process = Program("odradek_console", words, environment or dict(os.environ), log)
        return process.wait(120), log.read_text()


class Structure(HTMLParser):
    """What a screen reader and a keyboard need of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def check_structure(text: str) -> None:
    found = Structure()
    found.feed(text)
    tags = [tag for tag, _ in found.tags]
    assert tags.count("main") == tags.count("h1") == tags.count("title") == 1
    assert ("html", {"lang": "en"}) in found.tags
    assert any(tag == "a" and one.get("href") == "#main" for tag, one in found.tags)
    ids = [one["id"] for _, one in found.tags if "id" in one]
    assert len(ids) == len(set(ids))
    labelled = {one.get("for") for tag, one in found.tags if tag == "label"}
    for tag, one in found.tags:
        assert not any(name.startswith("on") or name == "style" for name in one), one
        assert tag != "style"
        if tag == "script":
            assert one == {"src": "/static/console.js", "defer": None}
        if tag in ("input", "select") and one.get("type") != "hidden":
            assert one.get("id") in labelled, one
        if tag == "div" and one.get("class") == "wide":
            # Wide tables scroll by keyboard, and say what they are.
            assert one.get("tabindex") == "0"
            assert one.get("aria-label")
    assert tags.count("table") == tags.count("caption")
