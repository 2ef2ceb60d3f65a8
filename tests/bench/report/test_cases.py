"""Which cases a run has; and cases of the report, in small, with a broker of this project."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.progress import Progress

from tests.bench.report import bare, cases, catalogue, connections, failover, interpreter, scale
from tests.bench.report.__main__ import QUICK, _round, main
from tests.bench.report.bench import Bench, Case
from tests.bench.report.catalogue import Group
from tests.bench.report.floors import Floor
from tests.bench.report.results import LIMIT, Results
from tests.bench.report.systems import KAFKA, OURS, SETTINGS, Launcher, Running
from tests.support.broker import Cluster


def nothing(_: Bench, __: str) -> None:
    """A case that measures nothing."""


SHORT = Case("produce 1 kB", nothing, tools=1)
LONG = Case("leader failover", nothing, quick=False, rounds=3, warm_ups=0)
MANY = Case("eight producers", nothing, quick=False, tools=8)
EVERY = [Group(1, [SHORT, MANY]), Group(3, [SHORT, LONG]), Group(3, [LONG])]


def titles(groups: list[Group]) -> list[list[str]]:
    return [[one.title for one in group.cases] for group in groups]


@pytest.mark.parametrize(
    ("quick", "only", "expected"),
    [
        (False, "", [[SHORT.title, MANY.title], [SHORT.title, LONG.title], [LONG.title]]),
        (True, "", [[SHORT.title], [SHORT.title]]),
        (False, "Failover", [[LONG.title], [LONG.title]]),
        (True, "failover", []),
    ],
)
def test_a_run_has_groups_with_the_cases_that_it_is_asked_for(
    quick: bool, only: str, expected: list[list[str]]
) -> None:
    assert titles(catalogue.chosen(EVERY, quick=quick, only=only)) == expected


def test_a_run_starts_as_many_clients_in_jvms_as_its_cases_need() -> None:
    assert [one.tools for one in catalogue.chosen(EVERY, quick=True)] == [1, 1]
    assert [one.tools for one in catalogue.chosen(EVERY, quick=False)] == [8, 1, 0]
    assert [one.tools for one in catalogue.chosen(EVERY, quick=False, only="1 kB")] == [1, 1]


def test_brokers_are_restarted_after_all_other_rounds() -> None:
    restarting = Case("start-up", nothing, warm_ups=0, restarts=True)
    warm = Case("warm", nothing, warm_ups=1)
    planned = catalogue.steps([restarting, warm, LONG, SHORT], rounds=4)
    assert [(number, case.title) for number, case in planned] == [
        *[(-2, SHORT.title), (-1, warm.title), (-1, SHORT.title)],
        *[(one, title) for one in range(3) for title in (warm.title, LONG.title, SHORT.title)],
        *[(3, warm.title), (3, SHORT.title)],
        *[(one, restarting.title) for one in range(4)],
    ]


def test_steal_is_kept_of_cases_that_have_one_title() -> None:
    results = Results()
    for count in (1, 3):
        running = cast("Running", SimpleNamespace(brokers=dict.fromkeys(range(count))))
        systems = dict.fromkeys(SHORT.systems, running)
        bench = Bench(Path(), Launcher(), systems, [], QUICK, results)
        with Progress(disable=True) as bar:
            bar.add_task("", total=1)
            _round(bench, SHORT, 0, bar)
    assert len(results.stolen) == len(results.loops) == 2 * len(SHORT.systems)
    assert f"round 1, {SHORT.title}: {OURS}, brokers: 3" in results.stolen


def test_steal_of_cases_that_start_systems_of_their_own_names_no_brokers() -> None:
    results = Results()
    with Progress(disable=True) as bar:
        bar.add_task("", total=1)
        _round(Bench(Path(), Launcher(), {}, [], QUICK, results), SHORT, 0, bar)
    assert f"round 1, {SHORT.title}: {OURS}" in results.stolen


def test_cases_that_warm_brokers_up_are_no_steps_before_the_rounds() -> None:
    warming = Case("warming", nothing, warm_ups=None)
    compiling = Case("compiling", nothing)
    group = Group(1, [warming, SHORT], compiles=compiling)
    assert (group.compiling, group.warming) == ([compiling], [warming])
    assert Group(1, [SHORT], compiles=compiling).compiling == []
    planned = catalogue.steps([warming, Case("warm", nothing, warm_ups=1)], rounds=2)
    assert [(number, case.title) for number, case in planned] == [
        (-1, "warm"),
        *[(one, title) for one in range(2) for title in ("warming", "warm")],
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "nowhere"], "no case has 'nowhere' in its title"),
        (["--only", "failover", "--python", "nowhere"], "there is no program nowhere"),
        (["--only", "failover", "--python", "false"], "is no Python that runs"),
    ],
)
def test_mistakes_end_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_brokers_run_with_supported_versions_only(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho 3.10.13\n")
    old.chmod(0o755)
    with pytest.raises(interpreter.UnusableError, match=r"is Python 3\.10\.13"):
        interpreter.find(str(old))


def test_python_of_an_image_runs_from_its_folder(tmp_path: Path) -> None:
    # The root of this machine is one of an image as well.
    found = interpreter.find("/")
    script = interpreter.start_script(found, tmp_path / "base")
    subprocess.run([script, "-m", "venv", "--without-pip", tmp_path / "made"], check=True)
    asked = "import platform, sys; print(platform.python_version(), sys.base_prefix, sys.prefix)"
    made = tmp_path / "made" / "bin" / "python"
    said = subprocess.run([made, "-c", asked], check=True, capture_output=True, text=True).stdout
    assert said.split() == [found.version, str(tmp_path / "base"), str(tmp_path / "made")]


def test_folder_without_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(interpreter.UnusableError, match="has no Python of an image"):
        interpreter.find(str(tmp_path))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Cluster(tmp_path, 1, SETTINGS) as cluster:
        yield Bench(tmp_path, Launcher(), {OURS: cluster}, [], QUICK, Results())


def found(bench: Bench) -> dict[str, float]:
    """What was noted of this broker."""
    return {f"{what.section}, {what.name}": by[OURS][0] for what, by in bench.results.found.items()}


def test_connections_are_measured(bench: Bench) -> None:
    connections.busy(20).measure(bench, OURS)
    connections.idle(20, seconds=0.5).measure(bench, OURS)
    figures = found(bench)
    assert len(figures) == 5
    assert all(value > 0 for value in figures.values()), figures


def test_scale_is_measured(bench: Bench) -> None:
    scale.one_broker((60,), seconds=0.2).measure(bench, OURS)
    rows = {what.name: by[OURS] for what, by in bench.results.found.items()}
    started = [what for what in rows if what.endswith("to the last replica in sync")]
    for what in ("60 partitions: creation", "60 partitions: controller reload", *started):
        assert rows[what] > [0]
    assert len(started) == 2


def test_system_without_descriptors_for_so_many_partitions_is_remarked(bench: Bench) -> None:
    scale.one_broker((10**9,)).measure(bench, KAFKA)
    [[remark]] = bench.results.remarks.values()
    assert remark.startswith("kafka 2.8.2, 1000000000 partitions: ")
    assert not bench.results.found


def test_server_that_keeps_writes_each_batch_to_the_file_of_its_partition(tmp_path: Path) -> None:
    batch = bare.batch(1000)
    with Floor("keep", str(tmp_path)) as floor:
        for _ in range(2):
            bare.check(floor.connect, bare.produce_frame("kept", 2, batch))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "kept-0": batch * 2,
        "kept-1": batch * 2,
    }


def test_server_that_keeps_acknowledges_no_damaged_batch(tmp_path: Path) -> None:
    damaged = bare.batch(1000)[:-1] + b"w"
    with Floor("keep", str(tmp_path)) as floor, floor.connect() as sock:
        sock.sendall(bare.produce_frame("kept", 1, damaged))
        assert sock.recv(1) == b""
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("rate", "seconds", "shown"), [(1, 0.5, 1), (10, 0.5, 2)])
def test_latency_is_measured_beside_that_of_a_server_which_does_the_least(
    bench: Bench, rate: int, seconds: float, shown: int
) -> None:
    bench.volume = replace(QUICK, latency_seconds=seconds)
    case = cases.end_to_end(rate, quick=True)
    assert case.limit is not None
    case.limit(bench)
    case.measure(bench, OURS)
    assert len(bench.results.found) == shown  # A single record decides no percentile.
    for by_system in bench.results.found.values():
        assert by_system.keys() == {LIMIT, OURS}
        assert all(value > 0 for values in by_system.values() for value in values)


async def test_topic_is_created_through_the_broker_that_can(bench: Bench) -> None:
    brokers = list(bench.systems[OURS].brokers.values())
    await failover.create(brokers, "made")
    # It is there already, as after a try without an answer.
    await failover.create(brokers, "made")
