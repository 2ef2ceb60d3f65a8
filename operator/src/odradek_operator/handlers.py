"""kopf's handlers: watch events come in, everything else is done by the work queues.

Only `on.event` handlers are used: kopf then adds neither finalizers nor annotations of its own and
stores no copy of the spec in the object, and an update by Argo CD or Flux costs one comparison.
Events are received on kopf's event loop; all blocking work is done by the queues' threads.

Run with `kopf run -m odradek_operator.handlers`, and -A or -n NAMESPACE.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import kopf

from odradek_operator.runtime import Runtime, SettingsError, read_settings
from odradek_operator.shared import spec
from odradek_operator.shared.objects import CLUSTER_LABEL, GROUP_LABEL, MANAGED_BY
from odradek_operator.shared.store import ResourceKey

log = logging.getLogger(__name__)
# kopf would log a line for each event of each resource, own writes included.
logging.getLogger("kopf.objects").setLevel(logging.WARNING)


class NothingToCompare(kopf.DiffBaseStorage):
    """Stores no previous state: no handler here needs to know what changed.

    kopf would copy each resource per event to compare it, a fifth of the cost of an event.
    """

    def build(self, *, body: Any, extra_fields: Any = None) -> kopf.BodyEssence:
        """Find nothing that a change could be seen by."""
        return kopf.BodyEssence()

    def fetch(self, *, body: Any) -> kopf.BodyEssence | None:
        """Know of nothing before."""
        return None

    def store(self, *, body: Any, patch: Any, essence: kopf.BodyEssence) -> None:
        """Store nothing."""


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: Any, **_: Any) -> None:
    """Wait for the Lease before anything is watched."""
    settings.posting.level = logging.WARNING
    settings.peering.standalone = True
    # kopf takes away a finalizer of the configured name where none of its handlers needs it, so
    # this must not be the name of the operator's own.
    settings.persistence.finalizer = f"{spec.GROUP}/kopf-finalizer"
    settings.persistence.progress_storage = kopf.StatusProgressStorage(name=spec.GROUP)
    settings.persistence.diffbase_storage = NothingToCompare()
    settings.scanning.disabled = True
    settings.watching.client_timeout = 240
    settings.watching.server_timeout = 210
    settings.networking.request_timeout = 30
    try:
        memo.runtime = Runtime(read_settings(os.environ))
    except SettingsError as error:
        raise kopf.PermanentError(str(error)) from None
    try:
        await asyncio.to_thread(memo.runtime.start)
    except asyncio.CancelledError:
        # The process was stopped while it waited.
        memo.runtime.stop()
        raise


@kopf.on.cleanup()
async def stop(memo: Any, **_: Any) -> None:
    """Finish the current batches and release the Lease."""
    if "runtime" in memo:
        await asyncio.to_thread(memo.runtime.stop)


@kopf.on.event(spec.GROUP, spec.VERSION, "kafkaclusters")
@kopf.on.event(spec.GROUP, spec.VERSION, "users")
@kopf.on.event(spec.GROUP, spec.VERSION, "topics")
@kopf.on.event(spec.GROUP, spec.VERSION, "reassignments")
@kopf.on.event(spec.GROUP, spec.VERSION, "consumergroups")
async def notice(event: Any, memo: Any, **_: Any) -> None:
    """Queue a resource, or drop a deleted one."""
    runtime: Runtime = memo.runtime
    body = dict(event["object"])
    if event["type"] != "DELETED":
        runtime.queues.submit(body)
        return
    await asyncio.to_thread(runtime.on_deleted, body)


@kopf.on.event("v1", "pods", labels={"app.kubernetes.io/managed-by": MANAGED_BY})
async def notice_pod(meta: Any, namespace: str | None, memo: Any, **_: Any) -> None:
    """Queue the owner of a broker or driver pod that changed."""
    runtime: Runtime = memo.runtime
    for label, kind in (
        (CLUSTER_LABEL, "KafkaCluster"),
        (GROUP_LABEL, "ConsumerGroup"),
    ):
        owner = meta.get("labels", {}).get(label)
        if owner and namespace:
            runtime.queues.wake(ResourceKey(kind, namespace, owner))
