"""Tokens of OAUTHBEARER: what a client sends, and whether a token is sound. Pure.

The client's message is that of RFC 7628, with Kafka's extensions (KIP-342) beside the token. A
token is a signed JWT. Which algorithm may have signed it follows from the key that it names, never
from the token alone, and only public keys count: `none` and the algorithms of shared secrets
(HS256) are refused. A key says its algorithm, or has those of its kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.exceptions import PyJWTError

from odradek.oauth_settings import OauthSettings
from odradek.values import Principal

LONGEST_TOKEN: Final = 64 * 1024
# RFC 7518 wants no less.
_LEAST_RSA_BITS: Final = 2048
_BY_RSA: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_BY_CURVE: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
# Private numbers of a key, which nobody should publish, are not looked at.
_PUBLIC: Final = ("kty", "crv", "n", "e", "x", "y")
# Beyond it a float cannot tell seconds apart.
_LATEST_S: Final = 2**53
_DATES: Final = ("exp", "iat", "nbf")
_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_MESSAGE: Final = re.compile(
    rf"n,(?:a=({_NAME}))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_BEARER: Final = re.compile(r"(?i:bearer) +([-_.a-zA-Z0-9]+)")
_ESCAPES: Final = (("=2C", ","), ("=3D", "="))


class TokenError(ValueError):
    """A token is refused; the text says why, for the log only."""


class MalformedMessageError(ValueError):
    """A client's message is none of OAUTHBEARER."""


@dataclass(frozen=True, slots=True)
class BearerMessage:
    """What a client sends: its token, for whom it acts (empty: itself), and extensions."""

    token: str
    acts_for: str
    extensions: Mapping[str, str]


class Key(NamedTuple):
    """A public key of an issuer. `public` is cryptography's object."""

    kid: str | None
    algorithms: frozenset[str]
    public: Any


@dataclass(frozen=True, slots=True)
class TokenHeader:
    """Which key signed a token, and how, as the token says."""

    kid: str | None
    algorithm: str


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """Who shows a token, and until when it holds, in seconds since 1970."""

    user: str
    expires_s: float


def parse(data: bytes) -> BearerMessage:
    """Read `n,[a=NAME],^Aauth=Bearer TOKEN^A[key=value^A...]^A`. Raises MalformedMessageError."""
    if len(data) > LONGEST_TOKEN:
        raise MalformedMessageError(f"a message of {len(data)} bytes")
    found = _MESSAGE.fullmatch(data.decode("latin-1"))
    if found is None:
        raise MalformedMessageError("malformed message")
    name, pairs = found.groups()
    values: dict[str, str] = {}
    for pair in pairs.split("\x01")[:-1]:
        key, _, value = pair.partition("=")
        if key in values:
            raise MalformedMessageError(f"{key} twice")
        values[key] = value
    bearer = _BEARER.fullmatch(values.pop("auth", ""))
    if bearer is None:
        raise MalformedMessageError("no bearer token")
    for escape, char in _ESCAPES:
        name = (name or "").replace(escape, char)
    return BearerMessage(bearer[1], name, values)


def read_keys(document: object) -> tuple[Key, ...]:
    """Return the usable keys of a JWKS (RFC 7517). Raises ValueError if there is none.

    Keys of other kinds, and for other purposes, are passed over.
    """
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it is no JSON object with a list of keys")
    keys = tuple(key for one in listed if isinstance(one, dict) and (key := _key(one)) is not None)
    if not keys:
        raise ValueError("it has no key that can check signatures")
    return keys


