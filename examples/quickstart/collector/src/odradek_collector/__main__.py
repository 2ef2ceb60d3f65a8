"""Runs the collector: finds log files, follows them, sends their lines, stores positions.

One thread reads and sends; another serves /metrics, /acknowledged and /healthz. The collector reads
a file from the position in the state file, or else from its beginning, and then follows it.

Environment: BOOTSTRAP, TOPIC and LOG_GLOBS (separated by commas) are required; STATE_FILE,
NODE_NAME, METRICS_PORT, IDEMPOTENCE and ROUND_S are optional. With CREDENTIALS, a folder with the
files `password` and `ca.crt`, and USERNAME, the collector authenticates by SCRAM-SHA-512 over TLS.
When these files change it ends, and its next start reads them. Exit codes: 0 after SIGTERM or new
credentials, 1 fatal error, 2 invalid environment.
"""

import glob
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from confluent_kafka import Producer

from odradek_collector import delivery, lines, tail

log = logging.getLogger("odradek_collector")

_DISCOVER_S = 5.0
_SAVE_S = 1.0
_IDLE_WAIT_S = 0.3
_LAST_FLUSH_S = 10.0
_RENAME_GRACE_S = 1.0
_GONE_AFTER_S = 60.0
_STALE_S = 60.0


class CollectorSettingsError(ValueError):
    """The environment is invalid; the message is one line."""


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """The settings from the environment."""

    bootstrap: str
    topic: str
    globs: tuple[str, ...]
    state_file: Path
    node: str
    metrics_port: int
    idempotence: bool
    round_s: int
    """Seconds between rounds that send all new lines; 0: send at once."""
    credentials: Path | None
    username: str


def settings_from(variables: Mapping[str, str]) -> CollectorSettings:
    """Return the settings from environment variables. Raises CollectorSettingsError."""
    globs = [part.strip() for part in variables.get("LOG_GLOBS", "").split(",") if part.strip()]
    missing = [name for name in ("BOOTSTRAP", "TOPIC") if not variables.get(name)]
    missing += [] if globs else ["LOG_GLOBS"]
    if missing:
        raise CollectorSettingsError(f"environment variables are missing: {', '.join(missing)}")
    port = variables.get("METRICS_PORT", "9407")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise CollectorSettingsError(f"METRICS_PORT {port!r} is not a port")
    idempotence = variables.get("IDEMPOTENCE", "false").lower()
    if idempotence not in ("true", "false"):
        raise CollectorSettingsError(f"IDEMPOTENCE must be true or false, not {idempotence!r}")
    round_s = variables.get("ROUND_S", "0")
    if not (round_s.isascii() and round_s.isdigit()):
        raise CollectorSettingsError(f"ROUND_S {round_s!r} is not a number of seconds")
    credentials, username = variables.get("CREDENTIALS", ""), variables.get("USERNAME", "")
    if bool(credentials) != bool(username):
        raise CollectorSettingsError("CREDENTIALS and USERNAME need each other")
    return CollectorSettings(
        bootstrap=variables["BOOTSTRAP"],
        topic=variables["TOPIC"],
        globs=tuple(globs),
        state_file=Path(variables.get("STATE_FILE", "/state/collector.json")),
        node=variables.get("NODE_NAME", ""),
        metrics_port=int(port),
        idempotence=idempotence == "true",
        round_s=int(round_s),
        credentials=Path(credentials) if credentials else None,
        username=username,
    )


