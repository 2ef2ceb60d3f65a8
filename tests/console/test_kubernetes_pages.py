"""The console's pages of jobs and reassignments against a real API server."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.console.running import HOSTILE, Running
from tests.support import objects
from tests.support.apiserver import ApiServer
from tests.support.broker import wait_until
from tests.support.kubectl import QuickKubectl
from tests.support.ports import free_port

pytestmark = pytest.mark.timeout(1200)

HASH, OTHER_HASH = "a1b2c3d4", "e5f6a7b8"
# No broker: what Kubernetes tells does not depend on them.
NO_BROKER = "127.0.0.1:1"
_numbers = itertools.count(1)


def resource(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "main"}, **spec},
    }


class ShownResources:
    """A namespace with resources whose statuses are as the operator writes them."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.namespace = f"console-{os.getpid()}-{next(_numbers)}"
        server.create_namespace(self.namespace)
        self.kubectl = QuickKubectl(server.kubectl, server.kubeconfig, self.namespace)

    def kubeconfig(self, name: str, **changed: Any) -> Path:
        """Write a kubeconfig that differs: `token` of another account, or another `server`."""
        document = yaml.safe_load(self.server.kubeconfig.read_text())
        if "token" in changed:
            document["users"][0]["user"] = {"token": changed["token"]}
        if "server" in changed:
            document["clusters"][0]["cluster"]["server"] = changed["server"]
        path = self.folder / name
        path.write_text(yaml.safe_dump(document))
        return path

    def status(self, kind: str, name: str, **status: Any) -> None:
        body = {"status": status}
        words = (kind, name, "--subresource=status", "--type=merge", f"--patch={json.dumps(body)}")
        self.kubectl("patch", *words)

    def reassignment(self, name: str, **status: Any) -> None:
        moves = [{"topic": "orders", "partition": 0, "replicas": [2, 1]}]
        self.kubectl.apply(
            resource("Reassignment", name, mode="Explicit", moves=moves, approval="Manual")
        )
        if status:
            self.status("reassignment", name, **status)

    def spec(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.kubectl.get("reassignment", name)["spec"]
        return found


@pytest.fixture(scope="module")
def place(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> ShownResources:
    api_server.install_crds()
    made = ShownResources(api_server, tmp_path_factory.mktemp("kubeconfigs"))
    job = {
        "sql": f"SELECT '{HOSTILE}' AS x FROM source",
        "sink": {"parquet": {"path": "/t"}},
        "volume": {"size": "1Gi"},
    }
    made.kubectl.apply(
        resource("ConsumerGroup", "copier", topics=["orders"], job=job),
        resource(
            "ConsumerGroup",
            "with-page",
            clusterRef={"name": "main", "namespace": "elsewhere"},
            topics=["orders"],
            job={**job, "ui": {"enabled": True}},
        ),
        resource("ConsumerGroup", "plain"),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "r-plan"},
            "data": {
                "plan.json": json.dumps(
                    {"partitions": [{"topic": "orders", "partition": 0, "replicas": [2, 1]}]}
                )
            },
        },
    )
    made.status(
        "consumergroup",
        "copier",
        totalLag=1234,
        job={
            "phase": "Running",
            "driverPod": "copier-driver",
            "lastBatchId": 41,
            "message": HOSTILE,
            "restarts": {"application": 3, "infrastructure": 1},
        },
    )
    made.status("consumergroup", "with-page", job={"driverPod": "with-page-driver"})
    made.reassignment(
        "running",
        phase="Running",
        planHash=HASH,
        planRef={"name": "r-plan", "key": "plan.json"},
        partitions={"total": 7, "done": 3, "failed": 0},
        bytes={"total": 4096, "moved": 1024},
        percent=25,
    )
    return made


