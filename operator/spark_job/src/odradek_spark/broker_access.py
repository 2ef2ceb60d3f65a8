"""How clients of one cluster reach its brokers: a file with the keys of Kafka's clients, for each.

librdkafka has names of its own. Spark's Kafka source and sink take Kafka's, with `kafka.` before
them. Their options are shown in plans, Spark's UI and its event log, so passwords are not among
them: the options name the file, and each Kafka client reads them there (KIP-297, KIP-421). So the
file must be at the same path for the driver and all executors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from odradek import access_tokens, listener_settings, oauth_settings, properties, thread_errors
from odradek.access_tokens import AccessTokens
from odradek.listener_settings import ClientSettings, Store, TlsSettings
from odradek.oauth_settings import OAUTHBEARER, OauthLogin
from odradek.properties import ConfigError

_PROVIDER: Final = {
    "kafka.config.providers": "file",
    "kafka.config.providers.file.class": (
        "org.apache.kafka.common.config.provider.FileConfigProvider"
    ),
}
_JAAS: Final = "sasl.jaas.config"
_SECRETS: Final = (
    oauth_settings.CLIENT_SECRET,
    _JAAS,
    "ssl.key.password",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.truststore.password",
)
_LOCATIONS: Final = ("ssl.keystore.location", "ssl.truststore.location")
# What librdkafka has no setting for.
_JAVA_ONLY: Final = ("ssl.cipher.suites", "ssl.enabled.protocols")
_NAMES: Final = {
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.location",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.location",
    "ssl.key.pem": "ssl.keystore.key",
}
"""Kafka's names of librdkafka's settings."""
# The characters that end a path in `${file:PATH:KEY}`.
_ENDS_PATH: Final = frozenset(":}")
# Those that end a string of JAAS, or escape.
_ENDS_STRING: Final = frozenset('"\\\n\r')


class ClientConfigError(Exception):
    """The file cannot be used; one line that names it and the setting."""


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """The addresses of brokers, and the security settings of each kind of client.

    `tokens` are for librdkafka; Spark's clients get their own.
    """

    bootstrap: str
    librdkafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    tokens: AccessTokens | None = field(default=None, repr=False)

    def client_settings(self) -> dict[str, Any]:
        """Return the settings of a librdkafka client that reaches the brokers."""
        common = {"bootstrap.servers": self.bootstrap, **self.librdkafka}
        return common if self.tokens is None else {**common, "oauth_cb": _shown(self.tokens)}

    def source_options(self) -> dict[str, str]:
        """Return the options of a Kafka source or sink of Spark that reaches the brokers."""
        return {"kafka.bootstrap.servers": self.bootstrap, **self.spark}


def read(bootstrap: str, path: Path) -> tuple[BrokerAccess, list[str]]:
    """Return how to connect, and the names of the settings that have no effect.

    Raises ClientConfigError.
    """
    try:
        values = properties.read_file(path)
    except ConfigError as error:
        raise ClientConfigError(str(error)) from None
    try:
        settings, ignored = listener_settings.of_client(values)
        used = {name: text for name, text in values.items() if name not in ignored}
        own = _librdkafka(settings, used)
        _require_usable(own)
        spark = _spark(used, path)
        tokens = None
        if isinstance(settings.login, OauthLogin):
            trusted = settings.oauth_tls
            endpoint = None if trusted is None else access_tokens.endpoint_context(trusted)
            tokens = AccessTokens(settings.login, endpoint)
            spark |= _spark_tokens(settings.login, trusted, used, path)
    except ConfigError as error:
        raise ClientConfigError(f"{path}: {error}") from None
    return BrokerAccess(bootstrap, own, spark, tokens), ignored


def _librdkafka(settings: ClientSettings, used: Mapping[str, str]) -> dict[str, str]:
    found = {"security.protocol": settings.protocol}
    if isinstance(settings.login, OauthLogin):
        found["sasl.mechanism"] = OAUTHBEARER
    elif settings.login is not None:
        found["sasl.mechanism"] = settings.login.mechanism
        found["sasl.username"] = settings.login.username
        found["sasl.password"] = settings.login.password
    if settings.tls is not None:
        for name in _JAVA_ONLY:
            if name in used:
                raise ConfigError(f"{name} is not supported here")
        found |= _trusted(settings.tls.trust_store) | _certificate(settings.tls.key_store)
        if not settings.tls.checks_host:
            found["ssl.endpoint.identification.algorithm"] = "none"
    return found


def _require_usable(settings: Mapping[str, str]) -> None:
    """Raise ConfigError for settings that no client can be made with: a store without a PEM.

    Raises Python's error if no thread can be started.
    """
    # Loads a library, which takes time.
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        # It has no addresses, so it does not connect.
        AdminClient({**settings, "log_level": 0})
    except KafkaException as error:
        if error.args[0].code() == KafkaError._CRIT_SYS_RESOURCE:
            raise thread_errors.no_thread() from error
        text = in_kafkas_names(" ".join(error.args[0].str().split()))
        raise ConfigError(text.removeprefix("Failed to create admin client: ")) from None


def in_kafkas_names(text: str) -> str:
    """Return what librdkafka says with the names of the settings that the file has."""
    for name, of_kafka in _NAMES.items():
        text = text.replace(name, of_kafka)
    return text


def _trusted(store: Store) -> dict[str, str]:
    if not store.given:
        return {}
    if store.kind != "PEM":
        raise ConfigError(f"ssl.truststore.type must be PEM here; {store.kind} is not supported")
    if store.certificates:
        return {"ssl.ca.pem": store.certificates}
    return {"ssl.ca.location": _readable(store)}


def _certificate(store: Store) -> dict[str, str]:
    if not store.given:
        return {}
    if store.kind == "JKS":
        raise ConfigError("ssl.keystore.type must be PEM or PKCS12 here; JKS is not supported")
    if store.kind == "PKCS12":
        password = {"ssl.keystore.password": store.password} if store.password else {}
        return {"ssl.keystore.location": _readable(store), **password}
    password = {"ssl.key.password": store.key_password} if store.key_password else {}
    if store.certificates:
        return {
            "ssl.certificate.pem": store.certificates,
            "ssl.key.pem": store.key,
            **password,
        }
    path = _readable(store)
    return {"ssl.certificate.location": path, "ssl.key.location": path, **password}


def _readable(store: Store) -> str:
    """Return the absolute path of a store's file: librdkafka says less of one that is missing."""
    path = Path(store.location).absolute()
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(
            f"cannot use {store.setting}.location={store.location}: {error.strerror}"
        ) from None
    return str(path)


