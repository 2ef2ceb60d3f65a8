"""The console of a KafkaCluster, as its spec asks for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ConsoleSpec:
    """`users` and `certificate` are names of Secrets; without `users` nobody logs in.

    `records` says whether people see records, `writable` whether they change Reassignments.
    """

    users: str | None = None
    certificate: str | None = None
    hosts: tuple[str, ...] = ()
    records: bool = True
    writable: bool = False
    schema_registry: str | None = None


def parse(spec: Mapping[str, Any]) -> ConsoleSpec | None:
    """Read `spec.console` of a KafkaCluster; None: it has none."""
    found = spec.get("console")
    if found is None:
        return None
    return ConsoleSpec(
        users=found.get("users", {}).get("secretName"),
        certificate=found.get("certificate", {}).get("secretName"),
        hosts=tuple(found.get("hosts", ())),
        records=found.get("records", True),
        writable=found.get("writable", False),
        schema_registry=found.get("schemaRegistry", {}).get("url"),
    )
