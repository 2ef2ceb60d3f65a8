"""One acting operator at a time, by Leases in coordination.k8s.io.

One Lease in the operator's own namespace keeps two pods of a release apart. Another in each
namespace whose resources it looks after keeps two releases apart whose scopes overlap, whatever
their own namespaces are: each namespace has one operator that acts in it.

kopf's peering is not used: without its object two operators both act, and with equal priorities
both stop. A Lease needs no CRD and fails the safe way. The holder renews it every RENEW_SECONDS;
who wants it waits until it has not changed for LEASE_SECONDS by the waiter's own monotonic clock,
so wall clocks do not matter. `check` is asked before every write and raises once the holder itself
could no longer renew for DEADLINE_SECONDS, which is shorter than any waiter's patience. A write
that has begun by then is over before that patience, too, unless its way to the API server takes
longer than `kube.CONNECT_SECONDS`: the API server drops it after the rest of `write_seconds`.
Znodes are written on condition of the versions that were read, so a late write fails where the next
holder has written. A holder that lost it goes on asking and acts again once it has it: everything
it does is level-triggered and conditional, so nothing that happened in between can mislead it.

The identity is the pod's name: a container that was killed and starts again in the same pod is the
same holder and goes on at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any, Final

from odradek_operator.shared import metrics
from odradek_operator.shared.kube import Kube, KubeError

LEASE_SECONDS: Final = 15.0
DEADLINE_SECONDS: Final = 10.0
RENEW_SECONDS: Final = 3.0
RETRY_SECONDS: Final = 1.0

log = logging.getLogger(__name__)


class NotHolderError(Exception):
    """This process may not write: it does not hold the Lease, or did not renew it in time."""


class Lease:
    """The Lease `name` in `namespace`, wanted by `identity`."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        # Until when this process may act, by its own clock.
        self.held_until = float("-inf")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # The last state that was seen of another holder's Lease, and when it was first seen.
        self._seen: tuple[object, float] | None = None

    @property
    def held(self) -> bool:
        """Return whether this process may act now."""
        return self._clock() < self.held_until

    def acquire(self) -> bool:
        """Wait for the Lease, then renew it in a thread; False if `release` came first."""
        while not self._stop.is_set():
            if self._attempt():
                self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
                self._thread.start()
                return True
            self._stop.wait(RETRY_SECONDS)
        return False

    def want(self) -> None:
        """Acquire and renew the Lease in a thread; returns at once."""
        self._thread = threading.Thread(target=self._strive, name="lease", daemon=True)
        self._thread.start()

    def _strive(self) -> None:
        self._attempt_safely()
        self._renew()

    def _attempt_safely(self) -> None:
        try:
            self._attempt()
        except Exception:
            # Without this a bug would end the thread, and all writes for good, unnoticed.
            log.exception("failed to acquire the Lease; retrying")

    def release(self) -> None:
        """Release the Lease, so that the next holder need not wait."""
        self._stop.set()
        if self._thread is None:
            return
        self._thread.join()
        if not self.held:
            return
        self.held_until = float("-inf")
        try:
            found = self._read()
            if found and (found.get("spec") or {}).get("holderIdentity") == self._identity:
                found["spec"]["holderIdentity"] = ""
                self._kube.replace(found)
        except KubeError as error:
            log.info("failed to release the Lease: %s; it expires by itself", error)

    def _renew(self) -> None:
        acting = self.held
        while not self._stop.wait(RENEW_SECONDS if acting else RETRY_SECONDS):
            self._attempt_safely()
            if acting != self.held:
                acting = self.held
                log.warning(
                    "the Lease is %s", "held again" if acting else "lost; writes are suspended"
                )

    def _attempt(self) -> bool:
        """Take or renew the Lease if it is free, run out or ours; False if not."""
        asked_at = self._clock()
        try:
            found = self._read()
            if found is None:
                self._kube.create_lease(self._body())
            elif self._may_take(spec := found.get("spec") or {}, asked_at):
                held_before = spec.get("holderIdentity") == self._identity
                found["spec"] = self._spec(spec, held_before)
                self._kube.replace(found)
            else:
                self.held_until = float("-inf")
                return False
        except KubeError as error:
            if not _is_ending(error):
                log.info("failed to acquire the Lease: %s; retrying", error)
                return False
            # Nothing can be created in a terminating namespace, so nobody can hold
            # its Lease; without an acting operator, finalizers would keep the namespace forever.
        # From the moment of the question on: the write may have taken effect any time after it.
        self.held_until = asked_at + DEADLINE_SECONDS
        return True

    def _may_take(self, spec: dict[str, Any], now: float) -> bool:
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._identity):
            return True
        state = (holder, spec.get("renewTime"))
        if self._seen is None or self._seen[0] != state:
            self._seen = (state, now)
            log.info("waiting for the Lease held by %s", holder)
        return now - self._seen[1] > LEASE_SECONDS

    def _read(self) -> dict[str, Any] | None:
        return self._kube.get("coordination.k8s.io/v1", "Lease", self._namespace, self._name)

    def _body(self) -> dict[str, Any]:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._spec({}, False),
        }

    def _spec(self, before: dict[str, Any], held_before: bool) -> dict[str, Any]:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(LEASE_SECONDS),
            "renewTime": stamp,
            "acquireTime": before.get("acquireTime", stamp) if held_before else stamp,
            "leaseTransitions": before.get("leaseTransitions", 0) + (not held_before),
        }


