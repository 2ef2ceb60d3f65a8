"""The settings of several brokers that one command runs, and how they end together."""

import contextlib
import errno
import os
import signal
import subprocess
import sys

import pytest

from odradek import broker_processes, config_loading, stop_signals
from odradek.config import BrokerConfig
from odradek.properties import ConfigError
from odradek.thread_errors import NO_THREAD
from tests.support import process_limit


def settings(**values: str) -> BrokerConfig:
    texts = {name.replace("_", "."): text for name, text in values.items()}
    base = {"broker.id": "4", "zookeeper.connect": "z:1", "log.dirs": "/a,/b/c/"}
    return config_loading.from_values({**base, **texts})[0]


def test_each_broker_has_the_next_id_and_ports_and_directories_of_its_own() -> None:
    first = settings(
        listeners="PLAINTEXT://[::1]:9092, SSL://:9095",
        advertised_listeners="PLAINTEXT://h:9092,SSL://other:1095",
        odradek_metrics_port="9404",
        ssl_keystore_location="/k",
    )
    assert broker_processes.overrides(first, 0, 3) == {}
    assert broker_processes.overrides(first, 2, 3) == {
        "broker.id": "6",
        "listeners": "PLAINTEXT://[::1]:9094, SSL://:9097",
        "advertised.listeners": "PLAINTEXT://h:9094,SSL://other:1097",
        "odradek.metrics.port": "9406",
        "log.dirs": "/a-6,/b/c-6",
    }


def test_port_0_is_any_port_for_all_of_them() -> None:
    found = broker_processes.overrides(settings(listeners="PLAINTEXT://:0"), 1, 2)
    assert found["listeners"] == "PLAINTEXT://:0"
    assert found.keys() == {"broker.id", "listeners", "log.dirs"}


@pytest.mark.parametrize(("count", "refused"), [(3, False), (4, True)])
def test_ports_that_two_brokers_would_have_are_refused(count: int, refused: bool) -> None:
    near = settings(listeners="PLAINTEXT://:9092", odradek_metrics_port="9089")
    if not refused:
        assert broker_processes.overrides(near, 1, count)
        return
    with pytest.raises(ConfigError, match="ports 9092 and 9089 are nearer to each other than 4"):
        broker_processes.overrides(near, 1, count)


def test_one_log_directory_is_of_one_broker() -> None:
    first, second = settings(), settings(broker_id="5", log_dirs="/x,/b/c")
    with pytest.raises(ConfigError, match=r"brokers 4 and 5 would both have log\.dirs /b/c"):
        broker_processes.check_directories({4: first, 5: second})


def test_brokers_are_told_to_stop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has stopped, and is about to exit, would be killed by a second signal."""
    reading, writing = os.pipe()
    told: list[int] = []
    kill = os.kill

    def note(child: int, number: int) -> None:
        told.append(child)
        kill(child, number)

    def stops_when_told() -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        os.write(writing, b"1")
        signal.sigwait({signal.SIGTERM})
        return 0

    def ends_first() -> int:
        assert os.read(reading, 1) + os.read(reading, 1) == b"11"
        return 0

    monkeypatch.setattr(os, "kill", note)
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert broker_processes.run_all([stops_when_told, ends_first, stops_when_told]) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)
    assert len(told) == len(set(told)) == 2


def test_end_of_a_process_that_is_no_broker_stops_none() -> None:
    """A shell had started it before it became this process."""
    with subprocess.Popen(["false"]) as other:
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        before = {one: signal.getsignal(one) for one in stop_signals.numbers()}
        try:
            assert broker_processes.run_all([lambda: 0]) == 0
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def test_where_no_process_can_be_started_is_one_line() -> None:
    with process_limit.folder() as folder:
        file = folder / "server.properties"
        file.write_text(f"broker.id=1\nzookeeper.connect=localhost:1\nlog.dirs={folder}/data\n")
        words = [sys.executable, "-m", "odradek", "broker", str(file), "--count", "2"]
        assert process_limit.run(words) == (1, "", f"odradek: {NO_THREAD}\n")


def test_brokers_are_stopped_if_the_next_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit at which only the second fork fails would depend on who else runs here."""
    started: list[int] = []
    fork = os.fork

    def fork_once() -> int:
        if started:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        child = fork()
        if child:
            started.append(child)
        return child

    def waits() -> int:
        while True:
            signal.pause()

    monkeypatch.setattr(os, "fork", fork_once)
    before = {one: signal.getsignal(one) for one in stop_signals.numbers()}
    try:
        assert broker_processes.run_all([waits, waits, waits]) == 1
        with pytest.raises(ChildProcessError):
            os.waitpid(started[0], os.WNOHANG)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, before)
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(started[0], os.WNOHANG) == (0, 0):
                os.kill(started[0], signal.SIGKILL)
    assert capsys.readouterr().err == f"odradek: {NO_THREAD}\n"
