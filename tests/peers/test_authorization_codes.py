"""The codes with which Apache Kafka refuses requests, with one set of rights after another.

`tests/broker/authorization_codes.txt` has those of 2.8.2, to compare ours with, and
`newer_authorization_codes.txt` those of 3.9.1 for what 2.8.2 lacks. To make them anew:

    ODRADEK_FULL_COUNTS=1 ODRADEK_WRITE_CODES=1 pytest tests/peers/test_authorization_codes.py
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import authorization_asker, zookeeper
from tests.support.authorization_asker import Asker
from tests.support.authorization_cases import NEWER_CASES
from tests.support.kafka_broker import KafkaBroker, NewerKafkaBroker

CODES = Path(__file__).parents[1] / "broker"


@pytest.mark.full("tests/broker/test_authorization.py::test_codes_are_those_of_kafka")
def test_the_recorded_codes_are_those_of_kafka(tmp_path: Path) -> None:
    results = _ask(tmp_path, KafkaBroker, newer=False)
    _compare(CODES / "authorization_codes.txt", results)


@pytest.mark.full("tests/broker/test_authorization.py::test_newer_codes_are_those_of_kafka")
def test_the_recorded_newer_codes_are_those_of_kafka(tmp_path: Path) -> None:
    results = _ask(tmp_path, NewerKafkaBroker, newer=True)
    _compare(CODES / "newer_authorization_codes.txt", results)


def _ask(folder: Path, kind: type[KafkaBroker], *, newer: bool) -> Mapping[str, str]:
    chroot = zookeeper.Chroot()
    chroot.start()
    broker = kind(folder, 1, chroot.connect, authorization_asker.SETTINGS)
    try:
        with chroot.client() as client:
            authorization_asker.allow_administrator(client)
        broker.start()
        asker = Asker(broker.port)
        asker.prepare()
        if not newer:
            return asker.results()
        asker.begin_transaction()
        return asker.results(NEWER_CASES)
    finally:
        broker.kill()
        chroot.close()


def _compare(path: Path, results: Mapping[str, str]) -> None:
    lines = [f"{case}: {codes}\n" for case, codes in results.items()]
    if os.environ.get("ODRADEK_WRITE_CODES"):
        path.write_text("".join(lines))
    assert path.read_text().splitlines(keepends=True) == lines
