"""The error that ends a command, and the check of numbers in texts."""

from __future__ import annotations


class ToolError(Exception):
    """One line for the user; `status` is 2 for a usage error, 1 for a failure."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


def is_number(text: str, most: int) -> bool:
    """Return whether a text is the digits of a number from 0 to `most`."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(most)) and int(text) <= most
