"""Tokens of OAUTHBEARER: which are taken, and that no forgery is."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from random import Random
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from odradek.oauth_settings import OauthSettings
from odradek.security import tokens
from odradek.security.tokens import Key, TokenError, TokenIdentity
from tests.support import oauth
from tests.support.sampling import how_many

RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
NOW = int(time.time())
# A test may run long after it was collected.
DAYS_S = 10 * 86_400
CLAIMS = {"sub": "alice", "iss": "i", "aud": "a", "iat": NOW, "exp": NOW + DAYS_S}
SETTINGS = OauthSettings("file:///keys", issuer="i", audiences=("b", "a"), clock_skew_s=0)


def jwk(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, **more: Any) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        found = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        found = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**found, **more}


KEYS = tokens.read_keys({"keys": [jwk(RSA, kid="r"), jwk(EC, kid="e")]})


def part(content: Any) -> str:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "r", **claims: Any) -> str:
    given = {name: one for name, one in {**CLAIMS, **claims}.items() if one is not None}
    return jwt.encode(given, key, algorithm, {} if kid is None else {"kid": kid})


def whose(
    token: str, keys: tuple[Key, ...] = KEYS, settings: OauthSettings = SETTINGS
) -> TokenIdentity:
    header = tokens.read_header(token)
    return tokens.check(token, header, tokens.fitting(keys, header), settings)


def test_tokens_of_all_algorithms_are_taken() -> None:
    for algorithm in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"):
        assert whose(signed(RSA, algorithm)) == TokenIdentity("alice", NOW + DAYS_S)
    assert whose(signed(EC, "ES256", "e")).user == "alice"
    # One without a name may be of any key that fits.
    assert whose(signed(kid=None)).user == "alice"


def test_forged_tokens_are_refused() -> None:
    token = signed()
    head, body, signature = token.split(".")
    forged = part({**CLAIMS, "sub": "admin"})
    pem = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with_public = f"{part({'alg': 'HS256', 'kid': 'r'})}.{forged}"
    mac = hmac.new(pem, with_public.encode(), hashlib.sha256).digest()
    other = rsa.generate_private_key(65537, 2048)
    for wrong in (
        f"{head}.{forged}.{signature}",
        f"{part({'alg': 'none', 'kid': 'r'})}.{forged}.",
        f"{part({'alg': 'None'})}.{forged}.",
        f"{with_public}.{part(mac)}",
        # A key that the token brings along.
        jwt.encode(CLAIMS, other, "RS256", {"kid": "r", "jwk": jwk(other)}),
        signed(other),
        signed(other, kid=None),
        signed(EC, "ES256", "r"),
        signed(RSA, "RS256", "e"),
        signed(kid="unknown"),
        f"{head}.{body}.",
        f"{head}.{body}",
        "x",
        f"{part([1])}.{body}.{signature}",
        f"{part({'alg': 1})}.{body}.{signature}",
        f"{part({'alg': 'RS256', 'kid': ['r']})}.{body}.{signature}",
        f"{part(b'[' * 30_000)}.{body}.{signature}",
    ):
        with pytest.raises(TokenError):
            whose(wrong)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": NOW - 1}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": "soon"}, "exp|Expiration"),
        ({"exp": 1e400}, "exp"),
        ({"exp": str(NOW + DAYS_S)}, "exp is no number"),
        ({"iat": str(NOW)}, "iat is no number"),
        ({"iat": True}, "iat is no number"),
        ({"nbf": "1"}, "nbf is no number"),
        ({"iat": None}, "iat"),
        ({"iat": NOW + DAYS_S}, "iat"),
        ({"nbf": NOW + DAYS_S}, "nbf"),
        ({"iss": None}, "iss"),
        ({"iss": "I"}, "issuer"),
        ({"aud": None}, "aud"),
        ({"aud": "c"}, "[Aa]udience"),
        ({"sub": None}, "sub names nobody"),
        ({"sub": ""}, "sub names nobody"),
        ({"sub": " "}, "sub names nobody"),
        ({"sub": 7}, "sub names nobody"),
        ({"sub": " alice"}, "characters"),
        ({"sub": "a\nb"}, "characters"),
        ({"sub": "\ud800"}, "characters"),
        ({"scope": ["a", "a"]}, "scopes"),
        ({"scope": [1]}, "scopes"),
    ],
)
def test_claims_that_are_wrong_or_missing_are_refused(claims: dict[str, Any], reason: str) -> None:
    with pytest.raises(TokenError, match=reason):
        whose(signed(**claims))


def test_claims_are_read_as_settings_say() -> None:
    settings = OauthSettings("file:///k", user_claim="client_id", clock_skew_s=DAYS_S)
    late = signed(client_id="job", sub=7, exp=NOW - 5, aud=None, iss=None, scope="a b")
    assert whose(late, settings=settings) == TokenIdentity("job", NOW - 5)
    # As in Kafka: who expects no audience takes no token that is for one.
    with pytest.raises(TokenError, match=r"[Aa]udience"):
        whose(signed(client_id="job"), settings=settings)
    assert whose(signed(aud=["x", "b"])).user == "alice"
    assert whose(signed(exp=10**400)).expires_s > NOW


def test_keys_that_cannot_check_signatures_are_passed_over() -> None:
    good = jwk(RSA, kid="good", alg="PS256")
    operations: tuple[object, ...] = (None, 7, {}, "verify", ["wrapKey"])
    listed = [
        7,
        {},
        {"kty": "oct", "k": part(b"k" * 32), "kid": "shared"},
        {"kty": "RSA", "n": "!", "e": "AQAB", "kid": "broken"},
        {"kty": ["RSA"]},
        jwk(rsa.generate_private_key(65537, 1024), kid="weak"),
        jwk(RSA, kid="encrypts", use="enc"),
        *(jwk(RSA, kid="other", key_ops=one) for one in operations),
        jwk(RSA, kid=7),
        jwk(EC, kid="other", alg="RS256"),
        jwk(ec.generate_private_key(ec.SECP256K1()), kid="curve"),
        good,
    ]
    keys = tokens.read_keys({"keys": listed})
    assert [(one.kid, one.algorithms) for one in keys] == [("good", frozenset({"PS256"}))]
    with pytest.raises(TokenError):
        whose(signed(kid="good"), keys)
    documents: list[object] = [[], {}, {"keys": {}}, {"keys": listed[:-1]}, "keys", None]
    for wrong in documents:
        with pytest.raises(ValueError, match=r"it (is no|has no)"):
            tokens.read_keys(wrong)


def test_messages_are_read_as_kafka_reads_them() -> None:
    token = signed()
    found = tokens.parse(oauth.message(token, "logicalCluster=lkc 1\x01trace=x\x01", "a=2Cb"))
    assert (found.token, found.acts_for) == (token, "a,b")
    assert found.extensions == {"logicalCluster": "lkc 1", "trace": "x"}
    assert tokens.parse(b"n,,\x01AUTH=x\x01auth=bEaReR  a.b.c\x01\x01").token == "a.b.c"
    for wrong in (
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic a\x01\x01",
        b"n,,\x01auth=Bearer a",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"n,,\x01auth=Bearer a\x01k1=v\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"y,,\x01auth=Bearer a\x01\x01",
        b"n,a=,\x01auth=Bearer a\x01\x01",
        b"n,a=b=c,\x01auth=Bearer a\x01\x01",
        oauth.message("a" * tokens.LONGEST_TOKEN),
    ):
        with pytest.raises(tokens.MalformedMessageError):
            tokens.parse(wrong)


def test_damaged_tokens_raise_nothing_else() -> None:
    random = Random(7)
    token = signed().encode()
    for _ in range(how_many(1000, full=100_000)):
        damaged = bytearray(token)
        for _ in range(random.randint(1, 4)):
            damaged[random.randrange(len(damaged))] = random.choice(b"-_.aZ09=")
        if bytes(damaged) == token:
            continue
        try:
            found = whose(damaged.decode())
        except TokenError:
            continue
        # The last letter has bits that mean nothing.
        assert found.user == "alice"
        assert damaged[:-1] == token[:-1]
