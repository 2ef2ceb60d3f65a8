"""The Secrets of one KafkaCluster: read and written, and none of anybody else's touched."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping
from typing import Any

from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.shared import apply
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.objects import Object, belongs_to, metadata
from odradek_operator.shared.spec import GROUP, Body, ResourceMeta
from odradek_operator.shared.status import Event

log = logging.getLogger(__name__)


class NotPreparedError(Exception):
    """Brokers cannot get what the spec says now: `reason` in CamelCase, and a sentence.

    `waits` says that it may come without help.
    """

    def __init__(self, reason: str, message: str, *, waits: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.waits = waits


class ChangedError(Exception):
    """The KafkaCluster changed meanwhile; nothing was written for what it was."""


def decode(secret: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the texts of a Secret; values that are none are left out."""
    found = {}
    for name, value in ((secret or {}).get("data") or {}).items():
        try:
            found[name] = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue
    return found


def encode(texts: Mapping[str, str]) -> dict[str, str]:
    """Return texts as a Secret has them."""
    return {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}


class OwnSecrets:
    """The Secrets of one cluster, during one reconciliation. `events` tell what was done."""

    def __init__(self, context: ReconcileContext, body: Body, meta: ResourceMeta) -> None:
        self._context = context
        self._body = body
        self._meta = meta
        self.events: list[Event] = []

    def _read(self, name: str) -> dict[str, Any] | None:
        return self._context.kube.get("v1", "Secret", self._meta.namespace, name)

    def _read_own(self, name: str) -> dict[str, str]:
        """Return the texts of a Secret of this cluster's; one of others is not touched."""
        found = self._read(name)
        if found is not None and not self._is_own(found):
            self._refuse_of_resource(name, found)
            raise NotPreparedError(
                "SecretConflict", f"Secret {name} is not of this KafkaCluster: delete or rename it"
            )
        return decode(found)

    def _is_own(self, found: Mapping[str, Any]) -> bool:
        return belongs_to(self._meta.uid, found)

    def _refuse_of_resource(self, name: str, found: Mapping[str, Any]) -> None:
        """Raise NotPreparedError for a Secret of another resource of ours."""
        for one in found["metadata"].get("ownerReferences", ()):
            if not one.get("apiVersion", "").startswith(f"{GROUP}/"):
                continue
            if (one["kind"], one["name"]) == (self._meta.kind, self._meta.name):
                text = f"Secret {name} is of a former KafkaCluster of this name, and goes with it"
                raise NotPreparedError("SecretTerminating", text, waits=True)
            text = f"Secret {name} is of {one['kind']} {one['name']}: delete or rename that"
            raise NotPreparedError("SecretConflict", text)

    def _object(self, name: str, texts: Mapping[str, str]) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata(self._meta, name, cluster_objects.labels(self._meta)),
            "type": "Opaque",
            "data": encode(texts),
        }

    def still_wanted(self) -> None:
        """Read the KafkaCluster again before a write. Raises ChangedError."""
        if not apply.still_wanted(self._context, self._body):
            raise ChangedError

    def write(self, name: str, texts: Mapping[str, str]) -> None:
        """Apply a Secret if it differs."""
        self._read_own(name)
        self._apply(self._object(name, texts))

    def write_exactly(self, name: str, texts: Mapping[str, str]) -> None:
        """Apply a Secret if it differs, or has keys that it should not have."""
        if self._read_own(name).keys() - texts.keys():
            self._write(self._object(name, texts))
        else:
            self._apply(self._object(name, texts))

    def _apply(self, wanted: Object) -> None:
        if apply.differs(self._context, wanted):
            self._write(wanted)

    def _write(self, wanted: Object) -> None:
        self.still_wanted()
        self._context.kube.apply(wanted)
        name = wanted["metadata"]["name"]
        log.info("%s: applied %s %s", self._meta.name, wanted["kind"], name)
