"""Writes to ZooKeeper as values, so that several can be one transaction.

`admin` and the controller build lists of these; `session.Session.multi` applies a list from
asyncio, `commit` applies it with a plain kazoo client, as the operator and the Spark job have one.
A list is applied wholly or not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import KazooException, RolledBackError, RuntimeInconsistency

from odradek.zk import acls

ANY_VERSION = -1


@dataclass(frozen=True, slots=True)
class Create:
    """Create a znode, which must not exist; with `sequence` a number is added to the path."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace the data of a znode that has this version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a znode that has this version and no children."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Require that a znode has this version."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check


class TransactionFailedError(Exception):
    """Nothing was applied; operation number `index` failed with `error` (a kazoo exception)."""

    def __init__(self, operation: Operation, index: int, error: KazooException) -> None:
        super().__init__(f"{operation.path}: {type(error).__name__}")
        self.operation = operation
        self.index = index
        self.error = error


def fill(transaction: Any, operations: Sequence[Operation], *, set_acl: bool) -> None:
    """Add the operations to a kazoo TransactionRequest. With `set_acl` new znodes are secured."""
    for operation in operations:
        match operation:
            case Create(path, data, ephemeral, sequence):
                acl = acls.of_new(path, secured=set_acl)
                transaction.create(path, data, acl, ephemeral=ephemeral, sequence=sequence)
            case SetData(path, data, version):
                transaction.set_data(path, data, version)
            case Delete(path, version):
                transaction.delete(path, version)
            case Check(path, version):
                transaction.check(path, version)


def check_results(operations: Sequence[Operation], results: Sequence[Any]) -> list[Any]:
    """Return the results of a transaction, raising TransactionFailedError where one failed."""
    for index, (operation, result) in enumerate(zip(operations, results, strict=True)):
        # The others of a failed transaction report that they were rolled back or never tried.
        if isinstance(result, Exception) and not isinstance(
            result, RolledBackError | RuntimeInconsistency
        ):
            raise TransactionFailedError(operation, index, result)
    return list(results)


def commit(client: Any, operations: Sequence[Operation], *, set_acl: bool = False) -> list[Any]:
    """Apply the operations with a connected KazooClient; blocks the calling thread.

    With `set_acl` new znodes are secured (see `acls`).
    Returns one result an operation: the path of Create, the ZnodeStat of SetData, True otherwise.
    Raises TransactionFailedError, or what kazoo raises when the connection is lost.
    """
    transaction = client.transaction()
    fill(transaction, operations, set_acl=set_acl)
    return check_results(operations, transaction.commit())
