"""What a console is told at its start."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from odradek.tools.client import Access
from odradek_console.users import UsersFile


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Where the brokers are, where to listen, and what the console may do.

    Without `users` nobody logs in, without `kubernetes` resources are unknown. `namespace` and
    `cluster` empty: all of them. `allowed_hosts` are names by which browsers may call it, besides
    addresses. `records` says whether it shows records.
    """

    brokers: tuple[tuple[str, int], ...]
    access: Access = field(repr=False)
    host: str
    port: int
    users: UsersFile | None
    tls: ssl.SSLContext | None
    allowed_hosts: frozenset[str] = frozenset()
    writable: bool = False
    kubernetes: bool = False
    namespace: str = ""
    cluster: str = ""
    records: bool = True
    health_port: int | None = None
    schema_registry: str | None = None
