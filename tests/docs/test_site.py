"""The site builds strictly, needs no other host, and its reference says what the code has."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from odradek import config, properties, topic_config
from odradek.handlers.dispatch import ADVERTISED
from tests.docs import commands, crds, metrics, protocol, reasons, settings, site, staging
from tests.layout.sources import PACKAGES, ROOT
from tests.reconcile import statuses
from tests.support.broker import STEADY, Cluster
from tests.support.clients import create_topic, produce_all
from tests.support.ports import free_port

# Reasons of LagExporter and Console.
OF_CLIENTS = """
    ApplyRejected CertificateNeeded NoClusterAuthority ResourceConflict UsersNotWritten
    ZooKeeperRefuses ZooKeeperUnreachable
"""
FOREIGN = re.compile(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(?:https?:)?//""")


@pytest.fixture
def page_of_a_broker(tmp_path: Path) -> str:
    """What a broker with a topic and a group serves for Prometheus."""
    port = free_port()
    with Cluster(tmp_path, 1, {**STEADY, "odradek.metrics.port": str(port)}) as cluster:
        create_topic(cluster.bootstrap, "t")
        produce_all(cluster.bootstrap, "t", [b"a"])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            return str(answer.read().decode())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return site.build(tmp_path_factory.mktemp("docs"))
    except subprocess.CalledProcessError as error:
        pytest.fail(f"the site does not build: {error.stdout}")


def test_pages_load_nothing_from_other_hosts(built: Path) -> None:
    pages = list(built.rglob("*.html"))
    assert len(pages) > 80
    assert [page.name for page in pages if FOREIGN.search(page.read_text())] == []
    styles = "".join(style.read_text() for style in built.rglob("*.css"))
    assert not re.search(r"url\(['\"]?(?:https?:)?//", styles)
    assert "mermaid" in (built / "assets/mermaid.js").read_text()[-2000:]


def test_lists_and_marks_are_read_as_a_code_host_reads_them(built: Path) -> None:
    page = (built / "security.html").read_text()
    numbered = page[page.index('id="from-plain-to-tls-sasl-and-acls"') :]
    first = numbered[numbered.index("<ol>") : numbered.index("</ol>")]
    assert first.count('<div class="highlight">') >= 3
    for path in built.rglob("*.html"):
        assert "&lt;!--" not in path.read_text(), path


def test_broken_links_and_anchors_fail_the_build(tmp_path: Path) -> None:
    broken = ["README.md#none", "none.md", "#nothing", "/README.md"]
    (tmp_path / "pages").mkdir()
    links = "".join(f"[a]({link})\n" for link in broken)
    (tmp_path / "pages/README.md").write_text(f"# Page\n\n{links}")
    settings = tmp_path / "mkdocs.yml"
    settings.write_text(yaml.safe_dump({"INHERIT": str(staging.SETTINGS), "nav": ["README.md"]}))
    with pytest.raises(subprocess.CalledProcessError) as failed:
        site.render(settings)
    warned = [line for line in failed.value.stdout.splitlines() if line.startswith("WARNING")]
    assert [link for link in broken if not any(f"'{link}'" in line for line in warned)] == []


def test_every_field_of_every_crd_is_in_the_reference() -> None:
    for name, page in crds.pages():
        crd = yaml.safe_load((ROOT / "crds" / name).with_suffix(".yaml").read_text())
        spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        for field, schema in spec["properties"].items():
            assert f"| `spec.{field}`" in page, field
            if "description" in schema:
                assert schema["description"].split("|")[0].split("<")[0] in page, field


def test_every_setting_is_in_the_reference_with_bounds_that_the_parser_has() -> None:
    for page, declared in (
        (settings.broker_page(), config.BrokerConfig),
        (settings.topic_page(), topic_config.TopicConfig),
    ):
        for _, key in properties.keys_of(declared):
            assert f"| `{key.name}` |" in page, key.name
            kind, bounds = settings.kind_and_bounds(key.parse)
            least = re.search(r"at least (-?\d+)", bounds)
            if kind == "integer" and least:
                key.parse(least[1])
                with pytest.raises(ValueError, match="at least"):
                    key.parse(str(int(least[1]) - 1))


def test_protocol_page_has_what_brokers_advertise() -> None:
    page = protocol.page()
    for one in ADVERTISED:
        assert re.search(
            rf"^\| {int(one.api_key)} \| \w+ \| {one.min_version} \| {one.max_version} \|$",
            page,
            re.MULTILINE,
        ), one


