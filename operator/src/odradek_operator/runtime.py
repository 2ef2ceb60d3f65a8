"""Composition root of the operator: environment to settings, and everything that runs, in order.

Start: HTTP pages, Lease, then work queues. Stop: queues after their batches, finalizers if the
namespace goes, ZooKeeper, Lease, pages.
"""

from __future__ import annotations

import json
import logging
import socket
import uuid
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from odradek.http_server import HttpAnswer
from odradek_operator import health
from odradek_operator.loop import departure
from odradek_operator.loop.lease import Leases, NotHolderError
from odradek_operator.loop.reconciler import Reconciler
from odradek_operator.loop.resource_states import ResourceStates
from odradek_operator.loop.resync import Resync
from odradek_operator.loop.workqueue import WorkQueues
from odradek_operator.shared import kube, metrics
from odradek_operator.shared.apply import Platform, ReconcileContext, WorkloadSettings
from odradek_operator.shared.kube import Kube, KubeError
from odradek_operator.shared.spec import Body
from odradek_operator.shared.store import ResourceStore
from odradek_operator.shared.zookeeper import Pool
from odradek_operator.topic import plan as topic_plan

HEALTH_PORT = 8080
METRICS_PORT = 9406
LEASE_NAME = "odradek-operator"

log = logging.getLogger(__name__)


class SettingsError(ValueError):
    """An environment variable is missing or has no valid value."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """The settings that the operator's Deployment passes."""

    broker_image: str
    platform: Platform
    namespace: str
    identity: str
    health_port: int = HEALTH_PORT
    metrics_port: int = METRICS_PORT


def read_settings(environment: Mapping[str, str]) -> OperatorSettings:
    """Read the environment, raising SettingsError for what is missing or invalid."""

    def require(name: str) -> str:
        if not environment.get(name):
            raise SettingsError(f"environment variable {name} is not set")
        return environment[name]

    secrets = environment.get("ODRADEK_IMAGE_PULL_SECRETS", "")
    pod, namespace = environment.get("POD_NAME"), environment.get("POD_NAMESPACE") or "default"
    return OperatorSettings(
        broker_image=require("ODRADEK_BROKER_IMAGE"),
        platform=Platform(
            image=require("ODRADEK_SPARK_IMAGE"),
            pull_policy=environment.get("ODRADEK_IMAGE_PULL_POLICY") or "IfNotPresent",
            pull_secrets=tuple(filter(None, secrets.split(","))),
            exporter=_read_workload(environment, "ODRADEK_EXPORTER"),
            console=_read_workload(environment, "ODRADEK_CONSOLE"),
            account_annotations=json.loads(
                environment.get("ODRADEK_SPARK_ACCOUNT_ANNOTATIONS") or "{}"
            ),
        ),
        namespace=namespace,
        # Outside a pod the host name alone does not identify a process.
        identity=f"{namespace}/{pod}" if pod else f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}",
        health_port=int(environment.get("ODRADEK_HEALTH_PORT") or HEALTH_PORT),
        metrics_port=int(environment.get("ODRADEK_METRICS_PORT") or METRICS_PORT),
    )


def _read_workload(environment: Mapping[str, str], name: str) -> WorkloadSettings | None:
    """Read the settings of lag exporters or consoles, a JSON object; empty: there are none."""
    text = environment.get(name, "")
    if not text:
        return None
    try:
        values = json.loads(text)
        arguments = tuple(values.pop("arguments", ()))
        return WorkloadSettings(**{**values, "arguments": arguments})
    except (ValueError, TypeError, AttributeError) as error:
        raise SettingsError(f"environment variable {name}: {error}") from None


class Runtime:
    """Everything that runs, from `start` to `stop`."""

    def __init__(
        self,
        settings: OperatorSettings,
        api: Kube | None = None,
    ) -> None:
        self._api = api or kube.connect()
        self._lease = Leases(self._api, settings.namespace, LEASE_NAME, settings.identity)
        self._api.guard = self._lease.write_seconds
        self._zookeepers = Pool(self._lease.check)
        self._namespace = settings.namespace
        store = ResourceStore()
        self._context = ReconcileContext(
            kube=self._api,
            zookeepers=self._zookeepers,
            broker_image=settings.broker_image,
            platform=settings.platform,
            remember=store.put,
            forget=store.drop,
            home=settings.namespace,
        )
        self.queues = WorkQueues(
            store, Reconciler(self._context, store, self._lease.act_in).reconcile
        )
        metrics.REGISTRY.register(ResourceStates(store, self._lease.acts_in))
        self._resync = Resync(self._api, store, self.on_deleted, self._keep)
        self._pages = [
            health.Pages(
                settings.health_port, {"/healthz": self._healthz, "/readyz": self._readyz}
            ),
            health.Pages(settings.metrics_port, {"/metrics": health.show_metrics}),
        ]

    def start(self) -> bool:
        """Wait until this operator may act; False if it was stopped before."""
        acquired = self._lease.acquire()
        if acquired:
            self._resync.start()
        return acquired

    def on_deleted(self, body: Body) -> None:
        """Drop a deleted resource, and post an Event if its data is retained."""
        self.queues.drop(body)
        kept = topic_plan.leaves_data(body) if body["kind"] == "Topic" else None
        # Another operator posts it where this one only watches.
        if kept is not None and self._lease.acts_in(body["metadata"]["namespace"]):
            self._api.post_event(body, topic_plan.retained(kept))

    def _keep(self, namespaces: AbstractSet[str]) -> None:
        """Let go of what is kept for namespaces and clusters without resources."""
        self._lease.keep(namespaces)
        self.queues.keep()

    def stop(self) -> None:
        """Stop everything; current batches are finished."""
        self._resync.stop()
        self.queues.stop()
        try:
            departure.let_go(self._context, self._namespace)
        except (KubeError, NotHolderError) as error:
            log.warning("failed to let go of what is in %s: %s", self._namespace, error)
        self._zookeepers.close()
        self._lease.release()
        for pages in self._pages:
            pages.close()

    def _healthz(self) -> HttpAnswer:
        stuck = self.queues.stuck
        if stuck:
            return health.say(False, f"stuck work queues: {', '.join(stuck)}")
        # An unreachable ensemble is worth reporting, but no reason to restart this process.
        return health.say(True, "\n".join([self._doing(), *self._sessions()]))

    def _doing(self) -> str:
        return "ok" if self._lease.held else "waiting for the Lease"

    def _sessions(self) -> list[str]:
        return [
            f"{connect}: {f'session of {age:.0f} s' if age else 'no session'}"
            for connect, age in self._zookeepers.sessions().items()
        ]

    def _readyz(self) -> HttpAnswer:
        return health.say(
            self._lease.held, "holds the Lease" if self._lease.held else "waiting for the Lease"
        )
