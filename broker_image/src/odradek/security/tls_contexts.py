"""The TLS contexts of a listener: of its key and trust stores, and made anew when these change.

A pair of files that is sound and has the subject of the one before counts for the connections to
come, as Kafka requires of a dynamic change. Any other is logged, and the former contexts stay; so
they do instead of a certificate whose time is over, or has not come yet.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import Certificate, Name

from odradek import tls_errors
from odradek.listener_settings import TLS_VERSIONS, Store, TlsSettings
from odradek.properties import ConfigError
from odradek.security import stores

logger = logging.getLogger(__name__)

LOOK_S: Final = 30.0
_VERSIONS: Final = dict(
    zip(TLS_VERSIONS, (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3), strict=True)
)
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
# Suites that TLS 1.3 has; Python cannot choose among them.
_SUITES_13: Final = frozenset(
    {"TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"}
)
# Of TLS 1.2, unless `ssl.cipher.suites` says more: with forward secrecy, and without CBC.
_DEFAULT_SUITES: Final = "@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL:!aDSS"
_SUITE_12: Final = re.compile(
    r"TLS_(?:(RSA)|(\w+))_WITH_(?:AES_(\d+)_(?:CBC|(GCM|CCM))_(SHA\d*)|(CHACHA20_POLY1305)_SHA256)"
)


@dataclass(frozen=True, slots=True)
class Validity:
    """The time in which peers take a certificate."""

    begins: datetime
    ends: datetime

    def check_successor(self, new: Validity) -> None:
        """Raise ConfigError if this certificate is valid now, and a new one is not."""
        now = datetime.now(UTC)
        if self.begins <= now <= self.ends and not new.begins <= now <= new.ends:
            raise ConfigError(f"the new certificate is valid from {new.begins} to {new.ends} only")


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contexts of a listener: for its clients, and for this broker as a client of others."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    subject: Name
    validity: Validity


class TlsContexts:
    """The present contexts of one listener. Raises ConfigError if they cannot be made."""

    def __init__(self, listener: str, settings: TlsSettings) -> None:
        self._listener = listener
        self._settings = settings
        self._seen = signature(settings)
        self._refused: tuple[object, ...] | None = None
        self._contexts = _make(settings)
        self._warn_if_expired()

    def server(self) -> ssl.SSLContext:
        """Return the context for the next client."""
        return self._contexts.server

    def client(self) -> ssl.SSLContext:
        """Return the context for the next connection to another broker."""
        return self._contexts.client

    @property
    def subject(self) -> Name:
        """Return the subject of this broker's certificate."""
        return self._contexts.subject

    @property
    def not_after_s(self) -> float:
        """Return when this broker's certificate expires, in seconds since 1970."""
        return self._contexts.validity.ends.timestamp()

    async def run(self) -> None:
        """Look for changed files until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> None:
        """Make new contexts if a file changed; keep the former ones if that is not possible.

        Files that are refused are tried again with each look, and logged once: the time of a
        certificate may come.
        """
        seen = signature(self._settings)
        if seen == self._seen:
            return
        try:
            made = _make(self._settings)
            _check_successor(self._contexts, made)
        except ConfigError as error:
            if seen != self._refused:
                logger.error(
                    "keeping the former certificates of listener %s: %s", self._listener, error
                )
            self._refused = seen
            return
        except Exception:
            # As for want of a descriptor: it is tried again with the next look.
            logger.exception("keeping the former certificates of listener %s", self._listener)
            return
        self._seen = seen
        self._contexts = made
        logger.info(
            "listener %s has new certificates, valid until %s", self._listener, made.validity.ends
        )
        self._warn_if_expired()

    def _warn_if_expired(self) -> None:
        if self._contexts.validity.ends < datetime.now(UTC):
            logger.warning(
                "the certificate of listener %s, %s, expired on %s",
                self._listener,
                _place(self._settings.key_store),
                self._contexts.validity.ends,
            )


def _check_successor(former: Contexts, made: Contexts) -> None:
    """Raise ConfigError if new contexts would serve clients worse than the former ones."""
    if made.subject != former.subject:
        raise ConfigError(f"the subject of the certificate is now {made.subject.rfc4514_string()}")
    former.validity.check_successor(made.validity)


def signature(settings: TlsSettings) -> tuple[object, ...]:
    """Return what differs when a file of the stores was changed or replaced."""
    found: list[object] = []
    for store in (settings.key_store, settings.trust_store):
        if not store.location:
            continue
        try:
            state = os.stat(store.location)
        except OSError as error:
            found.append(error.errno)
        else:
            found.append((state.st_ino, state.st_mtime_ns, state.st_size))
    return tuple(found)


def of_client(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of a client, which need not have a certificate. Raises ConfigError."""
    context, _ = of_client_and_validity(settings)
    return context


