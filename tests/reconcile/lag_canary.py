"""Groups whose lag is known, and the three programs that tell it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from odradek.http_server import HttpRequest
from odradek_operator.exporter.rounds import Exporter, Filter, Options
from tests.reconcile.conftest import Place
from tests.support import preloaded
from tests.support.broker import Cluster
from tests.support.kubectl import eventually

Lags = dict[int, int]


class LagCanary:
    """Groups that read one topic, as ConsumerGroups of the same names, which it applies."""

    def __init__(
        self, place: Place, cluster: Cluster, topic: str, groups: Sequence[dict[str, Any]]
    ) -> None:
        self._place = place
        self._cluster = cluster
        self._groups = {one["metadata"]["name"]: one for one in groups}
        self._topic = topic
        self._exporter = self._start_exporter()

    def _start_exporter(self) -> Exporter:
        # The names of the tests' groups need no escape.
        wanted = Filter(re.compile("|".join(self._groups)))
        return Exporter(Options(self._cluster.zookeeper.connect, 15, wanted))

    def restart_exporter(self) -> None:
        """Replace the exporter by one that has seen nothing."""
        self._exporter.close()
        self._exporter = self._start_exporter()

    def close(self) -> None:
        """End the exporter."""
        self._exporter.close()

    def exported(self) -> dict[str, Lags]:
        """Return the lags that the exporter tells after one more round."""
        self._exporter.round()
        answer = self._exporter.answer(HttpRequest("GET", "/metrics", "", {}))
        found: dict[str, Lags] = {name: {} for name in self._groups}
        for family in text_string_to_metric_families(answer.body.decode()):
            if family.name == "kafka_consumergroup_lag":
                for one in family.samples:
                    lags = found[one.labels["consumergroup"]]
                    lags[int(one.labels["partition"])] = int(one.value)
        return found

    def printed(self, group: str, at: Sequence[str]) -> Lags:
        """Return the lags that `odradek groups describe` prints; none of a group that is gone."""
        done = preloaded.run("odradek", "groups", "describe", *at, "--group", group, timeout=120)
        if done.returncode:
            assert done.stderr == f"odradek: consumer group {group} does not exist\n"
            return {}
        rows = [line.split() for line in done.stdout.splitlines()[1:]]
        return {int(row[2]): int(row[5]) for row in rows if row[5] != "-"}

    def observed(self, group: str) -> dict[str, Any]:
        """Return the status of the ConsumerGroup, after another look was asked for."""
        self._groups[group]["metadata"]["annotations"] = {"look": str(time.time())}
        self._place.kubectl.apply(self._groups[group])
        return dict(self._place.kubectl.get("consumergroup", group).get("status", {}))

    def require(self, truth: Mapping[str, Lags], observed: Mapping[str, int] | None = None) -> None:
        """Wait until all three tell the truth at rest, by partition, and none of others.

        `observed` are the groups' total lags where the resource knows more.
        """

        def is_exported() -> bool:
            found = self.exported()
            assert found == truth, found
            return True

        # ZooKeeper's notifications are on their way.
        eventually(is_exported, f"exported: {truth}", pause_s=0.3)
        for group, lags in truth.items():
            at = ("--zookeeper", self._cluster.zookeeper.connect)
            if self._groups[group]["spec"].get("offsetStore") == "Kafka":
                at = ("--bootstrap-server", self._cluster.bootstrap)
            assert self.printed(group, at) == lags
            total = (observed or {}).get(group, sum(lags.values()))

            def is_observed(group: str = group, lags: Lags = lags, total: int = total) -> bool:
                seen = self.observed(group)
                assert seen.get("totalLag") == total, seen
                # Of a group that nobody ever joined, a dozen looks say that it commits no more.
                verdict = "STOP" if total and not seen["members"] else "OK"
                assert seen.get("verdict") == verdict, seen
                worst = {one["partition"]: one["lag"] for one in seen["worstPartitions"]}
                if total == sum(lags.values()):
                    assert worst == {number: lag for number, lag in lags.items() if lag}
                assert {one["topic"] for one in seen["worstPartitions"]} <= {self._topic}
                return True

            eventually(is_observed, f"group {group} is behind by {total}", pause_s=0.3)
