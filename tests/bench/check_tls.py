"""What testssl.sh finds in a broker's SASL_SSL listener, as it is without settings for TLS.

    python -m tests.bench.check_tls [--report FILE.json]

The certificate is ECDSA P-256, signed as the operator signs. Prints what is LOW or worse; the exit
status is 1 if something of the protocol is MEDIUM or worse, or if testssl.sh did not come to its
end. Findings that a private authority always has count as its own: it publishes no revocations.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from odradek_operator.shared import certificates
from tests.support.broker import Cluster
from tests.support.secure_broker import SecureBroker, jaas

NAMES: Final = ("testssl", "testssl.sh")
"""What distributions call the program."""
SEVERITIES: Final = ("OK", "INFO", "LOW", "MEDIUM", "HIGH", "CRITICAL", "FATAL")
_OF_THE_AUTHORITY: Final = frozenset(
    {"cert_revocation", "cert_crlDistributionPoints", "cert_ocspURL", "OCSP_stapling"}
    | {"DNS_CAArecord"}
)
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

    @property
    def is_of_the_authority(self) -> bool:
        """Return whether it says something of the test's authority, not of the listener.

        With several certificates, and only then, an id ends with the number of one.
        """
        return self.what.split(" <")[0] in _OF_THE_AUTHORITY

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
    return [one for one in found if one.is_at_least("MEDIUM") and not one.is_of_the_authority]


def check(program: str, folder: Path, report: Path) -> None:
    """Start a broker, and let testssl.sh write its report of the listener."""
    now = datetime.now(UTC)
    authority = certificates.make_authority("cluster-ca", now)
    signed = certificates.sign_server(
        authority, certificates.subject("broker"), ["127.0.0.1", "localhost"], now
    )
    trusted, store = folder / "ca.pem", folder / "broker.pem"
    trusted.write_text(authority.certificate)
    store.write_text(signed.key + signed.certificate)
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": jaas("PLAIN", user_alice="a-secret"),
    }
    with Cluster(folder, 1, settings, kind=Checked) as cluster:
        broker = cluster.brokers[1]
        assert isinstance(broker, Checked)
        options = ["--warnings", "off", "--nodns", "none", "--color", "0", "--full"]
        options += ["--add-ca", str(trusted), "--jsonfile", str(report)]
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
            whose = " (the test's authority)" if one.is_of_the_authority else ""
            print(f"{one.severity:8} {one.what}: {one.text}{whose}")
    bad = problems(found)
    print(f"{len(found)} findings, {len(bad)} of the protocol MEDIUM or worse")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
