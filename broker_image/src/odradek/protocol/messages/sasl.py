"""Authentication with SASL, and the credentials of SCRAM."""

from odradek.protocol.primitives import Kind
from odradek.protocol.schema import (
    Request,
    array,
    binary,
    int8,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
)


@message(versions=(0, 1))
class SaslHandshakeResponse:
    """The mechanisms that a listener takes; never flexible (KAFKA-9577)."""

    error_code: int = int16(default=0)
    mechanisms: list[str] = array(Kind.STRING, default_factory=list)


@message(versions=(0, 1))
class SaslHandshakeRequest(Request[SaslHandshakeResponse]):
    """Choose a mechanism. After version 0 tokens are bare frames, after 1 SaslAuthenticate."""

    mechanism: str = string()


@message(versions=(0, 2), flexible_from=2)
class SaslAuthenticateResponse:
    """The next token of the broker; the session has a limit where that is not 0 (KIP-368)."""

    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    auth_bytes: bytes = binary(default=b"")
    session_lifetime_ms: int = int64(since=1, default=0)


@message(versions=(0, 2), flexible_from=2)
class SaslAuthenticateRequest(Request[SaslAuthenticateResponse]):
    """The next token of the client."""

    auth_bytes: bytes = binary()


@struct
class ScramCredentialInfo:
    """A mechanism that a user has a credential for."""

    mechanism: int = int8()
    iterations: int = int32()


@struct
class DescribeUserScramCredentialsResult:
    """The credentials of one user."""

    user: str = string()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    credential_infos: list[ScramCredentialInfo] = array(ScramCredentialInfo, default_factory=list)


@message(versions=(0, 0), flexible_from=0)
class DescribeUserScramCredentialsResponse:
    """Answer to a DescribeUserScramCredentialsRequest; never tells salts or keys."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    results: list[DescribeUserScramCredentialsResult] = array(
        DescribeUserScramCredentialsResult, default_factory=list
    )


@struct
class UserName:
    """A user to describe."""

    name: str = string()


@message(versions=(0, 0), flexible_from=0)
class DescribeUserScramCredentialsRequest(Request[DescribeUserScramCredentialsResponse]):
    """Ask for the credentials of users; none or null means all (KIP-554)."""

    users: list[UserName] | None = array(UserName, nullable_since=0)


@struct
class AlterUserScramCredentialsResult:
    """The outcome for one user."""

    user: str = string()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)


@message(versions=(0, 0), flexible_from=0)
class AlterUserScramCredentialsResponse:
    """Answer to an AlterUserScramCredentialsRequest."""

    throttle_time_ms: int = int32(default=0)
    results: list[AlterUserScramCredentialsResult] = array(
        AlterUserScramCredentialsResult, default_factory=list
    )


@struct
class ScramCredentialDeletion:
    """A credential to delete."""

    name: str = string()
    mechanism: int = int8()


@struct
class ScramCredentialUpsertion:
    """A credential to set; the password itself never comes here."""

    name: str = string()
    mechanism: int = int8()
    iterations: int = int32()
    salt: bytes = binary()
    salted_password: bytes = binary()


@message(versions=(0, 0), flexible_from=0)
class AlterUserScramCredentialsRequest(Request[AlterUserScramCredentialsResponse]):
    """Set and delete credentials (KIP-554)."""

    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)
