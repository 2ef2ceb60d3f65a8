"""`odradek zookeeper secure|unsecure`: the ACLs of a cluster's znodes, set or cleared.

It does what Kafka's zookeeper-security-migration does, but creates no znode. It can be run again:
each znode gets the ACL that it has or should have. Znodes that are deleted meanwhile are passed
over.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoNodeError,
    SessionExpiredError,
)

from odradek.terminal_text import tell
from odradek.tools.errors import ToolError
from odradek.tools.zookeeper_client import connect
from odradek.zk import acls, znodes
from odradek.zk.client import Client
from odradek.zk.failures import describe

_BATCH: Final = 500
# Progress within a root that has many znodes.
_EVERY: Final = 10_000


def change(zookeeper: str, tls_file: Path | None, *, secured: bool) -> None:
    """Set or clear the ACLs of a cluster's znodes; an error is one line and ends the process."""
    try:
        client = connect(zookeeper, tls_file, must_authenticate=secured)
        try:
            _change_all(client, zookeeper, secured=secured)
        finally:
            client.stop()
            client.close()
    except ToolError as error:
        tell(error)
        sys.exit(error.status)


def _change_all(client: Client, zookeeper: str, *, secured: bool) -> None:
    verb = "secured" if secured else "opened"
    try:
        roots = [root for root in acls.SECURE_ROOTS if client.exists(root) is not None]
        if znodes.TOPICS_PATH.rpartition("/")[0] not in roots:
            raise ToolError(f"there is no cluster at {zookeeper}: it has no /brokers")
        _set(client, [acls.ROOT], secured=secured)
        for root in roots:
            count = _change_tree(client, root, secured=secured)
            click.echo(f"{verb} {root}: {count} znodes")
    except (NoAuthError, InvalidACLError, AuthFailedError) as error:
        at = f" at {error.args[0]}" if error.args else ""
        raise ToolError(
            f"ZooKeeper does not allow it{at} ({type(error).__name__}): log in as who secured the "
            "znodes, with a JAAS file or a certificate that the server knows",
            1,
        ) from None
    except KazooException as error:
        raise ToolError(
            f"ZooKeeper at {zookeeper}: {describe(error)}; run the command again", 1
        ) from None


def _change_tree(client: Client, root: str, *, secured: bool) -> int:
    """Change a znode and all below it, parents first; return how many there were."""
    count, level = 0, [root]
    while level:
        found = []
        for batch in _batches(level):
            _set(client, batch, secured=secured)
            answers = [(path, client.get_children_async(path)) for path in batch]
            for path, answer in answers:
                names = _wait(client, answer, lambda path=path: client.get_children_async(path))
                found += [f"{path}/{name}" for name in names or ()]
            before, count = count, count + len(batch)
            if before // _EVERY != count // _EVERY:
                click.echo(f"{root}: {count} znodes so far", err=True)
        level = found
    return count


def _set(client: Client, paths: Iterable[str], *, secured: bool) -> None:
    def ask(path: str) -> Any:
        return client.set_acls_async(path, acls.of_new(path, secured=secured))

    answers = [(path, ask(path)) for path in paths]
    for path, answer in answers:
        _wait(client, answer, lambda path=path: ask(path))


def _wait(client: Client, answer: Any, again: Any) -> Any:
    """Return an answer, None for a znode that is gone; ask again if the connection broke."""
    while True:
        try:
            return answer.get()
        except NoNodeError:
            return None
        except ConnectionClosedError:  # a SessionExpiredError, after which kazoo sends nothing
            raise
        except (ConnectionLoss, SessionExpiredError):
            # kazoo sends it once it is connected again.
            answer = again()


def _batches(paths: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(paths)
    while batch := list(islice(rest, _BATCH)):
        yield batch
