"""Asks each given endpoint of a release whether it serves; `helm test` runs it in a pod.

An http:// address must answer 200. A zookeeper:// address must name a mode (standalone, leader,
follower) in its answer to "srvr", which it does only while it serves requests.
"""

# ruff: noqa: T201 - what a script prints is its result

import socket
import sys
import urllib.parse
import urllib.request

TIMEOUT_S = 10


def zookeeper_mode(host: str, port: int) -> str:
    """Return the server's mode; raise OSError when it is unreachable or serves no requests."""
    with socket.create_connection((host, port), timeout=TIMEOUT_S) as connection:
        connection.sendall(b"srvr")
        answer = b""
        while part := connection.recv(4096):
            answer += part
    for line in answer.decode().splitlines():
        if line.startswith("Mode: "):
            return line.removeprefix("Mode: ")
    raise OSError(f"not serving: {answer.decode().strip() or 'no answer'}")


def check(address: str) -> str:
    """Return what the endpoint says of itself; raise OSError when it does not serve."""
    url = urllib.parse.urlsplit(address)
    if url.scheme == "zookeeper":
        return zookeeper_mode(url.hostname or "", url.port or 2181)
    # The addresses are the chart's own.
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as response:  # noqa: S310
        return f"{response.status}"


def main(addresses: list[str]) -> int:
    """Check every address, print a line each, and return how many of them do not serve."""
    failed = 0
    for address in addresses:
        try:
            print(f"{address} {check(address)}")
        except OSError as error:
            failed += 1
            print(f"{address} FAILED {error}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
