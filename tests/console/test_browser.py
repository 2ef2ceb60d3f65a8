"""The console in a headless Chromium, on the running quickstart: what people, keyboards and screen
readers find, a live tail, and a broker that fails.

With ODRADEK_SCREENSHOTS=docs it writes the pictures of docs/console.md.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.console import browsing
from tests.console.browsing import WAIT_MS, faults, opened
from tests.support import spark_jars
from tests.support.local_run import LocalRun

pytestmark = pytest.mark.timeout(1800)

SEEN_S = 5.0
PAGES = (
    *("/", "/brokers/0", "/topics", "/topics?internal=yes", "/topics/clicks"),
    *("/topics/clicks/records", "/topics/clicks/records/0/0", "/topics/clicks/tail"),
    *("/groups", "/group?name=click-counts", "/jobs", "/reassignments", "/nothing"),
)
# The picture of a page in the documents: its colours, and how it is called.
PICTURES = {"/": ("light", "cluster"), "/topics/clicks/records": ("dark", "records")}


class Quickstart:
    """`odradek local` with its console."""

    def __init__(self, run: LocalRun) -> None:
        self.run = run
        found = re.search(r"^  console +(http://127.0.0.1:\d+)/$", run.output(), re.MULTILINE)
        assert found is not None, run.output()
        self.url = found[1]

    def kill_broker(self) -> None:
        note = self.run.note(7)
        # The stages are in the order of their ends: generators and console, jobs, brokers.
        os.killpg(note.stages[2][0].pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quickstart]:
    environment = {
        "SPARK_HOME": str(spark_jars.home()),
        "SPARK_SUBMIT_OPTS": " ".join(spark_jars.java_options()),
    }
    data = tmp_path_factory.mktemp("quickstart") / "data"
    with LocalRun(data, environment=environment) as run:
        run.wait_for("Ctrl-C ends everything")
        yield Quickstart(run)
        assert run.stop() == 0, run.output()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing.chromium() as running:
        yield running


@pytest.fixture(scope="module")
def axe() -> str:
    return browsing.axe_source()


@pytest.mark.full("tests/console/test_console.py::test_pages_show_brokers_topics_and_settings")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_pages_have_no_serious_fault_for_anybody(
    quickstart: Quickstart, browser: Browser, axe: str, path: str, scheme: str
) -> None:
    page = opened(browser, "about:blank", scheme)
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
    answer = page.goto(quickstart.url + path)
    assert answer is not None
    assert answer.status == (404 if path == "/nothing" else 200)
    if path == "/topics/clicks/tail":
        expect(page.locator("#tail tr").first).to_be_visible(timeout=WAIT_MS)
    assert faults(page, axe) == []
    # A page that is not there is an error for the browser, too.
    assert [one for one in said if "404" not in one] == []
    # Nothing is wider than the window, but in a region that scrolls by keyboard.
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    if path in PICTURES and PICTURES[path][0] == scheme:
        browsing.take_picture(page, PICTURES[path][1])
    page.context.close()


@pytest.mark.full("tests/console/test_console.py::test_pages_show_brokers_topics_and_settings")
def test_the_first_key_leads_past_the_menu(quickstart: Quickstart, browser: Browser) -> None:
    page = opened(browser, quickstart.url + "/topics")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.context.close()


@pytest.mark.full(
    "tests/console/test_console.py::test_a_live_tail_shows_what_comes_and_ends_with_its_topic"
)
def test_a_live_tail_shows_records_as_they_come_until_it_is_held(
    quickstart: Quickstart, browser: Browser
) -> None:
    page = opened(browser, quickstart.url + "/topics/clicks/tail")
    rows = page.locator("#tail tr")
    expect(rows.first).to_be_visible(timeout=WAIT_MS)
    first = rows.first.inner_text()
    page.wait_for_function(
        "text => document.querySelector('#tail tr').innerText !== text", arg=first
    )
    page.get_by_role("button", name="Hold").click()
    held = rows.first.inner_text()
    counted = page.locator("#tail-count").inner_text()
    # More come, and none is shown.
    expect(page.locator("#tail-count")).not_to_have_text(counted, timeout=WAIT_MS)
    assert rows.first.inner_text() == held
    page.context.close()


@pytest.mark.full(
    "tests/console/test_console.py::test_a_broker_that_dies_is_named_and_what_it_knew_is_unknown"
)
def test_a_broker_that_fails_is_seen_within_seconds_without_a_reload(
    quickstart: Quickstart, browser: Browser
) -> None:
    page = opened(browser, quickstart.url + "/")
    expect(page.get_by_text("3 of 3")).to_be_visible(timeout=WAIT_MS)
    quickstart.kill_broker()
    began = time.monotonic()
    page.get_by_text("Not answering:").wait_for(timeout=WAIT_MS)
    seconds = time.monotonic() - began
    print(f"seen after {seconds:.1f} s")
    assert seconds <= SEEN_S
    page.context.close()


def test_the_pages_that_the_browser_looks_at_are_all_that_there_are() -> None:
    """A page that is added is one to look at; those of one resource are in other tests."""
    text = (Path(__file__).parents[2] / "operator/src/odradek_console/app.py").read_text()
    served = set(re.findall(r'web\.get\(\s*"(/[^"]*)"', text))
    patterns = {one: re.compile(re.sub(r"\{\w+\}", "[^/]+", one) + r"(\?.*)?") for one in served}
    unseen = {
        one
        for one, pattern in patterns.items()
        if not any(pattern.fullmatch(path) for path in PAGES)
    }
    assert unseen == {
        "/topics/{topic}/records/{partition}/{offset}/value",
        "/topics/{topic}/tail/events",
        "/jobs/{namespace}/{name}",
        "/reassignments/{namespace}/{name}",
    }
