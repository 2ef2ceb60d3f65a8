"""A real ZooKeeper server with TLS and SASL beside its plain port, and how brokers reach it.

with secure_zookeeper.Server(folder) as server:
    settings = {**server.tls_settings(), "zookeeper.set.acl": "true"}
    environment = {"KAFKA_OPTS": server.kafka_opts()}
"""

from __future__ import annotations

import os
from pathlib import Path

from kazoo.security import make_digest_acl_credential

from odradek import zookeeper_settings
from odradek.security import zookeeper as security
from odradek.zk.client import ZooKeeperAccess
from tests.support import certificates, zookeeper
from tests.support.broker import Broker
from tests.support.ports import free_port
from tests.support.preloaded import Program
from tests.support.znode_acls import SUPER

NETTY = "org.apache.zookeeper.server.NettyServerCnxnFactory"
CLIENT_SOCKET = "org.apache.zookeeper.ClientCnxnSocketNetty"
MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
USER, PASSWORD = "kafka", 'pä"ss\\word'
# Outside ISO 8859-1, where another rule of RFC 2831 counts.
GREEK_USER, GREEK_PASSWORD = "κάφκα", "λέξη"


class Server(zookeeper.Server):
    """Its certificate is for 127.0.0.1 only; it asks clients for theirs."""

    def __init__(self, directory: Path, client_auth: str = "want") -> None:
        self.secure_port = free_port()
        self.secure_connect = f"127.0.0.1:{self.secure_port}"
        self.directory = directory
        self.authority = certificates.Authority(directory)
        own = self.authority.issue("zookeeper", ["127.0.0.1"])
        jaas = directory / "server.jaas"
        self.set_password(PASSWORD)
        settings = {
            "serverCnxnFactory": NETTY,
            "secureClientPort": str(self.secure_port),
            "ssl.keyStore.location": str(own.pem_path),
            "ssl.trustStore.location": str(own.authority_path),
            "ssl.clientAuth": client_auth,
            "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        }
        digest = make_digest_acl_credential(*SUPER.split(":"))
        java_options = [
            f"-Djava.security.auth.login.config={jaas}",
            "-Dfile.encoding=UTF-8",
            f"-Dzookeeper.DigestAuthenticationProvider.superDigest={digest}",
        ]
        super().__init__(directory, settings=settings, java_options=java_options)

    def __enter__(self) -> Server:
        self.start()
        return self

    def set_password(self, password: str) -> None:
        """Write the password of USER, and the other user; it counts from the next start."""
        users = {USER: password, GREEK_USER: GREEK_PASSWORD}
        options = " ".join(f"user_{name}={_quoted(word)}" for name, word in users.items())
        path = self.directory / "server.jaas"
        path.write_text(f"Server {{ {MODULE} required {options}; }};\n")

    def tls_settings(self, shown: certificates.Issued | None = None) -> dict[str, str]:
        """Return a broker's settings of TLS; with `shown` it shows a certificate."""
        trusted = self.authority.issue("nobody").authority_path
        settings = {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": CLIENT_SOCKET,
            "zookeeper.ssl.truststore.location": str(trusted),
        }
        if shown is not None:
            settings["zookeeper.ssl.keystore.location"] = str(shown.pem_path)
        return settings

    def kafka_opts(self, username: str = USER, password: str = PASSWORD) -> str:
        """Return KAFKA_OPTS with a JAAS file for a user."""
        path = self.directory / f"client-{len(list(self.directory.glob('client-*.jaas')))}.jaas"
        path.write_text(
            f"// of a test\nClient {{\n  {MODULE} required\n"
            f"  username={_quoted(username)} password={_quoted(password)};\n}};\n"
        )
        return f"-Xmx1g -Djava.security.auth.login.config={path}"

    def access(self, settings: dict[str, str], kafka_opts: str = "") -> ZooKeeperAccess:
        """Return how a client with such settings connects."""
        return access(settings, kafka_opts)


class BrokerWithLogin(Broker):
    """A broker whose environment has KAFKA_OPTS."""

    kafka_opts = ""

    def _run(self, arguments: list[str]) -> Program:
        environment = {**os.environ, "KAFKA_OPTS": self.kafka_opts}
        words = ["broker", *arguments]
        return Program("odradek", words, environment, self.log_path, self.spawn_limits)


def access(settings: dict[str, str], kafka_opts: str = "") -> ZooKeeperAccess:
    """Return how a client with such settings connects."""
    return security.access(zookeeper_settings.read(settings, {"KAFKA_OPTS": kafka_opts}))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
