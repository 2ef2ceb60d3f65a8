"""Java's own tool for key stores."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.certificates import PASSWORD, Issued


def key_store(issued: Issued, kind: str) -> Path:
    """Return a store (JKS or PKCS12) with the key and certificate, with PASSWORD."""
    path = issued.folder / f"{issued.name}-key.{kind.lower()}"
    if path.exists():
        return path
    _run(
        *("-importkeystore", "-srckeystore", str(issued.pkcs12_path), "-srcstoretype", "PKCS12"),
        *("-srcstorepass", PASSWORD, "-destkeystore", str(path), "-deststoretype", kind),
        *("-deststorepass", PASSWORD),
    )
    return path


def trust_store(issued: Issued, kind: str) -> Path:
    """Return a store (JKS or PKCS12) with the certificate of the authority, with PASSWORD."""
    path = issued.folder / f"{issued.name}-trust.{kind.lower()}"
    if path.exists():
        return path
    _run(
        *("-importcert", "-alias", "authority", "-file", str(issued.authority_path)),
        *("-keystore", str(path), "-storetype", kind, "-storepass", PASSWORD, "-trustcacerts"),
    )
    return path


def _run(*words: str) -> None:
    subprocess.run(["keytool", *words, "-noprompt"], check=True, capture_output=True, timeout=120)
