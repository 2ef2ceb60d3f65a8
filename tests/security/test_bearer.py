"""Exchanges of OAUTHBEARER: whom sound tokens name."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.listener_settings import SaslSettings
from odradek.oauth_settings import OAUTHBEARER, OauthSettings
from odradek.properties import split_principals
from odradek.security.authenticator import AuthenticationFailedError
from odradek.security.bearer import BearerTokens
from odradek.security.tokens import may_name
from tests.security.test_jwks import running, until
from tests.support import oauth


def test_refused_names_are_whole_or_begin_so() -> None:
    refused = split_principals("User:odradek-*;User:CN=main-broker,O=odradek;Group:bob")
    for name in ("odradek-", "odradek-operator", "CN=main-broker,O=odradek"):
        assert not may_name(name, refused)
    for name in ("alice", "bob", "odradek", "an-odradek-operator", "CN=main-broker"):
        assert may_name(name, refused)
    assert may_name("odradek-operator", ())
    assert not may_name("alice", split_principals("User:*"))


async def test_token_that_names_whom_it_may_not_is_refused_like_any_other(tmp_path: Path) -> None:
    with oauth.Issuer(tmp_path) as issuer:
        path = tmp_path / "keys.json"
        path.write_bytes(issuer.jwks()[1])
        settings = OauthSettings(path.as_uri(), issuer=oauth.NAME, audiences=(oauth.AUDIENCE,))
        sasl = SaslSettings((OAUTHBEARER,), {}, 1, 0, {}, "GSSAPI", settings)
        bearer = BearerTokens("CLIENTS", sasl, split_principals("User:odradek-*"))

        async def user(name: str) -> str:
            _, proof = await bearer.start().answer(oauth.message(issuer.token(name)))
            assert proof is not None
            return proof.user

        async with running(bearer.jwks):
            await until(bearer.jwks, issuer.kid)
            assert await user("alice") == "alice"
            reason = "OAUTHBEARER: tokens may not name 'odradek-operator'"
            with pytest.raises(AuthenticationFailedError, match=reason) as refused:
                await user("odradek-operator")
            with pytest.raises(AuthenticationFailedError) as other:
                await bearer.start().answer(oauth.message("a.b.c"))
    assert refused.value.challenge is not None
    for one in ("said", "challenge"):
        assert getattr(refused.value, one) == getattr(other.value, one)