def started(place: ShownResources, folder: Path, kubeconfig: Path, *options: str) -> Running:
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    words = ("--kubernetes", *options)
    return Running(folder, NO_BROKER, *words, environment=environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("console")


@pytest.fixture(scope="module")
def console(place: ShownResources, folder: Path) -> Iterator[Running]:
    """A console that may change the resources of the one namespace."""
    options = ("--writable", "--namespace", place.namespace)
    running = started(place, folder, place.server.kubeconfig, *options)
    yield running
    running.end()


def submit(console: Running, path: str, **fields: str) -> tuple[int, str]:
    """Press a button of the page of a Reassignment: POST with a token of this browser."""
    _, page, headers = console.call("GET", "/login")
    [token] = re.findall(r'name="token" value="(\w+)"', page)
    cookie = headers["Set-Cookie"].partition(";")[0]
    body = "&".join(f"{name}={value}" for name, value in {**fields, "token": token}.items())
    status, text, _ = console.call("POST", path, body, Cookie=cookie)
    return status, text


def test_pages_show_jobs_and_reassignments_as_their_status_says(
    console: Running, place: ShownResources
) -> None:
    listed = console.page("/jobs")
    assert "copier" in listed
    assert "plain" not in listed
    assert "1\u202f234" in listed
    one = console.page(f"/jobs/{place.namespace}/copier")
    assert HOSTILE not in one
    assert "3 of the job, 1 of its node or pod" in one
    assert f"kubectl -n {place.namespace} logs copier-driver" in one
    assert "port-forward" not in one
    with_page = console.page(f"/jobs/{place.namespace}/with-page")
    assert "port-forward with-page-driver 4040" in with_page
    place.status("consumergroup", "copier", totalLag=1000, job={"lastBatchId": 47})
    batches = re.compile(r"<dt>Batches</dt><dd>(?!0.0 )[\d.]+ per minute</dd>")
    path = f"/jobs/{place.namespace}/copier"
    wait_until(lambda: batches.search(console.page(path)) is not None, "a rate of batches")
    assert "<polyline" in console.page(path)
    assert "has no job" in console.said(f"/jobs/{place.namespace}/plain", 404)
    assert "3 of 7" in console.page("/reassignments")
    one = console.page(f"/reassignments/{place.namespace}/running")
    for text in (HASH, "3 of 7 done, 0 failed", "1.0 KiB of 4.0 KiB", "orders-0 to brokers 2, 1"):
        assert text in one
    assert "Approve" not in one
    place.reassignment("fresh")
    fresh = console.page(f"/reassignments/{place.namespace}/fresh")
    assert "<dt>Phase</dt><dd>unknown</dd>" in fresh
    assert "There is no plan yet." in fresh


def test_an_approval_holds_for_the_plan_that_was_shown(
    console: Running, place: ShownResources
) -> None:
    place.reassignment("asks", phase="AwaitingApproval", planHash=HASH)
    path = f"/reassignments/{place.namespace}/asks"
    assert f"Approve plan {HASH}" in console.page(path)
    # The plan changes between the page and the button.
    place.status("reassignment", "asks", phase="AwaitingApproval", planHash=OTHER_HASH)
    status, text = submit(console, f"{path}/approve", hash=HASH)
    assert (status, "The plan is another one by now" in text) == (409, True)
    for wrong in ("", "x"):
        assert submit(console, f"{path}/approve", hash=wrong)[0] == 409
    before = place.spec("asks")
    assert "approvedPlanHash" not in before
    assert submit(console, f"{path}/approve", hash=OTHER_HASH)[0] == 303
    # All that the operator waits for, and nothing else.
    assert place.spec("asks") == {**before, "approvedPlanHash": OTHER_HASH}
    place.status("reassignment", "asks", phase="Running")
    status, text = submit(console, f"{path}/approve", hash=OTHER_HASH)
    assert (status, "does not wait for an approval" in text) == (409, True)


def test_a_plan_is_approved_once(console: Running, place: ShownResources) -> None:
    place.reassignment("once", phase="AwaitingApproval", planHash=HASH)
    path = f"/reassignments/{place.namespace}/once"
    assert submit(console, f"{path}/approve", hash=HASH)[0] == 303
    page = console.page(path)
    assert "Approve plan" not in page
    assert "is approved" in page


def test_cancel_is_asked_for_once_and_not_at_the_end(
    console: Running, place: ShownResources
) -> None:
    place.reassignment("ends", phase="Running", planHash=HASH)
    path = f"/reassignments/{place.namespace}/ends"
    assert "Cancel this reassignment" in console.page(path)
    before = place.spec("ends")
    assert submit(console, f"{path}/cancel")[0] == 303
    assert place.spec("ends") == {**before, "cancel": True}
    page = console.page(path)
    assert "Cancel this reassignment" not in page
    place.reassignment("ended", phase="Completed", planHash=HASH)
    path = f"/reassignments/{place.namespace}/ended"
    assert "Cancel this reassignment" not in console.page(path)
    status, text = submit(console, f"{path}/cancel")
    assert (status, "has ended" in text) == (409, True)
    assert place.spec("ended")["cancel"] is False


@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        # The way to other objects of the API: a browser's user must not choose it.
        "..%2F..%2Fconsumergroups%2Fcopier",
        "..%2Freassignments%2Frunning",
        "running%3Fpretty=true",
        "running%23",
        "%2e%2e",
        "%00",
        "x" * 300,
    ],
)
def test_names_lead_to_no_other_object(console: Running, place: ShownResources, name: str) -> None:
    said = console.said(f"/reassignments/{place.namespace}/{name}", 404)
    assert said in ("There is no such Reassignment.", "There is no such page.")


