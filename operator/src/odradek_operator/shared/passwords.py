"""Passwords of users that the operator makes: new ones, and what Secrets have for them."""

from __future__ import annotations

import secrets
import string
from typing import Final

_LETTERS: Final = string.ascii_letters + string.digits
_LENGTH: Final = 32
LONGEST: Final = 1024
_QUOTED: Final = frozenset('"\\')


def new() -> str:
    """Return 190 random bits in letters and digits, which no shell and no file quotes."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))


def kept(password: str) -> str:
    """Return a password, or a new one where a file of settings would have to quote it."""
    fine = 0 < len(password) <= LONGEST and password.isascii() and password.isprintable()
    return password if fine and _QUOTED.isdisjoint(password) else new()
