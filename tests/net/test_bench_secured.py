"""What the benchmark of TLS measures: how much, in which cases, with which OpenSSL."""

from __future__ import annotations

import argparse
import platform
import ssl
import sys

import pytest

from tests.bench import bench_secured
from tests.bench.bench_secured import Case


@pytest.mark.parametrize(
    ("speed", "share", "megabytes"), [(100.0, 1, 200), (100.0, 4, 50), (5000.0, 1, 1000)]
)
def test_run_takes_two_seconds_up_to_a_limit(speed: float, share: int, megabytes: int) -> None:
    case = Case("SSL", "java", 1000, "1")
    assert bench_secured.records(case, speed, share) == megabytes * 1000


def test_run_has_a_record_however_slow_a_system_is() -> None:
    assert bench_secured.records(Case("SSL", "java", 10_000, "1"), 0.001, 1) == 1


def test_cases_are_those_with_the_text_in_their_names() -> None:
    options = argparse.Namespace(
        protocols=["SSL", "SASL_SSL"], sizes=[1000, 100], quick=False, only="java 100 B, acks=1"
    )
    found = [Case(protocol, "java", 100, "1") for protocol in ("SSL", "SASL_SSL")]
    assert bench_secured.cases(options) == found


def test_versions_are_those_of_the_python_that_runs_brokers() -> None:
    said = bench_secured.versions(bench_secured.OURS, sys.executable)
    assert said == f"Python {platform.python_version()}, {ssl.OPENSSL_VERSION}"