def test_one_namespace_is_all_that_a_console_of_it_shows(
    place: ShownResources, folder: Path, console: Running
) -> None:
    other = ShownResources(place.server, place.folder)
    other.reassignment("elsewhere", phase="AwaitingApproval", planHash=HASH)
    assert "elsewhere" not in console.page("/reassignments")
    path = f"/reassignments/{other.namespace}/elsewhere"
    assert console.said(path, 404) == "There is no such Reassignment."
    up = f"/reassignments/{place.namespace}/..%2F..%2F{other.namespace}%2Freassignments%2Felsewhere"
    assert console.said(up, 404) == "There is no such Reassignment."


def test_one_cluster_is_all_that_a_console_of_it_shows(place: ShownResources, folder: Path) -> None:
    place.reassignment("of-main", phase="AwaitingApproval", planHash=HASH)
    options = ("--writable", "--namespace", place.namespace, "--cluster")
    console = started(place, folder, place.server.kubeconfig, *options, "other")
    assert "of-main" not in console.page("/reassignments")
    assert "copier" not in console.page("/jobs")
    path = f"/reassignments/{place.namespace}/of-main"
    assert console.said(path, 404) == "There is no such Reassignment."
    for action in ("approve", "cancel"):
        assert submit(console, f"{path}/{action}", hash=HASH)[0] == 404
    assert "approvedPlanHash" not in place.spec("of-main")
    console.end()
    console = started(place, folder, place.server.kubeconfig, *options, "main")
    assert "of-main" in console.page("/reassignments")
    assert "copier" in console.page("/jobs")
    # It is of a cluster of this name in another namespace.
    assert "with-page" not in console.page("/jobs")
    console.end()


def test_without_writable_nothing_is_offered_and_nothing_changes(
    place: ShownResources, folder: Path
) -> None:
    place.reassignment("kept", phase="AwaitingApproval", planHash=HASH)
    path = f"/reassignments/{place.namespace}/kept"
    console = started(place, folder, place.server.kubeconfig)
    before = place.spec("kept")
    page = console.page(path)
    assert "<button class" not in page
    assert "Approve" not in page
    _, text, headers = console.call("GET", "/login")
    [token] = re.findall(r'name="token" value="(\w+)"', text)
    cookie = headers["Set-Cookie"].partition(";")[0]
    for action in ("approve", "cancel"):
        body = f"hash={HASH}&token={token}"
        status, text, _ = console.call("POST", f"{path}/{action}", body, Cookie=cookie)
        assert (status, "read-only" in text) == (403, True)
    assert place.spec("kept") == before
    console.end()


def test_without_rights_pages_say_so_and_not_that_there_is_nothing(
    place: ShownResources, folder: Path
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody"}}
    place.kubectl.apply(account)
    token = objects.client(place.server.kubeconfig).token(place.namespace, "nobody", 3600)
    console = started(place, folder, place.kubeconfig("nobody", token=token), "--writable")
    for path, kind in (("/jobs", "consumergroups"), ("/reassignments", "reassignments")):
        page = console.page(path)
        [said] = re.findall(r'<p class="bad">(Unknown: .*?)</p>', page)
        assert f"{kind}.odradek.io is forbidden" in said
        assert "Nothing to show" not in page
    said = console.said(f"/reassignments/{place.namespace}/running", 502)
    assert said.startswith("Kubernetes: 403: ")
    assert "\n" not in said
    console.end()


def test_without_an_api_server_pages_say_so_and_not_that_there_is_nothing(
    place: ShownResources, folder: Path
) -> None:
    port = free_port()
    kubeconfig = place.kubeconfig("away", server=f"https://127.0.0.1:{port}")
    console = started(place, folder, kubeconfig)
    for path in ("/jobs", "/reassignments"):
        page = console.page(path)
        [said] = re.findall(r'<p class="bad">(Unknown: .*?)</p>', page)
        assert said == "Unknown: Kubernetes: the API server does not answer: Connection refused"
        assert "Nothing to show" not in page
    said = console.said(f"/jobs/{place.namespace}/copier", 502)
    assert said == "Kubernetes: the API server does not answer: Connection refused."
    console.end()


@pytest.mark.parametrize("text", [None, "", "{", "a: [", "clusters: 7"])
def test_a_kubeconfig_that_is_none_ends_the_start_with_one_line(
    folder: Path, tmp_path: Path, text: str | None
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    if text is not None:
        kubeconfig.write_text(text)
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    code, said = Running.mistake(tmp_path, ["--kubernetes"], environment)
    assert code == 2, said
    assert len(said.splitlines()) == 1
    assert "--kubernetes: " in said
