"""`odradek sql` and `odradek datagen` with a real broker, and Spark in one JVM (row S2)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from odradek import given_files
from odradek_spark.datagen.quickstarts import QUICKSTARTS
from odradek_spark.sql import command
from tests.release import python
from tests.support import preloaded, spark_jars, walkthrough
from tests.support.broker import Cluster, wait_until
from tests.support.clients import QUIET, consume_all, create_topic
from tests.support.terminal import CTRL_C, CTRL_D, Terminal
from tests.support.walkthrough import PROMPT

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def shell(cluster: Cluster, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """A shell at its prompt."""
    command = ["odradek", "sql", "--bootstrap-server", cluster.bootstrap]
    with Terminal(command, environment) as terminal:
        terminal.read_until(PROMPT)
        yield terminal


def ask(shell: Terminal, statement: str) -> str:
    """Return what the shell says to a statement of one line."""
    shell.send(f"{statement}\n")
    return shell.read_until(f"\n{PROMPT}").removeprefix(statement).removesuffix(PROMPT).strip("\n")


def rows(text: str) -> list[list[str]]:
    """Return the cells of the rows of a table, without its header and what else is said."""
    lines = [line for line in text.splitlines() if " | " in line]
    return [[cell.strip() for cell in re.split(r" \|(?: |$)", line)] for line in lines[1:]]


def leave(shell: Terminal) -> None:
    shell.send(CTRL_D)
    assert shell.wait() == 0


def write(cluster: Cluster, topic: str, *records: tuple[str | None, str | None]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **QUIET})
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(60) == 0


def run(
    cluster: Cluster, environment: Mapping[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["odradek", "sql", "--bootstrap-server", cluster.bootstrap, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize("number", range(len(walkthrough.blocks())))
def test_walkthrough_says_what_the_commands_say(
    cluster: Cluster, environment: Mapping[str, str], number: int
) -> None:
    block = walkthrough.blocks()[number]
    seen = walkthrough.replay(block, cluster.bootstrap, environment)
    assert walkthrough.shape(seen) == walkthrough.shape(block)


def test_table_has_the_newest_record_per_key_and_stream_every_record(
    cluster: Cluster, shell: Terminal
) -> None:
    create_topic(cluster.bootstrap, "Pets-1", partitions=3)
    write(
        cluster,
        "Pets-1",
        ("cat", '{"name": "cat", "legs": 3}'),
        ("dog", '{"name": "dog", "legs": 4}'),
        ("cat", '{"name": "cat", "legs": 4, "tags": {"a": [1, null]}}'),
        ("ant", '{"legs": 6}'),
        ("eel", '{"name": "eel", "legs": 0}'),
        ("eel", None),
        ("cow", '{"name": "cow", "legs": 4'),
        ("cow", '{"name": "cow", "legs": "four"}'),
        (None, '{"legs": 8}'),
        ("wide", '{"name": "wide", "legs": 1, "note": "' + "x" * 5000 + '\\u001b[2J"}'),
    )
    columns = "(name VARCHAR, legs INT)"
    said = ask(shell, f"CREATE TABLE pets {columns} WITH (topic='Pets-1', key='name');")
    assert said.endswith("TABLE pets on topic Pets-1, columns name, legs")
    said = ask(shell, "SELECT * FROM PETS ORDER BY name;")
    assert rows(said) == [["ant", "6"], ["cat", "4"], ["dog", "4"], ["wide", "1"]]
    assert "(4 rows)" in said
    assert "pets: 2 records are malformed and left out" in said
    assert "pets: 1 record is without a key" in said

    # A topic that is not declared is a stream with inferred columns; a name with - needs backticks.
    said = ask(shell, "SELECT count(*) AS n, max(_offset) AS o FROM `Pets-1`;")
    assert len(rows(said)) == 1
    assert int(rows(said)[0][0]) == 8
    said = ask(
        shell,
        "SELECT tags, note FROM `Pets-1` WHERE legs IN ('1', '3') ORDER BY name;",
    )
    assert rows(said)[0][0] == "null"
    assert all(len(line) <= 110 for line in said.splitlines())
    assert "…" in said
    assert "\x1b" not in said

    # A self join reads the topic twice; of two tables of a name the second one is refused.
    said = ask(shell, "SELECT a.name FROM pets a JOIN pets b ON a.legs = b.legs;")
    assert "(6 rows)" in said
    assert "error: TABLE pets is there already" in ask(
        shell, "CREATE STREAM pets WITH (topic='x');"
    )
    assert "is there already" in ask(shell, "CREATE TABLE IF NOT EXISTS pets WITH (topic='x');")
    said = ask(shell, "CREATE OR REPLACE STREAM pets WITH (topic='Pets-1', format='text');")
    assert said == "STREAM pets on topic Pets-1, columns value"
    assert rows(ask(shell, "SHOW STREAMS;")) == [["pets", "Pets-1", "text", ""]]
    assert "error: pets is a STREAM" in ask(shell, "DROP TABLE pets;")
    assert ask(shell, "DROP STREAM pets;") == "STREAM pets dropped; its topic stays"
    assert (
        ask(shell, "SELECT * FROM pets;") == "error: pets is neither a table, a stream nor a topic"
    )
    leave(shell)


@pytest.mark.full(
    "tests/spark/sql/test_with_broker.py::test_table_has_the_newest_record_per_key_and_stream_every_record"
)
def test_names_may_have_any_characters_but_those_that_clash_are_told(
    cluster: Cluster, shell: Terminal
) -> None:
    for topic, record in (
        ("odd", '{"a.b": 1, "c d": 2, "e`f": 3}'),
        ("cases", '{"id": 1, "ID": 2}'),
        ("metadata", '{"_offset": 1}'),
    ):
        create_topic(cluster.bootstrap, topic)
        write(cluster, topic, ("k", record))
    ask(shell, "CREATE TABLE `o``dd` WITH (topic='odd', key='e`f');")
    said = ask(shell, "SELECT *, `a.b` + `e``f` AS sum FROM `o``dd`;")
    assert rows(said) == [["1", "2", "3", "4"]]
    assert rows(ask(shell, "SELECT `c d`, `e``f` FROM odd;")) == [["2", "3"]]
    for topic, problem in (
        ("cases", "the column id is there twice"),
        ("metadata", "_offset is the name of a column that every table has"),
    ):
        assert ask(shell, f"SELECT * FROM {topic};") == (
            f"error: in the JSON of topic {topic}, {problem}; name the columns in CREATE"
        )
    ask(shell, "CREATE STREAM named (ID INT) WITH (topic='cases');")
    assert rows(ask(shell, "SELECT ID, _offset FROM named;")) == [["2", "0"]]
    leave(shell)


@pytest.mark.full(
    "tests/spark/sql/test_with_broker.py::test_ctrl_c_ends_a_select_and_what_follows_on_its_line"
)
def test_continuous_select_goes_on_until_ctrl_c_which_leaves_the_shell(
    cluster: Cluster, shell: Terminal
) -> None:
    create_topic(cluster.bootstrap, "clicks")
    write(cluster, "clicks", ("a", '{"who": "a", "n": 1}'))
    shell.send("CREATE STREAM clicks (who VARCHAR,\n")
    shell.read_until("      -> ")
    shell.send("n INT) WITH (topic='clicks'); -- as many lines as you like\n")
    assert "STREAM clicks on topic clicks" in shell.read_until(f"\n{PROMPT}")
    ask(shell, "SET 'auto.offset.reset'='earliest';")
    shell.send("SELECT who, n FROM clicks EMIT CHANGES;\n")
    shell.read_until(" 1\n")
    write(cluster, "clicks", ("b", '{"who": "b", "n": 2}'), ("b", "not JSON"))
    shell.read_until(" 2\n")
    shell.read_until("clicks: 1 record is malformed and left out\n")
    shell.send(CTRL_C)
    shell.read_until(f"\n{PROMPT}")

    # Ctrl-C at the prompt forgets the line, and at a statement that is not complete all of it.
    shell.send("SELECT nonsense")
    shell.read_until("SELECT nonsense")  # Python's input() may miss it while it takes a key
    shell.send(CTRL_C)
    shell.read_until(f"\n{PROMPT}")

    # Sums change; a TABLE beside a STREAM is looked up; a TABLE alone cannot be counted.
    said = ask(shell, "SELECT who, sum(n) FROM clicks GROUP BY who EMIT CHANGES LIMIT 2;")
    assert sorted(rows(said)) == [["a", "1"], ["b", "2"]]
    ask(shell, "CREATE TABLE newest (who VARCHAR, n INT) WITH (topic='clicks', key='who');")
    join = "SELECT c.n, t.n FROM clicks c JOIN newest t ON c.who = t.who EMIT CHANGES LIMIT 3;"
    shell.send(f"{join}\n")
    seen = shell.read_until(" 1\n", " 2\n") + shell.read_until(" 1\n", " 2\n")
    write(cluster, "clicks", ("a", '{"who": "a", "n": 5}'))
    seen += shell.read_until(f"\n{PROMPT}")
    assert sorted(rows(seen)) == [["1", "1"], ["2", "2"], ["5", "5"]]
    said = ask(shell, "SELECT count(*) FROM newest EMIT CHANGES;")
    assert said.startswith("error: a continuous query cannot aggregate or join TABLEs alone")
    said = ask(shell, "PRINT 'clicks' FROM BEGINNING LIMIT 1;")
    assert re.fullmatch(r'rowtime: .*, key: a, value: {"who": "a", "n": 1}, partition: 0', said)

    # PRINT without an end reads what comes.
    shell.send("PRINT 'clicks' FROM BEGINNING;\n")
    shell.read_until("not JSON, partition: 0\n")
    shell.send(CTRL_C)
    shell.read_until(f"\n{PROMPT}")
    shell.send("SELECT 1 +")
    shell.send("\n")
    shell.read_until("      -> ")
    leave(shell)


def test_a_reader_of_a_topic_that_goes_ends_print_though_no_record_comes(
    cluster: Cluster, environment: Mapping[str, str]
) -> None:
    create_topic(cluster.bootstrap, "once")
    write(cluster, "once", ("a", "only"))
    shell = f"odradek sql --bootstrap-server {cluster.bootstrap}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell} -e \"PRINT 'once' FROM BEGINNING\" | head -n 1"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout.count("value: only"), done.stderr) == (1, 1, "")


def test_a_reader_of_a_continuous_select_that_goes_ends_it_without_a_word(
    cluster: Cluster, environment: Mapping[str, str]
) -> None:
    create_topic(cluster.bootstrap, "piped")
    write(cluster, "piped", ("a", '{"n": 1}'))
    query = "SET 'auto.offset.reset'='earliest'; SELECT n FROM piped EMIT CHANGES"
    with subprocess.Popen(
        ["odradek", "sql", "--bootstrap-server", cluster.bootstrap, "-e", query],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().strip() == "n"
            process.stdout.close()

            def has_ended() -> bool:
                write(cluster, "piped", ("a", '{"n": 2}'))
                return process.poll() is not None

            wait_until(has_ended, "it has more to write", 300)
            said = process.stderr.read().splitlines()
            assert process.returncode == 1
            assert [one.split()[0] for one in said] == ["auto.offset.reset", "Starting", "Spark"]
        finally:
            process.kill()


def test_ctrl_c_ends_a_select_and_what_follows_on_its_line(shell: Terminal) -> None:
    shell.send("SELECT 1 AS a; SELECT count(*) FROM range(1000000000000); SELECT 7 AS never;\n")
    shell.read_until("(1 row)\n")
    shell.send(CTRL_C)
    assert shell.read_until(f"\n{PROMPT}").strip() in (f"^C\n{PROMPT}".strip(), PROMPT.strip())
    assert rows(ask(shell, "SELECT 40 + 2 AS n, 1 AS one;")) == [["42", "1"]]
    leave(shell)


def test_errors_are_one_line_and_the_shell_goes_on(shell: Terminal) -> None:
    for statement, expected in (
        ("nonsense;", "NONSENSE is no statement of this shell; try HELP"),
        ("CREATE TABLE t (a INT) WITH (topic='nowhere');", "topic nowhere does not exist; SHOW"),
        ("CREATE TABLE t WITH (format='avro');", "format is one of json, csv"),
        ("DROP TABLE t;", "there is no TABLE t"),
        ("PRINT 'nowhere';", "topic nowhere does not exist"),
        ("SET 'auto.offset.reset'='sometimes';", "auto.offset.reset is one of earliest, latest"),
        ("SELECT * FROM nowhere;", "nowhere is neither a table, a stream nor a topic"),
        ("SELECT nope;", "A column, variable, or function parameter with name `nope` cannot"),
        ("SELECT 1 +;", "Syntax error at or near end of input"),
        ("SELECT 1 / 0;", "Division by zero"),
        ("SELECT 1 EMIT CHANGES;", "EMIT CHANGES needs a query over a stream or a table"),
    ):
        said = [line for line in ask(shell, statement).splitlines() if "Spark" not in line]
        assert len(said) == 1, said
        assert said[0].startswith(f"error: {expected}"), said
    leave(shell)


def test_file_ends_at_its_first_statement_that_fails(
    cluster: Cluster, environment: Mapping[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "script.sql"
    script.write_text("-- numbers\nSELECT 41 + 1 AS n; SELECT * FROM nix;\nSELECT 7\n")
    # Outside of the image somebody names the folder of the connector's jars.
    named = {**environment, "ODRADEK_SPARK_JARS": str(spark_jars.connector_jars()[0].parent)}
    ended = run(cluster, named, "-f", str(script))
    assert (ended.returncode, ended.stdout) == (1, " n\n--\n42\n(1 row)\n")
    assert ended.stderr.splitlines()[2:] == [
        "odradek: nix is neither a table, a stream nor a topic"
    ]


@pytest.mark.full(
    "tests/local/test_connector.py::test_an_installed_package_is_taken_and_nothing_is_fetched"
)
def test_an_installed_wheel_of_jars_gives_rows_without_maven(
    cluster: Cluster, tmp_path: Path
) -> None:
    create_topic(cluster.bootstrap, "wheels")
    write(cluster, "wheels", ("a", '{"n": 41}'))
    home, installed = tmp_path / "home", tmp_path / "installed"
    home.mkdir()
    # A Spark without connectors, in a JVM of its own, which can fetch nothing.
    nowhere = ("-Dhttps.proxyHost=127.0.0.1", "-Dhttps.proxyPort=1", f"-Duser.home={home}")
    without = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SPARK_HOME": str(spark_jars.plain()),
        "SPARK_SUBMIT_OPTS": " ".join((*spark_jars.QUICK, *nowhere)),
    }
    query = ("-e", "SELECT n + 1 AS n FROM wheels")
    ended = run(cluster, without, *query)
    assert ended.returncode == 1
    assert "Spark's Kafka connector is missing: install odradek-spark-jars" in ended.stderr

    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "operator/spark_jars", tree / "operator/spark_jars")
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    python.build_spark_jars(tree, tmp_path, "0.1.0")
    (wheel,) = tmp_path.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-cache-dir"]
    subprocess.run([*pip, "--quiet", "--target", installed, wheel], check=True)
    ended = run(cluster, {**without, "PYTHONPATH": str(installed)}, *query)
    assert ended.returncode == 0, ended.stderr
    assert "\n42\n" in ended.stdout
    # Where Spark fetches, it keeps a folder.
    assert list(home.glob(".ivy2*")) == []


def test_the_image_runs_the_shell_as_its_command(
    cluster: Cluster, environment: Mapping[str, str]
) -> None:
    create_topic(cluster.bootstrap, "listed", partitions=2)
    entrypoint = str(ROOT / "operator/spark_job/spark-entrypoint")
    shell = ["odradek", "sql", "--bootstrap-server", cluster.bootstrap, "-e", "SHOW TOPICS"]
    said = subprocess.run(
        [entrypoint, *shell], env=environment, capture_output=True, text=True, check=True
    )
    assert ["listed", "2", "1"] in rows(said.stdout)
    assert said.stderr == ""


def test_bad_usage_and_failures_before_spark_have_their_own_exit_codes(
    cluster: Cluster, environment: Mapping[str, str], tmp_path: Path
) -> None:
    assert run(cluster, environment, "--nonsense").returncode == 2
    assert run(cluster, environment, "-f", str(tmp_path / "missing.sql")).returncode == 2
    latin = tmp_path / "latin.sql"
    latin.write_bytes("SELECT 'é';".encode("latin-1"))
    refused = run(cluster, environment, "-f", str(latin))
    assert refused.returncode == 2
    assert refused.stderr == f"odradek: {latin} is not UTF-8 text (see `odradek sql --help`)\n"
    large = tmp_path / "large.sql"
    with large.open("wb") as file:
        file.truncate(given_files.MOST_BYTES + 1)
    refused = run(cluster, environment, "-f", str(large))
    assert (refused.returncode, refused.stderr) == (
        2,
        f"odradek: {large} is too large (see `odradek sql --help`)\n",
    )
    without = {**environment, "ODRADEK_SPARK_JARS": str(tmp_path)}
    for statement, expected in (
        ("SELECT 1", f"odradek: {tmp_path} has no spark-sql-kafka-0-10_*.jar\n"),
        ("SELECT 'open", "odradek: a quote or a comment is not closed\n"),
    ):
        ended = run(cluster, without, "-e", statement)
        assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", expected)


@pytest.mark.parametrize("size", ["x", "", "0", "-1g", "449m", "1g -version", "1e3g"])
def test_heap_that_java_would_not_take_is_a_mistake(size: str) -> None:
    done = CliRunner().invoke(command.sql, ["--memory", size])
    assert done.exit_code == 2
    assert f"{size!r} is no size such as 1g, of at least 450m" in done.stderr


def test_heap_that_the_machine_does_not_have_is_told_in_java_s_words(
    cluster: Cluster, environment: Mapping[str, str]
) -> None:
    alone = {name: value for name, value in environment.items() if "GATEWAY" not in name}
    ended = run(cluster, alone, "--memory", "999999g", "-e", "SELECT 1")
    started, failed = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (1, "")
    assert started == "Starting Spark (local mode) ..."
    assert failed.startswith("odradek: failed to start Spark (it needs Java 17 or 21): Could not ")


def test_datagen_writes_what_its_seed_says_until_it_is_interrupted(
    cluster: Cluster, tmp_path: Path
) -> None:
    create_topic(cluster.bootstrap, "orders")
    where = f"bootstrap-server={cluster.bootstrap}"
    arguments = ["quickstart=orders", "topic=orders", "--seed=3", where]
    ended = preloaded.run("odradek", "datagen", *arguments, "maxInterval=0", "iterations=500")
    assert ended.stderr.splitlines()[-1] == "500 records written to topic orders"
    found = [json.loads(value) for value in consume_all(cluster.bootstrap, "orders", 1, 500)]
    assert found == list(islice(QUICKSTARTS["orders"].records(3), 500))

    log = tmp_path / "log"
    endless = ["datagen", *arguments, "--rate", "200/s"]
    log.touch()
    program = preloaded.Program("odradek", endless, dict(os.environ), log)
    wait_until(lambda: "Ctrl-C ends" in log.read_text(), "it writes")
    os.kill(program.pid, signal.SIGINT)
    assert program.wait(60) == 0
    assert re.search(r"^\d+ records written to topic orders$", log.read_text(), re.M)


def test_datagen_tells_in_one_line_what_it_cannot_write_to(cluster: Cluster) -> None:
    arguments = ["quickstart=users", "topic=a b", f"bootstrap-server={cluster.bootstrap}"]
    ended = preloaded.run("odradek", "datagen", *arguments)
    assert ended.returncode == 1
    assert ended.stderr.startswith("odradek: topic a b cannot be used: ")
    assert ended.stderr.count("\n") == 1
