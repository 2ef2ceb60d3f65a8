"""What `tests.bench.check_tls` makes of a report of testssl.sh."""

from __future__ import annotations

import json

import pytest

from tests.bench.check_tls import Finding, problems, read_report

END = {"id": "scanTime", "severity": "INFO", "finding": "261"}


def report(*found: tuple[str, str], end: bool = True) -> str:
    entries = [{"id": what, "severity": how, "finding": "so"} for what, how in found]
    return json.dumps([*entries, *([END] if end else [])])


def test_problems_are_medium_or_worse_or_could_not_be_tried() -> None:
    found = read_report(
        report(
            ("TLS1_3", "OK"),
            ("LUCKY13", "LOW"),
            ("OCSP_stapling", "LOW"),
            ("BREACH", "MEDIUM"),
            ("cert_keySize", "CRITICAL"),
            ("heartbleed", "WARN"),
        )
    )
    assert [one.what for one in problems(found)] == ["BREACH", "cert_keySize", "heartbleed"]
    assert found[0] == Finding("TLS1_3", "OK", "so")


@pytest.mark.parametrize("text", [report(("TLS1_3", "OK"), end=False), "[]", "", "[ {"])
def test_report_that_breaks_off_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"end|Expecting"):
        read_report(text)
