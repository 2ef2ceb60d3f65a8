"""SCRAM: the example of RFC 7677, and peers that cheat."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from odradek.security import scram
from odradek.security.scram import ScramClient, ScramCredential, ScramError, ScramServer

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def known(password: str = "pencil", mechanism: str = "SCRAM-SHA-256") -> ScramCredential:
    digest = scram.DIGESTS[mechanism]
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), SALT, 4096)
    return scram.credential(mechanism, salted, SALT, 4096)


def server(mechanism: str = "SCRAM-SHA-256") -> ScramServer:
    return ScramServer(mechanism, SERVER_NONCE, b"secret")


def final_with(nonce: str, challenge: bytes) -> bytes:
    """Return the client's last message with any nonce, and the right proof for it."""
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    messages = b",".join(
        (f"n=user,r={CLIENT_NONCE}".encode(), challenge, f"c=biws,r={nonce}".encode())
    )
    signature = hmac.digest(stored_key, messages, "sha256")
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    return f"c=biws,r={nonce},p={base64.b64encode(proof).decode()}".encode()


def test_exchange_is_that_of_rfc_7677() -> None:
    ours = server()
    ours.first(f"n,,n=user,r={CLIENT_NONCE}".encode())
    assert ours.user == "user"
    challenge = ours.challenge(known())
    assert challenge == (
        f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    )
    last = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p={PROOF}"
    assert ours.final(last.encode()) == SIGNATURE
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", CLIENT_NONCE)
    assert client.first() == f"n,,n=user,r={CLIENT_NONCE}".encode()
    assert client.final(challenge) == last.encode()
    client.check(SIGNATURE)


@pytest.mark.parametrize("mechanism", scram.DIGESTS)
@pytest.mark.parametrize("user", ["plain", "a=b,c=2C", "Jürgen"])
def test_client_and_server_agree(mechanism: str, user: str) -> None:
    ours, theirs = server(mechanism), ScramClient(mechanism, user, "pencil", "abc")
    ours.first(theirs.first())
    assert ours.user == user
    theirs.check(ours.final(theirs.final(ours.challenge(known(mechanism=mechanism)))))


@pytest.mark.parametrize(
    ("credential", "reason"), [(known("other"), "wrong proof"), (None, "unknown user")]
)
def test_wrong_password_and_unknown_user_fail_at_the_end(
    credential: ScramCredential | None, reason: str
) -> None:
    ours, theirs = server(), ScramClient("SCRAM-SHA-256", "user", "pencil", "abc")
    ours.first(theirs.first())
    with pytest.raises(ScramError, match=reason):
        ours.final(theirs.final(ours.challenge(credential)))


def test_unknown_user_has_the_same_salt_each_time_and_another_than_others() -> None:
    def salt(user: str) -> bytes:
        ours = server()
        ours.first(f"n,,n={user},r=abc".encode())
        return ours.challenge(None)

    assert salt("nobody") == salt("nobody") != salt("someone")


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,n=user",
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=user,r=abc,tokenauth=true",
        b"n,,n=,r=abc",
        b"n,,n=a=b,r=abc",
        b"n,,n=user,r=",
        b"\xff\xfe",
    ],
)
def test_first_message_that_nobody_should_send_is_refused(first: bytes) -> None:
    with pytest.raises(ScramError):
        server().first(first)


@pytest.mark.parametrize(
    "last",
    [
        # A longer nonce begins with ours (CVE-2024-56128).
        f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE}x,p={PROOF}",
        f"c=biws,r={CLIENT_NONCE},p={PROOF}",
        f"c=eSws,r={CLIENT_NONCE}{SERVER_NONCE},p={PROOF}",
        f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=",
        f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=!!!!",
        f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE}",
        "",
    ],
)
def test_last_message_of_another_exchange_is_refused(last: str) -> None:
    ours = server()
    ours.first(f"n,,n=user,r={CLIENT_NONCE}".encode())
    ours.challenge(known())
    with pytest.raises(ScramError):
        ours.final(last.encode())


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        (CLIENT_NONCE, "", True),
        ("x", "", False),
        (CLIENT_NONCE * 2, "", False),
        ("", "x", False),
    ],
    ids=["as librdkafka before 2.6.1", "another", "three times", "behind"],
)
def test_proof_over_another_nonce_counts_only_if_it_is_the_clients_twice(
    before: str, after: str, counts: bool
) -> None:
    ours, theirs = server(), ScramClient("SCRAM-SHA-256", "user", "pencil", CLIENT_NONCE)
    ours.first(theirs.first())
    challenge = ours.challenge(known())
    last = final_with(f"{before}{CLIENT_NONCE}{SERVER_NONCE}{after}", challenge)
    if counts:
        assert ours.final(last).startswith(b"v=")
        return
    with pytest.raises(ScramError, match="another exchange"):
        ours.final(last)


def test_client_refuses_a_server_that_does_not_know_the_credential() -> None:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", CLIENT_NONCE)
    ours = server()
    ours.first(client.first())
    client.final(ours.challenge(known()))
    with pytest.raises(ScramError, match="does not know"):
        client.check(b"v=" + base64.b64encode(bytes(32)))


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (b"r=abcd,s=AAAA,i=4095", "4095 iterations"),
        # Minutes of computing.
        (b"r=abcd,s=AAAA,i=999999999", "999999999 iterations"),
        (b"r=xyz,s=AAAA,i=4096", "another nonce"),
        (b"r=abcd,s=,i=4096", "malformed"),
        (b"e=other-error", "malformed"),
    ],
)
def test_client_refuses_what_no_server_should_ask_for(
    challenge: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", lambda *_: pytest.fail("computes"))
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", "abc")
    with pytest.raises(ScramError, match=reason):
        client.final(challenge)


def test_credential_is_kept_as_kafka_keeps_it() -> None:
    text = known().encoded()
    assert text.startswith("salt=W22ZaJ0SNY7soEsUEjb6gQ==,stored_key=")
    assert text.endswith(",iterations=4096")
    assert scram.decode_credential(text) == known()
    numbers = [text.replace("4096", one) for one in ("2147483648", "9" * 5000, "-1", "4_096", "")]
    for damaged in ("", "salt=AA==", text + ",x=y", text.replace("W22", "!"), *numbers):
        with pytest.raises(ValueError, match=r".+"):
            scram.decode_credential(damaged)
