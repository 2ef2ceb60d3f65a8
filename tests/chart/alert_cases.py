"""The cases of the chart's alerts: series with which each fires, and series with which it rests."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.helm import Manifest

ENSEMBLE: Manifest = {"zookeeper": {"replicas": 3}}

# Prometheus' notation: start, change per step and number of steps, a step being a minute.
STEPS = 25
AT = f"{STEPS}m"


def steady(value: float) -> str:
    return f"{value}x{STEPS}"


def growing(step: float) -> str:
    return f"0+{step}x{STEPS}"


ONCE = f"0x5 1x{STEPS}"
"""A counter that grew once, a while ago."""

CLUSTER = {"namespace": "data", "cluster": "main"}
BROKER = {**CLUSTER, "pod": "main-broker-0", "app_kubernetes_io_component": "broker"}
OTHER = {**BROKER, "pod": "main-broker-1"}
EXPORTER = {**CLUSTER, "pod": "main-lag-exporter-1", "app_kubernetes_io_component": "lag-exporter"}
DRIVER = {
    "namespace": "data",
    "pod": "g-driver",
    "app_kubernetes_io_component": "spark-driver",
    "consumergroup": "g",
}
GROUP = {**EXPORTER, "consumergroup": "g"}
PART = {**GROUP, "topic": "t", "partition": "0"}
PART_1 = {**PART, "partition": "1"}
OF_GROUP = {**CLUSTER, "consumergroup": "g"}
JOB = {"kind": "ConsumerGroup", "namespace": "data", "name": "counts"}
TOPIC = {"kind": "Topic", "namespace": "data", "name": "t"}
OPERATOR = {"namespace": "logs", "service": "odradek-operator"}
SUSPENDED = ("odradek_consumergroup_resting", {**OPERATOR, **OF_GROUP}, f"1x{STEPS}")
SERVERS = [
    {"namespace": "logs", "app_kubernetes_io_component": "zookeeper", "pod": f"zookeeper-{number}"}
    for number in range(3)
]
DISK = {**BROKER, "directory": "/var/lib/odradek/data"}

Series = tuple[str, dict[str, str], str]


@dataclass(frozen=True)
class Case:
    """Series with which an alert fires, once per set of labels, and sets with which it rests.

    `values` are those of the chart for which the case holds.
    """

    fires: list[Series]
    labels: list[dict[str, str]]
    severity: str
    rests: list[list[Series]]
    values: Manifest = field(default_factory=dict)
    fires_without_series: bool = False


def verdicts(given: str) -> list[Series]:
    return [
        ("odradek_consumergroup_verdict", {**GROUP, "verdict": one}, steady(float(one == given)))
        for one in ("STOP", "STALL", "REWIND", "WARN", "OK")
    ]


def disk(used: float) -> list[Series]:
    return [
        ("odradek_log_directory_size_bytes", DISK, steady(1000)),
        ("odradek_log_directory_available_bytes", DISK, steady(1000 - 10 * used)),
    ]


def answering(*ups: float) -> list[Series]:
    return [("up", server, steady(up)) for server, up in zip(SERVERS, ups, strict=False)]


CASES: dict[str, Case] = {
    "OdradekOperatorDown": Case(
        [("up", OPERATOR, steady(0))],
        [{}],
        "warning",
        [[("up", OPERATOR, steady(1))]],
        fires_without_series=True,
    ),
    "OdradekOperatorCutOff": Case(
        [("odradek_operator_zookeeper_session_age_seconds", {"connect": "zk:2181"}, steady(0))],
        [{"connect": "zk:2181"}],
        "warning",
        [[("odradek_operator_zookeeper_session_age_seconds", {"connect": "zk:2181"}, growing(60))]],
    ),
    "OdradekOperatorFailing": Case(
        [("odradek_operator_reconcile_errors_total", {**OPERATOR, "kind": "Topic"}, growing(2))],
        [{"namespace": "logs", "kind": "Topic"}],
        "warning",
        [[("odradek_operator_reconcile_errors_total", {**OPERATOR, "kind": "Topic"}, ONCE)]],
    ),
    "OdradekOperatorFallsBehind": Case(
        [("odradek_operator_queued_resources", CLUSTER, steady(3))],
        [CLUSTER],
        "warning",
        # Empty now and then.
        [[("odradek_operator_queued_resources", CLUSTER, "3 0 3 0 " * 10)]],
    ),
    "OdradekResourceNotReady": Case(
        [("odradek_resource_ready", TOPIC, steady(0))],
        [TOPIC],
        "warning",
        [
            [("odradek_resource_ready", TOPIC, steady(1))],
            [("odradek_resource_ready", JOB, steady(0))],
            # It has become ready since.
            [("odradek_resource_ready", TOPIC, f"0x{STEPS - 5} 1x{STEPS}")],
        ],
    ),
    "OdradekBrokersMissing": Case(
        [
            ("odradek_cluster_brokers_wanted", CLUSTER, steady(3)),
            ("odradek_cluster_brokers_registered", CLUSTER, steady(2)),
        ],
        [CLUSTER],
        "critical",
        [
            [
                ("odradek_cluster_brokers_wanted", CLUSTER, steady(3)),
                ("odradek_cluster_brokers_registered", CLUSTER, steady(3)),
            ],
            # ZooKeeper does not answer: that is another alert.
            [("odradek_cluster_brokers_wanted", CLUSTER, steady(3))],
        ],
    ),
    "OdradekBrokerDown": Case(
        [("up", BROKER, steady(0)), ("up", OTHER, steady(1))],
        [BROKER],
        "critical",
        [[("up", BROKER, steady(1))], [("up", BROKER, f"1x{STEPS - 2} 0x{STEPS}")]],
    ),
    "OdradekPartitionsOffline": Case(
        [("odradek_offline_partitions", one, steady(2)) for one in (BROKER, OTHER)],
        [CLUSTER],
        "critical",
        [[("odradek_offline_partitions", BROKER, steady(0))]],
    ),
    "OdradekPartitionsUnderMinIsr": Case(
        [("odradek_under_min_isr_partitions", BROKER, steady(1))],
        [CLUSTER],
        "critical",
        [[("odradek_under_min_isr_partitions", BROKER, steady(0))]],
    ),
    "OdradekTransactionsLate": Case(
        [("odradek_partitions_with_late_transactions", BROKER, steady(1))],
        [CLUSTER],
        "warning",
        [[("odradek_partitions_with_late_transactions", BROKER, steady(0))]],
    ),
    "OdradekPartitionsUnderReplicated": Case(
        [("odradek_under_replicated_partitions", BROKER, steady(1))],
        [CLUSTER],
        "warning",
        [
            [("odradek_under_replicated_partitions", BROKER, steady(0))],
            # A rolling restart: never for ten minutes.
            [("odradek_under_replicated_partitions", BROKER, "1 1 1 1 0 " * 8)],
        ],
    ),
    "OdradekControllerMissing": Case(
        [("odradek_active_controller", one, steady(0)) for one in (BROKER, OTHER)],
        [CLUSTER],
        "critical",
        [
            [
                ("odradek_active_controller", BROKER, steady(1)),
                ("odradek_active_controller", OTHER, steady(0)),
            ]
        ],
    ),
    "OdradekDiskFilling": Case(disk(81), [DISK], "warning", [disk(79)]),
    "OdradekDiskAlmostFull": Case(disk(91), [DISK], "critical", [disk(89)]),
    "OdradekLogDirectoryFailed": Case(
        [("odradek_offline_replicas", BROKER, steady(4))],
        [BROKER],
        "critical",
        [[("odradek_offline_replicas", BROKER, steady(0))]],
    ),
    "OdradekDataDamaged": Case(
        [("odradek_damaged_reads_total", BROKER, growing(1))],
        [{**CLUSTER, "pod": "main-broker-0"}],
        "critical",
        [[("odradek_damaged_reads_total", BROKER, ONCE)]],
    ),
    "OdradekUnexpectedErrors": Case(
        [("odradek_quarantines_total", {**BROKER, "kind": "retention"}, growing(1))],
        [{**CLUSTER, "pod": "main-broker-0", "kind": "retention"}],
        "warning",
        [[("odradek_quarantines_total", {**BROKER, "kind": "retention"}, ONCE)]],
    ),
    "OdradekAuthenticationsFail": Case(
        [
            (
                "odradek_authentications_failed_total",
                {**one, "listener": "CLIENTS", "mechanism": "PLAIN"},
                growing(6),
            )
            for one in (BROKER, OTHER)
        ],
        [{**CLUSTER, "listener": "CLIENTS"}],
        "warning",
        [
            [
                (
                    "odradek_authentications_failed_total",
                    {**BROKER, "listener": "CLIENTS", "mechanism": "PLAIN"},
                    growing(6),
                )
            ]
        ],
    ),
    "OdradekAuthorizerDenies": Case(
        [("odradek_authorizer_denials_total", one, growing(6)) for one in (BROKER, OTHER)],
        [CLUSTER],
        "warning",
        [[("odradek_authorizer_denials_total", BROKER, growing(6))]],
    ),
    "OdradekAuthorityEnds": Case(
        [
            (
                "odradek_cluster_authority_not_after_timestamp_seconds",
                {**CLUSTER, "authority": "cluster-ca"},
                steady(14 * 86_400),
            )
        ],
        [{**CLUSTER, "authority": "cluster-ca"}],
        "warning",
        [
            [
                (
                    "odradek_cluster_authority_not_after_timestamp_seconds",
                    {**CLUSTER, "authority": "cluster-ca"},
                    steady(15 * 86_400),
                )
            ]
        ],
    ),
    "OdradekCertificateExpires": Case(
        [
            (
                "odradek_certificate_not_after_timestamp_seconds",
                {**BROKER, "listener": "TLS"},
                steady(7 * 86_400),
            )
        ],
        [{**CLUSTER, "listener": "TLS"}],
        "warning",
        [
            [
                (
                    "odradek_certificate_not_after_timestamp_seconds",
                    {**BROKER, "listener": "TLS"},
                    steady(8 * 86_400),
                )
            ]
        ],
    ),
    "OdradekTokenKeysUnavailable": Case(
        [("odradek_jwks_fetches_failed_total", {**BROKER, "listener": "CLIENTS"}, growing(6))],
        [{**CLUSTER, "pod": "main-broker-0", "listener": "CLIENTS"}],
        "warning",
        [[("odradek_jwks_fetches_failed_total", {**BROKER, "listener": "CLIENTS"}, ONCE)]],
    ),
    "OdradekClientsThrottled": Case(
        [
            (
                "odradek_throttle_seconds_total",
                {**BROKER, "quota": "request_percentage"},
                growing(90),
            )
        ],
        [{**CLUSTER, "quota": "request_percentage"}],
        "warning",
        [
            [
                (
                    "odradek_throttle_seconds_total",
                    {**BROKER, "quota": "request_percentage"},
                    growing(9),
                )
            ]
        ],
    ),
    "OdradekGroupLags": Case(
        [("kafka_consumergroup_lag", one, steady(60_000)) for one in (PART, PART_1)],
        [{**OF_GROUP, "topic": "t"}],
        "warning",
        [
            [("kafka_consumergroup_lag", one, steady(40_000)) for one in (PART, PART_1)],
            # The driver of a job and the exporter tell the same lag: it counts once.
            [
                ("kafka_consumergroup_lag", one, steady(60_000))
                for one in (PART, {**DRIVER, "topic": "t", "partition": "0"})
            ],
        ],
    ),
    "OdradekGroupLate": Case(
        [("kafka_consumergroup_lag_seconds", PART, steady(901))],
        [{**OF_GROUP, "topic": "t"}],
        "warning",
        [[("kafka_consumergroup_lag_seconds", PART, steady(899))]],
    ),
    "OdradekGroupLagUnknown": Case(
        [("odradek_consumergroup_lag_read_timestamp_seconds", GROUP, steady(600))],
        [OF_GROUP],
        "warning",
        [[("odradek_consumergroup_lag_read_timestamp_seconds", GROUP, growing(60))]],
    ),
    "OdradekGroupStopped": Case(verdicts("STOP"), [OF_GROUP], "warning", [verdicts("STALL")]),
    "OdradekGroupStalled": Case(verdicts("STALL"), [OF_GROUP], "warning", [verdicts("WARN")]),
    "OdradekGroupRewound": Case(verdicts("REWIND"), [OF_GROUP], "warning", [verdicts("OK")]),
    "OdradekExporterMissing": Case(
        [
            ("odradek_cluster_brokers_wanted", CLUSTER, steady(3)),
            ("up", EXPORTER, steady(0)),
            # Another cluster's exporter is not this one's.
            ("up", {**EXPORTER, "cluster": "other"}, steady(1)),
        ],
        [CLUSTER],
        "warning",
        [
            [
                ("odradek_cluster_brokers_wanted", CLUSTER, steady(3)),
                ("up", EXPORTER, steady(1)),
            ],
        ],
    ),
    "OdradekExporterBlind": Case(
        [("odradek_exporter_round_failures_total", {**EXPORTER, "kind": "broker"}, growing(4))],
        [{**CLUSTER, "kind": "broker"}],
        "warning",
        [[("odradek_exporter_round_failures_total", {**EXPORTER, "kind": "broker"}, ONCE)]],
    ),
    "OdradekJobStalled": Case(
        [("odradek_resource_stalled", JOB, steady(1)), ("odradek_resource_ready", JOB, steady(0))],
        [{"namespace": "data", "name": "counts"}],
        "critical",
        [
            [("odradek_resource_stalled", JOB, steady(0))],
            [("odradek_resource_stalled", TOPIC, steady(1))],
        ],
    ),
    "OdradekJobFailing": Case(
        [("odradek_resource_ready", JOB, steady(0)), ("odradek_resource_stalled", JOB, steady(0))],
        [{"namespace": "data", "name": "counts"}],
        "warning",
        [
            [("odradek_resource_ready", JOB, steady(1))],
            # That is OdradekJobStalled.
            [
                ("odradek_resource_ready", JOB, steady(0)),
                ("odradek_resource_stalled", JOB, steady(1)),
            ],
        ],
    ),
    "OdradekZooKeeperAway": Case(
        answering(0, 0, 1),
        [{}],
        "critical",
        [answering(1, 1, 0)],
        values=ENSEMBLE,
        fires_without_series=True,
    ),
    "OdradekZooKeeperServerMissing": Case(
        answering(1, 1),
        [{}],
        "warning",
        [answering(1, 1, 1)],
        values=ENSEMBLE,
        fires_without_series=True,
    ),
    "OdradekZooKeeperSlow": Case(
        [("outstanding_requests", SERVERS[0], steady(150))],
        [{"namespace": "logs", "pod": "zookeeper-0"}],
        "warning",
        [[("outstanding_requests", SERVERS[0], steady(90))]],
    ),
}