def of_client_and_validity(settings: TlsSettings) -> tuple[ssl.SSLContext, Validity | None]:
    """Return the context of a client, and when its certificate is valid. Raises ConfigError."""
    identity = stores.load_identity(settings.key_store) if settings.key_store.given else None
    context = _client(settings, identity, _trusted(settings))
    return context, None if identity is None else _validity(identity)


def _make(settings: TlsSettings) -> Contexts:
    identity = stores.load_identity(settings.key_store)
    trusted = _trusted(settings)
    server = _context(ssl.PROTOCOL_TLS_SERVER, settings, identity, trusted)
    # Connections live for long: nobody needs tickets. Python cannot switch off OpenSSL's own memory
    # of sessions of TLS 1.2, which ends with the context.
    server.options |= ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
    server.num_tickets = 0
    if not settings.cipher_suites:
        server.set_ciphers(_DEFAULT_SUITES)
    server.verify_mode = _CLIENT_AUTH[settings.client_auth]
    client = _client(settings, identity, trusted)
    return Contexts(server, client, identity.chain[0].subject, _validity(identity))


def _validity(identity: stores.Identity) -> Validity:
    own = identity.chain[0]
    return Validity(own.not_valid_before_utc, own.not_valid_after_utc)


def _client(
    settings: TlsSettings, identity: stores.Identity | None, trusted: tuple[Certificate, ...]
) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_CLIENT, settings, identity, trusted)
    context.check_hostname = settings.checks_host
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _context(
    protocol: int,
    settings: TlsSettings,
    identity: stores.Identity | None,
    trusted: tuple[Certificate, ...],
) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    _choose_versions(context, settings)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if identity is not None:
        _show(context, identity, settings.key_store)
    _trust(context, trusted)
    return context


def _trusted(settings: TlsSettings) -> tuple[Certificate, ...]:
    return stores.load_trusted(settings.trust_store) if settings.trust_store.given else ()


def _show(context: ssl.SSLContext, identity: stores.Identity, store: Store) -> None:
    """Load the key and its certificates, which OpenSSL takes from files only; this one has no
    place on a disk.
    """
    descriptor = os.memfd_create("identity", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(identity.pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except ssl.SSLError as error:
        raise ConfigError(f"cannot use {_place(store)}: {tls_errors.describe(error)}") from None
    finally:
        os.close(descriptor)


def _place(store: Store) -> str:
    return f"{store.setting}.location={store.location}" if store.location else store.setting


def _trust(context: ssl.SSLContext, trusted: tuple[Certificate, ...]) -> None:
    """Trust each of the certificates, as Java does: one need not be of an authority."""
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if trusted:
        context.load_verify_locations(
            cadata="".join(one.public_bytes(Encoding.PEM).decode() for one in trusted)
        )
    else:
        context.load_default_certs()


def _choose_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    versions = set(settings.versions)
    old = [_openssl_name(one) for one in settings.cipher_suites if one not in _SUITES_13]
    if settings.cipher_suites:
        if not old:
            versions.discard("TLSv1.2")
        if _SUITES_13.isdisjoint(settings.cipher_suites):
            versions.discard("TLSv1.3")
    if not versions:
        raise ConfigError("no suite of ssl.cipher.suites is of a version of ssl.enabled.protocols")
    wanted = [_VERSIONS[one] for one in sorted(versions)]
    context.minimum_version, context.maximum_version = wanted[0], wanted[-1]
    if old:
        try:
            context.set_ciphers(":".join(old))
        except ssl.SSLError:
            raise ConfigError(
                f"no suite of ssl.cipher.suites is known: {', '.join(settings.cipher_suites)}"
            ) from None


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a suite of TLS 1.2: ECDHE-RSA-AES128-GCM-SHA256."""
    found = _SUITE_12.fullmatch(suite)
    if found is None:
        raise ConfigError(f"ssl.cipher.suites: {suite} is not supported")
    _, exchange, bits, mode, digest, chacha = found.groups()
    words = [exchange.replace("_", "-")] if exchange else []
    words += [chacha.replace("_", "-")] if chacha else [f"AES{bits}", *([mode] if mode else [])]
    return "-".join([*words, *([digest] if digest else [])])
