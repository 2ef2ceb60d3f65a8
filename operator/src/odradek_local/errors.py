"""The errors that end `odradek local`."""

from __future__ import annotations


class LocalError(Exception):
    """One line for the user; `status` is 2 for what the user can set right, 1 for a failure."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


class StopRequestedError(Exception):
    """A signal asks for the end; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number