class Source:
    """One followed path: its open file, its unacknowledged lines, and the time of the last line."""

    def __init__(self, follower: tail.Follower, origin: lines.LogOrigin, offset: int) -> None:
        self._follower = follower
        self._origin = origin
        self._ledger = delivery.Ledger(offset)
        self._last_at: datetime | None = None
        self._parts: list[str] = []
        self._changed_at: float | None = None

    def ship(self, sender: delivery.EventSender) -> int:
        """Send new lines and return their number. Switches to the next file after a rotation."""
        sent = 0
        for line in self._follower.read():
            sent += self._send(line, sender)
        if sent or not self._ledger.idle:
            self._changed_at = None
        else:
            self._follow_change(time.monotonic())
        return sent

    def gone(self) -> bool:
        """Return whether the file was removed a while ago and not replaced."""
        since = self._changed_at
        return since is not None and time.monotonic() - since > _GONE_AFTER_S

    def close(self) -> None:
        """Close the file."""
        self._follower.close()

    def position(self) -> tail.Position:
        """Return the position up to which all lines are acknowledged."""
        return self._follower.position(self._ledger.delivered)

    def _send(self, line: tail.Line, sender: delivery.EventSender) -> int:
        stamp, text = None, line.text
        if self._origin.runtime_prefix:
            stamp, continues, text = lines.split_runtime_prefix(text)
            self._parts.append(text)
            if continues and sum(map(len, self._parts)) < tail.LONGEST_LINE_BYTES:
                return 0
            text = "".join(self._parts)
            self._parts.clear()
        if not text.strip():
            return 0
        event = lines.parse(text, self._origin, datetime.now(UTC), stamp or self._last_at)
        self._last_at = event.at
        sender.send(event, self._ledger, line.end)
        return 1

    def _follow_change(self, now: float) -> None:
        # Only without unacknowledged lines: a position belongs to one file.
        if self._follower.was_truncated():
            following = tail.open_at(self._follower.path, None)
        elif self._follower.was_replaced():
            # The writer learns of a rename later, so the old file may still get lines.
            if self._changed_at is None:
                self._changed_at = now
            if now - self._changed_at < _RENAME_GRACE_S:
                return
            following = tail.open_successor(self._follower)
            if following is not None and self._follower.has_more():
                # It was written after the last read, maybe before the next file.
                following.close()
                return
        else:
            self._changed_at = None
            return
        if following is None:
            return
        self._changed_at = None
        self._follower.close()
        self._follower = following
        self._ledger = delivery.Ledger(0)
        self._parts.clear()


class Collector:
    """All sources, and the loop over them."""

    def __init__(
        self,
        settings: CollectorSettings,
        state: delivery.CollectorState,
        sender: delivery.EventSender,
        login: delivery.Login | None,
    ) -> None:
        self._settings = settings
        self._login = login
        self._state = state
        self._sender = sender
        self._sources: dict[str, Source] = {}
        self.stop = threading.Event()
        self.last_pass = time.monotonic()
        self._finished_round = -1

    def run(self) -> None:
        """Collect until `stop` is set. Raises delivery.DeliveryError."""
        next_discovery = next_save = 0.0
        while not self.stop.is_set():
            self.last_pass = now = time.monotonic()
            if now >= next_discovery:
                if self._has_new_login():
                    log.info("new credentials in %s; ending", self._settings.credentials)
                    break
                self._discover()
                next_discovery = now + _DISCOVER_S
            sent = self._ship()
            self._sender.serve(0.0 if sent else _IDLE_WAIT_S)
            if now >= next_save:
                self.save()
                next_save = now + _SAVE_S
        self._sender.flush(_LAST_FLUSH_S)
        self.save()

    def _has_new_login(self) -> bool:
        if self._settings.credentials is None:
            return False
        try:
            found = delivery.read_login(self._settings.credentials, self._settings.username)
        except ValueError as error:
            # The former one may still serve.
            log.warning("failed to read credentials: %s; retrying", error)
            return False
        return found != self._login

    def _ship(self) -> int:
        """Send new lines if a round is open, and return their number.

        Rounds begin at multiples of `round_s` of the wall clock, so that all collectors of a
        cluster pause together. A round ends when there is nothing left to send.
        """
        current = int(time.time()) // self._settings.round_s if self._settings.round_s else None
        if current == self._finished_round:
            return 0
        sent = sum(source.ship(self._sender) for source in self._sources.values())
        if current is not None and not sent:
            self._finished_round = current
        return sent

    def save(self) -> None:
        """Store the acknowledged positions, and drop those of removed files."""
        for name in [name for name, source in self._sources.items() if source.gone()]:
            self._sources.pop(name).close()
            self._state.files.pop(name, None)
        for name, source in self._sources.items():
            self._state.files[name] = source.position()
        delivery.save_state(self._settings.state_file, self._state)

    def _discover(self) -> None:
        names = {name for pattern in self._settings.globs for name in glob.glob(pattern)}
        for name in sorted(names - set(self._sources)):
            path = Path(name)
            if not path.is_file():
                continue
            position = self._state.files.get(name)
            follower = tail.open_at(path, position)
            if follower is None:
                log.warning("failed to read %s; retrying", name)
                continue
            origin = lines.origin_of(name, self._settings.node)
            self._sources[name] = Source(follower, origin, follower.offset)
            log.info(
                "following %s (%s %s) from %d", name, origin.component, origin.node, follower.offset
            )


