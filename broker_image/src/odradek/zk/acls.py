"""ACLs of znodes, as `ZkData` of Apache Kafka gives them with `zookeeper.set.acl=true`.

Who created a znode may do everything with it, and all others may read it. What is secret, such as
the credentials of users, only its creator may read. `/consumers` stays open: consumers write there
that are nobody to ZooKeeper. Kafka opens the folder alone, and what its consumers make in it is
open; here what brokers make in it is open too.
"""

from __future__ import annotations

from collections.abc import Sequence

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from odradek.zk.consumers import CONSUMERS_PATH

SENSITIVE_ROOTS = ("/config/users", "/config/brokers", "/delegation_token/tokens")
SECURE_ROOTS = (
    "/admin",
    "/brokers",
    "/cluster",
    "/config",
    "/controller",
    "/controller_epoch",
    "/isr_change_notification",
    "/latest_producer_id_block",
    "/log_dir_event_notification",
    "/delegation_token",
    "/kafka-acl",
    "/kafka-acl-changes",
    "/kafka-acl-extended",
    "/kafka-acl-extended-changes",
)
"""What `odradek zookeeper secure` secures, with all below it."""
ROOT = "/"
"""Kafka's root: the chroot, or `/` of the servers. The command secures it alone.

ZooKeeper asks the ACL of the parent who may create and delete a znode: whoever may do that here
takes `/controller` away, whatever its own ACL says.
"""


def of_new(path: str, *, secured: bool) -> Sequence[ACL]:
    """Return the ACL of a znode that is created; `path` begins at the chroot."""
    if not secured or path == CONSUMERS_PATH or path.startswith(f"{CONSUMERS_PATH}/"):
        return list(OPEN_ACL_UNSAFE)
    if path.startswith(SENSITIVE_ROOTS):
        return list(CREATOR_ALL_ACL)
    return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]


def is_open(acl: ACL) -> bool:
    """Return whether an ACL lets everybody change the znode or what is below it."""
    writes = acl.perms & ~READ_ACL_UNSAFE[0].perms
    return bool(writes) and (acl.id.scheme, acl.id.id) == ("world", "anyone")


def with_parents(path: str) -> list[str]:
    """Return the paths of a znode's parents below the root, and its own, the first first."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[:end]) for end in range(1, len(parts) + 1)] if parts[0] else []
