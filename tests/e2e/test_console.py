"""The quickstart's console, as people reach it: with a port-forward, and to approve moves."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from odradek_console import users
from tests.console import browsing
from tests.console.browsing import WAIT_MS
from tests.console.running import Pages
from tests.e2e.test_operations import patch, reassignment
from tests.e2e.test_quickstart import topic
from tests.e2e.test_under_load import leaders, wait_for
from tests.support.broker import wait_until
from tests.support.kubectl import Kubectl, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NAME = "main-console"
TOPIC = "console-moves"
PASSWORD = "s3cret"


@contextmanager
def forwarded(kubectl: Kubectl, folder: Path) -> Iterator[Pages]:
    """Reach the console as NOTES.txt says, at a free port."""
    log = folder / "port-forward.log"
    words = [str(kubectl.binary), f"--kubeconfig={kubectl.kubeconfig}", "--namespace=logs"]
    words += ["port-forward", f"deployment/{NAME}", ":9480"]
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output)
    try:

        def port() -> int | None:
            assert process.poll() is None, log.read_text()
            found = re.search(r"Forwarding from 127\.0\.0\.1:(\d+)", log.read_text())
            return None if found is None else int(found[1])

        wait_until(lambda: port() is not None, "the port is forwarded")
        yield Pages(port() or 0)
    finally:
        process.terminate()
        process.wait(60)


def await_rollout(kubectl: Kubectl) -> None:
    """Wait until the pod that runs is of the Deployment as it is wanted now."""
    kubectl("rollout", "status", f"deployment/{NAME}", "--timeout=300s", timeout_s=320)


def test_a_port_forward_shows_brokers_records_and_the_job(
    kubectl: Kubectl, healthy: None, tmp_path: Path
) -> None:
    await_rollout(kubectl)
    with forwarded(kubectl, tmp_path) as console:
        wait_until(lambda: "3 of 3" in console.page("/"), "all brokers answer")
        assert "cluster-logs" in console.page("/topics")
        assert "value json" in console.page("/topics/cluster-logs/records?from=oldest")
        job = console.page("/jobs/logs/log-counts")
        assert "<dt>State</dt><dd>Running</dd>" in job
        assert "Unknown" not in console.page("/reassignments")
        # Nobody logs in, so nothing can be changed.
        assert "Read-only." in console.page("/")


@contextmanager
def movable(kubectl: Kubectl, bootstrap: str) -> Iterator[list[dict[str, Any]]]:
    """Make a topic of one replica, and yield the move of it to the next broker."""
    one_replica = {"replicationFactor": 1, "config": {"min.insync.replicas": "1"}}
    kubectl.apply(topic(TOPIC, partitions=1, **one_replica))
    try:
        wait_for(kubectl, "topic", TOPIC, "Synced")
        [[owner]] = leaders(bootstrap, TOPIC, count=1, partitions=1).values()
        yield [{"topic": TOPIC, "partition": 0, "replicas": [(owner + 1) % 3]}]
    finally:
        kubectl("delete", "topic", TOPIC, "--ignore-not-found", "--timeout=120s")


@contextmanager
def changes_allowed(kubectl: Kubectl) -> Iterator[None]:
    """Let ann log in, and change reassignments."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "console-users"}}
    kubectl.apply({**secret, "stringData": {"users": users.line("ann", PASSWORD)}})
    before = kubectl.get("deployment", NAME)["metadata"]["generation"]
    try:
        patch(
            *(kubectl, "kafkacluster", "main"),
            console={"users": {"secretName": "console-users"}, "writable": True},
        )
        eventually(
            lambda: kubectl.get("deployment", NAME)["metadata"]["generation"] > before, "its pod"
        )
        await_rollout(kubectl)
        yield
    finally:
        patch(kubectl, "kafkacluster", "main", console={"users": None, "writable": None})
        kubectl("delete", "secret", "console-users", "--ignore-not-found")


@contextmanager
def asked(kubectl: Kubectl, name: str, moves: list[dict[str, Any]]) -> Iterator[str]:
    """Ask for moves that need an approval; yield the path of their page."""
    kubectl.apply(reassignment(name, mode="Explicit", moves=moves, approval="Manual"))
    try:
        yield f"/reassignments/logs/{name}"
    finally:
        kubectl("delete", "reassignment", name, "--ignore-not-found")


def replicas(bootstrap: str) -> list[int]:
    """Return the brokers that have the topic."""
    return leaders(bootstrap, TOPIC, count=1, partitions=1)[0]


def test_people_approve_and_cancel_moves_and_no_others_do(
    kubectl: Kubectl, healthy: None, bootstrap: str, tmp_path: Path
) -> None:
    with (
        movable(kubectl, bootstrap) as moves,
        changes_allowed(kubectl),
        forwarded(kubectl, tmp_path) as console,
    ):
        before = replicas(bootstrap)
        for name, action, ended in (
            ("no", "cancel", ("Cancelled", "RolledBack")),
            ("yes", "approve", ("Completed",)),
        ):
            with asked(kubectl, name, moves) as path:
                assert console.call("POST", f"{path}/{action}", "")[0] in (401, 403)
                cookies = console.log_in("ann", PASSWORD)

                def waits(path: str = path, cookies: str = cookies) -> bool:
                    return "AwaitingApproval" in console.call("GET", path, Cookie=cookies)[1]

                wait_until(waits, "it waits for an approval")
                assert replicas(bootstrap) == before
                plan = kubectl.get("reassignment", name)["status"]["planHash"]
                assert console.press(path, action, cookies, hash=plan) == 303

                def phase(name: str = name) -> str:
                    return str(kubectl.get("reassignment", name)["status"]["phase"])

                eventually(lambda phase=phase, ended=ended: phase() in ended, f"{action} works")  # type: ignore[misc]
        eventually(lambda: replicas(bootstrap) == moves[0]["replicas"], "the move")


@pytest.mark.full(
    "tests/e2e/test_console.py::test_people_approve_and_cancel_moves_and_no_others_do"
)
def test_a_move_is_approved_in_a_browser_which_sees_its_end(
    kubectl: Kubectl, healthy: None, bootstrap: str
) -> None:
    axe = browsing.axe_source()

    def check(page: Page) -> None:
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            assert browsing.faults(page, axe) == [], page.url

    with (
        movable(kubectl, bootstrap) as moves,
        changes_allowed(kubectl),
        asked(kubectl, "browsed", moves),
        browsing.chromium() as browser,
    ):
        service = kubectl.get("service", NAME)["spec"]
        url = f"http://{service['clusterIP']}:{service['ports'][0]['port']}"
        page = browsing.opened(browser, f"{url}/jobs")
        check(page)
        page.get_by_label("Name").fill("ann")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()

        page.goto(f"{url}/jobs")
        check(page)
        page.get_by_role("link", name="log-counts", exact=True).click()
        expect(page.locator("#job")).to_contain_text("Running")
        check(page)
        browsing.take_picture(page, "job")

        page.goto(f"{url}/reassignments")
        check(page)
        page.get_by_role("link", name="browsed", exact=True).click()
        expect(page.locator("#facts")).to_contain_text("AwaitingApproval")
        page.reload()
        check(page)
        browsing.take_picture(page, "approval")
        before = replicas(bootstrap)
        page.get_by_role("button", name="Approve plan").click()
        # The page keeps itself new.
        expect(page.locator("#facts")).to_contain_text("Completed", timeout=10 * WAIT_MS)
        check(page)
        assert before != moves[0]["replicas"] == replicas(bootstrap)
        page.context.close()
