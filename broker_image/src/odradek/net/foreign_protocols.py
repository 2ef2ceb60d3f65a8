"""Other protocols than Kafka's: what a stranger speaks, by the first bytes that it sends."""

from typing import Final

FOREIGN_BYTES: Final = 4
"""As many bytes tell the protocol."""

_BEGINNINGS: Final = (
    (b"\x16\x03", "TLS"),
    (b"GET ", "HTTP"),
    (b"POST", "HTTP"),
    (b"HEAD", "HTTP"),
    (b"PUT ", "HTTP"),
    (b"OPTI", "HTTP"),
    (b"PRI ", "HTTP"),
    (b"CONN", "HTTP"),
)


def foreign_protocol(start: bytes) -> str | None:
    """Return the protocol that begins so, None if it is not known."""
    for beginning, protocol in _BEGINNINGS:
        if start.startswith(beginning):
            return protocol
    return None
