"""Each alert of the chart as Prometheus judges it: when it fires, when it rests, and its runbook.

promtool runs the rules over series that are written down here. Without series an alert rests, but
for those whose matter is that something is missing.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.settings import REPO
from tests.support import helm, yaml_text
from tests.support.helm import Manifest

RUNBOOKS = REPO / "docs/runbooks"
DOCUMENT = REPO / "docs/monitoring.md"
HEADINGS = ("## Meaning", "## Impact", "## Look", "## Mend")
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


def rules(values: Manifest | None = None) -> list[dict[str, Any]]:
    """Return the groups of rules that the chart renders with these values."""
    return rendered(json.dumps(values))


@functools.cache
def rendered(values: str) -> list[dict[str, Any]]:
    objects = helm.template(json.loads(values), monitoring=True)
    (found,) = [one for one in objects if one["kind"] == "PrometheusRule"]
    groups: list[dict[str, Any]] = found["spec"]["groups"]
    return groups


def alerts(values: Manifest | None = None) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in rules(values) for rule in group["rules"]}


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    assert program is not None, "promtool is missing: `make setup` installs Prometheus"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def write_rules(groups: list[dict[str, Any]], path: Path) -> None:
    path.write_text(json.dumps({"groups": groups}))


def test_rules_and_their_templates_are_well_formed(tmp_path: Path) -> None:
    write_rules(rules(ENSEMBLE), tmp_path / "rules.yaml")
    checked = promtool("check", "rules", str(tmp_path / "rules.yaml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(CASES)} rules found" in checked.stdout


def judge(groups: list[dict[str, Any]], tests: list[dict[str, Any]], folder: Path) -> None:
    """Let promtool judge these tests of alerts by name and labels."""
    named = [
        # Texts are no matter here, and would have to be repeated.
        {"name": one["name"], "rules": [{**rule, "annotations": {}} for rule in one["rules"]]}
        for one in groups
    ]
    write_rules(named, folder / "rules.yaml")
    document = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": tests,
    }
    (folder / "tests.yaml").write_text(json.dumps(document))
    ended = promtool("test", "rules", str(folder / "tests.yaml"))
    assert ended.returncode == 0, ended.stdout + ended.stderr


def expectation(
    name: str, alert: str, series: list[Series], labels: list[dict[str, str]], severity: str
) -> dict[str, Any]:
    return {
        "name": name,
        "interval": "1m",
        "input_series": [
            {"series": f"{metric}{selector(of)}", "values": values} for metric, of, values in series
        ],
        "alert_rule_test": [
            {
                "eval_time": AT,
                "alertname": alert,
                "exp_alerts": [{"exp_labels": {**one, "severity": severity}} for one in labels],
            }
        ],
    }


def selector(labels: dict[str, str]) -> str:
    return "{" + ",".join(f"{key}={json.dumps(value)}" for key, value in labels.items()) + "}"


def test_every_alert_has_its_case() -> None:
    assert set(alerts(ENSEMBLE)) == set(CASES)


@pytest.mark.parametrize("values", [{}, ENSEMBLE], ids=["a lone ZooKeeper", "an ensemble"])
def test_alerts_fire_and_rest(values: Manifest, tmp_path: Path) -> None:
    tests, without_series = [], []
    for name, case in CASES.items():
        if case.values != values:
            continue
        tests.append(expectation(f"{name} fires", name, case.fires, case.labels, case.severity))
        for number, series in enumerate(case.rests):
            tests.append(expectation(f"{name} rests ({number})", name, series, [], case.severity))
        without: list[dict[str, str]] = [{}] if case.fires_without_series else []
        without_series.append(expectation("without series", name, [], without, case.severity))
    assert tests
    # Each test costs promtool a database of its own: where nothing is in it, one serves all alerts.
    asked = [one for each in without_series for one in each["alert_rule_test"]]
    tests.append({**without_series[0], "alert_rule_test": asked})
    judge(rules(values), tests, tmp_path)


def test_lone_zookeeper_that_is_away_is_told(tmp_path: Path) -> None:
    name, away = "OdradekZooKeeperAway", answering(0)
    told = expectation("away", name, away, [{}], "critical")
    served = expectation("there", name, answering(1), [], "critical")
    judge(rules(), [told, served], tmp_path)


def test_thresholds_are_those_of_the_values(tmp_path: Path) -> None:
    limits = {
        "maxLag": 10,
        "maxLagSeconds": 20,
        "lagUnreadSeconds": 3000,
        "groupStoppedFor": "1h",
        "jobFailingFor": "1h",
        "brokerDownFor": "1h",
        "underReplicatedFor": "1h",
        "diskFillingPercent": 50,
        "diskAlmostFullPercent": 60,
        "maxZooKeeperRequests": 200,
    }
    fires = {
        "OdradekGroupLags": [("kafka_consumergroup_lag", PART, steady(11))],
        "OdradekGroupLate": [("kafka_consumergroup_lag_seconds", PART, steady(21))],
        "OdradekDiskFilling": disk(51),
        "OdradekDiskAlmostFull": disk(61),
    }
    tests = []
    for name in (
        *("OdradekGroupLagUnknown", "OdradekGroupStopped", "OdradekJobFailing"),
        *("OdradekBrokerDown", "OdradekPartitionsUnderReplicated", "OdradekZooKeeperSlow"),
    ):
        tests.append(expectation(name, name, CASES[name].fires, [], CASES[name].severity))
    for name, series in fires.items():
        case = CASES[name]
        tests.append(expectation(name, name, series, case.labels, case.severity))
    judge(rules({"monitoring": {"rules": limits}}), tests, tmp_path)


def test_groups_that_the_values_ignore_have_no_alert(tmp_path: Path) -> None:
    ignored = rules({"monitoring": {"rules": {"ignoreGroups": r"console-\d+|g"}}})
    names = ("OdradekGroupLags", "OdradekGroupLate", "OdradekGroupLagUnknown")
    stopped = ("OdradekGroupStopped", "OdradekGroupStalled", "OdradekGroupRewound")
    tests = [
        expectation(name, name, CASES[name].fires, [], "warning") for name in (*names, *stopped)
    ]
    other = [("kafka_consumergroup_lag", {**PART, "consumergroup": "gg"}, steady(200_000))]
    labels = [{**OF_GROUP, "consumergroup": "gg", "topic": "t"}]
    tests.append(expectation("others", "OdradekGroupLags", other, labels, "warning"))
    judge(ignored, tests, tmp_path)


def test_offsets_of_clients_without_a_group_have_no_alert(tmp_path: Path) -> None:
    tests = [
        expectation(
            name,
            name,
            [(one, {**labels, "consumergroup": ""}, values) for one, labels, values in case.fires],
            [],
            case.severity,
        )
        for name, case in CASES.items()
        if name.startswith("OdradekGroup")
    ]
    assert len(tests) == 6
    judge(rules(), tests, tmp_path)


def test_job_that_is_suspended_on_purpose_pages_nobody(tmp_path: Path) -> None:
    names = ("OdradekGroupLags", "OdradekGroupLate", "OdradekGroupStopped")
    other = (SUSPENDED[0], {**SUSPENDED[1], "consumergroup": "other"}, SUSPENDED[2])
    tests = [
        expectation(what, name, [*CASES[name].fires, one], labels, "warning")
        for name in names
        for what, one, labels in (
            ("suspended", SUSPENDED, []),
            ("another one is", other, CASES[name].labels),
        )
    ]
    judge(rules(), tests, tmp_path)


def test_without_exporter_operator_and_drivers_tell_the_lag(tmp_path: Path) -> None:
    without: Manifest = {"exporter": {"enabled": False}}
    assert not [name for name in alerts(without) if "Exporter" in name or "Stopped" in name]
    partition = {"topic": "t", "partition": "0"}
    name = "OdradekGroupLags"
    tests = [
        expectation(
            "a group without a job",
            name,
            [("kafka_consumergroup_lag", {**OF_GROUP, **partition}, steady(200_000))],
            [{**OF_GROUP, "topic": "t"}],
            "warning",
        ),
        expectation(
            "a job",
            name,
            [("kafka_consumergroup_lag", {**DRIVER, **partition}, steady(200_000))],
            [{"namespace": "data", "consumergroup": "g", "topic": "t"}],
            "warning",
        ),
    ]
    judge(rules(without), tests, tmp_path)


def test_zookeeper_without_metrics_has_no_alerts_of_its_own() -> None:
    for values in ({"metrics": {"enabled": False}}, {"enabled": False}):
        assert not [name for name in alerts({"zookeeper": values}) if "ZooKeeper" in name]


def test_every_alert_has_a_runbook_that_says_what_to_do() -> None:
    found = alerts(ENSEMBLE)
    assert {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"} == set(found)
    for name, rule in found.items():
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"
        lines = (RUNBOOKS / f"{name}.md").read_text().splitlines()
        assert lines[0] == f"# {name}"
        assert [line for line in lines if line.startswith("## ")] == list(HEADINGS)


def test_runbooks_are_where_the_values_say() -> None:
    values: Manifest = {"monitoring": {"rules": {"runbookUrl": "https://wiki.example.com/kafka/"}}}
    for name, rule in alerts(values).items():
        wanted = f"https://wiki.example.com/kafka/{name}.md"
        assert rule["annotations"]["runbook_url"] == wanted


def test_alerts_are_sent_with_a_severity_and_a_summary() -> None:
    for name, rule in alerts(ENSEMBLE).items():
        assert rule["labels"]["severity"] in ("warning", "critical"), name
        assert rule["annotations"]["summary"].endswith("."), name
        assert yaml_text.load(json.dumps(rule)) == rule


def test_configurations_that_are_documented_are_ones_that_prometheus_takes(tmp_path: Path) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    (documented,) = [block for block in blocks if block.startswith("scrape_configs:")]
    maps = yaml_text.load_all((REPO / "examples/quickstart/prometheus.yaml").read_text())
    (shown,) = [one["data"]["prometheus.yml"] for one in maps if one["kind"] == "ConfigMap"]
    write_rules(rules(), tmp_path / "odradek-rules.yaml")
    # Debian's Prometheus is built without Kubernetes.
    discovery = "kubernetes_sd_configs: [{role: pod}]"
    assert discovery in documented
    documented = documented.replace(discovery, "static_configs: []")
    for text in (documented, shown):
        (tmp_path / "prometheus.yml").write_text(text)
        checked = promtool("check", "config", str(tmp_path / "prometheus.yml"))
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_document_lists_every_alert_with_its_severity() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(runbooks/\1\.md\) \| (\w+) \|", DOCUMENT.read_text(), re.M)
    found = {name: rule["labels"]["severity"] for name, rule in alerts(ENSEMBLE).items()}
    assert dict(rows) == found
