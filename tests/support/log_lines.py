"""What a part of the project logged during a test.

Libraries log beside it, and so do threads that earlier tests of the same process left.
"""

import logging

import pytest


def records_of(caplog: pytest.LogCaptureFixture, logger: str) -> list[logging.LogRecord]:
    """Return the captured records of a logger and those below it."""
    return [one for one in caplog.records if f"{one.name}.".startswith(f"{logger}.")]


def messages_of(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    """Return the captured messages of a logger and those below it."""
    return [one.getMessage() for one in records_of(caplog, logger)]
