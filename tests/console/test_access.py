"""Who sees what of a console: users of a file that changes, records, and the port of probes."""

from __future__ import annotations

import http.client
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.tools.errors import ToolError
from odradek_console import users
from tests.console.running import Running
from tests.support import certificates
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.clients import create_topic
from tests.support.ports import free_port
from tests.support.terminal import CTRL_C, Terminal

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 1, STEADY) as running:
        create_topic(running.bootstrap, "orders")
        yield running


def sees(console: Running, cookies: str) -> bool:
    status, _, _ = console.call("GET", "/topics", Cookie=cookies)
    # On a busy machine brokers may be late; that is a page, too.
    assert status in (200, 303, 502)
    return status != 303


def test_who_is_taken_out_of_the_file_or_has_another_password_is_logged_out(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "users"
    lines = {name: users.line(name, f"{name}'s") for name in ("ann", "bob", "eve")}
    file.write_text("\n".join(lines.values()))
    console = Running(tmp_path, cluster.bootstrap, "--users", str(file))
    ann, bob, eve = (console.log_in(name, f"{name}'s") for name in lines)
    assert all(sees(console, one) for one in (ann, bob, eve))
    # Another file in its place, as the kubelet does it.
    changed = tmp_path / "changed"
    changed.write_text("\n".join([lines["ann"], users.line("eve", "another")]))
    changed.rename(file)
    wait_until(lambda: not sees(console, bob), "bob is logged out")
    assert not sees(console, eve)
    assert sees(console, ann)
    assert not console.log_in("bob", "bob's")
    assert not console.log_in("eve", "eve's")
    assert sees(console, console.log_in("eve", "another"))
    # A session does not come back with its user.
    file.write_text("\n".join(lines.values()))
    wait_until(lambda: bool(console.log_in("bob", "bob's")), "bob may log in again")
    assert not sees(console, bob)
    for nonsense in ("ann:nonsense", ""):
        file.write_text(nonsense)
        wait_until(lambda: not sees(console, ann), "nobody is logged in")
        assert not console.log_in("ann", "ann's")
    file.unlink()

    def says_why() -> bool:
        assert not console.log_in("ann", "ann's")
        return "No such file" in console.log.read_text()

    wait_until(says_why, "the log says why")
    file.write_text(lines["ann"])
    wait_until(lambda: bool(console.log_in("ann", "ann's")), "ann may log in again")
    assert "Traceback" not in console.log.read_text()
    console.end()


def test_a_file_that_could_not_be_opened_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "users"
    file.write_text(users.line("ann", "s3cret"))
    now = 0.0
    read = users.UsersFile(file, lambda: now)
    file.write_text(file.read_text() + "\n" + users.line("bob", "other"))
    # As where a process has no descriptor left.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        for _ in range(2):
            now += 3
            assert read.current().secret_of("ann") is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(caplog.records) == 1
    now += 3
    assert read.current().check("bob", "other")


def test_without_records_there_is_no_way_to_them(cluster: Cluster, tmp_path: Path) -> None:
    console = Running(tmp_path, cluster.bootstrap, "--no-records")
    page = console.page("/topics/orders")
    assert "/records" not in page
    assert "/tail" not in page
    for path in ("records", "records/0/0", "records/0/0/value", "tail", "tail/events"):
        assert console.said(f"/topics/orders/{path}", 404) == "There is no such page."
    console.end()


def test_the_port_of_probes_tells_nothing_else(cluster: Cluster, tmp_path: Path) -> None:
    port = free_port()
    console = Running(tmp_path, cluster.bootstrap, "--health-port", str(port))

    def status(path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", path, headers={"Host": "whatever.example"})
            return connection.getresponse().status
        finally:
            connection.close()

    assert [status(path) for path in ("/healthz", "/", "/topics", "/login")] == [200, 404, 404, 404]
    code, said = Running.mistake(tmp_path, ["--health-port", str(port)])
    assert (code, len(said.splitlines())) == (1, 1)
    assert said.startswith(f"odradek: cannot listen on :{port}: ")
    assert "address already in use" in said.lower()
    console.end()


@pytest.mark.parametrize(
    ("name", "password", "said"),
    [
        ("a:b", "x", "is no name of a user"),
        ("#ann", "x", "is no name of a user"),
        ("\udcff", "x", "is no name of a user"),
        ("ann", "", "the password is empty"),
        ("ann", "\udcff", "the password is not UTF-8"),
        ("ann", "x" * 1025, "has more than 1024 bytes"),
    ],
)
def test_what_cannot_be_a_user_is_one_line(name: str, password: str, said: str) -> None:
    with pytest.raises(ToolError, match=said):
        users.line(name, password)


def test_the_first_user_of_a_file_with_a_mark_of_utf_8_may_log_in(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(users.line("ann", "s3cret"), encoding="utf-8-sig")
    found = users.load(file)
    assert found.check("ann", "s3cret")
    # A form may be decoded to it.
    assert not found.check("ann", "\udcff")


def test_an_encrypted_key_is_one_line_and_no_question(tmp_path: Path) -> None:
    issued = certificates.Authority(tmp_path).issue("console", ["localhost"])
    key = tmp_path / "encrypted.key"
    key.write_bytes(issued.key_pem("secret"))
    options = ["--tls-certificate", str(issued.certificate_path), "--tls-key", str(key)]
    code, said = Running.mistake(tmp_path, options)
    assert code == 2
    assert said == f"odradek: {key} is encrypted: give a key without a password\n"


def test_a_name_that_no_host_can_have_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(users.line("ann", "s3cret"))
    code, said = Running.mistake(tmp_path, ["--host", "a..b", "--users", str(file)])
    assert code == 1
    assert said.splitlines()[-1].startswith("odradek: cannot listen on a..b:")
    assert "Traceback" not in said


def test_every_address_needs_users(cluster: Cluster, tmp_path: Path) -> None:
    code, said = Running.mistake(tmp_path, ["--host="])
    assert (code, "it needs --users" in said) == (2, True)
    file = tmp_path / "users"
    file.write_text(users.line("ann", "s3cret"))
    console = Running(tmp_path, cluster.bootstrap, "--host=", "--users", str(file))
    assert sees(console, console.log_in("ann", "s3cret"))
    console.end()


def test_ctrl_c_at_a_password_is_that_of_other_commands() -> None:
    command = [sys.executable, "-m", "odradek", "console", "user", "ann"]
    with Terminal(command, os.environ) as terminal:
        terminal.read_until("Password:")
        terminal.send(CTRL_C)
        assert terminal.wait() == 130
