"""Topic patterns: regular expressions of RE2 that select topics by name."""

from __future__ import annotations

import re2

from odradek.zk.consumers import TopicPattern
from odradek_operator.shared.spec import InvalidSpec


def compile_pattern(text: str) -> TopicPattern:
    """Compile a topicPattern, raising InvalidSpec for one that is none.

    The syntax is RE2's, whose time grows with the length of a name only: a pattern that makes a
    backtracking engine run for ever would stop all that the operator does. The driver of a job and
    old consumers of its group read patterns as Python and Java do; what all take means the same.
    Lookarounds and backreferences, which RE2 does not have, are refused.
    """
    try:
        return compile_re2(text)
    except ValueError as error:
        raise InvalidSpec("InvalidTopicPattern", f"topicPattern: {error}") from None


def compile_re2(text: str) -> TopicPattern:
    """Compile a pattern of RE2. Raises ValueError for one that is none."""
    options = re2.Options()
    options.log_errors = False
    try:
        compiled: TopicPattern = re2.compile(text, options)
    except re2.error as error:
        (reason,) = error.args
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(shown) from None
    return compiled
