"""The users of the console: a file with a line `NAME:scrypt:SALT:KEY` for each, in base64.

The console reads with rights of its own, so who may see its pages is a list of its own: a login
against the brokers would let every client in, also one that may read nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from odradek.properties import is_utf8
from odradek.tools.errors import ToolError

MOST_PASSWORD_BYTES: Final = 1024
_COST: Final = 2**14
_BLOCK: Final = 8
_SALT_BYTES: Final = 16
_KEY_BYTES: Final = 32
_MOST_BYTES: Final = 1024 * 1024
_LOOK_S: Final = 2.0

log = logging.getLogger(__name__)


class Users:
    """Users by name, each with the salt and key of a password."""

    def __init__(self, entries: Mapping[str, tuple[bytes, bytes]]) -> None:
        self._entries = dict(entries)
        # Who is unknown costs as much time as who is known.
        self._nobody = (secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_KEY_BYTES))

    def secret_of(self, name: str) -> object:
        """Return what changes with the password of a user; None if there is no such user."""
        return self._entries.get(name)

    def check(self, name: str, password: str) -> bool:
        """Return whether this is the user's password; takes some 50 ms of a processor."""
        salt, key = self._entries.get(name, self._nobody)
        # Whoever sends a form chooses how it is decoded: to what UTF-8 does not have, too.
        text = password.encode(errors="backslashreplace")
        computed = _key(text[:MOST_PASSWORD_BYTES], salt)
        return hmac.compare_digest(computed, key) and name in self._entries


class UsersFile:
    """Users of a file, which is read again when it has changed. Raises ToolError at first."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        # Of what was read; None: it could not be, and is tried again.
        self._stamp: tuple[int, ...] | None = _stamp(path)
        self._users = load(path)
        self._looked = clock()
        self._failure = ""  # that was logged

    def current(self) -> Users:
        """Return the users as the file has them; if it is no good now, nobody may log in."""
        if self._clock() - self._looked < _LOOK_S:
            return self._users
        self._looked = self._clock()
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            try:
                self._users = load(self._path)
                self._stamp, self._failure = stamp, ""
                log.info("read %s again", self._path)
            except ToolError as error:
                self._users, self._stamp = Users({}), None
                if str(error) != self._failure:
                    log.warning("failed to read users: %s; nobody may log in", error)
                self._failure = str(error)
        return self._users


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)


def line(name: str, password: str) -> str:
    """Return the line of a user. Raises ToolError for a name that cannot stand in a line."""
    if not name or name[0] == "#" or ":" in name or not name.isprintable() or name != name.strip():
        raise ToolError(f"{name!r} is no name of a user")
    if not password:
        raise ToolError("the password is empty")
    if not is_utf8(password):
        raise ToolError("the password is not UTF-8")
    if len(password.encode()) > MOST_PASSWORD_BYTES:
        raise ToolError(f"the password has more than {MOST_PASSWORD_BYTES} bytes")
    salt = secrets.token_bytes(_SALT_BYTES)
    parts = (salt, _key(password.encode(), salt))
    return ":".join((name, "scrypt", *(base64.b64encode(one).decode() for one in parts)))


def load(path: Path) -> Users:
    """Read a file of users; lines that begin with # are comments. Raises ToolError."""
    try:
        with path.open("rb") as file:
            # Some editors write a mark first.
            text = file.read(_MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ToolError(f"{path} is not UTF-8") from None
    entries: dict[str, tuple[bytes, bytes]] = {}
    for number, one in enumerate(text.splitlines(), 1):
        if not one.strip() or one.startswith("#"):
            continue
        entry = _parsed(one.strip())
        if entry is None:
            raise ToolError(f"{path}, line {number}: not NAME:scrypt:SALT:KEY")
        name, salt, key = entry
        if name in entries:
            raise ToolError(f"{path}, line {number}: user {name} is there twice")
        entries[name] = (salt, key)
    if not entries:
        raise ToolError(f"{path} has no user: see odradek console user")
    return Users(entries)


def _parsed(text: str) -> tuple[str, bytes, bytes] | None:
    parts = text.split(":")
    if len(parts) != 4 or not parts[0] or parts[1] != "scrypt":
        return None
    try:
        salt, key = (base64.b64decode(one, validate=True) for one in parts[2:])
    except (binascii.Error, ValueError):
        return None
    return (parts[0], salt, key) if salt and len(key) == _KEY_BYTES else None


def _key(password: bytes, salt: bytes) -> bytes:
    return hashlib.scrypt(password, salt=salt, n=_COST, r=_BLOCK, p=1, dklen=_KEY_BYTES)
