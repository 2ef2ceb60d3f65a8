"""The authorizer of a broker: super users, then the ACLs; counts denials and logs them.

Kafka's kafka.security.authorizer.AclAuthorizer. Super users may do everything, even while there are
no ACLs because ZooKeeper could not be read yet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from odradek.net.rare_log import RareLog
from odradek.security import acl_znodes
from odradek.security.acl_watcher import AclWatcher
from odradek.security.acls import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AclOperation,
    ResourcePattern,
    ResourceType,
)
from odradek.security.decisions import plain_host
from odradek.values import Principal

LONGEST_NAME = 249

logger = logging.getLogger("odradek.authorizer")


class Authorizer:
    """Decides for each request what its sender may do."""

    def __init__(self, watcher: AclWatcher, super_users: Iterable[Principal]) -> None:
        self.watcher = watcher
        self.denials = 0
        self._super_users = frozenset(super_users)
        self._log = RareLog(logger)

    def allow(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        log: bool = True,
    ) -> bool:
        """Return whether the principal may do this.

        `log` says that a denial refuses something; else it only leaves something out.
        """
        if principal in self._super_users:
            return True
        watcher = self.watcher
        if watcher.loaded and watcher.acls.allow(
            principal, plain_host(host), operation, resource_type, name
        ):
            return True
        if log:
            self._deny(principal, host, operation, ResourcePattern(resource_type, name))
        return False

    def allow_anywhere(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Return whether there can be a resource of the type for which it is allowed (KIP-679)."""
        if principal in self._super_users:
            return True
        watcher = self.watcher
        if watcher.loaded and watcher.acls.allow_anywhere(
            principal, plain_host(host), operation, resource_type
        ):
            return True
        self._deny(principal, host, operation, ResourcePattern(resource_type, "(any)"))
        return False

    def operations(
        self, principal: Principal, host: str, resource_type: ResourceType, name: str
    ) -> list[AclOperation]:
        """Return what the principal may do to a resource, of what makes sense for it."""
        return [
            one
            for one in SUPPORTED_OPERATIONS[resource_type]
            if self.allow(principal, host, one, resource_type, name, log=False)
        ]

    def locks_out(self, broker: Principal) -> bool:
        """Return whether nothing lets a broker with this principal work, from no host."""
        return broker not in self._super_users and not self.watcher.acls.may_allow(
            broker, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
        )

    def _deny(
        self, principal: Principal, host: str, operation: AclOperation, pattern: ResourcePattern
    ) -> None:
        self.denials += 1
        self._log.log(
            logging.INFO,
            "Principal = %s is Denied Operation = %s from host = %s on resource = %s:%s:%s%s",
            principal,
            acl_znodes.type_name(operation),
            host,
            acl_znodes.type_name(pattern.resource_type),
            pattern.pattern_type.name,
            pattern.name[:LONGEST_NAME],
            "" if self.watcher.loaded else " because no ACLs are loaded yet",
        )
