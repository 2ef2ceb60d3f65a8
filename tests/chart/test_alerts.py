"""Each alert of the chart as Prometheus judges it: when it fires, when it rests, and its runbook.

promtool runs the rules over the series of `alert_cases`. Without series an alert rests, but for
those whose matter is that something is missing.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.chart.alert_cases import (
    AT,
    CASES,
    DRIVER,
    ENSEMBLE,
    OF_GROUP,
    PART,
    SUSPENDED,
    Series,
    answering,
    disk,
    steady,
)
from tests.cluster.settings import REPO
from tests.support import helm, yaml_text
from tests.support.helm import Manifest

RUNBOOKS = REPO / "docs/runbooks"
DOCUMENT = REPO / "docs/monitoring.md"
HEADINGS = ("## Meaning", "## Impact", "## Look", "## Mend")


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
