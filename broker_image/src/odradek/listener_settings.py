"""The settings of listeners, and of clients, for TLS and SASL, by Kafka's names.

A setting counts for all listeners, or for the listener NAME with `listener.name.<name>.` before it,
in lower case. SASL settings of one mechanism have its name before them, also in lower case. Clients
have neither prefix.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from odradek import oauth_settings
from odradek.listeners import ListenerEndpoint
from odradek.oauth_settings import OAUTHBEARER, OauthLogin, OauthSettings
from odradek.properties import (
    INT_MAX,
    LONG_MAX,
    ConfigError,
    Parser,
    integer,
    one_of,
    parsed,
    words,
)
from odradek.values import SECURITY_PROTOCOLS

TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM_MECHANISMS)
"""The mechanisms by name and password. Brokers use no other among themselves, commands do."""
STORE_TYPES = ("JKS", "PKCS12", "PEM")
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    **dict.fromkeys(SCRAM_MECHANISMS, "org.apache.kafka.common.security.scram.ScramLoginModule"),
    OAUTHBEARER: oauth_settings.LOGIN_MODULE,
}
_USER = "user_"
_CLIENT_TLS = frozenset(
    {
        "ssl.cipher.suites",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
_CLIENT_SASL = frozenset({"sasl.mechanism", "sasl.jaas.config"})
# A rule as Kafka's SslPrincipalMapper reads it, within a list of rules.
_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")


@dataclass(frozen=True, slots=True)
class Store:
    """A key store or a trust store; settings that are not there are empty."""

    setting: str
    kind: str
    location: str = ""
    password: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    certificates: str = field(default="", repr=False)
    key: str = field(default="", repr=False)

    @property
    def given(self) -> bool:
        """Return whether there is anything to load."""
        return bool(self.location or self.certificates)

    @property
    def key_password_setting(self) -> str:
        """Return the setting with the password of a key in PEM; ZooKeeper's clients have one."""
        return "ssl.key.password" if self.setting == "ssl.keystore" else f"{self.setting}.password"


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """A rule of `ssl.principal.mapping.rules`; `case` is L, U or empty. No pattern: DEFAULT."""

    pattern: str | None
    replacement: str = ""
    case: str = ""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The TLS settings of one listener."""

    key_store: Store
    trust_store: Store
    client_auth: str = "none"
    versions: tuple[str, ...] = TLS_VERSIONS
    cipher_suites: tuple[str, ...] = ()
    checks_host: bool = True
    principal_rules: tuple[PrincipalRule, ...] = (PrincipalRule(None),)


@dataclass(frozen=True, slots=True)
class SaslLogin:
    """With what a client proves who it is; a broker is a client of others."""

    mechanism: str
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """The SASL settings of one listener. `options` are those of JAAS, by mechanism.

    `oauth_tls` is of connections to the endpoint with the keys of tokens.
    """

    mechanisms: tuple[str, ...]
    options: Mapping[str, Mapping[str, str]] = field(repr=False)
    max_receive_bytes: int
    failure_delay_ms: int
    max_reauth_ms: Mapping[str, int]  # by mechanism; 0 for no limit
    client_mechanism: str
    oauth: OauthSettings | None = None
    oauth_tls: TlsSettings | None = None

    def users(self, mechanism: str) -> dict[str, str]:
        """Return the passwords that JAAS names, by user (PlainLoginModule's user_NAME)."""
        options = self.options.get(mechanism, {})
        return {
            name.removeprefix(_USER): password
            for name, password in options.items()
            if name.startswith(_USER)
        }

    def login(self) -> SaslLogin:
        """Return how this broker authenticates to others; only of the listener of brokers."""
        options = self.options[self.client_mechanism]
        return SaslLogin(self.client_mechanism, options["username"], options["password"])


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """How clients of one listener are served: with TLS, with SASL, with both or neither."""

    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client connects: its security protocol, and what that needs.

    `oauth_tls` is of connections to the endpoint of tokens.
    """

    protocol: str
    tls: TlsSettings | None = None
    login: SaslLogin | OauthLogin | None = None
    oauth_tls: TlsSettings | None = None


def read(
    values: Mapping[str, str], endpoints: Iterable[ListenerEndpoint], inter_broker: str
) -> dict[str, ListenerSecurity]:
    """Return the security settings of each listener by its name. Raises ConfigError.

    `inter_broker` is the name of the listener that brokers use among themselves.
    """
    found: dict[str, ListenerSecurity] = {}
    for endpoint in endpoints:
        own = _of_listener(values, endpoint.name)
        tls = sasl = None
        if endpoint.protocol in ("SSL", "SASL_SSL"):
            tls = _tls(own)
            if not tls.key_store.given:
                raise ConfigError(f"listener {endpoint.name} needs ssl.keystore.location for TLS")
        if endpoint.protocol in ("SASL_SSL", "SASL_PLAINTEXT"):
            sasl = _sasl(own, endpoint, for_brokers=endpoint.name == inter_broker)
        found[endpoint.name] = ListenerSecurity(tls, sasl)
    return found


def of_client(values: Mapping[str, str]) -> tuple[ClientSettings, list[str]]:
    """Read the settings of a client. Return also the names that have no effect, sorted.

    Raises ConfigError.
    """
    protocol = values.get("security.protocol", "").strip().upper() or "PLAINTEXT"
    if protocol not in SECURITY_PROTOCOLS:
        raise ConfigError(
            f"Invalid value {values['security.protocol']} for configuration security.protocol: "
            f"String must be one of: {', '.join(SECURITY_PROTOCOLS)}"
        )
    with_tls, with_sasl = protocol in ("SSL", "SASL_SSL"), protocol.startswith("SASL_")
    used = {"security.protocol"}
    used |= _CLIENT_TLS if with_tls else set()
    used |= _CLIENT_SASL if with_sasl else set()
    if with_sasl and _client_mechanism(values) == OAUTHBEARER:
        used |= oauth_settings.CLIENT_SETTINGS
    own = {name: text for name, text in values.items() if name in used}
    login, oauth_tls = _login(own) if with_sasl else (None, None)
    settings = ClientSettings(protocol, _tls(own) if with_tls else None, login, oauth_tls)
    return settings, sorted(values.keys() - used)


def _of_listener(values: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the settings of a listener; its own count before those of all."""
    prefix = f"listener.name.{name.lower()}."
    own = {key.removeprefix(prefix): text for key, text in values.items() if key.startswith(prefix)}
    common = {key: text for key, text in values.items() if not key.startswith("listener.name.")}
    return {**common, **own}


def _number(values: Mapping[str, str], name: str, default: int, most: int = INT_MAX) -> int:
    number = parsed(values, name, str(default), integer(0, most))
    assert isinstance(number, int)
    return number


def _list(values: Mapping[str, str], name: str, default: str, parse: Parser) -> tuple[str, ...]:
    listed = parsed(values, name, default, parse)
    assert isinstance(listed, tuple)
    return listed


# --- TLS ------------------------------------------------------------------------------------------


def _tls(values: Mapping[str, str]) -> TlsSettings:
    key_store = Store(
        "ssl.keystore",
        str(parsed(values, "ssl.keystore.type", "JKS", one_of(*STORE_TYPES))),
        values.get("ssl.keystore.location", "").strip(),
        values.get("ssl.keystore.password", ""),
        values.get("ssl.key.password", ""),
        values.get("ssl.keystore.certificate.chain", ""),
        values.get("ssl.keystore.key", ""),
    )
    trust_store = Store(
        "ssl.truststore",
        str(parsed(values, "ssl.truststore.type", "JKS", one_of(*STORE_TYPES))),
        values.get("ssl.truststore.location", "").strip(),
        values.get("ssl.truststore.password", ""),
        certificates=values.get("ssl.truststore.certificates", ""),
    )
    for store in (key_store, trust_store):
        if store.certificates and store.kind != "PEM":
            raise ConfigError(f"{store.setting}.type must be PEM for certificates in settings")
        if store.certificates and store.location:
            raise ConfigError(
                f"{store.setting}.location and certificates in settings exclude each other"
            )
    if bool(key_store.key) != bool(key_store.certificates):
        raise ConfigError("ssl.keystore.key and ssl.keystore.certificate.chain are needed together")
    auth = str(parsed(values, "ssl.client.auth", "none", one_of("none", "requested", "required")))
    identification = values.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if identification not in ("", "https"):
        raise ConfigError("ssl.endpoint.identification.algorithm must be https or empty")
    return TlsSettings(
        key_store,
        trust_store,
        auth,
        _list(values, "ssl.enabled.protocols", ",".join(TLS_VERSIONS), words(TLS_VERSIONS)),
        _list(values, "ssl.cipher.suites", "", words()),
        bool(identification),
        principal_rules(values.get("ssl.principal.mapping.rules", "").strip() or "DEFAULT"),
    )


def principal_rules(text: str) -> tuple[PrincipalRule, ...]:
    """Parse `RULE:pattern/replacement/[LU],...,DEFAULT`. Raises ConfigError."""
    rules: list[PrincipalRule] = []
    position = 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None or found.end() == position:
            raise ConfigError(f"Invalid rule in ssl.principal.mapping.rules: {text[position:]}")
        default, pattern, replacement, case = found.groups()
        if default is None:
            try:
                re.compile(pattern, re.ASCII)
            except re.error as error:
                raise ConfigError(
                    f"Invalid rule in ssl.principal.mapping.rules: {pattern}: {error}"
                ) from None
        rules.append(PrincipalRule(None if default else pattern, replacement or "", case or ""))
        position = found.end()
    return tuple(rules)


# --- SASL -----------------------------------------------------------------------------------------


def _sasl(
    values: Mapping[str, str], endpoint: ListenerEndpoint, *, for_brokers: bool
) -> SaslSettings:
    mechanisms = _list(values, "sasl.enabled.mechanisms", "GSSAPI", words())
    taken = (*MECHANISMS, OAUTHBEARER)
    refused = [one for one in mechanisms if one not in taken]
    if refused or not mechanisms:
        raise ConfigError(
            f"listener {endpoint.name}: sasl.enabled.mechanisms must be of "
            f"{', '.join(taken)}; {', '.join(refused) or 'none'} is not supported"
        )
    options = {}
    for mechanism in mechanisms:
        name = f"{mechanism.lower()}.sasl.jaas.config"
        full = f"listener.name.{endpoint.name.lower()}.{name}"
        if text := values.get(name, ""):
            options[mechanism] = _jaas(full, text, mechanism)
        elif mechanism == "PLAIN":
            raise ConfigError(f"{full} is missing: it names the users of PLAIN")
    client = values.get("sasl.mechanism.inter.broker.protocol", "GSSAPI").strip()
    if for_brokers:
        if client == OAUTHBEARER:
            raise ConfigError(
                f"sasl.mechanism.inter.broker.protocol {client} is not supported: brokers "
                f"authenticate to each other with one of {', '.join(MECHANISMS)}"
            )
        if client not in mechanisms:
            raise ConfigError(
                f"sasl.mechanism.inter.broker.protocol {client} is not one of "
                f"sasl.enabled.mechanisms of listener {endpoint.name}"
            )
        if not {"username", "password"} <= options.get(client, {}).keys():
            raise ConfigError(
                f"listener.name.{endpoint.name.lower()}.{client.lower()}.sasl.jaas.config needs "
                "username and password, with which brokers authenticate"
            )
    return SaslSettings(
        mechanisms,
        options,
        _number(values, "sasl.server.max.receive.size", 524_288),
        _number(values, "connection.failed.authentication.delay.ms", 100),
        {one: _max_reauth_ms(values, one) for one in mechanisms},
        client,
        *(_oauth(values, endpoint, options) if OAUTHBEARER in mechanisms else ()),
    )


def _oauth(
    values: Mapping[str, str], endpoint: ListenerEndpoint, options: Mapping[str, dict[str, str]]
) -> tuple[OauthSettings, TlsSettings | None]:
    found = oauth_settings.read(values, endpoint.name)
    if found.path is not None:
        return found, None
    try:
        return found, _tls_of_endpoint(options.get(OAUTHBEARER, {}))
    except ConfigError as error:
        raise ConfigError(f"listener {endpoint.name}: {error}") from None


def _tls_of_endpoint(options: Mapping[str, str]) -> TlsSettings:
    """Return whom to trust at an endpoint of keys or of tokens: as in Kafka, options of JAAS."""
    given = {name: text for name, text in options.items() if "ssl." in name}
    if unknown := sorted(given.keys() - _CLIENT_TLS):
        raise ConfigError(f"{unknown[0]} is no option of {OAUTHBEARER}")
    return _tls(given)


def _client_mechanism(values: Mapping[str, str]) -> str:
    return values.get("sasl.mechanism", "").strip() or "GSSAPI"


def _login(values: Mapping[str, str]) -> tuple[SaslLogin | OauthLogin, TlsSettings | None]:
    mechanism, known = _client_mechanism(values), (*MECHANISMS, OAUTHBEARER)
    if mechanism not in known:
        raise ConfigError(
            f"sasl.mechanism must be one of {', '.join(known)}; {mechanism} is not supported"
        )
    text = values.get("sasl.jaas.config", "")
    options = _jaas("sasl.jaas.config", text, mechanism) if text.strip() else {}
    if mechanism == OAUTHBEARER:
        login = oauth_settings.read_login(values, options)
        return login, None if login.path is not None else _tls_of_endpoint(options)
    if not (options.get("username") and options.get("password")):
        raise ConfigError("sasl.jaas.config needs username and password")
    return SaslLogin(mechanism, options["username"], options["password"]), None


def _max_reauth_ms(values: Mapping[str, str], mechanism: str) -> int:
    common = _number(values, "connections.max.reauth.ms", 0, LONG_MAX)
    own = f"{mechanism.lower()}.connections.max.reauth.ms"
    return _number(values, own, common, LONG_MAX)


def _jaas(setting: str, text: str, mechanism: str) -> dict[str, str]:
    """Return the options of a JAAS configuration: `MODULE required name="value" ...;`."""
    lexer = shlex.shlex(text.strip(), posix=True, punctuation_chars=";=")
    lexer.commenters = ""
    lexer.wordchars += "$:@%^&*!?~/+,|[]{}<>()`#"
    try:
        parts = list(lexer)
    except ValueError as error:
        raise ConfigError(f"{setting} is malformed: {error}") from None
    if not parts or parts.pop() != ";":
        raise ConfigError(f"{setting} is malformed: it does not end with ;")
    module = _LOGIN_MODULES[mechanism]
    if parts[:1] != [module]:
        raise ConfigError(f"{setting} must name the login module {module}")
    if len(parts) < 2 or parts[1].lower() not in (
        "required",
        "requisite",
        "sufficient",
        "optional",
    ):
        raise ConfigError(f"{setting} is malformed: no control flag such as required")
    options: dict[str, str] = {}
    rest = parts[2:]
    while rest:
        if len(rest) < 3 or rest[1] != "=":
            raise ConfigError(f"{setting} is malformed: an option is not name=value")
        options[rest[0]] = rest[2]
        rest = rest[3:]
    return options
