"""The account that the chart gives an operator: what tests do with it, the rights of a user's
operator allow.
"""

from pathlib import Path

import yaml

from tests.support import helm
from tests.support.apiserver import ApiServer
from tests.support.kubectl import Kubectl

_KINDS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
# Longer than any run of tests.
_DURATION = "48h"


def write_kubeconfig(server: ApiServer, admin: Path, home: str, scope: str, path: Path) -> Path:
    """Install a release's account and write a kubeconfig for it to `path`.

    `admin` is a kubeconfig with all rights, whose way to the server the new one takes, `home` the
    release's name and namespace, `scope` the one namespace it reconciles ("": all).
    """
    values = {"fullnameOverride": home, "watchNamespace": scope}
    account = f"{home}-operator"
    rights = [
        one
        for one in helm.template(values, namespace=home)
        if one["kind"] in _KINDS and account in one["metadata"]["name"]
    ]
    # kubectl takes objects of one namespace at a time.
    for namespace in {home, scope} - {""}:
        Kubectl(server.kubectl, server.kubeconfig, namespace).apply(
            *(one for one in rights if one["metadata"].get("namespace", home) == namespace)
        )
    document = yaml.safe_load(admin.read_text())
    (user,) = document["users"]
    kubectl = Kubectl(server.kubectl, server.kubeconfig, home)
    token = kubectl("create", "token", account, f"--duration={_DURATION}")
    user["user"] = {"token": token.strip()}
    path.write_text(yaml.safe_dump(document))
    return path
