"""The file of `--command-config`, before any broker is asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from odradek import given_files
from odradek.tools import command_config
from odradek.tools.errors import ToolError
from tests.support import certificates, oauth, preloaded
from tests.support.secure_broker import jaas

TOKENS = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER")
URL = "sasl.oauthbearer.token.endpoint.url"
CREDENTIALS = "sasl.oauthbearer.client.credentials.client"
IMPORTED = """
import sys
from pathlib import Path
from odradek.tools import cluster, configs, groups, topics
print([name for name in sys.modules if name.split(".")[-1] in ("cryptography", "peers")])
from odradek.tools import command_config
command_config.load(Path(sys.argv[1]))
print("cryptography" in sys.modules)
"""


def properties(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("security.protocol=TLS",), "one of: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (("security.protocol=SASL_PLAINTEXT",), "OAUTHBEARER; GSSAPI is not supported"),
        (
            ("security.protocol=SASL_SSL", "sasl.mechanism=PLAIN"),
            "sasl.jaas.config needs username and password",
        ),
        (
            (
                *("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=SCRAM-SHA-256"),
                f"sasl.jaas.config={jaas('PLAIN', username='a', password='b')}",
            ),
            "must name the login module org.apache.kafka.common.security.scram.ScramLoginModule",
        ),
        (
            ("security.protocol=SSL", "ssl.truststore.location=/absent"),
            "cannot use ssl.truststore.location=/absent: No such file or directory",
        ),
        (("security.protocol=SSL", "ssl.keystore.type=pem"), "one of: JKS, PKCS12, PEM"),
        (("security.protocol=SSL", "ssl.endpoint.identification.algorithm=no"), "https or empty"),
        (("security.protocol=\\ud83d",), "half a character"),
        (TOKENS, "sasl.mechanism OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url"),
        ((*TOKENS, f"{URL}=http://issuer.test/"), "http://issuer.test/ is not a URL of https or"),
        ((*TOKENS, f"{URL}=file:/a%00b"), "file:/a%00b is not a URL of https or"),
        (
            (*TOKENS, f"{URL}=https://issuer.test/"),
            "needs sasl.oauthbearer.client.credentials.client.id, or clientId in sasl.jaas",
        ),
        (
            (
                *TOKENS,
                f"{URL}=https://issuer.test/",
                f"{CREDENTIALS}.id=a",
                f"{CREDENTIALS}.secret= ",
            ),
            "needs sasl.oauthbearer.client.credentials.client.secret, or clientSecret",
        ),
        (
            (
                *TOKENS,
                f"{URL}=file:/t",
                f"sasl.jaas.config={oauth.MODULE} required extension_auth=a;",
            ),
            "extension_auth cannot be an extension",
        ),
        (
            (*TOKENS, f"{URL}=file:/t", "sasl.oauthbearer.jwt.retriever.class=a.Retriever"),
            "sasl.oauthbearer.jwt.retriever.class a.Retriever is not supported",
        ),
    ],
)
def test_wrong_file_is_one_line(tmp_path: Path, lines: tuple[str, ...], said: str) -> None:
    path = properties(tmp_path / "client.properties", *lines)
    with pytest.raises(ToolError, match=said) as failure:
        command_config.load(path)
    assert failure.value.status == 2
    assert str(path) in str(failure.value)
    assert "\n" not in str(failure.value)


def test_wrong_password_of_a_store_is_one_line(tmp_path: Path) -> None:
    issued = certificates.Authority(tmp_path).issue("client")
    path = properties(
        tmp_path / "client.properties",
        "security.protocol=SSL",
        f"ssl.keystore.location={issued.pkcs12_path}",
        "ssl.keystore.password=guessed",
    )
    with pytest.raises(ToolError, match=r"cannot use ssl\.keystore\.location=.*password"):
        command_config.load(path)


def test_settings_without_effect_are_named(tmp_path: Path) -> None:
    path = properties(
        tmp_path / "client.properties",
        "security.protocol = ssl",
        "sasl.mechanism=PLAIN",
        "request.timeout.ms=1",
        "ssl.client.auth=required",
    )
    access, ignored = command_config.load(path)
    assert access.protocol == "SSL"
    assert ignored == ["request.timeout.ms", "sasl.mechanism", "ssl.client.auth"]


def test_warning_and_mistake_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = properties(tmp_path / "client.properties", "security.protcol=SSL")
    listing = ("topics", "list", "--bootstrap-server", "localhost:1")
    done = preloaded.run("odradek", *listing, "--command-config", str(path), timeout=60)
    assert done.returncode == 1
    warning, failure = done.stderr.splitlines()
    assert warning == (
        f"odradek: warning: {path}: no effect with security.protocol PLAINTEXT: security.protcol"
    )
    assert failure.startswith("odradek: failed to reach any broker: localhost:1: ")
    assert "security.protocol" not in failure
    absent = tmp_path / "absent"
    monkeypatch.setenv("ODRADEK_COMMAND_CONFIG", str(absent))
    done = preloaded.run("odradek", *listing, timeout=60)
    assert (done.returncode, done.stderr) == (
        2,
        f"odradek: cannot read {absent}: No such file or directory\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("broker",),
        ("topics", "list", "--command-config"),
        ("groups", "reset-offsets", "--group", "g", "--from-file"),
        ("local", "-f"),
    ],
)
def test_file_that_is_too_large_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(given_files.MOST_BYTES + 1)
    done = preloaded.run("odradek", *arguments, str(path), timeout=60)
    [line] = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith(f"odradek: cannot read {path}: ")
    assert "File too large" in line


def test_commands_load_what_tls_needs_for_tls_only(tmp_path: Path) -> None:
    path = properties(
        tmp_path / "client.properties",
        *("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN"),
        f"sasl.jaas.config={jaas('PLAIN', username='a', password='b')}",
    )
    said = subprocess.run(
        [sys.executable, "-c", IMPORTED, str(path)], capture_output=True, text=True, check=True
    )
    assert said.stdout == "[]\nFalse\n"
