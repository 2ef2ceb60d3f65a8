"""Connect strings of ZooKeeper: as KafkaClusters have them, and which name the same znodes."""

from __future__ import annotations

from odradek_operator.shared.spec import Body


def connect_string(connect: str, chroot: str) -> str:
    """Return host:port[,host:port...][/chroot]."""
    return connect if chroot in ("", "/") else f"{connect}{chroot}"


def qualified(connect: str, namespace: str) -> str:
    """Return a connect string whose Services are those of a namespace, wherever it is read.

    A name without a dot is that of a Service beside the brokers, and would be another one
    elsewhere.
    """
    servers, slash, chroot = connect.partition("/")
    found = []
    for server in servers.split(","):
        host, colon, port = server.rpartition(":")
        if "." not in host and host != "localhost":
            host = f"{host}.{namespace}.svc"
        found.append(f"{host}{colon}{port}")
    return ",".join(found) + slash + chroot


def share_znodes(one: Body, other: Body) -> bool:
    """Return whether two KafkaClusters keep their state in the same znodes, by what they name.

    One Service has several names, and one ensemble several servers.
    """
    same_chroot = one["spec"]["zookeeper"].get("chroot", "/") == other["spec"]["zookeeper"].get(
        "chroot", "/"
    )
    return same_chroot and not _servers(one).isdisjoint(_servers(other))


def _servers(cluster: Body) -> frozenset[str]:
    connect = qualified(cluster["spec"]["zookeeper"]["connect"], cluster["metadata"]["namespace"])
    return frozenset(map(_server, connect.lower().split(",")))


def _server(text: str) -> str:
    """Return host:port, or of a Service, which may have a port for TLS, too, NAME.NAMESPACE.svc."""
    host = text.rpartition(":")[0]
    service, marker, _ = f"{host}.".partition(".svc.")
    if marker:
        return f"{service}.svc"
    return f"{host}.svc" if host.count(".") == 1 else text
