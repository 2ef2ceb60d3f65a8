"""Where a broker's log lines go: to stdout, one line each, whatever names clients choose.

If stdout takes none (its reader has gone, its disk is full), stderr says so once, as with Kafka's
log4j, and the broker goes on. Lines follow again once there is room: so they go to Python's own
stdout, and not to that of commands (`standard_output`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys

_ESCAPED_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F)}


def configure(level: str, label: str = "") -> None:
    """Send the log of all modules to stdout. `label` stands in each line."""
    handler = _Stdout(sys.__stdout__)
    handler.setFormatter(_OneLine(f"%(asctime)s %(levelname)s {label}%(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("kazoo").setLevel(logging.WARNING)


def drop_rest() -> None:
    """Drop lines that stdout still does not take: an exit would fail with them."""
    if sys.__stdout__ is None:
        return
    try:
        sys.__stdout__.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())


class _OneLine(logging.Formatter):
    """Escapes control characters: names chosen by clients must not break or forge log lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        return super().formatMessage(record).translate(_ESCAPED_CONTROLS)


class _Stdout(logging.StreamHandler):  # type: ignore[type-arg]
    """Says once that lines are lost. `stream` is stderr where stdout is closed."""

    _has_told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_told:
            self._has_told = True
            with contextlib.suppress(OSError):
                print(  # noqa: T201 where the log does not arrive
                    f"odradek: cannot write the log to stdout: {error.strerror}",
                    file=sys.stderr,
                    flush=True,
                )
