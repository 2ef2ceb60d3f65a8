"""Names from a spec never reach an object that they do not name."""

from __future__ import annotations

import pytest

from odradek_operator.shared.kube import Kube
from tests.reconcile.test_lease import Recorder


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/status",
        "../../kube-system/secrets/admin",
        "..%2fkube-system",
        "a?limit=1",
        "a#b",
        "a b",
        "a\n",
        "A",
        "\u0661",
        "-a",
        "a..b",
    ],
)
def test_name_that_no_object_can_have_is_not_asked_for(name: str) -> None:
    api = Recorder()
    assert Kube(api).get("v1", "Secret", "n", name) is None
    assert api.requests == []


@pytest.mark.parametrize("namespace", [".", "..", "n/secrets/a/..", "n?a", "N"])
def test_namespace_that_cannot_be_is_not_asked(namespace: str) -> None:
    api = Recorder()
    assert Kube(api).get("v1", "Secret", namespace, "a") is None
    assert api.requests == []


def test_object_without_a_namespace_is_asked_for() -> None:
    api = Recorder()
    Kube(api).get("v1", "Namespace", "", "n")
    ((path, _),) = api.requests
    assert path == "/api/v1/namespaces/n"


@pytest.mark.parametrize("name", ["a", "0", "main-operator", "a.b-c.d", "x" * 253])
def test_other_names_are_asked_for(name: str) -> None:
    api = Recorder()
    Kube(api).get("v1", "Secret", "n", name)
    ((path, _),) = api.requests
    assert path == f"/api/v1/namespaces/n/secrets/{name}"
