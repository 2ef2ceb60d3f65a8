"""Counts the work of Python code, for tests of what grows with the number of partitions, and does
something between its lines, as another thread may.

A count is the same on every machine and at every load, unlike a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, ParamSpec

P = ParamSpec("P")


def count(work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> int:
    """Return how many bytecode instructions `work` executes in this thread.

    What C functions do by themselves, such as copying a dictionary, is not counted.
    """
    executed = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal executed
        frame.f_trace_opcodes = True
        if event == "opcode":
            executed += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work(*args, **kwargs)
    finally:
        sys.settrace(before)
    return executed


def between_lines(
    module: ModuleType, other: Callable[[], object], work: Callable[[], object]
) -> int:
    """Do `work`, and `other` before each line of `module` that it executes; return how often."""
    done = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal done
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            done += 1
            other()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return done
