"""kazoo's client over TLS and with a login: what kazoo itself lacks for both. And it pipelines.

kazoo would make a TLS context per connection from PEM files, and check no host name by default. It
does not look at what OpenSSL has already decrypted before it waits for the socket. It reports that
it is connected before the login, and gives up for good when a login fails. So a handler of ours
makes the connections, and the login is a part of the handshake: it fails like any handshake, is
tried again like one, and nobody is connected before.

A server can ask for a login (`enforce.auth.enabled`, `sessionRequireClientSASLAuth`). It then
answers the first request of a client without one, and ends the connection, but not the session. So
once a server did that, a request is a part of the handshake, too.

A handshake keeps a session alive on the server, whether or not a login follows. So a session whose
login is refused is over, as it is for Java's clients: a broker that cannot log in any more must not
stay registered by trying. Nor may one whose logins get no answer: its session is over once they
have failed for its timeout.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, NodeExistsError, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionDropped
from kazoo.protocol.serialization import SASL, Connect, Exists
from kazoo.protocol.states import Callback
from kazoo.retry import KazooRetry

from odradek import tls_errors
from odradek.zk import acls
from odradek.zk.digest_md5 import DigestClient, DigestError
from odradek.zk.failures import LoginRequiredError
from odradek.zk.pipelining import PipelinedConnection, PipelinedResult, PromptWatch, Waker
from odradek.zookeeper_settings import ZooKeeperLogin

_NONCE_BYTES: Final = 16
_LEAST_S: Final = 0.001
_SILENT: Final = "the server does not answer"
_PREFIX: Final = "zookeeper."
_NEEDS_LOGIN: Final = "the server asks for a login"


@dataclass(frozen=True, slots=True)
class ZooKeeperAccess:
    """How to connect, and how to create znodes.

    Without `context` connections are plain, without `login` there is no SASL; both are asked for
    each connection. `set_acl` is `zookeeper.set.acl`.
    """

    context: Callable[[], ssl.SSLContext] | None = None
    login: Callable[[], ZooKeeperLogin] | None = None
    set_acl: bool = False


OPEN: Final = ZooKeeperAccess()
"""Plain connections without a login, and znodes open to all."""

Handshake = Callable[[int, float], None]


class Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """A client of `hosts` (`host:port,.../chroot`).

    `on_handshake` gets the session timeout in ms that the server grants, and when the handshake
    began; kazoo publishes neither. It runs in the thread of the connection. Who waits for an answer
    without a timeout of its own gets OperationTimeoutError after `answer_s`, by default never.
    """

    def __init__(
        self,
        hosts: str,
        timeout_s: float,
        access: ZooKeeperAccess = OPEN,
        retry: KazooRetry | None = None,
        on_handshake: Handshake | None = None,
        clock: Callable[[], float] = time.monotonic,
        answer_s: float | None = None,
        **others: Any,
    ) -> None:
        self.access = access
        self.answer_s = answer_s
        self.failure = ""
        self._login_required = False
        self._clock = clock
        self._logins_fail_since: float | None = None
        super().__init__(
            hosts=hosts,
            timeout=timeout_s,
            handler=_Handler(self),
            connection_retry=retry,
            # The handler decides; kazoo only logs it.
            use_ssl=access.context is not None,
            **others,
        )
        connection = PipelinedConnection(self, self._conn_retry.copy(), logger=self.logger)
        self._connection = connection
        invoke = connection._invoke

        def invoke_and_note(timeout: float, request: Any, xid: int | None = None) -> Any:
            if not isinstance(request, Connect):
                return invoke(timeout, request, xid)
            started = clock()
            try:
                answer = invoke(timeout, request, xid)
            except ConnectionDropped as error:
                self.failure = f"the server ended the connection: {error}"
                raise
            except self.handler.timeout_exception:
                self.failure = _SILENT
                raise
            granted = answer[0].time_out
            if granted > 0:
                if access.login is not None:
                    self._log_in(access.login(), timeout, granted / 1000)
                elif self._login_required:
                    self._ask_without_login(partial(invoke, timeout))
                self.failure = ""
                if on_handshake is not None:
                    on_handshake(granted, started)
            return answer

        read_response = connection._read_response

        def read_and_note(header: Any, content: bytes, offset: int) -> Any:
            if header.err:
                self._note_refusal(header.err)
            return read_response(header, content, offset)

        connection._invoke = invoke_and_note
        connection._read_response = read_and_note

    def _note_refusal(self, code: int) -> None:
        """Let the error that answers the first pending request tell its znode."""
        if code == LoginRequiredError.code:
            self._login_required = True
        request, result, _ = self._pending[0]
        if isinstance(result, PipelinedResult):
            result.path = getattr(request, "path", "")

    def ensure(self, path: str) -> None:
        """Create a persistent znode and its parents where they are missing, with their ACLs."""
        for one in acls.with_parents(path):
            if self.exists(one) is None:
                with contextlib.suppress(NodeExistsError):
                    self.create(one, acl=acls.of_new(one, secured=self.access.set_acl))

    def _ask_without_login(self, invoke: Callable[..., Any]) -> None:
        """Ask the server that wanted a login whether it still does."""
        try:
            invoke(Exists("/", None), 1)
        except LoginRequiredError:
            self.failure = _NEEDS_LOGIN
            if self._session_id:
                raise SessionExpiredError(self.failure) from None
            raise ConnectionDropped(self.failure) from None
        self._login_required = False

    def _log_in(self, login: ZooKeeperLogin, timeout: float, session_s: float) -> None:
        """Authenticate the connection. What it raises makes kazoo try again."""
        exchange = DigestClient(login.username, login.password, secrets.token_urlsafe(_NONCE_BYTES))
        answered = True
        try:
            challenge = self._sasl(b"", 1, timeout)
            if not challenge:
                raise DigestError("the server does not offer SASL")
            exchange.check(self._sasl(exchange.respond(challenge), 2, timeout))
        except AuthFailedError:
            why = "the server refused it"
        except DigestError as error:
            why = str(error)
        except struct.error:
            why = "the server's answer is malformed"
        except ConnectionDropped as error:
            why, answered = str(error), False
        except self.handler.timeout_exception:
            why, answered = _SILENT, False
        else:
            self._logins_fail_since = None
            return
        self.failure = f"login of user {login.username} failed: {why}"
        if self._session_id and (answered or self._logins_fail_for(session_s)):
            self._logins_fail_since = None
            raise SessionExpiredError(self.failure)
        raise ConnectionDropped(self.failure)

    def _logins_fail_for(self, seconds: float) -> bool:
        now = self._clock()
        if self._logins_fail_since is None:
            self._logins_fail_since = now
        return now - self._logins_fail_since > seconds

    def _sasl(self, token: bytes, xid: int, timeout: float) -> bytes:
        connection = self._connection
        connection._submit(SASL(token), timeout, xid)
        header, content, offset = connection._read_header(timeout)
        if header.err:
            raise AuthFailedError
        answer, _ = SASL.deserialize(content, offset)
        return answer or b""


_POLL: Final = SimpleNamespace(
    EVENT_READ=selectors.EVENT_READ,
    EVENT_WRITE=selectors.EVENT_WRITE,
    DefaultSelector=selectors.PollSelector,
)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Makes connections, with TLS if the client has a context."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    def async_result(self) -> PipelinedResult:
        """Return a new result of a request."""
        result = PipelinedResult(self)
        if self._client.answer_s is not None:
            result.answer_s = self._client.answer_s
        return result

    def dispatch_callback(self, callback: Callback) -> None:
        """Tell a watch; one that may wait is told in a thread of its own."""
        if isinstance(callback.func, PromptWatch):
            callback.func(*callback.args)
        else:
            super().dispatch_callback(callback)

    def create_socket_pair(self) -> tuple[socket.socket, Waker]:
        """Return what wakes the thread of the connection: where it waits, and how to wake it."""
        reader, writer = super().create_socket_pair()
        return reader, Waker(writer)

    def create_connection(
        self, address: tuple[str, int], hostname: str = "", timeout: float = 0, **_: Any
    ) -> socket.socket:
        """Return a connected socket. Raises OSError.

        kazoo gives each server the whole session timeout. Here they share it, as with Java's
        clients: the session would be over after one server that does not answer.
        """
        context = self._client.access.context
        share = timeout / len(self._client.hosts)
        try:
            secured = None if context is None else context()
            until = time.monotonic() + share
            made = socket.create_connection(address, share)
            if secured is not None:
                made.settimeout(max(_LEAST_S, until - time.monotonic()))
                made = _secured(made, secured, hostname)
        except OSError as error:
            self._client.failure = _reason(error)
            raise
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def select(self, readers: Any, writers: Any, errors: Any, timeout: Any = None) -> Any:
        """Wait as select does; what OpenSSL has decrypted is ready at once.

        kazoo would take a descriptor per wait, and a process that has none left lose its session.
        """
        ready = {id(one) for one in readers if isinstance(one, ssl.SSLSocket) and one.pending()}
        if not ready:
            return super().select(readers, writers, errors, timeout, selectors_module=_POLL)
        found, writable, failed = super().select(
            readers, writers, errors, 0, selectors_module=_POLL
        )
        ready |= {id(one) for one in found}
        return [one for one in readers if id(one) in ready], writable, failed


def _secured(plain: socket.socket, context: ssl.SSLContext, hostname: str) -> ssl.SSLSocket:
    try:
        return context.wrap_socket(plain, server_hostname=hostname)
    except BaseException:
        plain.close()
        raise


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {tls_errors.describe(error, _PREFIX)}"
    if isinstance(error, TimeoutError):
        return _SILENT
    if isinstance(error, ssl.SSLError | ConnectionResetError):
        return f"TLS handshake failed: {tls_errors.describe(error, _PREFIX)}"
    return error.strerror or str(error)
