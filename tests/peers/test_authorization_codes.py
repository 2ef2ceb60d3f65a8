"""The codes with which Apache Kafka 2.8.2 refuses requests, with one set of rights after another.

`tests/broker/authorization_codes.txt` has them, to compare ours with. To make it anew:

    ODRADEK_FULL_COUNTS=1 ODRADEK_WRITE_CODES=1 pytest tests/peers/test_authorization_codes.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import authorization_cases, zookeeper
from tests.support.kafka_broker import KafkaBroker

CODES = Path(__file__).parents[1] / "broker" / "authorization_codes.txt"


@pytest.mark.full("tests/broker/test_authorization.py::test_codes_are_those_of_kafka")
def test_the_recorded_codes_are_those_of_kafka(tmp_path: Path) -> None:
    chroot = zookeeper.Chroot()
    chroot.start()
    broker = KafkaBroker(tmp_path, 1, chroot.connect, authorization_cases.SETTINGS)
    try:
        with chroot.client() as client:
            authorization_cases.allow_administrator(client)
        broker.start()
        asker = authorization_cases.Asker(broker.port)
        asker.prepare()
        lines = [f"{case}: {codes}\n" for case, codes in asker.results().items()]
    finally:
        broker.kill()
        chroot.close()
    if os.environ.get("ODRADEK_WRITE_CODES"):
        CODES.write_text("".join(lines))
    assert CODES.read_text().splitlines(keepends=True) == lines
