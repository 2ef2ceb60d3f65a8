"""The errors that end a command, which of them may pass, and the check of numbers in texts."""

from __future__ import annotations

from typing import Final

from odradek.protocol.errors import ErrorCode, name_of

# The request was right, and the cluster could not do it, or not yet.
FAILURES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)


class ToolError(Exception):
    """One line for the user; `status` is 2 for a usage error, 1 for a failure."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


class NothingDoneError(ToolError):
    """A failure of a request that changed nothing: it may be sent again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 1)


def error_text(code: int, said: str | None) -> str:
    """Return an error for people: Kafka's name, and what the broker said."""
    return f"{name_of(code)}: {said}" if said else name_of(code)


def refused(name: str, code: int, said: str | None) -> ToolError:
    """Return the error of a request that a broker refused."""
    return ToolError(f"{name}: {error_text(code, said)}", 1 if code in FAILURES else 2)


def is_number(text: str, most: int) -> bool:
    """Return whether a text is the digits of a number from 0 to `most`."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(most)) and int(text) <= most


def shown(text: str) -> str:
    """Return a name as a line of a terminal can have it, an empty one in quotes."""
    return text if text and text.isprintable() else ascii(text)
