from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from odradek_collector import lines

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
KUBELET = lines.LogOrigin("kubelet", "node1")


def parse(line: str) -> tuple[str, str]:
    event = lines.parse(line, KUBELET, NOW, None)
    fields = json.loads(event.value())
    return fields["at"], fields["severity"]


@pytest.mark.parametrize(
    ("line", "at", "severity"),
    [
        ("I1121 09:13:01.123456    1234 a.go:1] x", "2026-11-21T09:13:01.123Z", "info"),
        ("W1121 09:13:01.999999       1 a.go:1] x", "2026-11-21T09:13:01.999Z", "warning"),
        ("E1121 09:13:01.000000       1 a.go:1] x", "2026-11-21T09:13:01.000Z", "error"),
        ("F1121 09:13:01.000000       1 a.go:1] x", "2026-11-21T09:13:01.000Z", "error"),
        (
            'time="2026-11-21T09:13:01.123456789Z" level=warning msg="x"',
            "2026-11-21T09:13:01.123Z",
            "warning",
        ),
        (
            'time="2026-11-21T10:13:01.5+01:00" level=error msg="level=info"',
            "2026-11-21T09:13:01.500Z",
            "error",
        ),
        (
            '{"level":"info","ts":"2026-11-21T09:13:01.123456Z","msg":"x"}',
            "2026-11-21T09:13:01.123Z",
            "info",
        ),
        ('{"level":"warn","ts":1795252381.25,"msg":"x"}', "2026-11-21T09:13:01.250Z", "warning"),
        ('{"ts":1795252381250.0,"msg":"x"}', "2026-11-21T09:13:01.250Z", "unknown"),
        ("[WARNING] plugin/health: slow", "2026-11-21T09:30:00.000Z", "warning"),
        ("goroutine 1 [running]:", "2026-11-21T09:30:00.000Z", "unknown"),
        ("{ not json", "2026-11-21T09:30:00.000Z", "unknown"),
        ("I9999 99:99:99.000000 1 a.go:1] x", "2026-11-21T09:30:00.000Z", "info"),
        (f'{{"ts":1{"0" * 400}}}', "2026-11-21T09:30:00.000Z", "unknown"),
        ('{"ts":NaN}', "2026-11-21T09:30:00.000Z", "unknown"),
        ('{"ts":"0001-01-01T00:00:00+01:00"}', "2026-11-21T09:30:00.000Z", "unknown"),
        ('time="9999-12-31T23:59:59-01:00" level=info', "2026-11-21T09:30:00.000Z", "info"),
        ('{"ts":"0001-01-01T00:00:00Z"}', "0001-01-01T00:00:00.000Z", "unknown"),
    ],
)
def test_time_and_severity_are_those_that_the_component_wrote(
    line: str, at: str, severity: str
) -> None:
    assert parse(line) == (at, severity)


def test_klog_of_december_read_in_january_is_of_last_year() -> None:
    january = datetime(2027, 1, 1, 0, 5, tzinfo=UTC)
    event = lines.parse("I1231 23:59:59.000000 1 a.go:1] x", KUBELET, january, None)
    assert event.at == datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_klog_of_a_leap_day_is_read() -> None:
    march = datetime(2028, 3, 1, tzinfo=UTC)
    event = lines.parse("I0229 12:00:00.000000 1 a.go:1] x", KUBELET, march, None)
    assert event.at == datetime(2028, 2, 29, 12, tzinfo=UTC)


def test_line_without_a_time_has_the_time_of_the_line_before() -> None:
    before = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
    assert lines.parse("\tat main.go:3", KUBELET, NOW, before).at == before


def test_record_is_keyed_by_component_and_holds_the_line_unchanged() -> None:
    line = 'E1121 09:13:01.000000 1 a.go:1] "quoted" ümlaut \ud800'
    event = lines.parse(line, KUBELET, NOW, None)
    assert event.key() == b"kubelet"
    fields = json.loads(event.value())
    assert list(fields) == ["at", "component", "node", "severity", "line"]
    assert fields["node"] == "node1"
    assert fields["line"].startswith('E1121 09:13:01.000000 1 a.go:1] "quoted" ümlaut ')


@pytest.mark.parametrize(
    ("path", "component", "node", "runtime"),
    [
        ("/logs/kubelet-node1.log", "kubelet", "node1", False),
        ("/logs/kube-proxy-node2.log", "kube-proxy", "node2", False),
        ("/logs/apiserver.log", "apiserver", "here", False),
        ("/logs/kube-apiserver.log", "kube-apiserver", "here", False),
        ("/logs/controller-manager.log", "controller-manager", "here", False),
        (
            "/var/log/pods/kube-system_etcd-kind-control-plane_0a1b/etcd/0.log",
            "etcd",
            "here",
            True,
        ),
    ],
)
def test_file_name_tells_component_and_node(
    path: str, component: str, node: str, runtime: bool
) -> None:
    assert lines.origin_of(path, "here") == lines.LogOrigin(component, node, runtime)


def test_static_pods_name_tells_the_node_where_no_other_does() -> None:
    path = "/var/log/pods/kube-system_etcd-kind-control-plane_0a1b/etcd/0.log"
    assert lines.origin_of(path, "").node == "kind-control-plane"


def test_container_runtimes_prefix_is_taken_off() -> None:
    line = "2026-11-21T09:13:01.123456789Z stderr F I1121 09:13:01.123456 1 a.go:1] x"
    stamp, continues, text = lines.split_runtime_prefix(line)
    assert stamp == datetime(2026, 11, 21, 9, 13, 1, 123456, tzinfo=UTC)
    assert not continues
    assert text == "I1121 09:13:01.123456 1 a.go:1] x"


def test_part_of_a_long_line_says_that_more_follows() -> None:
    assert lines.split_runtime_prefix("2026-11-21T09:13:01Z stdout P abc")[1:] == (True, "abc")


def test_line_without_a_runtimes_prefix_is_left_alone() -> None:
    assert lines.split_runtime_prefix("plain text") == (None, False, "plain text")
