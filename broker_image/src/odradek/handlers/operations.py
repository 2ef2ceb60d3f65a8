"""Authorized operations (KIP-430): what the sender of a request may do to a resource.

A set of operations is an int32 with one bit per number of Kafka's AclOperation.
"""

from __future__ import annotations

from collections.abc import Iterable

from odradek.security.acls import AclOperation


def bits(operations: Iterable[AclOperation]) -> int:
    """Return the operations as they are in an answer."""
    return sum(1 << operation for operation in operations)
