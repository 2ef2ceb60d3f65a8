"""The error that ends a command."""

from __future__ import annotations


class ToolError(Exception):
    """One line for the user; `status` is 2 for a usage error, 1 for a failure."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status
