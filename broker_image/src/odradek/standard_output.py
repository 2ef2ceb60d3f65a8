"""stdout and stderr of the commands for people, on a full disk or a pipe that nobody reads.

What cannot be written to stdout ends a command with one line on stderr and status 1. A reader that
has gone ends it without a word: that is what click does with BrokenPipeError. What cannot be
written to stderr is lost, and the exit status still tells. The log of a broker has rules of its own
(`log_output`).
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any, TextIO

import click


class StdoutError(click.ClickException):
    """stdout takes nothing. No OSError: commands take these for errors of files that they read."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to stdout: {error.strerror}")

    def show(self, file: Any = None) -> None:
        """Tell it as other errors are told."""
        click.echo(f"odradek: {self.message}", err=True)


class _File(io.FileIO):
    """A file that fails once at most: Python writes what is left once more at its end."""

    def __init__(self, descriptor: int, *, is_stdout: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._is_stdout = is_stdout
        self._has_failed = False

    def write(self, data: Any) -> int:
        """Write as a FileIO does. Raises StdoutError, and BrokenPipeError for stdout."""
        if not self._has_failed:
            try:
                # None: a pipe that does not block is full.
                return super().write(data)
            except OSError as error:
                self._has_failed = True
                if self._is_stdout and isinstance(error, BrokenPipeError):
                    raise
                if self._is_stdout:
                    raise StdoutError(error) from error
        return len(data)


def guard() -> None:
    """Let `sys.stdout` and `sys.stderr` fail as commands expect it; None stays None."""
    _fill_closed_descriptors()
    if sys.stdout is not None:
        sys.stdout = _guarded(sys.stdout, is_stdout=True)
    if sys.stderr is not None:
        sys.stderr = _guarded(sys.stderr, is_stdout=False)


def flush() -> None:
    """Write what is left. Raises as `_File.write` does."""
    if sys.stdout is not None:
        sys.stdout.flush()


def check_reader(stream: TextIO) -> None:
    """Raise BrokenPipeError if a stream is a pipe that nobody reads any more: who has nothing to
    write would not notice.
    """
    watched = select.poll()
    # Errors are reported without being asked for.
    watched.register(stream.fileno(), 0)
    if any(event & select.POLLERR for _, event in watched.poll(0)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _fill_closed_descriptors() -> None:
    """Take the numbers of standard streams that are closed: the next file would get them, and what
    processes that are started say would go into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free: those below are taken.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _guarded(stream: TextIO, *, is_stdout: bool) -> TextIO:
    file = io.BufferedWriter(_File(stream.fileno(), is_stdout=is_stdout))
    return io.TextIOWrapper(
        file,
        stream.encoding,
        # A terminal that has no such character shows its number.
        "backslashreplace" if stream.errors == "strict" else stream.errors,
        line_buffering=stream.isatty() or not is_stdout,
    )