def _is_ending(error: KubeError) -> bool:
    return error.code == 403 and "because it is being terminated" in str(error)


class Leases:
    """The Lease in the operator's own namespace, and those of the namespaces it reconciles."""

    def __init__(
        self,
        kube: Kube,
        home: str,
        name: str,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._name = name
        self._identity = identity
        self._clock = clock
        self._lock = threading.Lock()
        self._home = Lease(kube, home, name, identity, clock)
        self._by_namespace = {home: self._home}
        self._acting = threading.local()
        metrics.LEADER.set_function(lambda: float(self.held))

    @property
    def held(self) -> bool:
        """Return whether this process is the one of its release that may act."""
        return self._home.held

    def acquire(self) -> bool:
        """Wait for the Lease in the own namespace; False if `release` came first."""
        return self._home.acquire()

    def act_in(self, namespace: str) -> bool:
        """Bind this thread to a namespace; False if another operator acts there."""
        lease = self._by_namespace.get(namespace) or self._want(namespace)
        self._acting.lease = lease
        return self._clock() < min(self._home.held_until, lease.held_until)

    def acts_in(self, namespace: str) -> bool:
        """Return whether this process acts in a namespace now, without acquiring its Lease."""
        with self._lock:
            lease = self._by_namespace.get(namespace)
        return self.held and lease is not None and lease.held

    def check(self) -> None:
        """Raise NotHolderError unless this thread may write now."""
        self.write_seconds()

    def write_seconds(self) -> float:
        """Return how long a write may take that begins now: until another process may act.

        Raises NotHolderError unless this thread may write now.
        """
        lease: Lease = getattr(self._acting, "lease", self._home)
        left = min(self._home.held_until, lease.held_until) - self._clock()
        if left <= 0:
            raise NotHolderError("this process does not hold the Lease")
        return left + LEASE_SECONDS - DEADLINE_SECONDS

    def _want(self, namespace: str) -> Lease:
        with self._lock:
            found = self._by_namespace.get(namespace)
            if found is None:
                found = Lease(self._kube, namespace, self._name, self._identity, self._clock)
                self._by_namespace[namespace] = found
                found.want()
            return found

    def keep(self, namespaces: AbstractSet[str]) -> None:
        """Release the Leases of other namespaces, which have no resources left.

        Whoever still works there is stopped by `check`, and takes the Lease anew the next time.
        """
        with self._lock:
            unwanted = [
                name
                for name, lease in self._by_namespace.items()
                if lease is not self._home and name not in namespaces
            ]
            ending = [self._by_namespace.pop(name) for name in unwanted]
        for lease in ending:
            lease.release()

    def release(self) -> None:
        """Release all Leases, the one in the own namespace last."""
        with self._lock:
            leases = list(self._by_namespace.values())
        for lease in reversed(leases):
            lease.release()
