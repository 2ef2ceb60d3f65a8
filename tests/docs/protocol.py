"""The reference of the protocol: the requests that a broker answers, and their versions."""

from __future__ import annotations

from odradek.handlers.dispatch import SERVED
from odradek.protocol.api import ApiKey
from tests.docs.markdown import table


def page() -> str:
    """Return the page."""
    rows = [
        (
            str(int(key)),
            ApiKey(key).name.title().replace("_", ""),
            str(one.lowest),
            str(one.highest),
        )
        for key, one in sorted(SERVED.items())
    ]
    return f"""# Versions of the protocol

The requests that a broker answers, as it tells clients in ApiVersions. What is not here ends the
connection. [Compatibility](../compatibility.md) has what differs from Kafka 2.8, and the clients
that were tried. This page is made from the table by which brokers serve requests.

{table(("API key", "request", "from version", "to version"), rows)}"""
