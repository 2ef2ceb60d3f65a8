"""Threads and processes that cannot be started: how to notice it, and what commands say of it."""

from __future__ import annotations

import errno
from typing import Final

# Python has no type for this error.
_PYTHONS: Final = "can't start new thread"
NO_THREAD: Final = (
    f"{_PYTHONS}: too many processes and threads, or too little memory; end some, or raise the "
    "limit (ulimit -u, or pids.max of the container)"
)
"""What to say and advise, in one line."""


def is_no_thread(error: BaseException) -> bool:
    """Return whether an error is Python's of a thread that cannot be started."""
    return isinstance(error, RuntimeError) and str(error).startswith(_PYTHONS)


def is_no_process(error: OSError) -> bool:
    """Return whether the error of a start of a process is about its number, not the program."""
    return error.errno == errno.EAGAIN


def no_thread() -> RuntimeError:
    """Return the error that Python raises, for libraries that have one of their own."""
    return RuntimeError(_PYTHONS)
