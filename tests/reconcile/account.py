"""The account that the chart gives an operator: what tests do with it, the rights of a user's
operator allow.
"""

import functools
import json
from pathlib import Path

import yaml

from tests.support import helm, objects
from tests.support.apiserver import ApiServer

_KINDS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
# Longer than any run of tests.
_SECONDS = 48 * 3600
# What stands for the names of a release and its namespace while the chart is rendered.
_HOME, _SCOPE = "home-of-a-release", "scope-of-a-release"


def write_kubeconfig(server: ApiServer, admin: Path, home: str, scope: str, path: Path) -> Path:
    """Install a release's account and write a kubeconfig for it to `path`.

    `admin` is a kubeconfig with all rights, whose way to the server the new one takes, `home` the
    release's name and namespace, `scope` the one namespace it reconciles ("": all).
    """
    client = objects.client(server.kubeconfig)
    text = _rights(scope and (_HOME if scope == home else _SCOPE))
    for one in json.loads(text.replace(_HOME, home).replace(_SCOPE, scope)):
        client.apply(home, one)
    document = yaml.safe_load(admin.read_text())
    (user,) = document["users"]
    user["user"] = {"token": client.token(home, f"{home}-operator", _SECONDS)}
    path.write_text(yaml.safe_dump(document))
    return path


@functools.cache
def _rights(scope: str) -> str:
    """Return the objects of a release's account as JSON; helm renders once for all releases."""
    values = {"fullnameOverride": _HOME, "watchNamespace": scope}
    return json.dumps(
        [
            one
            for one in helm.template(values, namespace=_HOME)
            if one["kind"] in _KINDS and f"{_HOME}-operator" in one["metadata"]["name"]
        ]
    )
