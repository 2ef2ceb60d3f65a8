"""Parses lines of log files into records: component, node, time and severity; pure.

The file's name has the component and the node. The beginning of the line has the time and the
severity, in the formats of Kubernetes' own components:

    klog       I1121 09:13:01.123456    1234 file.go:12] text    kubelet, apiserver, scheduler, ...
    logfmt     time="2026-11-21T09:13:01.123456789Z" level=info msg="text"    containerd
    zap        {"level":"info","ts":"2026-11-21T09:13:01.123456Z","msg":"text"}    etcd
    bracketed  [INFO] plugin/reload: text    coredns

In the kubelet's /var/log/pods the container runtime puts a prefix before each line: a timestamp,
the stream, and F, or P for a part of a longer line.

A line without a time, as in a stack trace, gets the time of the line before it, or the time of
reading if it is the first one.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

UNKNOWN = "unknown"
_NANOSECONDS = re.compile(r"(\.[0-9]{6})[0-9]+")
_KLOG = re.compile(r"([IWEF])(\d{2})(\d{2}) (\d{2}):(\d{2}):(\d{2})\.(\d{6})\s")
_LOGFMT_TIME = re.compile(r'\btime="?([0-9T:.+Z-]+)"?')
_LOGFMT_LEVEL = re.compile(r'\blevel="?(\w+)"?')
_BRACKETED = re.compile(r"(?:\S+ )?\[(DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|FATAL)\]")
_RUNTIME = re.compile(r"(\d{4}-\d{2}-\d{2}T\S+) (?:stdout|stderr) ([FP]) ?(.*)", re.DOTALL)
_POD_FILE = re.compile(r"/(?P<namespace>[^_/]+)_(?P<pod>[^_/]+)_[^_/]+/(?P<container>[^/]+)/[^/]+$")

_SEVERITIES = {
    "i": "info",
    "w": "warning",
    "e": "error",
    "f": "error",
    "trace": "info",
    "debug": "info",
    "info": "info",
    "notice": "info",
    "warn": "warning",
    "warning": "warning",
    "err": "error",
    "error": "error",
    "dpanic": "error",
    "panic": "error",
    "fatal": "error",
}


@dataclass(frozen=True, slots=True)
class LogOrigin:
    """The origin of a log file. `runtime_prefix`: a container runtime wrote it."""

    component: str
    node: str
    runtime_prefix: bool = False


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One log line as it is sent. `at` has a time zone."""

    at: datetime
    origin: LogOrigin
    severity: str
    line: str

    def key(self) -> bytes:
        """Return the record's key, which keeps the lines of one component in order."""
        return self.origin.component.encode()

    def value(self) -> bytes:
        """Return the record's value, one JSON object."""
        at = self.at.astimezone(UTC).replace(tzinfo=None)
        stamp = f"{at.isoformat(timespec='milliseconds')}Z"
        fields = {
            "at": stamp,
            "component": self.origin.component,
            "node": self.origin.node,
            "severity": self.severity,
            "line": self.line,
        }
        return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")


def origin_of(path: str, default_node: str) -> LogOrigin:
    """Return the origin of the file at `path`.

    >>> origin_of("/logs/kubelet-node1.log", "")
    LogOrigin(component='kubelet', node='node1', runtime_prefix=False)
    """
    pod_file = _POD_FILE.search(path)
    if pod_file is not None:
        container, pod = pod_file["container"], pod_file["pod"]
        # The name of a static pod is its container and its node.
        static = pod.startswith(f"{container}-") and not default_node
        node = pod.removeprefix(f"{container}-") if static else default_node
        return LogOrigin(container, node, runtime_prefix=True)
    stem = path.rpartition("/")[2].split(".", 1)[0]
    component, dash, node = stem.rpartition("-")
    # kube-apiserver.log has a dash and no node. Nodes end in a number, or have a known name.
    if dash and component and (node[-1:].isdigit() or node in ("control", "plane")):
        return LogOrigin(component, node)
    return LogOrigin(stem, default_node)


def split_runtime_prefix(line: str) -> tuple[datetime | None, bool, str]:
    """Return the runtime's timestamp, whether the line continues, and the text."""
    match = _RUNTIME.fullmatch(line)
    if match is None:
        return None, False, line
    return parse_rfc3339(match[1]), match[2] == "P", match[3]


def parse(line: str, origin: LogOrigin, now: datetime, fallback: datetime | None) -> LogEvent:
    """Return the event of a line without a runtime's prefix.

    `fallback` is the time of the line before, or the runtime's; `now` is the time of reading.
    """
    at, severity = _from_klog(line, now) or _from_zap(line) or _from_logfmt(line) or (None, "")
    if not severity:
        bracketed = _BRACKETED.match(line)
        severity = _SEVERITIES.get(bracketed[1].lower(), UNKNOWN) if bracketed else UNKNOWN
    return LogEvent(at or fallback or now, origin, severity, line)


def _from_klog(line: str, now: datetime) -> tuple[datetime | None, str] | None:
    match = _KLOG.match(line)
    if match is None:
        return None
    letter, *numbers = match.groups()
    month, day, hour, minute, second, micros = (int(number) for number in numbers)
    for year in (now.year, now.year - 1):
        try:
            at = datetime(year, month, day, hour, minute, second, micros, tzinfo=now.tzinfo)
        except ValueError:  # the 29th of February, or a line that only looks like klog
            continue
        # klog writes no year: a date after tomorrow is from last year.
        if at <= now + timedelta(days=1):
            return at, _SEVERITIES[letter.lower()]
    return None, _SEVERITIES[letter.lower()]


def _from_zap(line: str) -> tuple[datetime | None, str] | None:
    if not line.startswith("{"):
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    level = str(fields.get("level", "")).lower()
    stamp = fields.get("ts", fields.get("time"))
    if isinstance(stamp, int | float) and not isinstance(stamp, bool):
        at = _from_epoch(stamp)
    else:
        at = parse_rfc3339(str(stamp)) if stamp is not None else None
    return at, _SEVERITIES.get(level, UNKNOWN)


def _from_epoch(number: float) -> datetime | None:
    try:
        # zap writes seconds by default, klog's JSON format milliseconds. JSON has any number.
        seconds = number / 1000 if number > 1e11 else number
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _from_logfmt(line: str) -> tuple[datetime | None, str] | None:
    stamp, level = _LOGFMT_TIME.search(line), _LOGFMT_LEVEL.search(line)
    if stamp is None or level is None:
        return None
    return parse_rfc3339(stamp[1]), _SEVERITIES.get(level[1].lower(), UNKNOWN)


def parse_rfc3339(text: str) -> datetime | None:
    """Return a time in UTC, truncated to microseconds; None if it is invalid."""
    try:
        at = datetime.fromisoformat(_NANOSECONDS.sub(r"\1", text))
        # In UTC it may be of the year 0 or 10000.
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