def test_every_command_has_its_options_in_the_reference() -> None:
    page = commands.page()
    for context, command in commands.commands():
        assert f" {context.command_path}\n" in page
        for parameter in command.params:
            for name in parameter.opts:
                assert not name.startswith("--") or name in page, (context.command_path, name)


def test_every_reason_that_statuses_have_is_in_the_reference_with_its_kind() -> None:
    known = reasons.ready_reasons()
    assert statuses.reasons() - set(statuses.PHASES) <= set(known)
    sources = (path for folder in PACKAGES.values() for path in folder.rglob("*.py"))
    code = "".join(path.read_text() for path in sources)
    assert [reason for reason in known if f'"{reason}"' not in code] == []


def test_reasons_of_other_conditions_are_in_the_reference() -> None:
    page, found = reasons.page(), reasons.conditions()
    for kind, names in {
        "ConfigWarning": """
            NoWarnings ClaimDeleted UnknownKeys TooFewBrokers ReplicasShareNode MinInsyncReplicas
            UnknownBroker RackUnknown RackOutdated ZnodeUnreadable
        """,
        "Secured": """
            Secured PlainText NoAuthentication NoAuthorization OpenAuthorization OtherBrokers
            UnsafeListenerChange Rolling ZooKeeperUnreachable
        """,
        "ZooKeeperSecured": """
            Secured NoAuthentication OpenZnodes UnsafeZooKeeperChange Rolling ZooKeeperUnreachable
        """,
        "LagExporter": f"{OF_CLIENTS} ZooKeeperSecretMissing ZooKeeperSecretUnusable",
        "Console": f"{OF_CLIENTS} NoConsoleImage SecretMissing SecretIncomplete",
        "RollingBack": "NotRollingBack Cancelled DestinationDead PartitionsOffline",
        "InProgress": f"{' '.join(statuses.PHASES)} Refused",
        "StorageGrown": "AsSpecified Resizing ResizeRejected",
        "Blocked": "Blocked NotBlocked",
        "DestinationMissing": "DestinationMissing NotDestinationMissing",
    }.items():
        assert {reason for type_, reason in found if type_ == kind} == set(names.split()), kind
        for reason in names.split():
            assert f"| `{kind}` | `{reason}` |" in page
    # What a helper is told stands beside the reason.
    assert "unknown broker settings: ..." in found["ConfigWarning", "UnknownKeys"].messages


def test_condition_that_the_reference_lacks_is_found_in_what_was_written() -> None:
    def written(*conditions: tuple[str, str]) -> list[dict[str, Any]]:
        told = [{"type": type_, "reason": reason} for type_, reason in conditions]
        return [{"kind": "KafkaCluster", "status": {"conditions": told}}]

    assert reasons.unknown([{"kind": "KafkaCluster"}]) == []
    # Whatever Ready says is looked at elsewhere, and other conditions may have the same reason.
    known = (("Ready", "Whatever"), ("Console", "SecretMissing"), ("Secured", "CertificateMissing"))
    assert reasons.unknown(written(*known)) == []
    lacking = written(*known, ("Secured", "Whatever"), ("Forgotten", "CertificateMissing"))
    assert reasons.unknown(lacking) == [
        "KafkaCluster: Forgotten, CertificateMissing",
        "KafkaCluster: Secured, Whatever",
    ]


def test_series_that_alerts_and_dashboards_ask_for_are_declared() -> None:
    declared = {name for program in metrics.PROGRAMS for name in metrics.declared(program)}
    asked = "".join(path.read_text() for path in (ROOT / "charts").rglob("*rules*.yaml"))
    asked += "".join(path.read_text() for path in (ROOT / "charts").rglob("dashboards/*.json"))
    names = set(re.findall(r"\b(?:odradek|kafka)_[a-z_]+\b", asked))
    plain = {re.sub(r"_(?:bucket|sum|count)$", "", name) for name in names}
    series = {name for name in names if name in declared or name.endswith(("_total", "_seconds"))}
    assert len(series) > 40
    assert [one for one in sorted(series) if one not in declared | plain] == []


def test_series_of_a_broker_are_those_of_its_page(page_of_a_broker: str) -> None:
    declared = metrics.declared("Broker")
    shown = list(text_string_to_metric_families(page_of_a_broker))
    assert len(shown) > 30
    for family in shown:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert declared[name].kind == family.type
        assert declared[name].text == family.documentation
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(declared[name].labels), name
