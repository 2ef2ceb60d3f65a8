"""Detects deletions missed during a watch gap.

After a gap kopf lists what exists, but reports nothing about what no longer does. A deleted
resource is noticed before the next write for it. Without a write, however, the topics of a deleted
cluster would still be enforced, and the lag of a deleted group would be exported forever.

So once a minute the store is compared with the API server. A list may be stale, too: confirm with a
GET before dropping. For namespaces without resources nothing is kept either.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final

from odradek_operator.loop.lease import NotHolderError
from odradek_operator.shared import kube
from odradek_operator.shared.kube import Kube, KubeError
from odradek_operator.shared.spec import API_VERSION, Body
from odradek_operator.shared.store import KIND_ORDER, ResourceStore

CHECK_SECONDS: Final = 60.0

log = logging.getLogger(__name__)


class Resync:
    """Compares the store with the API server once a minute; calls `gone` per deleted resource, and
    `keep` with the namespaces that still have resources.
    """

    def __init__(
        self,
        api: Kube,
        store: ResourceStore,
        gone: Callable[[Body], None],
        keep: Callable[[AbstractSet[str]], None],
    ) -> None:
        self._api = api
        self._store = store
        self._gone = gone
        self._keep = keep
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resync", daemon=True)

    def start(self) -> None:
        """Begin to compare."""
        self._thread.start()

    def stop(self) -> None:
        """End; a comparison under way is finished."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(CHECK_SECONDS):
            try:
                self.check()
                self._keep(self._store.namespaces())
            except (KubeError, NotHolderError) as error:
                log.info("failed to check for deleted resources: %s; retrying", error)
            except Exception:
                # Without this a bug would end the thread unnoticed.
                log.exception("failed to check for deleted resources; retrying")

    def check(self) -> None:
        """Pass on every known resource that the API server does not have any more.

        Raises KubeError if it does not answer. What it refuses to tell hides nothing else.
        """
        for kind in KIND_ORDER:
            known = Counter(body["metadata"]["namespace"] for body in self._store.select(kind))
            for namespace, count in known.items():
                try:
                    if self._api.count(API_VERSION, kind, namespace) < count:
                        self._find(kind, namespace)
                except KubeError as error:
                    if not error.code:
                        # Nobody answers: each of the others would be waited for in vain.
                        raise
                    log.info(
                        "failed to check for deleted resources: %s in %s: %s; retrying",
                        kind,
                        namespace,
                        error,
                    )

    def _find(self, kind: str, namespace: str) -> None:
        listed = {
            body["metadata"]["uid"] for body in self._api.select(API_VERSION, kind, namespace)
        }
        for body in self._store.select(kind, namespace):
            uid, name = body["metadata"]["uid"], body["metadata"]["name"]
            if uid in listed:
                continue
            fresh = kube.custom(self._api, kind, namespace, name)
            if fresh is None or fresh["metadata"]["uid"] != uid:
                log.info("%s %s/%s was deleted during a watch gap", kind, namespace, name)
                self._gone(body)
