"""Creates keys, certificates and kubeconfigs of the built-in cluster with openssl, once.

One authority signs everything; Kubernetes reads a client's user from CN and its groups from O.
"""

import base64
from pathlib import Path

import yaml

from tests.cluster import host, settings
from tests.cluster.shell import run

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
DAYS = "3650"
# Python 3.13 checks RFC 5280 strictly: an authority needs its key's usage, and a certificate the
# id of the key that signed it.
AUTHORITY = ("-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature")
EXTENSIONS = """\
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth,clientAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""


def create_authority(pki: Path) -> None:
    """Create `ca.key`, `ca.crt`, and `sa.key`, `sa.pub` to sign service account tokens."""
    if (pki / "sa.pub").exists():
        return
    pki.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = ["-keyout", f"{pki}/ca.key", "-out", f"{pki}/ca.crt"]
    # Python from 3.13 on accepts an authority only with this extension (RFC 5280).
    usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    name = ["-subj", "/CN=odradek-cluster"]
    run(["openssl", "req", "-x509", *CURVE, *files, *name, "-days", DAYS, *usage])
    run(["openssl", "genrsa", "-out", f"{pki}/sa.key", "2048"])
    run(["openssl", "rsa", "-in", f"{pki}/sa.key", "-pubout", "-out", f"{pki}/sa.pub"])


def issue(pki: Path, name: str, subject: str, alternatives: str) -> None:
    """Create `<name>.key` and `<name>.crt` for servers and clients."""
    certificate = pki / f"{name}.crt"
    if certificate.exists():
        return
    request, extensions = pki / f"{name}.csr", pki / f"{name}.ext"
    extensions.write_text(
        f"subjectAltName={alternatives}\n"
        "basicConstraints=CA:FALSE\n"
        "keyUsage=critical,digitalSignature\n"
        "extendedKeyUsage=serverAuth,clientAuth\n"
        "subjectKeyIdentifier=hash\n"
        "authorityKeyIdentifier=keyid\n"
    )
    key = ["-keyout", f"{pki}/{name}.key", "-out", str(request)]
    run(["openssl", "req", *CURVE, *key, "-subj", subject])
    signer = ["-CA", f"{pki}/ca.crt", "-CAkey", f"{pki}/ca.key", "-CAcreateserial"]
    result = ["-out", f"{certificate}", "-days", DAYS, "-extfile", f"{extensions}"]
    run(["openssl", "x509", "-req", "-in", request, *signer, *result])


def write_kubeconfig(pki: Path, name: str, target: Path) -> None:
    """Write a kubeconfig with embedded keys, which can be copied anywhere."""
    if target.exists():
        return

    def content(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode()

    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "odradek",
        "clusters": [
            {
                "name": "odradek",
                "cluster": {
                    "server": f"https://{settings.GATEWAY}:6443",
                    "certificate-authority-data": content(pki / "ca.crt"),
                },
            }
        ],
        "contexts": [{"name": "odradek", "context": {"cluster": "odradek", "user": name}}],
        "users": [
            {
                "name": name,
                "user": {
                    "client-certificate-data": content(pki / f"{name}.crt"),
                    "client-key-data": content(pki / f"{name}.key"),
                },
            }
        ],
    }
    # The file is private before it has a key, and belongs to the user who called sudo.
    partial = target.with_suffix(".partial")
    partial.touch(mode=0o600)
    partial.write_text(yaml.safe_dump(document))
    host.give_to_caller(partial)
    partial.rename(target)
