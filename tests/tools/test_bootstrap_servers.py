"""Addresses of brokers that commands are given: those that cannot be used are refused at once."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from odradek import bootstrap_servers, commands

NO_PORT = "there is no port"
BAD_PORT = "a port is a number from 1 to 65535"
BRACKETS = "an IPv6 address needs brackets, as in [::1]:9092"
REFUSED = {
    "h": NO_PORT,
    "h:": NO_PORT,
    "::::": NO_PORT,
    "[::1]": NO_PORT,
    ":1": "there is no host",
    "h:0": BAD_PORT,
    "h:x": BAD_PORT,
    "h:-1": BAD_PORT,
    "h:99999": BAD_PORT,
    f"h:{'9' * 5000}": BAD_PORT,
    "::1": BRACKETS,
    "::1:9092": BRACKETS,
    "2001:db8:0:0:0:0:0:1:9092": BRACKETS,
    "[::1:9092": "'[::1' is no host name and no address",
    "[h]:1": "'[h]' is no host name and no address",
    "a..b:1": "'a..b' is no host name and no address",
    "a b:1": "'a b' is no host name and no address",
    "http://h:1": "'http://h' is no host name and no address",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_address_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT") as refused:
        bootstrap_servers.parse(f"good:1, {text}")
    assert str(refused.value) == f"{text!r} is not HOST:PORT: {REFUSED[text]}"


def test_addresses() -> None:
    assert bootstrap_servers.parse("a_b.c:1, [::1]:2,,[fe80::1%eth0]:3, bücher.example:65535,") == [
        ("a_b.c", 1),
        ("::1", 2),
        ("fe80::1%eth0", 3),
        ("bücher.example", 65535),
    ]


@pytest.mark.parametrize(
    "command",
    [
        ["cluster"],
        ["configs", "describe", "--topic", "t"],
        ["console"],
        ["consume", "t"],
        ["datagen", "--quickstart", "users"],
        ["groups", "list"],
        ["produce", "t"],
        ["sql", "-e", "SHOW TOPICS"],
        ["topics", "list"],
        ["transactions", "list"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no broker is given"),
        ("localhost:0", f"'localhost:0' is not HOST:PORT: {BAD_PORT}"),
    ],
)
def test_every_command_refuses_them_at_once(command: list[str], text: str, said: str) -> None:
    done = CliRunner().invoke(commands.main, [*command, "--bootstrap-server", text])
    assert (done.exit_code, done.stderr, done.stdout) == (2, f"odradek: {said}\n", "")
