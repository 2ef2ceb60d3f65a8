"""Who is logged in, and the tokens that prove that a form is the console's own.

A session is a random cookie, known here and nowhere else: it ends with the process. The token of a
form is an HMAC of the browser's cookie, so another site, which cannot read the page, has none.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

SESSION_S: Final = 8 * 3600.0
_MOST: Final = 1000
_TOKEN_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class _Session:
    user: str
    secret: object = field(repr=False)
    until: float


class Sessions:
    """At most `_MOST` sessions; the oldest ends for a new one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._secret = secrets.token_bytes(_TOKEN_BYTES)
        self._open: OrderedDict[str, _Session] = OrderedDict()

    def begin(self, user: str, secret: object) -> str:
        """Return the cookie of a new session, which ends when the user's `secret` is another."""
        while len(self._open) >= _MOST:
            self._open.popitem(last=False)
        cookie = secrets.token_urlsafe(_TOKEN_BYTES)
        self._open[cookie] = _Session(user, secret, self._clock() + SESSION_S)
        return cookie

    def user(self, cookie: str | None, secret_of: Callable[[str], object]) -> str | None:
        """Return whose session this is, None if it has ended."""
        found = self._open.get(cookie or "")
        if found is None:
            return None
        if self._clock() >= found.until or secret_of(found.user) != found.secret:
            self.end(cookie)
            return None
        return found.user

    def end(self, cookie: str | None) -> None:
        """End a session."""
        self._open.pop(cookie or "", None)

    def form_token(self, cookies: str) -> str:
        """Return the token of forms for a browser with these cookies."""
        return hmac.new(self._secret, _bytes(cookies), hashlib.sha256).hexdigest()

    def is_own_form(self, cookies: str, token: str) -> bool:
        """Return whether a form comes from a page that this browser was given."""
        return hmac.compare_digest(_bytes(self.form_token(cookies)), _bytes(token))


def _bytes(text: str) -> bytes:
    """Return the bytes of a text of a browser, who may send what is none."""
    return text.encode(errors="backslashreplace")
