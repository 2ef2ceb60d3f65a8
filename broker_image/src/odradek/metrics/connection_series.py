"""Metrics of connections: how many there are, and what quotas, TLS, SASL and ACLs do to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from odradek.net.connection_quotas import ConnectionQuotas
    from odradek.quotas.client_quotas import ClientQuotas
    from odradek.security.authorizer import Authorizer


class HasFailures(Protocol):
    """Counts peers that did not get in, by listener and cause."""

    def failed_handshakes(self) -> Mapping[str, Mapping[str, int]]:
        """Return the TLS handshakes that failed."""

    def failed_authentications(self) -> Mapping[str, Mapping[str, int]]:
        """Return the SASL authentications that failed."""

    def certificates(self) -> Mapping[str, float]:
        """Return when certificates expire, in seconds since 1970, by listener."""

    def token_keys(self) -> Mapping[str, tuple[float, int]]:
        """Return age in seconds and failed fetches of the keys that sign tokens, by listener."""


class HasConnections(Protocol):
    """A listener, as far as metrics need it."""

    @property
    def connection_count(self) -> int:
        """Return the number of open connections."""


def connections(listeners: Mapping[str, HasConnections]) -> Metric:
    """Return the number of connections of each listener."""
    family = GaugeMetricFamily("odradek_connections", "Open connections", labels=["listener"])
    for name, listener in listeners.items():
        family.add_metric([name], listener.connection_count)
    return family


def connection_quotas(quotas: ConnectionQuotas) -> Iterator[Metric]:
    """Yield connections that quotas refused, delayed or closed, and unsent responses."""
    for name, help_text, counts in (
        ("odradek_connections_refused", "Connections closed at once", quotas.refused),
        ("odradek_connections_delayed", "Connections that had to wait", quotas.delayed),
        ("odradek_connections_closed", "Connections closed by the broker", quotas.closed),
    ):
        family = CounterMetricFamily(name, help_text, labels=["reason"])
        for reason, count in list(counts.items()):
            family.add_metric([reason], count)
        yield family
    yield GaugeMetricFamily(
        "odradek_unsent_response_bytes",
        "Memory of responses that clients have not read yet",
        value=quotas.answers.total,
    )


def security(of: HasFailures) -> Iterator[Metric]:
    """Yield failed handshakes and authentications, certificates, and keys of tokens."""
    for name, help_text, label, counts in (
        (
            "odradek_tls_handshakes_failed",
            "TLS handshakes that failed",
            "cause",
            of.failed_handshakes(),
        ),
        (
            "odradek_authentications_failed",
            "SASL authentications that failed",
            "mechanism",
            of.failed_authentications(),
        ),
    ):
        family = CounterMetricFamily(name, help_text, labels=["listener", label])
        for listener, of_cause in counts.items():
            for cause, count in list(of_cause.items()):
                family.add_metric([listener, cause], count)
        yield family
    expiry = GaugeMetricFamily(
        "odradek_certificate_not_after_timestamp_seconds",
        "When the certificate of a listener expires",
        labels=["listener"],
    )
    for listener, not_after_s in of.certificates().items():
        expiry.add_metric([listener], not_after_s)
    yield expiry
    age = GaugeMetricFamily(
        "odradek_jwks_age_seconds",
        "Age of the keys that sign tokens; infinite before they are fetched",
        labels=["listener"],
    )
    failures = CounterMetricFamily(
        "odradek_jwks_fetches_failed",
        "Fetches of the keys that sign tokens without success",
        labels=["listener"],
    )
    for listener, (age_s, failed) in of.token_keys().items():
        age.add_metric([listener], age_s)
        failures.add_metric([listener], failed)
    yield from (age, failures)


def authorizer(of: Authorizer) -> Iterator[Metric]:
    """Yield metrics of the authorizer."""
    yield CounterMetricFamily(
        "odradek_authorizer_denials",
        "Times that the authorizer refused something that a client asked for",
        value=of.denials,
    )
    yield GaugeMetricFamily(
        "odradek_acl_age_seconds",
        "Time for which changed ACLs may have gone unseen; infinite before they are loaded",
        value=of.watcher.age_s,
    )


def client_quotas(connections: ConnectionQuotas, clients: ClientQuotas) -> Iterator[Metric]:
    """Yield what client quotas throttle."""
    yield GaugeMetricFamily(
        "odradek_connections_throttled",
        "Connections that are not read for now because a client quota is exceeded",
        value=connections.muted,
    )
    labels = ["quota"]
    requests = CounterMetricFamily(
        "odradek_throttled_requests", "Requests beyond a client quota", labels=labels
    )
    seconds = CounterMetricFamily(
        "odradek_throttle_seconds",
        "Throttle time that clients were told, in all",
        labels=labels,
    )
    for key, throttled in clients.throttled.items():
        requests.add_metric([key.value], throttled.count)
        seconds.add_metric([key.value], throttled.total_ms / 1000)
    yield from (requests, seconds)
