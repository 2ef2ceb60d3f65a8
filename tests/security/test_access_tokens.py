"""Tokens that clients of ours show: how an issuer is asked for them, and which are used."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek import access_tokens
from odradek.access_tokens import AccessTokens, NoTokenError
from odradek.oauth_settings import OauthLogin
from odradek.security import tokens
from tests.support import oauth


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[oauth.Issuer]:
    with oauth.Issuer(tmp_path_factory.mktemp("issuer")) as made:
        yield made


@pytest.fixture
def issuer(running: oauth.Issuer) -> oauth.Issuer:
    running.answer, running.lifetime_s = None, oauth.LIFETIME_S
    running.asked.clear()
    return running


def context(issuer: oauth.Issuer) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(issuer.own.authority_path))


def asking(issuer: oauth.Issuer, clock: Clock | None = None, user: str = "alice") -> AccessTokens:
    login = OauthLogin(f"{issuer.url}/token", user, oauth.SECRET, scope="a b")
    return AccessTokens(login, context(issuer), clock or Clock())


def test_token_is_kept_until_most_of_its_time_is_over(issuer: oauth.Issuer) -> None:
    clock = Clock()
    client = asking(issuer, clock)
    first = client.get()
    assert first.user == "alice"
    assert issuer.asked == [
        ("alice", {"grant_type": ["client_credentials"], "scope": ["a b"]}),
    ]
    assert first.text not in repr(first)
    clock.now += 0.79 * oauth.LIFETIME_S
    assert client.get() is first
    clock.now += 0.02 * oauth.LIFETIME_S
    # Without another one it is shown until its end.
    issuer.answer = (503, b"")
    assert client.get() is first
    issuer.answer = None
    assert client.get() is not first
    issuer.answer = (503, b"")
    clock.now += 2 * oauth.LIFETIME_S
    with pytest.raises(NoTokenError, match="HTTP status 503") as failure:
        client.get()
    assert not failure.value.is_mistake


def test_credentials_may_be_encoded(issuer: oauth.Issuer) -> None:
    login = OauthLogin(f"{issuer.url}/token", "a:b c", oauth.SECRET, url_encodes=True)
    AccessTokens(login, context(issuer)).get()
    assert issuer.asked == [("a%3Ab+c", {"grant_type": ["client_credentials"]})]


@pytest.mark.parametrize(
    ("status", "body", "said", "is_mistake"),
    [
        (
            400,
            {"error": "invalid_scope", "error_description": "no\nsuch scope"},
            "HTTP status 400: invalid_scope: no such scope$",
            True,
        ),
        (403, [1], "HTTP status 403$", True),
        (302, {}, "HTTP status 302$", True),
        (429, {}, "HTTP status 429$", False),
        (200, {"token": "a.b.c"}, "the answer has no access_token", True),
        (200, {"access_token": "opaque"}, "it is no JWT", True),
        (200, {"access_token": "a.e30.b"}, r"does not say when it ends \(exp\)", True),
        (200, {"access_token": "a.eyJleHAiOiAxfQ.b"}, "it has expired", True),
        (200, {"access_token": "a.eyJleHAiOiAxZTk5OX0.b"}, "does not say when it ends", True),
        (200, {"access_token": "a.b.c\x01auth=x"}, "it is no JWT", True),
        (200, "x" * (1 << 20), "more than 1048576 bytes", False),
    ],
)
def test_answer_without_a_usable_token_is_told(
    issuer: oauth.Issuer, status: int, body: object, said: str, is_mistake: bool
) -> None:
    issuer.answer = (status, json.dumps(body).encode())
    with pytest.raises(NoTokenError, match=said) as failure:
        asking(issuer).get()
    assert f"token from {issuer.url}/token: " in str(failure.value)
    assert failure.value.is_mistake is is_mistake
    assert "\n" not in str(failure.value)


def test_endpoint_that_nobody_vouches_for_is_told_no_secret(issuer: oauth.Issuer) -> None:
    login = OauthLogin(f"{issuer.url}/token", "alice", oauth.SECRET)
    with pytest.raises(NoTokenError, match=r"ssl\.truststore\.\* does not have the authority"):
        AccessTokens(login, ssl.create_default_context()).get()
    assert issuer.asked == []


def test_file_is_read_each_time(issuer: oauth.Issuer, tmp_path: Path) -> None:
    path = tmp_path / "a token"
    client = AccessTokens(OauthLogin(path.as_uri()))
    path.write_text(f" {issuer.token('alice')}\n")
    assert client.get().user == "alice"
    path.write_text(issuer.token("bob"))
    assert client.get().user == "bob"
    # As while it is replaced.
    path.write_text("")
    assert client.get().user == "bob"
    for text, said in (("", "no JWT"), ("ä.b.c", "no JWT"), (issuer.token("a", exp=1), "expired")):
        path.write_text(text)
        with pytest.raises(NoTokenError, match=said) as failure:
            AccessTokens(OauthLogin(path.as_uri())).get()
        assert failure.value.is_mistake


def test_broker_reads_the_message_of_a_client() -> None:
    message = access_tokens.message("a.b.c", {"traceId": "x y", "other": "1"})
    read = tokens.parse(message)
    assert (read.token, read.acts_for) == ("a.b.c", "")
    assert read.extensions == {"traceId": "x y", "other": "1"}
    assert tokens.parse(access_tokens.message("a.b.c", {})).extensions == {}
