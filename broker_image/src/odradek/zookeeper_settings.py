"""The settings of connections to ZooKeeper, by Kafka's names: TLS, SASL, and ACLs of znodes.

TLS and ACLs are settings of brokers. The login is where Kafka has it: the section `Client` of the
JAAS file that `-Djava.security.auth.login.config` names in the environment variable KAFKA_OPTS.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from odradek import given_files
from odradek.listener_settings import STORE_TYPES, TLS_VERSIONS, Store, TlsSettings
from odradek.properties import ConfigError, boolean, one_of, parsed, words

ENABLE = "zookeeper.ssl.client.enable"
SOCKET = "zookeeper.clientCnxnSocket"
SET_ACL = "zookeeper.set.acl"
OPTIONS_VARIABLE = "KAFKA_OPTS"
_PREFIX = "zookeeper.ssl."
_NETTY = "org.apache.zookeeper.ClientCnxnSocketNetty"
_TYPE_OF_SUFFIX = {".jks": "JKS", ".p12": "PKCS12", ".pem": "PEM"}
_JAAS_FILE = "java.security.auth.login.config"
_LOGIN_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
_FLAGS = ("required", "requisite", "sufficient", "optional")
_QUOTE = '"'
_JAAS_TOKEN = re.compile(
    r"""\s*(?://[^\n]*|/\*.*?\*/|"(?P<quoted>(?:\\.|[^"\\])*)"|(?P<sign>[{}=;])"""
    r"""|(?P<word>[^\s{}=;"/]+))""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ZooKeeperLogin:
    """With what a client of ZooKeeper proves who it is: SASL, DIGEST-MD5."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class JaasSection:
    """Where a login is: a section of a JAAS file."""

    path: Path
    name: str

    def login(self) -> ZooKeeperLogin | None:
        """Read the login; None if there is no such section. Raises ConfigError."""
        try:
            text = given_files.read_text(self.path)
        except OSError as error:
            raise ConfigError(
                f"cannot read {self.path}, which {_JAAS_FILE} names: {error.strerror}"
            ) from None
        except UnicodeDecodeError:
            raise ConfigError(f"cannot read {self.path}: it is not UTF-8 text") from None
        try:
            return _client_section(text, self.name)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from None


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """How to connect to ZooKeeper. `set_acl`: znodes are created for their creator only.

    `jaas` is where the login was read, and is read again for connections to come.
    """

    tls: TlsSettings | None = None
    login: ZooKeeperLogin | None = None
    set_acl: bool = False
    jaas: JaasSection | None = None

    @property
    def authenticates(self) -> bool:
        """Return whether ZooKeeper learns who connects."""
        return self.login is not None or (self.tls is not None and self.tls.key_store.given)


def is_setting(name: str) -> bool:
    """Return whether this is a setting of this module."""
    return name in (SOCKET, SET_ACL) or name.startswith(_PREFIX)


def read(values: Mapping[str, str], environment: Mapping[str, str]) -> ZooKeeperSecurity:
    """Return how to connect to ZooKeeper. Raises ConfigError, one line with the setting."""
    jaas = _jaas_section(environment)
    found = ZooKeeperSecurity(
        _tls(values),
        None if jaas is None else jaas.login(),
        bool(parsed(values, SET_ACL, "false", boolean)),
        jaas,
    )
    if found.set_acl and not found.authenticates:
        raise ConfigError(
            f"{SET_ACL}=true needs authentication to ZooKeeper: TLS with {_PREFIX}keystore.location"
            f", or a JAAS file that -D{_JAAS_FILE} names in {OPTIONS_VARIABLE}"
        )
    return found


def of_tools(
    values: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[ZooKeeperSecurity, list[str]]:
    """Read the file of `--zk-tls-config-file`. Return also the names that have no effect, sorted.

    Raises ConfigError.
    """
    used = {name for name in values if name == SOCKET or name.startswith(_PREFIX)}
    own = {name: values[name] for name in used}
    tls = _tls(own)
    if tls is None:
        raise ConfigError(f"it needs {ENABLE}=true")
    return ZooKeeperSecurity(tls, login(environment)), sorted(values.keys() - used)


# --- TLS ------------------------------------------------------------------------------------------


def _tls(values: Mapping[str, str]) -> TlsSettings | None:
    socket = values.get(SOCKET, "").strip()
    if not parsed(values, ENABLE, "false", boolean):
        given = sorted(name for name in values if name.startswith(_PREFIX) and values[name].strip())
        if given and ENABLE not in values:
            raise ConfigError(f"{given[0]} has no effect without {ENABLE}=true")
        return None
    if socket not in ("", _NETTY):
        raise ConfigError(f"{SOCKET} must be {_NETTY} with {ENABLE}=true")
    for name in ("crl.enable", "ocsp.enable"):
        if parsed(values, _PREFIX + name, "false", boolean):
            raise ConfigError(f"{_PREFIX}{name}=true is not supported")
    # Kafka's default is TLSv1.2, but servers since ZooKeeper 3.9 speak TLSv1.3 only by default.
    version = parsed(values, f"{_PREFIX}protocol", ",".join(TLS_VERSIONS), words(TLS_VERSIONS))
    assert isinstance(version, tuple)
    versions = parsed(values, f"{_PREFIX}enabled.protocols", ",".join(version), words(TLS_VERSIONS))
    suites = parsed(values, f"{_PREFIX}cipher.suites", "", words())
    assert isinstance(versions, tuple)
    assert isinstance(suites, tuple)
    identification = f"{_PREFIX}endpoint.identification.algorithm"
    algorithm = values.get(identification, "https").strip().lower()
    if algorithm not in ("", "https"):
        raise ConfigError(f"{identification} must be https or empty")
    return TlsSettings(
        _store(values, f"{_PREFIX}keystore"),
        _store(values, f"{_PREFIX}truststore"),
        versions=versions,
        cipher_suites=suites,
        checks_host=bool(algorithm),
    )


def _store(values: Mapping[str, str], setting: str) -> Store:
    location = values.get(f"{setting}.location", "").strip()
    password = values.get(f"{setting}.password", "")
    by_name = _TYPE_OF_SUFFIX.get(Path(location).suffix.lower(), "")
    kind = str(parsed(values, f"{setting}.type", by_name, one_of(*STORE_TYPES, "")))
    if location and not kind:
        raise ConfigError(
            f"{setting}.type is missing: the name {location} does not end with "
            f"{', '.join(_TYPE_OF_SUFFIX)}"
        )
    return Store(setting, kind, location, password, key_password=password)


# --- SASL -----------------------------------------------------------------------------------------


def login(environment: Mapping[str, str]) -> ZooKeeperLogin | None:
    """Return the login that KAFKA_OPTS leads to, None without one. Raises ConfigError."""
    jaas = _jaas_section(environment)
    return None if jaas is None else jaas.login()


def _jaas_section(environment: Mapping[str, str]) -> JaasSection | None:
    java = _java_properties(environment.get(OPTIONS_VARIABLE, ""))
    path = java.get(_JAAS_FILE, "")
    if not path or java.get("zookeeper.sasl.client", "true").lower() == "false":
        return None
    return JaasSection(Path(path), java.get("zookeeper.sasl.clientconfig", "Client"))


def _java_properties(options: str) -> dict[str, str]:
    """Return the system properties of a JVM's options."""
    try:
        parts = shlex.split(options)
    except ValueError as error:
        raise ConfigError(f"{OPTIONS_VARIABLE} is malformed: {error}") from None
    given = (part[2:].partition("=") for part in parts if part.startswith("-D"))
    found = {name: text for name, _, text in given}
    if unsupported := sorted(
        name for name in found if name == "zookeeper.client.secure" or name.startswith(_PREFIX)
    ):
        raise ConfigError(
            f"{OPTIONS_VARIABLE}: -D{unsupported[0]} has no effect; set {_PREFIX}* of the broker"
        )
    return found


def _client_section(text: str, name: str) -> ZooKeeperLogin | None:
    """Return the login of a section of a JAAS file; None without this section."""
    tokens = _tokens(text)
    found: list[str] | None = None
    for section in tokens:
        if next(tokens, "") != "{":
            # The word may be a password, in a file that is none of JAAS.
            raise ConfigError("it is malformed: there is no { after the name of a section")
        inside = []
        for word in tokens:
            if word == "}":
                break
            inside.append(word)
        else:
            raise ConfigError(f"section {section} is malformed: there is no }}")
        if next(tokens, "") != ";":
            raise ConfigError(f"section {section} is malformed: it does not end with }};")
        if section == name:
            found = inside
    return None if found is None else _login(name, found)


def _login(section: str, tokens: list[str]) -> ZooKeeperLogin:
    if tokens.count(";") != 1 or tokens[-1] != ";":
        raise ConfigError(f"section {section} must have one login module, which ends with ;")
    if tokens[0] != _LOGIN_MODULE:
        raise ConfigError(f"section {section}: the login module must be {_LOGIN_MODULE}")
    if len(tokens) < 3 or tokens[1].lower() not in _FLAGS:
        raise ConfigError(f"section {section} is malformed: no control flag such as required")
    rest = tokens[2:-1]
    if len(rest) % 3 or any(sign != "=" for sign in rest[1::3]):
        raise ConfigError(f"section {section} is malformed: an option is not name=value")
    values = (word.removeprefix(_QUOTE) for word in rest[2::3])
    options = dict(zip(rest[::3], values, strict=True))
    if not (options.get("username") and options.get("password")):
        raise ConfigError(f"section {section} needs username and password")
    return ZooKeeperLogin(options["username"], options["password"])


def _tokens(text: str) -> Iterator[str]:
    """Yield the words and signs of a JAAS file, and quoted texts with a quote before them."""
    position, end = 0, len(text.rstrip())
    while position < end:
        found = _JAAS_TOKEN.match(text, position)
        if found is None:
            line = text.count("\n", 0, position) + 1
            raise ConfigError(f"it is malformed near line {line}")
        position = found.end()
        if found["quoted"] is not None:
            yield _QUOTE + re.sub(r"\\(.)", r"\1", found["quoted"], flags=re.DOTALL)
        elif token := found["sign"] or found["word"]:
            yield token