def _key(given: Mapping[str, Any]) -> Key | None:
    operations = given.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    if given.get("use", "sig") != "sig":
        return None
    numbers = {name: given[name] for name in _PUBLIC if name in given}
    kind = numbers.get("kty")
    if kind not in ("RSA", "EC"):
        return None
    algorithm = jwt.algorithms.RSAAlgorithm if kind == "RSA" else jwt.algorithms.ECAlgorithm
    try:
        public = algorithm.from_jwk(numbers)
    except (PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        return None
    fitting = _algorithms(public)
    if isinstance(said := given.get("alg"), str):
        fitting &= {said}
    kid = given.get("kid")
    if not fitting or not isinstance(kid, str | None):
        return None
    return Key(kid, fitting, public)


def _algorithms(public: object) -> frozenset[str]:
    if isinstance(public, rsa.RSAPublicKey):
        return _BY_RSA if public.key_size >= _LEAST_RSA_BITS else frozenset()
    if isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name in _BY_CURVE:
        return frozenset({_BY_CURVE[public.curve.name]})
    return frozenset()


def read_header(token: str) -> TokenHeader:
    """Return the header of a token, which nobody has vouched for. Raises TokenError."""
    try:
        header = jwt.get_unverified_header(token)
    except (PyJWTError, ValueError, RecursionError) as error:
        raise TokenError(f"no JWT: {error}") from None
    kid, algorithm = header.get("kid"), header.get("alg")
    if not isinstance(kid, str | None) or not isinstance(algorithm, str):
        raise TokenError("no JWT: kid and alg must be text")
    return TokenHeader(kid, algorithm)


def fitting(keys: Sequence[Key], header: TokenHeader) -> list[Key]:
    """Return the keys that may have signed a token; those of all names if it names none."""
    return [
        key for key in keys if header.algorithm in key.algorithms and header.kid in (None, key.kid)
    ]


def check(
    token: str, header: TokenHeader, keys: Sequence[Key], settings: OauthSettings
) -> TokenIdentity:
    """Return whose token it is. Raises TokenError if it is not signed by a key, or not for here."""
    claims: dict[str, Any] | None = None
    reason: object = "no key has signed it"
    for key in keys:
        try:
            claims = _claims(token, header, key, settings)
            break
        except jwt.InvalidSignatureError:
            continue
        except (PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            reason = error
    if claims is None:
        raise TokenError(str(reason))
    _check_scopes(claims.get(settings.scope_claim))
    return TokenIdentity(
        _user(claims.get(settings.user_claim), settings), float(min(int(claims["exp"]), _LATEST_S))
    )


def _claims(token: str, header: TokenHeader, key: Key, settings: OauthSettings) -> dict[str, Any]:
    claims: dict[str, Any] = jwt.decode(
        token,
        key.public,
        algorithms=[header.algorithm],
        audience=settings.audiences or None,
        issuer=settings.issuer or None,
        leeway=settings.clock_skew_s,
        options={"require": ["exp", "iat"], "verify_sub": False, "verify_jti": False},
    )
    for name in _DATES:
        # The library takes text, and true, too.
        if type(claims.get(name, 0)) not in (int, float):
            raise TokenError(f"{name} is no number")
    return claims


def _user(name: object, settings: OauthSettings) -> str:
    """Return a name that can be a principal's."""
    if not isinstance(name, str) or not name.strip():
        raise TokenError(f"claim {settings.user_claim} names nobody")
    if name != name.strip() or not name.isprintable():
        raise TokenError(f"claim {settings.user_claim} has characters that no name has")
    return name


def may_name(user: str, refused: Iterable[Principal]) -> bool:
    """Return whether tokens may name a user; a refused name may end with * for any rest."""
    names = [one.name for one in refused if one.kind == "User"]
    return not any(
        user.startswith(name.removesuffix("*")) if name.endswith("*") else user == name
        for name in names
    )


def _check_scopes(scopes: object) -> None:
    """Refuse a list of anything but different names, as Kafka does."""
    if isinstance(scopes, list) and (
        not all(isinstance(one, str) and one.strip() for one in scopes)
        or len({one.strip() for one in scopes}) < len(scopes)
    ):
        raise TokenError("the claim of scopes is malformed")