def metrics_text(state: delivery.CollectorState, dropped: int) -> str:
    """Return the metrics in Prometheus' text format."""
    text = [
        "# HELP collector_lines_acknowledged_total Lines that the brokers acknowledged.",
        "# TYPE collector_lines_acknowledged_total counter",
        f"collector_lines_acknowledged_total {state.acknowledged}",
        "# HELP collector_lines_dropped_total Lines that the brokers rejected as invalid.",
        "# TYPE collector_lines_dropped_total counter",
        f"collector_lines_dropped_total {dropped}",
        "# HELP collector_acknowledged_offset Last acknowledged offset per partition.",
        "# TYPE collector_acknowledged_offset gauge",
    ]
    for partition, offset in sorted(state.offsets.copy().items()):
        text.append(f'collector_acknowledged_offset{{partition="{partition}"}} {offset}')
    return "\n".join(text) + "\n"


def serve(port: int, answers: Mapping[str, Callable[[], tuple[int, str]]]) -> ThreadingHTTPServer:
    """Serve the answers (status and text) from a thread of its own."""

    class CollectorRequestHandler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            answer = answers.get(self.path, lambda: (404, " ".join(answers) + "\n"))
            status, text = answer()
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: scrapes are frequent."""

    server = ThreadingHTTPServer(("", port), CollectorRequestHandler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main() -> int:
    """Run the collector and return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        settings = settings_from(os.environ)
        state = delivery.load_state(settings.state_file)
        login = None
        if settings.credentials is not None:
            login = delivery.read_login(settings.credentials, settings.username)
    except (CollectorSettingsError, ValueError, OSError) as error:
        print(f"odradek-collector: {error}", file=sys.stderr)
        return 2
    producer = Producer(
        delivery.producer_settings(settings.bootstrap, login, idempotence=settings.idempotence)
    )
    sender = delivery.EventSender(producer, settings.topic, state)
    collector = Collector(settings, state, sender, login)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: collector.stop.set())

    def healthz() -> tuple[int, str]:
        alive = time.monotonic() - collector.last_pass < _STALE_S
        return (200, "ok\n") if alive else (503, "the main loop is stuck\n")

    answers = {
        "/metrics": lambda: (200, metrics_text(state, sender.dropped)),
        "/acknowledged": lambda: (200, json.dumps(state.counts()) + "\n"),
        "/healthz": healthz,
    }
    try:
        server = serve(settings.metrics_port, answers)
    except OSError as error:
        print(
            f"odradek-collector: METRICS_PORT {settings.metrics_port}: {error.strerror}",
            file=sys.stderr,
        )
        return 1
    try:
        collector.run()
    except (delivery.DeliveryError, OSError) as error:
        print(f"odradek-collector: {error}", file=sys.stderr)
        return 1
    finally:
        server.shutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
