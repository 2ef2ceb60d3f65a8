"""ZooKeeper as the operator uses it: one session per connect string, batched reads, transactions.

kazoo's client has its own threads and blocks its callers, so everything here runs in the threads of
the work queues and never on kopf's event loop. Reads are sent together and awaited together, so a
thousand znodes cost a few round trips; reads through `cached` cost none while nothing changes. All
session problems are raised as `UnreachableError`.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Protocol

from kazoo.client import KazooState
from kazoo.exceptions import KazooException, NoAuthError, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from odradek.zk import acls, failures, operations
from odradek.zk.client import OPEN, ZooKeeperAccess
from odradek.zookeeper_settings import ZooKeeperLogin
from odradek_operator.shared import metrics
from odradek_operator.shared.znode_cache import CachedZnodes
from odradek_operator.shared.zookeeper_client import FailFastClient

SESSION_SECONDS: Final = 15.0
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 10.0
# A client that has had no connection for so long is replaced: kazoo's may have died unnoticed.
GIVEN_UP_SECONDS: Final = 60.0
# Nobody asked for a session for so long: its cluster has another login now.
IDLE_SECONDS: Final = 600.0
# Requests under way at once; more only fills ZooKeeper's queue.
_BATCH: Final = 500

log = logging.getLogger(__name__)
# Callers log that an ensemble is unreachable; kazoo would log each of its attempts.
logging.getLogger("kazoo").setLevel(logging.ERROR)


class UnreachableError(Exception):
    """ZooKeeper did not answer; nothing is known of what it holds."""


class RefusedError(UnreachableError):
    """ZooKeeper does not let the operator read or write a znode: its ACL is for others."""


@dataclass(frozen=True, slots=True)
class Znode:
    """Data of a znode, the version for conditional writes, and the transactions of its life.

    `created` is the one that made it, `written` the one that last wrote it.
    """

    data: bytes
    version: int
    created: int
    written: int


Watch = Callable[[Any], None]


class ZnodeReader(Protocol):
    """Where znodes are read: as they are now, or as they are remembered."""

    def read(self, paths: Iterable[str]) -> dict[str, Znode | None]:
        """Return what each path holds; None for a znode that does not exist."""

    def children(self, paths: Iterable[str]) -> dict[str, list[str] | None]:
        """Return the children of each path; None for a znode that does not exist."""


class ZooKeeper:
    """One session, made when first used and renewed by kazoo. With `set_acl` it secures znodes."""

    def __init__(
        self, connect: str, guard: Callable[[], None], access: ZooKeeperAccess = OPEN
    ) -> None:
        self.connect = connect
        self.set_acl = access.set_acl
        self.asked_at = time.monotonic()
        self._access = access
        self._guard = guard
        self._connected_at: float | None = None
        self.away_since: float | None = time.monotonic()
        self._client: Any = FailFastClient(
            connect,
            SESSION_SECONDS,
            access,
            retry=KazooRetry(max_tries=-1, max_delay=2.0),
        )
        self.cached: CachedZnodes[Znode] = CachedZnodes(self.read, self.children)
        self._client.add_listener(self._on_state)
        self._started = self._client.start_async()
        metrics.SESSION_AGE.labels(connect=connect).set_function(lambda: self.session_seconds)

    def _on_state(self, state: str) -> None:
        self.cached.clear()
        if state == KazooState.CONNECTED:
            self._connected_at = self._connected_at or time.monotonic()
            self.away_since = None
            return
        self.away_since = self.away_since or time.monotonic()
        if state == KazooState.LOST:
            self._connected_at = None

    @property
    def away_seconds(self) -> float:
        """For how long there has been no connection; 0 while there is one."""
        since = self.away_since
        return time.monotonic() - since if since is not None else 0.0

    @property
    def session_seconds(self) -> float:
        """Age of the session; 0 without one, which is sure once it was away for its time-out."""
        since = self._connected_at
        if since is None or self.away_seconds >= SESSION_SECONDS:
            return 0.0
        return time.monotonic() - since

    def require(self) -> None:
        """Wait a little for a connection, raising UnreachableError where there is none.

        One that has been away for longer is not waited for: a pass asks several times, and kazoo
        goes on connecting for the next pass.
        """
        until = time.monotonic() + CONNECT_SECONDS - self.away_seconds
        while not self._client.connected:
            if time.monotonic() > until:
                why = f": {self._client.failure}" if self._client.failure else ""
                raise UnreachableError(f"no connection to {self.connect}{why}")
            time.sleep(0.05)

    def read(self, paths: Iterable[str], watch: Watch | None = None) -> dict[str, Znode | None]:
        """Return what each path holds; None for a znode that does not exist."""
        found: dict[str, Znode | None] = {}
        for batch in _batches(paths):
            answers = [(path, self._client.get_async(path, watch)) for path in batch]
            for path, answer in answers:
                data, stat = self._wait(answer) or (None, None)
                found[path] = (
                    Znode(data or b"", stat.version, stat.czxid, stat.mzxid) if stat else None
                )
        return found

    def children(
        self, paths: Iterable[str], watch: Watch | None = None
    ) -> dict[str, list[str] | None]:
        """Return the children of each path; None for a znode that does not exist."""
        found: dict[str, list[str] | None] = {}
        for batch in _batches(paths):
            answers = [(path, self._client.get_children_async(path, watch)) for path in batch]
            for path, answer in answers:
                found[path] = self._wait(answer)
        return found

    def commit(self, wanted: Sequence[operations.Operation]) -> None:
        """Apply operations wholly or not at all.

        Raises operations.TransactionFailedError, RefusedError, or UnreachableError when it is not
        known whether they were applied: whoever asks must look again.
        """
        self._guard()
        metrics.WRITES.labels(target="zookeeper").inc()
        try:
            operations.commit(self._client, wanted, set_acl=self.set_acl)
        except operations.TransactionFailedError as error:
            if isinstance(error.error, NoAuthError):
                raise self._refused(error.operation.path) from error
            raise
        except (KazooException, KazooTimeoutError) as error:
            raise UnreachableError(f"{self.connect}: {failures.meaning(error)}") from error
        finally:
            self.cached.forget([one.path for one in wanted])

    def ensure(self, paths: Iterable[str]) -> None:
        """Create znodes that are missing, with their parents and the chroot.

        They have null data, as those that Kafka creates. Raises RefusedError, or UnreachableError.
        """
        self._guard()
        try:
            if self._client.chroot and not self._client.exists("/"):
                self._create_chroot()
            for path in paths:
                names = path.strip("/").split("/")
                for depth in range(len(names)):
                    one = "/" + "/".join(names[: depth + 1])
                    with contextlib.suppress(NodeExistsError):
                        self._client.create(one, None, acls.of_new(one, secured=self.set_acl))
        except NoAuthError as error:
            raise self._refused(_znode_of(error)) from error
        except (KazooException, KazooTimeoutError) as error:
            raise UnreachableError(f"{self.connect}: {failures.meaning(error)}") from error

    def _create_chroot(self) -> None:
        hosts, _, chroot = self.connect.partition("/")
        client = FailFastClient(hosts, SESSION_SECONDS, replace(self._access, set_acl=self.set_acl))
        try:
            client.start(CONNECT_SECONDS)
            client.ensure(f"/{chroot}")
        finally:
            client.stop()
            client.close()

    def delete_tree(self, path: str) -> None:
        """Delete a znode and all below it; one that is gone is no error.

        Raises RefusedError, or UnreachableError.
        """
        self._guard()
        metrics.WRITES.labels(target="zookeeper").inc()
        try:
            self._client.delete(path, recursive=True)
        except NoNodeError:
            return
        except NoAuthError as error:
            raise self._refused(path) from error
        except (KazooException, KazooTimeoutError) as error:
            raise UnreachableError(f"{self.connect}: {failures.meaning(error)}") from error

    def secured(self, paths: Iterable[str]) -> dict[str, bool]:
        """Return, for each of the paths that exist, whether not everybody may write there."""
        answers = [(path, self._client.get_acls_async(path)) for path in paths]
        found = {path: self._wait(answer) for path, answer in answers}
        return {
            path: not any(acls.is_open(one) for one in answer[0])
            for path, answer in found.items()
            if answer is not None
        }

    def _refused(self, path: str) -> RefusedError:
        return RefusedError(f"{self.connect}: the ACL of znodes does not let me write {path}")

    def _wait(self, answer: Any) -> Any:
        try:
            return answer.get(timeout=ANSWER_SECONDS)
        except NoNodeError:
            return None
        except NoAuthError as error:
            text = f"{self.connect}: the ACL of znodes does not let me read {_znode_of(error)}"
            raise RefusedError(text) from error
        except (KazooException, KazooTimeoutError) as error:
            raise UnreachableError(f"{self.connect}: {failures.meaning(error)}") from error

    def close(self) -> None:
        """End the session."""
        self._client.stop()
        self._client.close()


def _znode_of(error: NoAuthError) -> str:
    """Return the path of the znode, from the root of the servers."""
    return str(error.args[0]) if error.args else "them"


def _batches(paths: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(paths)
    while batch := list(islice(rest, _BATCH)):
        metrics.READS.inc(len(batch))
        yield batch


@dataclass(frozen=True, slots=True)
class ClusterLogin:
    """With what the operator connects to the ZooKeeper of one cluster.

    `key` stands for whose it is, and for what must stay while a session is open. A session takes
    another `access` with its next connection.
    """

    key: Hashable
    access: ZooKeeperAccess


class _Renewed:
    """The newest access of a session: it counts for the connections to come."""

    def __init__(self, newest: ZooKeeperAccess) -> None:
        self.newest = newest

    def context(self) -> ssl.SSLContext:
        assert self.newest.context is not None
        return self.newest.context()

    def login(self) -> ZooKeeperLogin:
        assert self.newest.login is not None
        return self.newest.login()

    def access(self) -> ZooKeeperAccess:
        first = self.newest
        return ZooKeeperAccess(
            None if first.context is None else self.context,
            None if first.login is None else self.login,
            first.set_acl,
        )


class Pool:
    """One ZooKeeper session per connect string, shared by all work queues.

    A cluster with a login has sessions of its own: nobody else's may use what its login may do.
    """

    def __init__(self, guard: Callable[[], None], access: ZooKeeperAccess = OPEN) -> None:
        self._guard = guard
        self._access = access
        self._lock = threading.Lock()
        self._open: dict[tuple[str, Hashable], tuple[ZooKeeper, _Renewed]] = {}

    def get(self, connect: str, login: ClusterLogin | None = None) -> ZooKeeper:
        """Return a connected ZooKeeper, raising UnreachableError where it does not answer."""
        access = self._access if login is None else login.access
        key = (connect, None if login is None else login.key)
        with self._lock:
            found, renewed = self._open.get(key, (None, _Renewed(access)))
            renewed.newest = access
            if found is not None:
                found.asked_at = time.monotonic()
                found.set_acl = access.set_acl
                if found.away_since is None:
                    return found
                if found.away_seconds > GIVEN_UP_SECONDS:
                    log.warning("%s: no connection for too long; opening a new session", connect)
                    # Closing may take a while.
                    threading.Thread(target=found.close, name="given-up", daemon=True).start()
                    found = None
            if found is None:
                found = ZooKeeper(connect, self._guard, renewed.access())
                self._open[key] = (found, renewed)
        found.require()
        return found

    def sessions(self) -> dict[str, float]:
        """Return the age in seconds of the session with each ensemble; 0 without one."""
        ages: dict[str, float] = {}
        with self._lock:
            for (connect, _), (one, _) in sorted(self._open.items(), key=lambda item: item[0][0]):
                ages[connect] = max(ages.get(connect, 0.0), one.session_seconds)
        return ages

    def keep(self, wanted: Callable[[], AbstractSet[str]]) -> None:
        """End the sessions that no cluster wants any more: it is gone, or has moved.

        `wanted` is asked while nobody can open one, so that none is closed that was just opened.
        """
        oldest = time.monotonic() - IDLE_SECONDS
        with self._lock:
            kept = wanted()
            unwanted = [
                key
                for key, (one, _) in self._open.items()
                if key[0] not in kept or (key[1] is not None and one.asked_at < oldest)
            ]
            closing = [self._open.pop(key)[0] for key in unwanted]
            left = {connect for connect, _ in self._open}
            for connect in {connect for connect, _ in unwanted} - left:
                metrics.SESSION_AGE.remove(connect)
        for one in closing:
            one.close()

    def close(self) -> None:
        """End all sessions."""
        with self._lock:
            for one, _ in self._open.values():
                one.close()
            self._open.clear()