def _spark(used: Mapping[str, str], path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    place = str(path.absolute())
    for name, text in used.items():
        if name in _SECRETS:
            if _ENDS_PATH.intersection(place):
                raise ConfigError("the path of a file with passwords must have neither : nor }")
            found |= {f"kafka.{name}": f"${{file:{place}:{name}}}", **_PROVIDER}
        else:
            in_folder = name in _LOCATIONS and text.strip()
            found[f"kafka.{name}"] = str(Path(text.strip()).absolute()) if in_folder else text
    return found


# --- tokens ---------------------------------------------------------------------------------------


def _shown(tokens: AccessTokens) -> Callable[[str], tuple[str, float, str, dict[str, str]]]:
    """Return librdkafka's callback for a token."""

    def show(_: str) -> tuple[str, float, str, dict[str, str]]:
        token = tokens.get()
        # The name is for librdkafka's log only, which wants one.
        return token.text, token.expires_s, token.user or "-", dict(tokens.login.extensions)

    return show


def _spark_tokens(
    login: OauthLogin, trusted: TlsSettings | None, used: Mapping[str, str], path: Path
) -> dict[str, str]:
    """Return the options with which Spark's clients, those of Kafka 3.9, get tokens.

    They know credentials as options of JAAS only, and not as settings (KIP-1139).
    """
    found = {f"kafka.{oauth_settings.LOGIN_HANDLER}": oauth_settings.LOGIN_HANDLERS[-1]}
    options: dict[str, str] = {}
    if oauth_settings.CLIENT_SECRET in used and trusted is not None:
        if _ENDS_STRING.intersection(login.client_secret):
            raise ConfigError(f'{oauth_settings.CLIENT_SECRET} must have neither " nor \\ here')
        place = f"{path.absolute()}:{oauth_settings.CLIENT_SECRET}"
        options = {"clientId": login.client_id, "clientSecret": f"${{file:{place}}}"}
        options |= {"scope": login.scope} if login.scope else {}
        options |= {f"extension_{name}": text for name, text in login.extensions.items()}
        options |= _trust_options(trusted)
    elif used.get(_JAAS, "").strip():
        for name in (oauth_settings.CLIENT_ID, oauth_settings.SCOPE):
            if trusted is not None and used.get(name, "").strip():
                raise ConfigError(
                    f"{name} needs {oauth_settings.CLIENT_SECRET} here, or all of them must be "
                    f"options of {_JAAS}"
                )
        return found
    pairs = "".join(f" {name}={_quoted(text)}" for name, text in options.items())
    return {**found, f"kafka.{_JAAS}": f"{oauth_settings.LOGIN_MODULE} required{pairs};"}


def _trust_options(settings: TlsSettings) -> dict[str, str]:
    store = settings.trust_store
    found = {"ssl.truststore.type": store.kind} if store.given else {}
    if store.location:
        found["ssl.truststore.location"] = str(Path(store.location).absolute())
    elif store.certificates:
        found["ssl.truststore.certificates"] = store.certificates
    if not settings.checks_host:
        found["ssl.endpoint.identification.algorithm"] = ""
    return found


def _quoted(text: str) -> str:
    """Return a string as JAAS reads it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
