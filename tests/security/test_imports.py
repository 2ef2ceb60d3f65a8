"""What a broker without TLS does not load: it starts sooner, and has more memory for others."""

from __future__ import annotations

import subprocess
import sys

IMPORTED = """
import sys
import odradek.server.process
from odradek.security import zookeeper
from odradek.zookeeper_settings import ZooKeeperSecurity
zookeeper.access(ZooKeeperSecurity())
print("cryptography" in sys.modules)
"""


def test_a_broker_without_tls_loads_no_cryptography() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
