"""The ACLs of znodes as a super user of ZooKeeper sees them."""

from __future__ import annotations

from kazoo.exceptions import NoNodeError

from tests.support.zookeeper import Server

Acl = frozenset[tuple[str, str, int]]
"""(scheme, id, permissions) of each entry."""


def acls_below(server: Server, root: str) -> dict[str, Acl]:
    """Return the ACL of each znode below a root, by its path from there; the server must have a
    super user (see `secure_zookeeper`).
    """
    found: dict[str, Acl] = {}
    with server.client() as client:
        client.add_auth("digest", SUPER)
        left = [root]
        while left:
            path = left.pop()
            try:
                acls, _ = client.get_acls(path)
                names = client.get_children(path)
            except NoNodeError:
                continue  # a notice that was just taken
            found[path.removeprefix(root)] = frozenset(
                (acl.id.scheme, acl.id.id, acl.perms) for acl in acls
            )
            left += [f"{path.rstrip('/')}/{name}" for name in names]
    return found


SUPER = "super:secret"
