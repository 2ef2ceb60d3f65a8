"""The Lease: no write is under way when another process may act."""

from __future__ import annotations

import json
import threading
from typing import Any, cast

import pytest

from odradek_operator.loop.lease import DEADLINE_SECONDS, LEASE_SECONDS, Leases, NotHolderError
from odradek_operator.shared.kube import CONNECT_SECONDS, TIMEOUT_SECONDS, Kube, KubeError

CONFIG_MAP: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "a", "namespace": "n"},
}


class FreeLease:
    """An API server in which nobody holds the Lease."""

    def get(self, *_names: str) -> None:
        return None

    def create_lease(self, _wanted: dict[str, Any]) -> None:
        pass


class Answer:
    """An answer that says nothing."""

    status = 200

    def read(self) -> bytes:
        return json.dumps({}).encode()


class Recorder:
    """A client of the API server that records the address and the time-out of each request."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, object]] = []

    def param_serialize(self, method: str, resource: str, **_fields: object) -> tuple[str, str]:
        return method, resource

    def call_api(self, _method: str, resource: str, _request_timeout: object) -> Answer:
        self.requests.append((resource, _request_timeout))
        return Answer()


def test_a_write_ends_before_another_process_may_act() -> None:
    now = [100.0]
    kube = cast("Kube", FreeLease())
    leases = Leases(kube, "home", "odradek-operator", "me", clock=lambda: now[0])
    with pytest.raises(NotHolderError):
        leases.write_seconds()
    try:
        assert leases.acquire()
        for since in (0.0, 4.0, DEADLINE_SECONDS - 0.5):
            now[0] = 100 + since
            # Who waits begins to do so at the moment of the renewal at the earliest.
            assert since + leases.write_seconds() == pytest.approx(LEASE_SECONDS)
        now[0] = 100 + DEADLINE_SECONDS
        for ask in (leases.write_seconds, leases.check):
            with pytest.raises(NotHolderError):
                ask()
    finally:
        leases.release()


@pytest.mark.parametrize(("left", "timeout"), [(5.5, 3.5), (600.0, TIMEOUT_SECONDS - 2)])
def test_the_api_server_is_told_how_long_a_write_may_take(left: float, timeout: float) -> None:
    api = Recorder()
    kube = Kube(api, lambda: left)
    kube.create(CONFIG_MAP)
    kube.apply(CONFIG_MAP)
    kube.get("v1", "ConfigMap", "n", "a")
    (created, of_creation), (applied, of_apply), (read, of_read) = api.requests
    place = "/api/v1/namespaces/n/configmaps"
    assert created == f"{place}?timeout={timeout}s"
    assert applied == f"{place}/a?timeout={timeout}s&fieldManager=odradek-operator&force=true"
    # The time to connect comes before.
    assert of_creation == of_apply == (CONNECT_SECONDS, timeout)
    assert CONNECT_SECONDS + timeout <= left
    assert (read, of_read) == (f"{place}/a", TIMEOUT_SECONDS)


class BareLease(FreeLease):
    """An API server with a Lease that somebody made without a spec."""

    def __init__(self) -> None:
        self.replaced: list[dict[str, Any]] = []

    def get(self, *_names: str) -> dict[str, Any]:  # type: ignore[override]
        return {"metadata": {"name": "odradek-operator"}}

    def replace(self, wanted: dict[str, Any]) -> None:
        self.replaced.append(wanted)


def test_a_lease_without_a_spec_is_taken() -> None:
    kube = BareLease()
    leases = Leases(cast("Kube", kube), "home", "odradek-operator", "me")
    try:
        assert leases.acquire()
        assert [one["spec"]["holderIdentity"] for one in kube.replaced] == ["me"]
    finally:
        leases.release()


class FlawedOnce(FreeLease):
    """Answers the second time with what nobody expects."""

    def __init__(self) -> None:
        self.asked = 0
        self.asked_again = threading.Event()

    def get(self, *_names: str) -> None:
        self.asked += 1
        if self.asked == 2:
            raise TypeError("a bug")
        if self.asked > 2:
            self.asked_again.set()


def test_the_lease_is_renewed_after_an_error_that_nobody_expects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for pause in ("RENEW_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(f"odradek_operator.loop.lease.{pause}", 0.01)
    kube = FlawedOnce()
    leases = Leases(cast("Kube", kube), "home", "odradek-operator", "me")
    try:
        assert leases.acquire()
        assert kube.asked_again.wait(30)
        assert leases.held
    finally:
        leases.release()


class NoToken(Recorder):
    """The token cannot be read now."""

    def param_serialize(self, method: str, resource: str, **_fields: object) -> tuple[str, str]:
        raise OSError(24, "Too many open files")


class ForeignAnswer(Recorder):
    """Something before the API server answers for it."""

    def call_api(self, *_request: object, **_fields: object) -> Any:
        answer = Answer()
        answer.read = lambda: b"<html>"  # type: ignore[method-assign]
        return answer


@pytest.mark.parametrize("api", [NoToken(), ForeignAnswer()])
def test_whatever_keeps_an_answer_away_is_an_error_of_the_api_server(api: Recorder) -> None:
    with pytest.raises(KubeError) as told:
        Kube(api).get("v1", "ConfigMap", "n", "a")
    assert told.value.code == 0
