"""What the hot paths of the broker count: traffic of topics, and durations of requests.

Traffic of topics beyond the first thousand is counted under one name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

MOST_TOPICS = 1000
OTHER_TOPICS = "_other"
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _Traffic:
    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_replicated",
        "fetch_conversions",
        "messages_in",
        "produce_conversions",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.messages_in = 0
        self.bytes_out = 0
        self.bytes_replicated = 0
        self.produce_conversions = 0
        self.fetch_conversions = 0


class _Latency:
    """The histogram of one API: request counts by duration."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one request."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        """Return (upper bound, requests up to it) for Prometheus."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*BUCKETS_S, float("inf")), self.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
        return buckets


class BrokerCounters:
    """Plain integers and their series. Only the event loop may count."""

    def __init__(self) -> None:
        self._traffic: dict[str, _Traffic] = {}
        self._latencies: dict[str, _Latency] = {}

    def _of(self, topic: str) -> _Traffic:
        traffic = self._traffic.get(topic)
        if traffic is None:
            if len(self._traffic) >= MOST_TOPICS:
                topic = OTHER_TOPICS
            traffic = self._traffic.setdefault(topic, _Traffic())
        return traffic

    def bytes_in(self, topic: str, size: int, records: int) -> None:
        """Count records that producers appended."""
        traffic = self._traffic.get(topic) or self._of(topic)
        traffic.bytes_in += size
        traffic.messages_in += records

    def produce_converted(self, topic: str) -> None:
        """Count produced records of a partition in a format before 0.11."""
        self._of(topic).produce_conversions += 1

    def fetch_converted(self, topic: str) -> None:
        """Count fetched records of a partition that were converted to an older format."""
        self._of(topic).fetch_conversions += 1

    def bytes_out(self, topic: str, size: int) -> None:
        """Count bytes that consumers fetched."""
        self._of(topic).bytes_out += size

    def bytes_replicated(self, topic: str, size: int) -> None:
        """Count bytes that followers fetched."""
        self._of(topic).bytes_replicated += size

    def request_observers(self, names: Mapping[int, str]) -> Mapping[int, Callable[[float], None]]:
        """Return per API key the function that records a request's duration in seconds."""
        return {
            key: self._latencies.setdefault(name, _Latency()).observe for key, name in names.items()
        }

    def series(self) -> Iterator[Metric]:
        """Yield the metrics of what was counted."""
        yield from self._traffic_series()
        yield from self._request_series()

    def _traffic_series(self) -> Iterator[Metric]:
        for name, help_text, field in (
            ("odradek_topic_bytes_in", "Bytes appended by producers", "bytes_in"),
            ("odradek_topic_messages_in", "Records appended by producers", "messages_in"),
            ("odradek_topic_bytes_out", "Bytes fetched by consumers", "bytes_out"),
            (
                "odradek_topic_produce_conversions",
                "Message sets in formats before 0.11 from producers",
                "produce_conversions",
            ),
            (
                "odradek_topic_fetch_conversions",
                "Fetch responses converted to an older message format",
                "fetch_conversions",
            ),
            (
                "odradek_topic_replication_bytes_out",
                "Bytes fetched by followers",
                "bytes_replicated",
            ),
        ):
            family = CounterMetricFamily(name, help_text, labels=["topic"])
            for topic, traffic in list(self._traffic.items()):
                family.add_metric([topic], getattr(traffic, field))
            yield family

    def _request_series(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "odradek_request_duration_seconds",
            "Time from the arrival of a request to its response, delays included",
            labels=["api"],
        )
        for name, latency in self._latencies.items():
            family.add_metric([name], buckets=latency.cumulated(), sum_value=latency.total_s)
        yield family
