"""What kazoo's errors mean, about which znode they are, and what to do.

They have neither texts nor paths. `name_znode` gives those that answer a request the path from the
server's root.
"""

from __future__ import annotations

from typing import Final

from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    ZookeeperError,
)

_LOGIN_REQUIRED: Final = -124


class LoginRequiredError(ZookeeperError):  # type: ignore[misc]  # kazoo has no types
    """The server asks for a login, and this client has none."""

    code = _LOGIN_REQUIRED


EXCEPTIONS[_LOGIN_REQUIRED] = LoginRequiredError
# An error that kazoo does not know would end the thread of the connection.
EXCEPTIONS.default_factory = lambda: ZookeeperError

_NO_ANSWERS: Final = (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    LoginRequiredError,
    OperationTimeoutError,
    SessionExpiredError,
)


def is_answer(error: BaseException) -> bool:
    """Return whether a server answered the request, if only with an error."""
    return isinstance(error, ZookeeperError) and not isinstance(error, _NO_ANSWERS)


def name_znode(error: BaseException, path: str) -> None:
    """Let an error that is the answer to a request tell about which znode the request was."""
    if path and not error.args and is_answer(error):
        error.args = (path,)


def meaning(error: BaseException) -> str:
    """Return what an error of kazoo means."""
    name = type(error).__name__
    if not is_answer(error) and str(error):
        return str(error)
    path = f" {error.args[0]}" if error.args else ""
    if isinstance(error, NoAuthError):
        return f"no right to the znode{path} ({name})"
    if isinstance(error, InvalidACLError):
        return f"the ACL for the znode{path} is refused ({name})"
    if isinstance(error, LoginRequiredError):
        return f"the server asks for a login ({name})"
    if isinstance(error, NoNodeError):
        return f"there is no znode{path} ({name})"
    if isinstance(error, SessionExpiredError):
        return f"the session has expired ({name})"
    if isinstance(error, ConnectionLoss):
        return f"the connection was lost before the answer came ({name})"
    if isinstance(error, OperationTimeoutError):
        return f"no answer came in time ({name})"
    return f"{name} at{path}" if path else name


def describe(error: BaseException) -> str:
    """Return what an error of kazoo means, and what the owner of this process can do."""
    log_in = "log in with a JAAS file that KAFKA_OPTS names, or with zookeeper.ssl.keystore.*"
    said = meaning(error)
    if isinstance(error, NoAuthError):
        return (
            f"{said}: {log_in}, as the user who made it, or let that user run `odradek zookeeper "
            "unsecure`"
        )
    if isinstance(error, InvalidACLError):
        return f"{said}: zookeeper.set.acl=true takes a user whom the server knows: {log_in}"
    if isinstance(error, LoginRequiredError):
        return f"{said}: {log_in}"
    return said
