"""`odradek local`: the first look at Odradek, on one machine without Kubernetes."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from odradek import thread_errors
from odradek.command_ends import EndingGroup
from odradek.terminal_text import tell
from odradek_local import connector, data_folder, java, ports, processes
from odradek_local.data_folder import DataFolder
from odradek_local.display import Display
from odradek_local.errors import LocalError, StopRequestedError
from odradek_local.ports import HOST
from odradek_local.signals import StopSignals

if TYPE_CHECKING:
    from odradek_local.cluster_run import ClusterRun
    from odradek_local.plan import Ports
    from odradek_local.resources import LocalResources

_NEEDED: Final = (
    *("aiohttp", "confluent_kafka", "cramjam", "fastavro", "jinja2", "kazoo"),
    *("pyarrow", "pyspark", "re2", "yaml"),
)
_ZOOKEEPER_PORT: Final = 2181
_JOBS_PORT: Final = 9410
_CONSOLE_PORT: Final = 9480
_KAFKA_PORT: Final = 9092

_data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Where data and logs are; a later start goes on with them.  [default: "
    "~/.local/state/odradek/local, or odradek/local in $XDG_STATE_HOME]",
)


@click.group(
    cls=EndingGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "-f",
    "--file",
    "place",
    type=click.Path(path_type=Path, exists=True),
    help="YAML of a KafkaCluster, Topics and ConsumerGroups; a file or a folder.  [default: an "
    "example]",
)
@_data_option
@click.option("--once", is_flag=True, help="End after the first table.")
@click.option("--keep", is_flag=True, help="Leave all running after the first table.")
@click.option(
    "--jars",
    envvar="ODRADEK_SPARK_JARS",
    metavar="FOLDER",
    show_envvar=True,
    help="Jars of Spark's Kafka connector.  [default: the package odradek-spark-jars, or Spark "
    "fetches them once]",
)
@click.pass_context
def local(
    context: click.Context,
    place: Path | None,
    data: Path | None,
    once: bool,
    keep: bool,
    jars: str | None,
) -> None:
    """Run ZooKeeper, brokers, topics, Spark jobs and a console here, without Kubernetes.

    It needs Java 17 or later, no root and no Docker. The resources are those of the operator: what
    works here can be applied to Kubernetes. Ctrl-C ends everything, and the data stay.
    """
    if context.invoked_subcommand is not None:
        context.obj = data
        return
    if once and keep:
        raise click.UsageError("give either --once or --keep")
    if sys.stdout is None:
        tell("stdout is closed")
        sys.exit(2)
    sys.exit(_run(place, _folder(data), once, keep, jars))


@local.command()
@_data_option
@click.pass_obj
def stop(parent_data: Path | None, data: Path | None) -> None:
    """End what runs on the data."""
    folder = _folder(data or parent_data)
    try:
        stopped = folder.stop()
    except LocalError as error:
        tell(error)
        sys.exit(error.status)
    click.echo(f"Stopped. The data stay in {folder.path}" if stopped else "Nothing is running.")


def _folder(data: Path | None) -> DataFolder:
    try:
        return DataFolder(data or data_folder.default())
    except LocalError as error:
        tell(error)
        sys.exit(error.status)


def _run(place: Path | None, folder: DataFolder, once: bool, keep: bool, jars: str | None) -> int:
    """Start, show, and end; return the exit status."""
    signals = StopSignals()
    display = Display(sys.stdout, sys.stdout.isatty())
    began = time.monotonic()
    run: ClusterRun | None = None
    left, shown = False, False
    status = 0
    try:
        run = _prepare(place, folder, jars, display, signals)
        run.start()
        run.await_tables()
        run.await_lags_and_console()
        _show(run, folder, display, time.monotonic() - began)
        shown = True
        if keep:
            run.leave()
            left = True
            display.line(f"It goes on in the background. To stop it: {_stop_command(folder)}")
        elif not once:
            display.line("Ctrl-C ends everything; the data stay.")
            run.watch()
    except StopRequestedError as stopped:
        display.line("Stopping; a second signal kills what does not end.")
        status = 0 if shown else 128 + stopped.number
    except LocalError as error:
        display.end_passing()
        tell(error)
        status = error.status
    except OSError as error:
        # The disk is full, somebody has taken the folder away, or there are too many processes.
        display.end_passing()
        if thread_errors.is_no_process(error):
            tell(thread_errors.NO_THREAD)
        else:
            tell(f"{error.filename or folder.path}: {error.strerror}")
        status = 1
    finally:
        if run is not None and not left:
            display.passing("Stopping ...")
            run.end()
            display.line(f"Stopped. The data stay in {folder.path}")
    return status


def _prepare(
    place: Path | None,
    folder: DataFolder,
    jars: str | None,
    display: Display,
    signals: StopSignals,
) -> ClusterRun:
    """Read and check all that can be wrong before a process is started. Raises LocalError."""
    processes.check_system()
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise LocalError(f"{missing[0]} is not installed: it is of odradek's extra local")
    program = java.find()
    spark = connector.environment(jars)
    from odradek_local import resources as resource_files

    wanted = resource_files.read(place)
    signals.check()
    left = folder.take()
    folder.check_cluster(wanted.name, wanted.cluster.replicas)
    _greet(wanted, place, folder, display)
    chosen = _choose_ports(wanted, display)
    if left:
        display.note(f"ended {left} processes that a start which was killed had left")
    if chosen.jobs and connector.is_fetched(spark):
        display.note(
            f"Spark fetches its Kafka connector from Maven Central into {connector.FETCHED_TO}, "
            "once"
        )
    from odradek_local.cluster_run import ClusterRun

    return ClusterRun(wanted, chosen, folder, program, spark, display, signals)


def _choose_ports(wanted: LocalResources, display: Display) -> Ports:
    from odradek_local.plan import Ports

    jobs = sum(group.job is not None for group in wanted.groups)
    used: list[int] = []
    found: list[tuple[int, ...]] = []
    for what, first, count in (
        ("ZooKeeper", _ZOOKEEPER_PORT, 1),
        ("brokers", wanted.cluster.port, wanted.cluster.replicas),
        ("metrics of brokers", wanted.cluster.metrics_port, wanted.cluster.replicas),
        ("metrics of jobs", _JOBS_PORT, jobs),
        ("console", _CONSOLE_PORT, 1),
    ):
        chosen, taken = ports.choose(first, count, used)
        used += chosen
        found.append(tuple(chosen))
        if taken:
            numbers, instead = (", ".join(map(str, one)) for one in (taken, chosen))
            verb = "is" if len(taken) == 1 else "are"
            display.note(f"port {numbers} {verb} taken; {what}: {instead}")
    (zookeeper,), brokers, metrics, of_jobs, (console,) = found
    return Ports(zookeeper, brokers, metrics, of_jobs, console)


def _greet(
    wanted: LocalResources, place: Path | None, folder: DataFolder, display: Display
) -> None:
    display.line(f"Odradek on this machine: KafkaCluster {wanted.name}, without Kubernetes")
    display.line(f"  data and logs  {folder.path}")
    if place is not None and wanted.unused:
        display.note(f"without meaning here: {', '.join(wanted.unused)}")
    if wanted.cluster.lacks_coordinators:
        display.note(
            "consumer groups with a coordinator need offsets.topic.replication.factor of at most "
            f"{wanted.cluster.replicas} in the config of the brokers"
        )
    if wanted.cluster.lacks_transactions:
        display.note(
            "producers with transactions need transaction.state.log.replication.factor and "
            f"transaction.state.log.min.isr of at most {wanted.cluster.replicas} in the config of "
            "the brokers"
        )
    without = [group.name for group in wanted.groups if group.job is None]
    if without:
        display.note(f"nothing to run for ConsumerGroups without a job: {', '.join(without)}")


def _show(run: ClusterRun, folder: DataFolder, display: Display, seconds: float) -> None:
    """Print the tables, the addresses, and what to try."""
    from odradek_local import table

    for job in run.jobs:
        found = None if job.table is None else table.read(job.table)
        display.line()
        if found is not None:
            for line in table.lines(found):
                display.line(f"  {line}")
        elif not run.fills(job):
            display.line(f"  No records for job {job.name} yet: nothing fills its topics.")
        else:
            display.line(f"  The rows of job {job.name} are in {job.sink}.")
    display.line()
    display.pairs(_addresses(run))
    display.line()
    display.line(f"All is up after {seconds:.1f} s. Try this in another terminal:")
    for line in _next_commands(run):
        display.line(f"  {line}")
    display.line()


def _addresses(run: ClusterRun) -> list[tuple[str, str]]:
    rows = [
        ("console", f"http://{HOST}:{run.ports.console}/"),
        ("bootstrap servers", run.ports.bootstrap),
        ("ZooKeeper", run.zookeeper_connect),
        ("metrics of brokers", " ".join(_metrics_url(port) for port in run.ports.metrics)),
    ]
    for job in run.jobs:
        rows.append((f"metrics of {job.name}", _metrics_url(job.port)))
        lag = run.lag(job)
        rows.append((f"lag of {job.group}", "unknown" if lag is None else f"{lag} records"))
        rows.append((f"rows of {job.name}", job.sink))
    return rows


def _metrics_url(port: int) -> str:
    return f"http://{HOST}:{port}/metrics"


def _next_commands(run: ClusterRun) -> list[str]:
    """Return three commands that work as they are printed."""
    odradek = program()
    bootstrap = f"{HOST}:{run.ports.brokers[0]}"
    option = "" if run.ports.brokers[0] == _KAFKA_PORT else f" --bootstrap-server {bootstrap}"
    topic = next((one.spec.topic for one in run.resources.topics), None)
    commands = []
    if topic is not None:
        commands += [
            f"{odradek} topics describe {topic}{option}",
            f"{odradek} consume {topic} --from-beginning --max-messages 5{option}",
        ]
    else:
        commands += [
            f"{odradek} topics create mine --partitions 3{option}",
            f"{odradek} cluster{option}",
        ]
    group = next((one for one in run.resources.groups), None)
    if group is None:
        return [*commands, f"{odradek} topics list{option}"]
    if group.spec.offset_store == "Kafka":
        where = f"--bootstrap-server {bootstrap}"
    else:
        where = f"--zookeeper {run.zookeeper_connect}"
    return [*commands, f"{odradek} groups describe --group {group.spec.group} {where}"]


def _stop_command(folder: DataFolder) -> str:
    return f"{program()} local stop{folder.option()}"


def program() -> str:
    """Return how `odradek` is called in the shell from which this process was started."""
    beside = Path(sys.executable).parent / "odradek"
    if not beside.exists():
        return f"{shlex.quote(sys.executable)} -m odradek"
    found = shutil.which("odradek")
    if found is not None and os.path.samefile(found, beside):
        return "odradek"
    try:
        return shlex.quote(str(beside.relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(beside))
