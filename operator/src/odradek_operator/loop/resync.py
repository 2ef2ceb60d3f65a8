"""Resources that went without a word: deleted while nobody watched.

After a gap in a watch kopf lists what is there, and of what is not there any more nobody hears. A
resource that is looked at again would be found gone before anything is written for it; but one that
is as wanted is not written for, its topics would go on being enforced if it is a cluster, and the
lag of a group would be told for ever.

So now and then what is known is counted against what the API server has. A list may be wrong or old
as well: nothing is let go that the API server, asked for it by name, still has. In namespaces where
nothing is left, nothing is kept for it either.
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
    """Compares the store with the API server once a minute, and passes on what is `gone`, and the
    namespaces that there is reason to `keep` something for.
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
        self._thread = threading.Thread(target=self._run, name="departures", daemon=True)

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

    def check(self) -> None:
        """Pass on every known resource that the API server does not have any more."""
        for kind in KIND_ORDER:
            known = Counter(body["metadata"]["namespace"] for body in self._store.select(kind))
            for namespace, count in known.items():
                if self._api.count(API_VERSION, kind, namespace) < count:
                    self._find(kind, namespace)

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
