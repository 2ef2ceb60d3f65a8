"""Real programs to compare with: Apache Kafka's own tools, from its published jars.

Jars lie under ~/.cache/peers/kafka-2.8.2/lib; `CACHE` is filled by the targets that fetch peers.
Without them these tests do not apply on a laptop, but where CI is set they must be there.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

JARS = Path.home() / ".cache" / "peers" / "kafka-2.8.2" / "lib"


@pytest.fixture(scope="session")
def kafka_classpath() -> str:
    """Class path of Apache Kafka 2.8.2."""
    if shutil.which("java") and list(JARS.glob("kafka_2.13-*.jar")):
        return f"{JARS}/*"
    if os.environ.get("CI"):
        pytest.fail(f"Apache Kafka 2.8.2 is not in {JARS}, or there is no java")
    return pytest.skip(f"Apache Kafka 2.8.2 is not in {JARS}")
