"""What stands before every page: host names, log-in, forms, headers, and errors as pages.

- A browser may be told by a stranger's name server that his site is at this address. So the Host
  header must have an address, `localhost`, or a name that was allowed.
- A change needs a form with a token of this browser, and, where the browser says it, the console's
  own origin. Cookies are for this site only, and no script reads them.
- Nothing from outside is loaded, and no page has scripts or styles of its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from odradek.tools.errors import ToolError
from odradek_console.connections import CONNECTIONS
from odradek_console.rendering import CONSOLE, Console, render
from odradek_console.resources import KubernetesError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SESSION: Final = "odradek_console"
BROWSER: Final = "odradek_browser"
LOGIN: Final = "/login"
HEALTH: Final = "/healthz"
STATIC: Final = "/static/"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # With no-referrer browsers would not say where a form comes from.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_LOCAL: Final = "localhost"
_MOST_WAITING: Final = 20
_WRONG_PASSWORD_S: Final = 0.3
_TOKEN_BYTES: Final = 32

log = logging.getLogger(__name__)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers of every answer, also of those that stream."""
    for name, text in HEADERS.items():
        response.headers.setdefault(name, text)
    if not request.path.startswith(STATIC):
        response.headers.setdefault("Cache-Control", "no-store")


def middlewares() -> list[Middleware]:
    """Return what every request goes through, the outermost first."""
    return [_errors, _host, _login, _forms, _answering]


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Make a page of one sentence of every error."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        status, text = error.status, error.text or error.reason
        if error.status == 404 and text == "404: Not Found":
            text = "There is no such page."
        elif error.status == 405:
            text = "This page takes no such request."
    except ToolError as error:
        status = 400 if error.status == 2 else 502
        text = f"The brokers could not tell: {error}."
        if isinstance(error, KubernetesError):
            text = f"{error}."
    except (ConnectionResetError, asyncio.CancelledError):
        raise
    except Exception:
        log.exception("failed to make the page %s", request.path)
        status, text = 500, "The console failed to make this page; its log says why."
    return render(request, "error.html", status=status, text=text, code=status)


@web.middleware
async def _host(request: web.Request, handler: Handler) -> web.StreamResponse:
    # The kubelet's probes name the pod's address anyway; a probe tells nothing.
    console = request.app[CONSOLE]
    if not is_allowed_host(request.headers.get("Host", ""), console.settings.allowed_hosts):
        raise web.HTTPMisdirectedRequest(
            text="The console does not answer to this host name: see --allowed-host."
        )
    return await handler(request)


def is_allowed_host(header: str, allowed: frozenset[str]) -> bool:
    """Return whether a Host header has an address, `localhost` or an allowed name."""
    try:
        parts = urlsplit(f"//{header}")
        name = (parts.hostname or "").lower()
        _ = parts.port
    except ValueError:
        return False
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return False
    if name == _LOCAL or name in allowed:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@web.middleware
async def _login(request: web.Request, handler: Handler) -> web.StreamResponse:
    console = request.app[CONSOLE]
    is_open = request.path in (LOGIN, HEALTH) or request.path.startswith(STATIC)
    users = console.settings.users
    if users is not None:
        cookie = request.cookies.get(SESSION)

        def owner() -> str | None:
            # Who is taken out of the file, or has another password, is logged out.
            return console.sessions.user(cookie, users.current().secret_of)

        user = owner()
        # What lasts, such as a live tail, asks again.
        request["is_logged_in"] = lambda: owner() is not None
        request["user"] = user
        if user is None and not is_open:
            if request.method != "GET" or request.path.endswith("/events"):
                raise web.HTTPUnauthorized(text="Log in first.")
            raise web.HTTPSeeOther(LOGIN)
    return await handler(request)


@web.middleware
async def _forms(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give each browser a cookie, and let nothing change without the token that goes with it."""
    browser = request.cookies.get(BROWSER, "")
    is_new = not browser
    if is_new:
        browser = secrets.token_urlsafe(_TOKEN_BYTES)
    cookies = f"{browser}.{request.cookies.get(SESSION, '')}"
    console = request.app[CONSOLE]
    request["form_token"] = console.sessions.form_token(cookies)
    if request.method not in ("GET", "HEAD"):
        origin = request.headers.get("Origin")
        if origin is not None and not _is_of_host(origin, request.headers.get("Host")):
            raise web.HTTPForbidden(text="This form comes from another site.")
        token = await _token(request)
        if not console.sessions.is_own_form(cookies, token):
            raise web.HTTPForbidden(
                text="This form is too old, or not the console's: load its page again."
            )
    response = await handler(request)
    if is_new and not response.prepared and request.path != HEALTH:
        set_cookie(console, response, BROWSER, browser)
    return response


@web.middleware
async def _answering(request: web.Request, handler: Handler) -> web.StreamResponse:
    # The last one: until here a form may be coming still, which is no reason to keep a connection.
    with request.app[CONNECTIONS].answering(request):
        return await handler(request)


def _is_of_host(origin: str, host: str | None) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


async def _token(request: web.Request) -> str:
    """Return the token of a form, "" where there is none. Raises HTTPBadRequest."""
    try:
        fields = await request.post()
    except (web.HTTPException, ConnectionError):
        raise
    # The library raises whatever a body that is no form leads it to.
    except Exception as error:
        raise web.HTTPBadRequest(text="This is no form.") from error
    token = fields.get("token", "")
    return token if isinstance(token, str) else ""


def set_cookie(console: Console, response: web.StreamResponse, name: str, value: str) -> None:
    """Set a cookie that only this site gets, and no script reads."""
    response.set_cookie(
        name,
        value,
        httponly=True,
        samesite="Strict",
        secure=console.settings.tls is not None,
        path="/",
    )


class LoginDesk:
    """Checks passwords one at a time, so that guessing is slow and takes little of a processor."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0

    async def page(self, request: web.Request) -> web.Response:
        """Show the form."""
        return render(request, "login.html", failed=False)

    async def login(self, request: web.Request) -> web.StreamResponse:
        """Begin a session, or show the form again."""
        console = request.app[CONSOLE]
        if console.settings.users is None:
            raise web.HTTPNotFound(text="Nobody logs in here.")
        users = console.settings.users.current()
        fields = await request.post()
        name, password = fields.get("name", ""), fields.get("password", "")
        if not isinstance(name, str) or not isinstance(password, str):
            raise web.HTTPBadRequest(text="Name and password are texts.")
        if self._waiting >= _MOST_WAITING:
            raise web.HTTPServiceUnavailable(text="Too many log in at the moment: try again.")
        self._waiting += 1
        try:
            async with self._lock:
                if not await asyncio.to_thread(users.check, name, password):
                    await asyncio.sleep(_WRONG_PASSWORD_S)
                    log.warning("a log-in as %.100r failed, from %s", name, request.remote)
                    return render(request, "login.html", status=401, failed=True)
        finally:
            self._waiting -= 1
        console.sessions.end(request.cookies.get(SESSION))
        response = web.HTTPSeeOther("/")
        set_cookie(console, response, SESSION, console.sessions.begin(name, users.secret_of(name)))
        raise response

    async def logout(self, request: web.Request) -> web.StreamResponse:
        """End the session."""
        request.app[CONSOLE].sessions.end(request.cookies.get(SESSION))
        response = web.HTTPSeeOther(LOGIN)
        response.del_cookie(SESSION, path="/")
        raise response
