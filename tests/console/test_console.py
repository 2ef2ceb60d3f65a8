"""`odradek console` against real brokers: what its pages show, and what it refuses."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from aiohttp.test_utils import TestClient, TestServer
from confluent_kafka import Consumer, Producer, TopicPartition

from odradek.protocol.messages.admin import DescribeLogDirsRequest
from odradek.tools.client import Access, parse_addresses
from odradek.values import BrokerId
from odradek.zk import znodes
from odradek_console import app, pages, show, users
from odradek_console.record_pages import MOST_TAILS_EACH
from odradek_console.rendering import CONSOLE
from odradek_console.settings import ConsoleSettings
from tests.console.running import HOSTILE, Running, check_structure
from tests.support import preloaded
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.clients import QUIET, await_leaders, create_topic

pytestmark = pytest.mark.timeout(1200)

SETTINGS = {**STEADY, "offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "1"}
GROUP = f"billing {HOSTILE}/.."
HUGE = 900_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 2, SETTINGS) as running:
        create_topic(running.bootstrap, "orders", partitions=2, replicas=2)
        create_topic(running.bootstrap, "odd", config={"retention.ms": "3600000"})
        producer = Producer({"bootstrap.servers": running.bootstrap, **QUIET})
        for number in range(30):
            value = json.dumps({"order": number, "note": HOSTILE})
            producer.produce("orders", value, f"user-{number}", partition=number % 2)
        headers: list[tuple[str, str | bytes | None]] = [(f"h{HOSTILE}", HOSTILE.encode())]
        producer.produce("odd", bytes(range(256)), HOSTILE, headers=headers)
        producer.produce("odd", b"\0\0\0\0\7\2avro", None)
        producer.produce("odd", b"x" * HUGE, b"huge")
        producer.produce("odd", None, b"gone")
        assert producer.flush(300) == 0
        settings = {
            "bootstrap.servers": running.bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            **QUIET,
        }
        consumer = Consumer(settings)
        consumer.subscribe(["orders"])
        # A member, with what it has read so far.
        wait_until(lambda: consumer.poll(1) is not None, "the group has a member")
        ends = [TopicPartition("orders", number, 5) for number in range(2)]
        consumer.commit(offsets=ends, asynchronous=False)
        yield running
        consumer.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("console")


@pytest.fixture(scope="module")
def console(cluster: Cluster, folder: Path) -> Iterator[Running]:
    running = Running(folder, cluster.bootstrap)
    yield running
    running.end()


def test_pages_show_brokers_topics_and_settings(console: Running) -> None:
    wait_until(lambda: "2 of 2" in console.page("/"), "both brokers answer")
    assert "orders" in console.page("/topics")
    assert "__consumer_offsets" not in console.page("/topics")
    assert "__consumer_offsets" in console.page("/topics?internal=yes")
    assert "orders" not in console.page("/topics?q=ODD").split("<table>")[1]
    assert "Nothing to show" in console.page("/topics?state=under-replicated&internal=yes")
    odd = console.page("/topics/odd")
    assert "retention.ms" in odd.split("<details>")[0]
    assert "unknown" not in odd.split("<h2>Settings")[0]
    assert "in use" in console.page("/brokers/1").split("<h2>Settings")[0]


def test_records_are_shown_as_what_they_are_and_escaped(console: Running) -> None:
    odd = console.page("/topics/odd/records?from=oldest")
    assert HOSTILE not in odd
    assert "&lt;script&gt;" in odd
    for text in ("value binary, 256 B", "00 01 02 03", "schema 7, not decoded", "878.9 KiB; cut"):
        assert text in odd
    # A huge record costs a page a kilobyte.
    assert len(odd) < 20_000
    assert "value json" in console.page("/topics/orders/records")
    assert len(console.page("/topics/odd/records/0/2")) < 100_000
    status, text, headers = console.call("GET", "/topics/odd/records/0/2/value")
    assert (status, text) == (200, "x" * HUGE)
    assert headers["Content-Disposition"].startswith("attachment")


def offsets(text: str) -> list[str]:
    return re.findall(r">(\d+ / \d+)</a>", text)


def test_records_are_found_by_offset_time_key_and_value(console: Running) -> None:
    page = "/topics/orders/records?limit=20"
    assert offsets(console.page(f"{page}&from=offset&partition=1&offset=13")) == [
        "1 / 13",
        "1 / 14",
    ]
    assert offsets(console.page(f"{page}&key=user-17")) == ["1 / 8"]
    assert offsets(console.page(f"{page}&from=oldest&value=%22order%22%3A+4%2C")) == ["0 / 2"]
    assert len(offsets(console.page(f"{page}&from=time&time=2020-01-01T00:00"))) == 20
    assert offsets(console.page(f"{page}&from=time&time=2099-01-01T00:00")) == []
    assert "found 0" in console.page(f"{page}&key=nobody")


def test_groups_have_members_and_lag(console: Running) -> None:
    listed = console.page("/groups")
    assert HOSTILE not in listed
    one = console.page("/group?" + urlencode({"name": GROUP}))
    assert HOSTILE not in one
    assert "20 records" in one
    wait_until(
        lambda: "<polyline" in console.page("/group?" + urlencode({"name": GROUP})), "a lag sample"
    )


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/nothing", 404, "There is no such page."),
        ("/topics/nothing", 404, "There is no such topic; it may have been deleted."),
        ("/topics/%3Cb%3E%2F..", 404, "There is no such topic; it may have been deleted."),
        ("/group?name=nothing", 404, "There is no such group; it may have been deleted."),
        ("/brokers/7", 404, "There is no such broker."),
        ("/topics?page=two", 400, "page is not a whole number."),
        ("/topics?page=99999999999", 400, "page is more than 1000000000."),
        ("/topics?state=x", 400, "state is none of all, under-replicated, unavailable."),
        ("/topics/odd/records?from=offset&offset=1", 400, "An offset goes with a partition."),
        ("/topics/odd/records?partition=5", 400, "The topic has no partition 5."),
        ("/topics/odd/records?from=time&time=noon", 400, "time is not like 2026-01-31T12:00:00."),
        ("/topics/odd/records/0/99", 404, "odd-0 has records from 0 to 3 only."),
        ("/topics/odd/records/x/1", 400, "Partition and offset are whole numbers."),
        ("/topics/odd/records/0/9223372036854775808", 404, "odd-0 has records from 0 to 3 only."),
        (
            "/topics/odd/records?from=offset&partition=0&offset=9223372036854775808",
            400,
            "offset is more than 9223372036854775807.",
        ),
        ("/topics/odd/records?offset=-1", 400, "offset is not a whole number."),
        ("/topics/odd/records?partition=2147483648", 400, "The topic has no partition 2147483648."),
        ("/topics/odd%00", 404, "There is no such topic; it may have been deleted."),
        ("/reassignments/a/b", 502, "The brokers could not tell: "),
    ],
)
def test_bad_addresses_get_one_sentence(
    console: Running, path: str, status: int, said: str
) -> None:
    if path.startswith("/reassignments"):
        assert "--kubernetes" in console.said(path, status)
    else:
        assert console.said(path, status) == said.replace("<", "&lt;")


def test_changes_need_the_token_of_a_form_and_a_writable_console(console: Running) -> None:
    path = "/reassignments/a/b/approve"
    status, text, _ = console.call("POST", path, "hash=x")
    assert (status, "load its page again" in text) == (403, True)
    _, page, headers = console.call("GET", "/login")
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    [token] = re.findall(r'name="token" value="(\w+)"', page)
    own = {"Cookie": cookie.partition(";")[0]}
    status, text, _ = console.call("POST", path, f"hash=x&token={token}", **own)
    assert (status, "read-only" in text) == (403, True)
    status, text, _ = console.call(
        "POST", path, f"hash=x&token={token}", Origin="http://evil.example", **own
    )
    assert (status, "another site" in text) == (403, True)


_FORM = "application/x-www-form-urlencoded"
_PART = 'Content-Disposition: form-data; name="token"'


@pytest.mark.parametrize(
    ("kind", "body", "encoding"),
    [
        (f"{_FORM}; charset=nonsense", "a=b", ""),
        (_FORM, "a=\xff", ""),
        (_FORM, "a=b", "gzip"),
        ("multipart/form-data", "a=b", ""),
        ("multipart/form-data; boundary=x", f"--x\r\n{_PART}\r\n\r\n\xff\r\n--x--\r\n", ""),
        ("multipart/form-data; boundary=x", "--x\r\n\r\na\r\n--x--\r\n", ""),
        ("multipart/form-data; boundary=x", "--x\r\nnonsense\r\n", ""),
    ],
)
def test_what_is_no_form_gets_one_sentence(
    console: Running, kind: str, body: str, encoding: str
) -> None:
    headers = {"Content-Type": kind, **({"Content-Encoding": encoding} if encoding else {})}
    status, text, _ = console.call("POST", "/login", body, **headers)
    assert (status, "This is no form." in text) == (400, True)
    assert "failed to make the page" not in console.log.read_text()


def test_an_origin_that_is_no_address_is_another_site(console: Running) -> None:
    status, text, _ = console.call("POST", "/login", "a=b", Origin="http://[")
    assert (status, "another site" in text) == (403, True)


@pytest.mark.parametrize(
    ("unix_ms", "shown"),
    [
        (None, "unknown"),
        (-1, "unknown"),
        (0, "1970-01-01 00:00:00.000"),
        (-1000, "1969-12-31 23:59:59.000"),
        (2**63 - 1, str(2**63 - 1)),
        (-(2**63), str(-(2**63))),
    ],
)
def test_times_of_records_are_shown_whatever_they_are(unix_ms: int | None, shown: str) -> None:
    assert show.time_of(unix_ms) == shown


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:9", 200),
        ("a@b", 421),
    ],
)
def test_names_of_strangers_are_refused(console: Running, host: str, status: int) -> None:
    assert console.call("GET", "/healthz", Host=host)[0] == status


def test_bytes_that_are_no_text_are_no_failure(console: Running) -> None:
    for header in ({"Cookie": "odradek_browser=\xff"}, {"Cookie": "odradek_console=\xff"}):
        assert console.call("GET", "/topics", **header)[0] == 200
    for path in (
        "/topics?q=%FF",
        "/topics/%FF",
        "/topics/odd/records?key=%FF",
        "/group?name=%ED%A0%80",
    ):
        assert console.call("GET", path)[0] in (200, 404)


# aiohttp 3.12 has no other keys of a request than texts.
@pytest.mark.filterwarnings("ignore::aiohttp.web_exceptions.NotAppKeyWarning")
def test_a_list_asks_the_brokers_for_the_rows_that_it_shows(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE", 1)
    asyncio.run(_check_requests(cluster.bootstrap, monkeypatch))


async def _check_requests(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    application = app.make(
        ConsoleSettings(tuple(parse_addresses(bootstrap)), Access(), "127.0.0.1", 0, None, None)
    )
    client = application[CONSOLE].cluster.client
    call = client.call
    asked: list[Any] = []

    async def noted(node: int, request: Any, version: int) -> Any:
        asked.append(request)
        return await call(node, request, version)

    monkeypatch.setattr(client, "call", noted)
    async with TestClient(TestServer(application)) as browser:
        for number, name in ((1, "odd"), (2, "orders")):
            answer = await browser.get(f"/topics?page={number}")
            text = await answer.text()
            assert f"{number} to {number} of 2<" in text
            sizes = [one for one in asked if isinstance(one, DescribeLogDirsRequest)]
            asked.clear()
            # Of each broker that answers.
            assert sizes
            assert {topic.topic for one in sizes for topic in one.topics or ()} == {name}
            assert None not in [one.topics for one in sizes]


class Tail:
    """A live tail: its events as they come."""

    def __init__(self, console: Running, topic: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=300)
        self._connection.request("GET", f"/topics/{topic}/tail/events", headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200

    def next(self, name: str) -> str:
        """Return the text of the next event of this name."""
        found = ""
        while True:
            line = self._answer.readline().decode()
            assert line, "the tail ended"
            if line.startswith("event: "):
                found = line[7:].strip()
            elif line.startswith("data: ") and found == name:
                return str(json.loads(line[6:])["text"])

    def close(self) -> None:
        self._connection.close()


def test_a_live_tail_shows_what_comes_and_ends_with_its_topic(
    console: Running, cluster: Cluster
) -> None:
    create_topic(cluster.bootstrap, "tailed", partitions=2)
    wait_until(lambda: console.call("GET", "/topics/tailed")[0] == 200, "the topic is known")
    tail = Tail(console, "tailed")
    try:
        assert tail.next("state") == "reading"
        producer = Producer({"bootstrap.servers": cluster.bootstrap, **QUIET})
        # It begins at the end, which it asks for after its first word.
        text = ""

        def arrives() -> bool:
            nonlocal text
            producer.produce("tailed", HOSTILE, "tail-key")
            assert producer.flush(60) == 0
            text = tail.next("records")
            return True

        for number in range(50):
            producer.produce("tailed", HOSTILE, "tail-key", partition=number % 2)
        producer.flush(60)
        wait_until(arrives, "a record")
        assert "tail-key" in text
        assert HOSTILE not in text
        words = ["topics", "delete", "tailed", "--bootstrap-server", cluster.bootstrap]
        deleted = preloaded.run("odradek", *words, timeout=300)
        assert deleted.returncode == 0, deleted.stderr
        assert tail.next("end") == "topic tailed does not exist any more"
    finally:
        tail.close()


def test_a_live_tail_reads_partitions_that_are_added(console: Running, cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "grown")
    wait_until(lambda: console.call("GET", "/topics/grown")[0] == 200, "the topic is known")
    tail = Tail(console, "grown")
    try:
        assert tail.next("state") == "reading"
        words = ["topics", "alter", "grown", "--partitions", "2"]
        grown = preloaded.run(
            "odradek", *words, "--bootstrap-server", cluster.bootstrap, timeout=300
        )
        assert grown.returncode == 0, grown.stderr
        await_leaders(cluster.bootstrap, "grown", 2)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, **QUIET})
        producer.produce("grown", "value", "added-key", partition=1)
        assert producer.flush(60) == 0
        assert "added-key" in tail.next("records")
    finally:
        tail.close()


def test_one_browser_has_some_live_tails_and_gives_them_back(console: Running) -> None:
    tails = [Tail(console, "odd") for _ in range(MOST_TAILS_EACH)]
    status, text, _ = console.call("GET", "/topics/odd/tail/events")
    assert (status, "close one first" in text) == (503, True)
    for one in tails:
        one.close()

    def is_free() -> bool:
        try:
            Tail(console, "odd").close()
        except AssertionError:
            return False
        return True

    wait_until(is_free, "the console sees that browsers left")


def test_users_log_in_and_out(cluster: Cluster, folder: Path) -> None:
    file = folder / "users"
    file.write_text("# who may look\n" + users.line("ann", "s3cret") + "\n")
    console = Running(folder, cluster.bootstrap, "--users", str(file), "--host", "0.0.0.0")
    assert "passwords and records go over the network as they are" in console.log.read_text()
    status, _, headers = console.call("GET", "/topics")
    assert (status, headers["Location"]) == (303, "/login")
    assert console.call("GET", "/topics/odd/tail/events")[0] == 401
    assert console.call("GET", "/healthz")[0] == 200
    _, page, headers = console.call("GET", "/login")
    check_structure(page)
    browser = headers["Set-Cookie"].partition(";")[0]
    [token] = re.findall(r'name="token" value="(\w+)"', page)
    for name, password in (("ann", "wrong"), ("bob", "s3cret"), ("", "")):
        form = urlencode({"name": name, "password": password, "token": token})
        status, text, _ = console.call("POST", "/login", form, Cookie=browser)
        assert (status, "Name or password is wrong." in text) == (401, True)
    form = urlencode({"name": "ann", "password": "s3cret", "token": token})
    status, _, headers = console.call("POST", "/login", form, Cookie=browser)
    assert status == 303
    session = headers["Set-Cookie"].partition(";")[0]
    cookies = f"{browser}; {session}"
    status, page, _ = console.call("GET", "/topics", Cookie=cookies)
    assert (status, "orders" in page) == (200, True)
    assert console.call("GET", "/topics", Cookie=f"{session}x")[0] == 303
    [token] = re.findall(r'name="token" value="(\w+)"', page)
    tail = Tail(console, "odd", Cookie=cookies)
    assert tail.next("state") == "reading"
    assert console.call("POST", "/logout", f"token={token}", Cookie=cookies)[0] == 303
    assert tail.next("end") == "you are logged out"
    tail.close()
    assert console.call("GET", "/topics", Cookie=cookies)[0] == 303
    console.end()


def test_a_broker_that_dies_is_named_and_what_it_knew_is_unknown(
    console: Running, cluster: Cluster
) -> None:
    wait_until(lambda: "2 of 2" in console.page("/"), "both brokers answer")
    tail = Tail(console, "orders")
    tail.next("state")
    cluster.brokers[1].kill()
    wait_until(lambda: "1 of 2" in console.page("/"), "the console sees it")
    page = console.page("/")
    row = page.split('href="/brokers/1"')[1].split("</tr>")[0]
    assert "not answering" in row
    assert "unknown" in row
    assert "broker 1 (last at " in page
    assert "Unknown: " in console.page("/brokers/1")
    assert re.search(r"All replicas together: unknown", console.page("/topics/orders"))
    # A tail goes on with what is left, and says what is missing.
    assert "orders-" in tail.next("state") or "broker 1" in tail.next("state")
    tail.close()
    # A broker is refused while its former session lasts.
    cluster.zookeeper.end_session_of(znodes.broker_path(BrokerId(1)))
    cluster.brokers[1].start()
    wait_until(lambda: "2 of 2" in console.page("/"), "it is back")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "it needs --users"),
        (["--writable"], "it goes with --kubernetes"),
        (["--users", "/nowhere"], "/nowhere: No such file or directory"),
        (["--tls-key", "/nowhere"], "--tls-certificate and --tls-key go together"),
        (["--bootstrap-server", "nowhere"], "is not HOST:PORT"),
    ],
)
def test_mistakes_end_with_one_line(folder: Path, options: list[str], said: str) -> None:
    code, text = Running.mistake(folder, options)
    assert code == 2
    assert said in text
    assert len(text.splitlines()) == 1


def test_without_any_broker_pages_say_so(folder: Path) -> None:
    console = Running(folder, "127.0.0.1:1")
    assert "failed to reach any broker" in console.said("/", 502)
    console.end()
