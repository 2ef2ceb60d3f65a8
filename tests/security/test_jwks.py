"""Keys of an endpoint: kept while it is away, renewed, and not asked for by everybody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from odradek.oauth_settings import OauthSettings
from odradek.security import jwks
from odradek.security.jwks import Jwks
from odradek.security.tokens import TokenHeader
from tests.support import oauth

NEVER_MS = 10**9


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[oauth.Issuer]:
    with oauth.Issuer(tmp_path_factory.mktemp("issuer")) as running:
        yield running


def context(issuer: oauth.Issuer) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(issuer.own.authority_path))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def running(keys: Jwks) -> AsyncIterator[None]:
    task = asyncio.create_task(keys.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(keys: Jwks, kid: str) -> None:
    async with asyncio.timeout(60):
        while not keys._keys or not await keys.find(TokenHeader(kid, "RS256")):
            await asyncio.sleep(0.01)


async def test_unknown_key_is_looked_for_once_in_a_while(issuer: oauth.Issuer) -> None:
    clock = Clock()
    settings = OauthSettings(f"{issuer.url}/jwks", refresh_ms=NEVER_MS)
    keys = Jwks("CLIENTS", settings, context(issuer), clock)
    assert keys.age_s == float("inf")
    async with running(keys):
        await until(keys, issuer.kid)
        before = issuer.fetches
        for number in range(50):
            assert await keys.find(TokenHeader(f"made-up-{number}", "RS256")) == []
        assert issuer.fetches == before
        issuer.rotate("second")
        clock.now += jwks.APART_S
        # Those who ask together share one look.
        found = await asyncio.gather(*(keys.find(TokenHeader("second", "RS256")) for _ in range(9)))
        assert all(len(one) == 1 for one in found)
        assert issuer.fetches == before + 1
        assert await keys.find(TokenHeader(None, "RS256"))
        assert await keys.find(TokenHeader(None, "ES256")) == []


async def test_keys_stay_while_the_endpoint_fails(issuer: oauth.Issuer) -> None:
    settings = OauthSettings(f"{issuer.url}/jwks", refresh_ms=10, backoff_ms=10, backoff_max_ms=20)
    keys = Jwks("CLIENTS", settings, context(issuer))
    sound = issuer.document
    async with running(keys):
        await until(keys, issuer.kid)
        for status, body in (
            (500, b"{}"),
            (302, b""),
            (200, b"<html>"),
            (200, b'{"keys": []}'),
            (200, b"[" * 100_000),
            (200, b" " * (jwks.MOST_BYTES + 1)),
        ):
            issuer.document = lambda answer=(status, body): answer  # type: ignore[misc]
            failed = keys.failed
            async with asyncio.timeout(60):
                while keys.failed < failed + 2:
                    await asyncio.sleep(0.01)
            assert await keys.find(TokenHeader(issuer.kid, "RS256"))
        issuer.document = sound
        issuer.rotate("third")
        await until(keys, "third")


async def test_endpoint_that_nobody_vouches_for_gives_no_keys(issuer: oauth.Issuer) -> None:
    settings = OauthSettings(f"{issuer.url}/jwks", backoff_ms=NEVER_MS)
    keys = Jwks("CLIENTS", settings)
    async with running(keys), asyncio.timeout(60):
        while not keys.failed:
            await asyncio.sleep(0.01)
    assert keys.age_s == float("inf")


async def test_file_is_read_again(issuer: oauth.Issuer, tmp_path: Path) -> None:
    path = tmp_path / "the keys.json"
    settings = OauthSettings(f"file://{path.parent}/the%20keys.json", refresh_ms=10, backoff_ms=10)
    keys = Jwks("CLIENTS", settings)
    async with running(keys):
        async with asyncio.timeout(60):
            while not keys.failed:
                await asyncio.sleep(0.01)
        path.write_bytes(issuer.jwks()[1])
        await until(keys, issuer.kid)
        document = json.loads(issuer.jwks()[1])
        document["keys"][0]["kid"] = "renamed"
        path.write_text(json.dumps(document))
        await until(keys, "renamed")
