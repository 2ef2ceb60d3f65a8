"""Checks that the endpoints of a release serve requests; `helm test` runs it in a pod.

An http:// address must respond with 200. A zookeeper:// address must name its mode (standalone,
leader, follower) in its response to "srvr", which it does only while it serves requests.
"""

# ruff: noqa: T201 - the script prints its result

import socket
import sys
import urllib.parse
import urllib.request

TIMEOUT_S = 10


def zookeeper_mode(host: str, port: int) -> str:
    """Return the server's mode; raise OSError if it is unreachable or serves no requests."""
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
    """Return the endpoint's status or mode; raise OSError if it does not serve."""
    url = urllib.parse.urlsplit(address)
    if url.scheme == "zookeeper":
        return zookeeper_mode(url.hostname or "", url.port or 2181)
    # The addresses come from the chart.
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as response:  # noqa: S310
        return f"{response.status}"


def main(addresses: list[str]) -> int:
    """Check every address, print one line per address, and return the number that failed."""
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
