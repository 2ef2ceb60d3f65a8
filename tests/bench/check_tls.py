"""What testssl.sh finds in a broker's SASL_SSL listener, as it is without settings for TLS.

    python -m tests.bench.check_tls [--report FILE.json]

The certificate is ECDSA P-256, valid for a year, and names where its authority publishes
revocations. Prints what is LOW or worse; the exit status is 1 if something is MEDIUM or worse, or
if testssl.sh did not come to its end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from tests.support.broker import Cluster
from tests.support.certificates import Authority
from tests.support.secure_broker import SecureBroker, jaas

NAMES: Final = ("testssl", "testssl.sh")
"""What distributions call the program."""
SEVERITIES: Final = ("OK", "INFO", "LOW", "MEDIUM", "HIGH", "CRITICAL", "FATAL")
# Present only if everything was tried.
_LAST: Final = "scanTime"


class Checked(SecureBroker):
    """A broker with a SASL_SSL listener."""

    protocols = {"SECURE": "SASL_SSL"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What testssl.sh says of one thing that it tried."""

    what: str
    severity: str
    text: str

    def is_at_least(self, severity: str) -> bool:
        """Return whether it is so bad; what could not be tried (WARN) is, too."""
        if self.severity not in SEVERITIES:
            return self.severity == "WARN"
        return SEVERITIES.index(self.severity) >= SEVERITIES.index(severity)


def read_report(text: str) -> list[Finding]:
    """Return the findings of a report in flat JSON. Raises ValueError if it was not finished."""
    found = [Finding(one["id"], one["severity"], one["finding"]) for one in json.loads(text)]
    if not any(one.what == _LAST and one.severity == "INFO" for one in found):
        raise ValueError("testssl.sh did not come to its end")
    return found


def problems(found: Iterable[Finding]) -> list[Finding]:
    """Return what a listener may not have."""
    return [one for one in found if one.is_at_least("MEDIUM")]


def check(program: str, folder: Path, report: Path) -> None:
    """Start a broker, and let testssl.sh write its report of the listener."""
    issued = Authority(folder).issue(
        "broker",
        ["127.0.0.1", "localhost"],
        valid=timedelta(days=364),
        begins=timedelta(days=-1),
        revocations="http://authority.example/revocations.crl",
    )
    settings = {
        **issued.settings(),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": jaas("PLAIN", user_alice="a-secret"),
    }
    with Cluster(folder, 1, settings, kind=Checked) as cluster:
        broker = cluster.brokers[1]
        assert isinstance(broker, Checked)
        options = ["--warnings", "off", "--nodns", "none", "--color", "0", "--full"]
        options += ["--add-ca", str(issued.authority_path), "--jsonfile", str(report)]
        # Its status tells how many things it found, not how bad they are.
        subprocess.run([program, *options, broker.secure_address("SECURE")], check=False)
        assert broker.running, broker.log_text()[-3000:]


def main() -> int:
    """Print what was found; return 1 for problems, 2 if testssl.sh is missing."""
    parser = argparse.ArgumentParser(description="testssl.sh against a broker.")
    parser.add_argument("--report", metavar="FILE.json", help="keep its report")
    options = parser.parse_args()
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        print("check_tls: install testssl.sh (apt-get install testssl.sh)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        check(program, Path(folder), report)
        text = report.read_text() if report.exists() else "[]"
    if options.report:
        Path(options.report).write_text(text)
    try:
        found = read_report(text)
    except ValueError as error:
        print(f"check_tls: {error}", file=sys.stderr)
        return 1
    for one in found:
        if one.is_at_least("LOW"):
            print(f"{one.severity:8} {one.what}: {one.text}")
    bad = problems(found)
    print(f"{len(found)} findings, {len(bad)} MEDIUM or worse")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
