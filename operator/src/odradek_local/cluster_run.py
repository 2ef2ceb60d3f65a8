"""One start: brings everything up step by step, watches it, and ends it.

What takes longest starts first, and all at once: Spark, ZooKeeper and the brokers wait for each
other by themselves. The steps that are shown are what has to hold before the next thing can.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from odradek import zookeeper
from odradek_local import endpoints, plan, table
from odradek_local.data_folder import DataFolder
from odradek_local.display import Display, ShownStep
from odradek_local.errors import LocalError
from odradek_local.plan import LocalJob, Ports
from odradek_local.ports import HOST
from odradek_local.processes import Child, Children
from odradek_local.resources import LocalResources, LocalTopic
from odradek_local.signals import StopSignals
from odradek_local.topics import TopicMaker

# The order in which processes end.
_GENERATORS, _JOBS, _BROKERS, _ZOOKEEPER = range(4)
_CONSOLE: Final = "console"
# How commands connect to brokers, and brokers to ZooKeeper: those of another cluster.
_NOT_FOR_THIS_CLUSTER: Final = ("ODRADEK_COMMAND_CONFIG", "KAFKA_OPTS")
# For a machine that is busy with other things; a process that ends is told at once.
_STEP_S: Final = 900.0
_PAUSE_S: Final = 0.1
_STATE_PAUSE_S: Final = 1.0
_STATE_LINE_S: Final = 60.0
# A driver that failed is started again, as the operator does; so often before the first table.
_JOB_STARTS: Final = 3
_STALLED: Final = 2
_RUNNING_STATES: Final = ("Running", "Completed")


class ClusterRun:
    """The processes of one start; `spark` is what drivers have in their environment besides."""

    def __init__(
        self,
        resources: LocalResources,
        ports: Ports,
        folder: DataFolder,
        java: Path,
        spark: Mapping[str, str],
        display: Display,
        signals: StopSignals,
    ) -> None:
        assert folder.lock is not None
        self.resources = resources
        self.ports = ports
        self._folder = folder
        self._java = java
        self._spark = spark
        self._display = display
        self._signals = signals
        self._job_starts: dict[str, int] = {}
        self._step: ShownStep | None = None
        self.zookeeper_connect = plan.zookeeper_connect(resources, ports)
        jobs = [group for group in resources.groups if group.job is not None]
        self.jobs = [
            plan.job(resources, group, ports, number, folder.path / "jobs" / group.name, java)
            for number, group in enumerate(jobs)
        ]
        self._children = Children(folder.lock, self._noted)

    def _noted(self) -> None:
        self._folder.write_note(self._children.all.values())

    # --- starting -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start all and wait until it runs. Raises LocalError or StopRequestedError."""
        self._noted()
        self._spawn_zookeeper()
        for job in self.jobs:
            self._signals.check()
            self._spawn_job(job)
        for number in range(self.resources.cluster.replicas):
            self._signals.check()
            self._spawn_broker(number)
        port = self.ports.zookeeper
        self._await("ZooKeeper", f"{HOST}:{port}", lambda: endpoints.zookeeper_serves(port))
        addresses = " ".join(f"{HOST}:{one}" for one in self.ports.brokers)
        self._await("Brokers", addresses, self._brokers_are_ready)
        self._make_topics()
        self._start_generators()
        for job in self.jobs:
            self._await("Spark", f"job {job.name}", lambda job=job: self._runs(job))  # type: ignore[misc]

    def _spawn_zookeeper(self) -> None:
        data = self._folder.path / "zookeeper"
        try:
            config = zookeeper.write_config(data, self.ports.zookeeper)
            command = zookeeper.command(config, self._java)
        except zookeeper.MissingError as error:
            raise LocalError(str(error)) from error
        self._children.spawn("zookeeper", _ZOOKEEPER, command, self._folder.log("zookeeper"))

    def _spawn_broker(self, number: int) -> None:
        name = f"broker-{number}"
        properties = self._folder.path / f"{name}.properties"
        text = plan.server_properties(self.resources, self.ports, number, self._folder.path / name)
        properties.write_text(text, encoding="utf-8")
        command = plan.broker_command(properties)
        self._children.spawn(name, _BROKERS, command, self._folder.log(name), _environment())

    def _spawn_job(self, job: LocalJob) -> None:
        for folder in (job.folder / "data", job.folder / "scratch"):
            folder.mkdir(parents=True, exist_ok=True)
        Path(job.environment["ODRADEK_JOB"]).write_text(job.file, encoding="utf-8")
        self._job_starts[job.name] = self._job_starts.get(job.name, 0) + 1
        self._children.spawn(
            f"job-{job.name}",
            _JOBS,
            plan.job_command(),
            self._folder.log(f"job-{job.name}"),
            {**_environment(), **self._spark, **job.environment},
        )

    def _brokers_are_ready(self) -> bool:
        return all(map(endpoints.broker_is_ready, self.ports.metrics))

    def _make_topics(self) -> None:
        wanted = [topic.spec for topic in self.resources.topics]
        if not wanted:
            return
        names = ", ".join(topic.topic for topic in wanted)
        with self._display.step("Topics", names) as step:
            self._step = step
            maker = TopicMaker(self.ports.bootstrap, self._wait)
            maker.apply(self.resources.cluster, wanted)

    def _start_generators(self) -> None:
        for topic in self.resources.topics:
            if topic.datagen is not None:
                text = f"{topic.spec.topic}: {plan.RATE} {topic.datagen} records per second"
                with self._display.step("Records", text):
                    self._spawn_generator(topic)

    def _spawn_generator(self, topic: LocalTopic) -> None:
        name = f"datagen-{topic.spec.topic}"
        command = plan.datagen_command(topic, self.ports)
        self._children.spawn(name, _GENERATORS, command, self._folder.log(name), _environment())

    def _runs(self, job: LocalJob) -> bool:
        return (
            endpoints.job_status(job.port).get("state") in _RUNNING_STATES
            or self._children.all[f"job-{job.name}"].process.poll() == 0
        )

    # --- the first table ----------------------------------------------------------------------

    def await_tables(self) -> None:
        """Wait until each job has stored rows, if its topics have records."""
        for job in self.jobs:
            if self.fills(job):
                text = f"rows of {job.name}"
                self._await("First table", text, lambda job=job: self._has_stored(job))  # type: ignore[misc]

    def fills(self, job: LocalJob) -> bool:
        """Return whether records come to a topic of the job by themselves."""
        filled = {one.spec.topic for one in self.resources.topics if one.datagen is not None}
        sinks = {one.sink for one in self.jobs}
        return any(name in filled or f"topic {name}" in sinks for name in job.topics)

    def _has_stored(self, job: LocalJob) -> bool:
        if job.table is not None:
            return table.read(job.table) is not None
        return endpoints.job_status(job.port).get("lastBatchId") is not None

    def lag(self, job: LocalJob) -> int | None:
        """Return how many records the job's group has not read; None: not known now."""
        found = endpoints.job_status(job.port).get("totalLag")
        return found if isinstance(found, int) else None

    def await_lags_and_console(self) -> None:
        """Wait until the jobs have measured their lag, which they do every few seconds.

        The console starts meanwhile: before the first table it would take the time of others.
        """
        command = plan.console_command(self.resources, self.ports)
        self._children.spawn(
            _CONSOLE, _GENERATORS, command, self._folder.log(_CONSOLE), _environment()
        )
        for job in self.jobs:
            if self._children.all[f"job-{job.name}"].running:
                self._await(
                    "Lag",
                    f"of group {job.group}",
                    lambda job=job: self.lag(job) is not None,  # type: ignore[misc]
                )
        port = self.ports.console
        self._await("Console", f"{HOST}:{port}", lambda: endpoints.console_serves(port))

    # --- waiting ------------------------------------------------------------------------------

    def _await(self, name: str, text: str, condition: Callable[[], bool]) -> None:
        with self._display.step(name, text) as step:
            self._step = step
            self._wait(condition, f"{name}: {text}")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _STEP_S
        while True:
            self._signals.check()
            self._look_after_start()
            if condition():
                return
            if time.monotonic() > until:
                raise LocalError(
                    f"{what}: not there after {_STEP_S:.0f} s; logs in {self._folder.logs}", 1
                )
            if self._step is not None:
                self._display.tick(self._step)
            time.sleep(_PAUSE_S)

    def _look_after_start(self) -> None:
        """Start failed drivers again. Raises LocalError for any other process that has ended."""
        for child in list(self._children.all.values()):
            if child.running or (child.stage == _JOBS and child.process.poll() == 0):
                continue
            job = next((one for one in self.jobs if child.name == f"job-{one.name}"), None)
            stalled = child.process.poll() == _STALLED
            if job is None or stalled or self._job_starts[job.name] >= _JOB_STARTS:
                raise LocalError(_obituary(child), 2 if job is not None and stalled else 1)
            self._start_again(job, child)

    def _start_again(self, job: LocalJob, child: Child) -> None:
        self._display.note(f"{_obituary(child)}; started again")
        self._children.forget(child)
        self._spawn_job(job)

    # --- running ------------------------------------------------------------------------------

    def watch(self) -> None:
        """Show the state until a signal raises StopRequestedError, or nothing is left to watch."""
        line_due = time.monotonic() + _STATE_LINE_S
        while True:
            self._signals.check()
            self._report_ends()
            state = self._state()
            self._display.passing(f"  {state}")
            if not self._display.is_terminal and time.monotonic() > line_due:
                self._display.line(f"  {state}")
                line_due = time.monotonic() + _STATE_LINE_S
            until = time.monotonic() + _STATE_PAUSE_S
            while time.monotonic() < until and not self._signals.count:
                time.sleep(_PAUSE_S)

    def _report_ends(self) -> None:
        for child in list(self._children.all.values()):
            if child.running or child.reported:
                continue
            job = next((one for one in self.jobs if child.name == f"job-{one.name}"), None)
            if job is not None and child.process.poll() not in (0, _STALLED):
                self._start_again(job, child)
                continue
            child.reported = True
            self._children.clean_up(child)
            if job is not None and child.process.poll() == 0:
                self._display.line(f"  job {job.name} has read all records, and ended")
            else:
                self._display.line(f"  {_obituary(child)}")
        brokers = [one for one in self._children.all.values() if one.stage == _BROKERS]
        if not any(one.running for one in brokers):
            raise LocalError(f"no broker is left; logs in {self._folder.logs}", 1)
        if not self._children.all["zookeeper"].running:
            raise LocalError(f"ZooKeeper is gone; logs in {self._folder.logs}", 1)

    def _state(self) -> str:
        brokers = [one for one in self._children.all.values() if one.stage == _BROKERS]
        up = sum(one.running for one in brokers)
        parts = [f"{up} of {len(brokers)} brokers run"]
        for job in self.jobs:
            lag = self.lag(job)
            parts.append(f"lag of {job.group}: {'unknown' if lag is None else lag}")
        return "; ".join(parts)

    # --- ending -------------------------------------------------------------------------------

    def end(self) -> None:
        """End all processes, in order; killed after a second signal."""
        self._children.end(self._signals.in_hurry)
        self._folder.clear_note()

    def leave(self) -> None:
        """Let all go on in the background."""
        self._folder.write_note(self._children.all.values(), kept=True)
        self._children.leave()


def _environment() -> dict[str, str]:
    """Return the environment of children: how to connect to another cluster is not for this one."""
    return {name: text for name, text in os.environ.items() if name not in _NOT_FOR_THIS_CLUSTER}


def _obituary(child: Child) -> str:
    said = child.last_line() if (child.process.poll() or 0) > 0 else ""
    return f"{child.name} {child.how_it_ended()}{f': {said}' if said else ''} (log: {child.log})"
