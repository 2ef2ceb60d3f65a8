"""Keys of an endpoint: kept while it is away, renewed, and not asked for by everybody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from odradek import https_request
from odradek.oauth_settings import OauthSettings
from odradek.security import jwks
from odradek.security.jwks import Jwks
from odradek.security.tokens import TokenHeader
from tests.support import oauth

NEVER_MS = 10**9
DOCUMENT = {
    "keys": [
        jwt.algorithms.ECAlgorithm.to_jwk(
            ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True
        )
        | {"kid": "one"}
    ]
}


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


async def until(keys: Jwks, kid: str, algorithm: str = "RS256") -> None:
    async with asyncio.timeout(60):
        while not keys._keys or not await keys.find(TokenHeader(kid, algorithm)):
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
            (200, b'{"keys": [{"kty": "RSA", "key_ops": null}]}'),
            (200, b"[" * 100_000),
            (200, b" " * (https_request.MOST_BYTES + 1)),
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


async def test_tokens_wait_for_the_first_look(
    issuer: oauth.Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A client that is refused while a broker starts would give up for good.
    monkeypatch.setattr(jwks, "WAIT_S", 60)
    monkeypatch.setattr(https_request, "LIMIT_S", 60)
    asked, go_on = threading.Event(), threading.Event()
    sound = issuer.document

    def late() -> tuple[int, bytes]:
        asked.set()
        assert go_on.wait(60)
        return sound()

    issuer.document = late
    keys = Jwks("CLIENTS", OauthSettings(f"{issuer.url}/jwks"), context(issuer))
    try:
        async with running(keys), asyncio.timeout(60):
            await asyncio.to_thread(asked.wait)
            finding = [
                asyncio.create_task(keys.find(TokenHeader(kid, "RS256")))
                for kid in (issuer.kid, None)
            ]
            await asyncio.sleep(0)
            assert not any(one.done() for one in finding)
            go_on.set()
            assert all(len(one) == 1 for one in await asyncio.gather(*finding))
    finally:
        go_on.set()
        issuer.document = sound


async def test_looks_without_end_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A pipe that nobody writes to holds up whoever opens it, as a silent name server does.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(https_request, "LIMIT_S", 0.01)
    settings = OauthSettings(f"file://{pipe}", backoff_ms=1, backoff_max_ms=1)
    keys = Jwks("CLIENTS", settings)
    before = threading.active_count()
    try:
        async with running(keys), asyncio.timeout(60):
            while keys.failed < 5 * jwks.MOST_LOOKS:
                await asyncio.sleep(0.01)
            assert threading.active_count() - before <= jwks.MOST_LOOKS
            assert ": TimeoutError; retrying" in caplog.text
            # Once they end there are new ones.
            monkeypatch.setattr(https_request, "LIMIT_S", 60)
            writer = os.open(pipe, os.O_RDWR)
            pipe.unlink()
            pipe.write_text(json.dumps(DOCUMENT))
            os.close(writer)
            await until(keys, "one", "ES256")
    finally:
        # Lets the threads of a failed test end.
        if pipe.is_fifo():
            os.close(os.open(pipe, os.O_RDWR))


async def test_answer_that_trickles_has_a_time_limit(
    issuer: oauth.Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = issuer.document
    issuer.document = lambda: (200, b" " * https_request.MOST_BYTES)
    monkeypatch.setattr(https_request, "LIMIT_S", 0.05)
    monkeypatch.setattr(https_request, "_PIECE", 1)
    try:
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(
                jwks.fetch, OauthSettings(f"{issuer.url}/jwks"), context(issuer)
            )
    finally:
        issuer.document = sound
