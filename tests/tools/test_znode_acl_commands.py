"""`odradek zookeeper secure|unsecure`, and `--zk-tls-config-file`, against a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kazoo.exceptions import ConnectionClosedError

from odradek.commands import main
from odradek.tools import znode_acls
from odradek.zk import acls
from tests.support.secure_zookeeper import GREEK_PASSWORD, GREEK_USER, Server
from tests.support.znode_acls import acls_below

OPEN = frozenset({("world", "anyone", 31)})
MADE = ("/brokers/topics/orders", "/config/users/alice", "/consumers/g", "/elsewhere")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("zk")) as running:
        yield running


def run(*arguments: str, kafka_opts: str = "") -> Result:
    return CliRunner().invoke(main, list(arguments), env={"KAFKA_OPTS": kafka_opts})


def written(folder: Path, values: Mapping[str, str]) -> str:
    path = folder / "zk-tls.properties"
    path.write_text("".join(f"{name}={text}\n" for name, text in values.items()))
    return str(path)


def test_cluster_is_secured_and_opened_with_a_certificate(server: Server, tmp_path: Path) -> None:
    with server.client() as client:
        for path in MADE:
            client.ensure_path(f"/tls{path}")
    shown = server.authority.issue("admin")
    path = written(tmp_path, {**server.tls_settings(shown), "zookeeper.set.acl": "true"})
    arguments = ["--zookeeper", f"{server.secure_connect}/tls", "--zk-tls-config-file", path]
    done = run("zookeeper", "secure", *arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout == "secured /brokers: 3 znodes\nsecured /config: 3 znodes\n"
    assert done.stderr == f"odradek: warning: {path}: no effect: zookeeper.set.acl\n"
    mine = ("x509", "CN=admin", 31)
    read = frozenset({mine, ("world", "anyone", 1)})
    assert acls_below(server, "/tls") == {
        "": read,
        "/brokers": read,
        "/brokers/topics": read,
        "/brokers/topics/orders": read,
        "/config": read,
        "/config/users": {mine},
        "/config/users/alice": {mine},
        "/consumers": OPEN,
        "/consumers/g": OPEN,
        "/elsewhere": OPEN,
    }
    listed = run("groups", "list", *arguments)
    assert listed.exit_code == 2
    said = "odradek: there is no cluster in ZooKeeper: it has no /brokers/ids\n"
    assert listed.stderr.endswith(said), "no broker ever started"
    done = run("zookeeper", "unsecure", *arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout == "opened /brokers: 3 znodes\nopened /config: 3 znodes\n"
    assert set(acls_below(server, "/tls").values()) == {OPEN}


def test_somebody_else_cannot_change_them(server: Server) -> None:
    with server.client() as client:
        client.ensure_path("/taken/brokers")
    here = ["--zookeeper", f"{server.connect}/taken"]
    assert run("zookeeper", "secure", *here, kafka_opts=server.kafka_opts()).exit_code == 0
    others = server.kafka_opts(GREEK_USER, GREEK_PASSWORD)
    for command, kafka_opts in (("secure", others), ("unsecure", others), ("unsecure", "")):
        refused = run("zookeeper", command, *here, kafka_opts=kafka_opts)
        assert refused.exit_code == 1
        assert refused.stderr == (
            "odradek: ZooKeeper does not allow it at /taken (NoAuthError): log in as who secured "
            "the znodes, with a JAAS file or a certificate that the server knows\n"
        )
    assert all(("sasl", "kafka", 31) in acl for acl in acls_below(server, "/taken").values())


def test_many_znodes_are_counted_on_the_way(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.tools.znode_acls._EVERY", 600)
    with server.client() as client:
        client.ensure_path("/many/brokers")
        transaction = client.transaction()
        for number in range(1200):
            transaction.create(f"/many/brokers/{number}")
        transaction.commit()
    options = server.kafka_opts()
    done = run("zookeeper", "secure", "--zookeeper", f"{server.connect}/many", kafka_opts=options)
    assert done.stdout == "secured /brokers: 1201 znodes\n"
    assert done.stderr == "/brokers: 1001 znodes so far\n/brokers: 1201 znodes so far\n"


def test_client_that_is_closed_is_not_asked_for_ever(server: Server) -> None:
    with server.client() as client:
        client.stop()
        with pytest.raises(ConnectionClosedError):
            znode_acls._wait(client, client.exists_async("/"), lambda: client.exists_async("/"))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "it needs zookeeper.ssl.client.enable=true"),
        (
            {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.keystore.location": "/no.p12"},
            "cannot use zookeeper.ssl.keystore.location=/no.p12: No such file or directory",
        ),
        ({"zookeeper.ssl.client.enable": "true"}, "it takes a login"),
    ],
)
def test_mistake_in_the_file_is_one_line_and_status_2(
    tmp_path: Path, values: dict[str, str], why: str
) -> None:
    path = written(tmp_path, values)
    ended = run("zookeeper", "secure", "--zookeeper", "localhost:1", "--zk-tls-config-file", path)
    assert ended.exit_code == 2
    assert ended.stderr.startswith("odradek: ")
    assert why in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_place_without_a_cluster_is_a_mistake(server: Server) -> None:
    options = server.kafka_opts()
    for chroot in ("/nothing", ""):
        where = server.connect + chroot
        ended = run("zookeeper", "secure", "--zookeeper", where, kafka_opts=options)
        assert ended.exit_code == 2
        assert ended.stderr == f"odradek: there is no cluster at {where}: it has no /brokers\n"
    assert acls_below(server, "/zookeeper")[""] == OPEN
    assert "/brokers" in acls.SECURE_ROOTS
