"""Resources of Kubernetes as pages show them: jobs of ConsumerGroups, and Reassignments.

They are read in threads, with what the kubeconfig or the pod's service account may read.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from odradek.tools.errors import ToolError
from odradek_console.cluster import Kept

if TYPE_CHECKING:
    from odradek_operator.shared.kube import Kube, KubeError

ENDED: Final = frozenset({"Completed", "Cancelled", "RolledBack", "Failed"})
_MOST_MOVES: Final = 200
_LONGEST_NAME: Final = 253
# Anything else in an address of the API would lead to another object.
_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


class KubernetesError(ToolError):
    """Kubernetes could not tell, or refuses."""

    def __init__(self, why: str) -> None:
        super().__init__(f"Kubernetes: {why}", 1)


@dataclass(frozen=True, slots=True)
class Resource:
    """A custom resource, as it was read."""

    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return str(self.body["metadata"]["namespace"])

    @property
    def cluster(self) -> str:
        """The KafkaCluster that it is for."""
        return str(self.spec.get("clusterRef", {}).get("name", ""))

    @property
    def cluster_namespace(self) -> str:
        """The namespace of this KafkaCluster, its own unless it names another."""
        return str(self.spec.get("clusterRef", {}).get("namespace", self.namespace))

    @property
    def spec(self) -> Mapping[str, Any]:
        """What the user wants."""
        found: Mapping[str, Any] = self.body.get("spec", {})
        return found

    @property
    def status(self) -> Mapping[str, Any]:
        """What the operator says; empty before its first look."""
        found: Mapping[str, Any] = self.body.get("status", {})
        return found

    @property
    def has_job(self) -> bool:
        """Return whether a ConsumerGroup has a job."""
        return bool(self.spec.get("job"))

    @property
    def is_awaiting_approval(self) -> bool:
        """Return whether a Reassignment waits for somebody who approves its plan."""
        return self.status.get("phase") == "AwaitingApproval" and bool(self.status.get("planHash"))

    @property
    def has_ended(self) -> bool:
        """Return whether a Reassignment is over."""
        return self.status.get("phase") in ENDED


class ResourceReader:
    """Reads, and changes if asked to, the resources of one namespace or of all (empty).

    With a `cluster`, which is in that namespace, those of other KafkaClusters are not there.
    """

    def __init__(self, kube: Kube, namespace: str, cluster: str = "") -> None:
        self._kube = kube
        self._namespace = namespace
        self._cluster = cluster
        self._groups = Kept(lambda: self._list("ConsumerGroup"))
        self._reassignments = Kept(lambda: self._list("Reassignment"))

    async def groups(self) -> list[Resource]:
        """Return the ConsumerGroups. Raises KubernetesError."""
        return await self._groups.get()

    async def reassignments(self) -> list[Resource]:
        """Return the Reassignments. Raises KubernetesError."""
        return await self._reassignments.get()

    async def _list(self, kind: str) -> list[Resource]:
        from odradek_operator.shared.kube import KubeError
        from odradek_operator.shared.spec import API_VERSION

        try:
            found = await asyncio.to_thread(self._kube.select, API_VERSION, kind, self._namespace)
        except KubeError as error:
            raise _failure(error) from error
        chosen = [one for one in map(Resource, found) if self._is_shown(one)]
        return sorted(chosen, key=lambda one: (one.namespace, one.name))

    def _is_shown(self, one: Resource) -> bool:
        if not self._cluster:
            return True
        in_namespace = self._namespace in ("", one.cluster_namespace)
        return one.cluster == self._cluster and in_namespace

    async def get(self, kind: str, namespace: str, name: str) -> Resource | None:
        """Return a resource as it is now, None if there is none. Raises KubernetesError."""
        from odradek_operator.shared.kube import KubeError
        from odradek_operator.shared.spec import API_VERSION

        if self._namespace and namespace != self._namespace:
            return None
        if not (_is_name(namespace) and _is_name(name)):
            return None
        try:
            found = await asyncio.to_thread(self._kube.get, API_VERSION, kind, namespace, name)
        except KubeError as error:
            raise _failure(error) from error
        return None if found is None or not self._is_shown(Resource(found)) else Resource(found)

    async def plan(self, one: Resource) -> list[str]:
        """Return the moves of a Reassignment's plan as lines. Raises KubernetesError."""
        from odradek_operator.shared.kube import KubeError

        reference = one.status.get("planRef") or {}
        if not _is_name(str(reference.get("name", ""))):
            return []
        try:
            found = await asyncio.to_thread(
                self._kube.get, "v1", "ConfigMap", one.namespace, str(reference["name"])
            )
        except KubeError as error:
            raise _failure(error) from error
        text = (found or {}).get("data", {}).get(reference.get("key", "plan.json"))
        return [] if text is None else _moves(str(text))

    async def change(self, one: Resource, spec: Mapping[str, Any]) -> None:
        """Change fields of the spec of a resource that is still the one read.

        Raises KubernetesError.
        """
        from odradek_operator.shared.kube import KubeError

        try:
            await asyncio.to_thread(self._kube.change_spec, one.body, spec)
        except KubeError as error:
            raise _failure(error) from error

    async def close(self) -> None:
        """End what is under way."""
        await self._groups.close()
        await self._reassignments.close()


def _is_name(text: str) -> bool:
    return len(text) <= _LONGEST_NAME and _NAME.fullmatch(text) is not None


def _failure(error: KubeError) -> KubernetesError:
    if error.code:
        return KubernetesError(str(error))
    why = re.sub(r"\[Errno \d+\] ", "", str(error.__cause__).rpartition(": ")[2]).rstrip(".")
    return KubernetesError(f"the API server does not answer: {why}")


def _moves(text: str) -> list[str]:
    """Return the lines of a plan, in the format of `kafka-reassign-partitions`."""
    try:
        partitions = json.loads(text)["partitions"]
        lines = [
            f"{one['topic']}-{one['partition']} to brokers {', '.join(map(str, one['replicas']))}"
            for one in partitions
        ]
    except (ValueError, KeyError, TypeError):
        return ["the plan cannot be read"]
    if len(lines) > _MOST_MOVES:
        return [*lines[:_MOST_MOVES], f"and {len(lines) - _MOST_MOVES} more"]
    return lines
