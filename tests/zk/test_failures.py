"""What errors of ZooKeeper tell people."""

from __future__ import annotations

import asyncio

import pytest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from odradek.zk import failures
from odradek.zk.failures import LoginRequiredError
from tests.support import zookeeper
from tests.zk.conftest import OpenSession


async def test_refusals_name_the_znode_from_the_root(
    server: zookeeper.Server, chroot: str, sessions: OpenSession
) -> None:
    session = await sessions()

    def refuse() -> None:
        with server.client(chroot) as client:
            client.create("/denied", acl=[ACL(Permissions.WRITE, ANYONE_ID_UNSAFE)])

    await asyncio.to_thread(refuse)
    path = f"{chroot}/denied"
    with pytest.raises(NoAuthError) as one:
        await session.get("/denied")
    with pytest.raises(NoAuthError) as in_batch:
        await session.get_all(["/none", "/denied"])
    with pytest.raises(NoNodeError) as missing:
        await session.children("/none")
    assert one.value.args == in_batch.value.args == (path,)
    assert missing.value.args == (f"{chroot}/none",)
    said = failures.describe(one.value)
    assert said.startswith(f"no right to the znode {path} (NoAuthError): ")
    assert all(word in said for word in ("KAFKA_OPTS", "zookeeper.ssl.", "zookeeper unsecure"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NoAuthError(), "no right to the znode (NoAuthError)"),
        (InvalidACLError("/a"), "the ACL for the znode /a is refused (InvalidACLError)"),
        (NoNodeError("/a"), "there is no znode /a (NoNodeError)"),
        (BadVersionError("/a"), "BadVersionError at /a"),
        (BadVersionError(), "BadVersionError"),
        (SessionExpiredError(), "the session has expired (SessionExpiredError)"),
        (ConnectionClosedError("it is closed"), "it is closed"),
        (ConnectionLoss(), "the connection was lost before the answer came (ConnectionLoss)"),
        (ConnectionLoss("not connected"), "not connected"),
        (OperationTimeoutError(), "no answer came in time (OperationTimeoutError)"),
        (LoginRequiredError(), "the server asks for a login (LoginRequiredError)"),
        (KazooException("text"), "text"),
    ],
)
def test_no_error_is_without_words(error: KazooException, said: str) -> None:
    assert failures.meaning(error) == said
    assert failures.describe(error).startswith(said)


def test_only_answers_are_about_a_znode() -> None:
    # kazoo gives all requests of a broken connection the same error.
    lost, refused = ConnectionLoss(), NoAuthError()
    for error in (lost, refused):
        failures.name_znode(error, "/first")
        failures.name_znode(error, "/second")
    assert lost.args == ()
    assert refused.args == ("/first",)
