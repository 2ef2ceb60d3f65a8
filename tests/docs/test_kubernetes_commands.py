"""The commands of the documents that ask Kubernetes, as a real API server takes them.

No operator runs here: what it does with a resource is for the tests that the other marks name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.docs import blocks
from tests.layout.sources import ROOT
from tests.support import helm
from tests.support.apiserver import ApiServer

NAMESPACE = "documented"
# In this order: each finds what those before it left.
BLOCKS = [
    ("docs/start.md", "apply", "page-views"),
    ("docs/how-to/reassign.md", "apply", "created"),
    ("docs/how-to/reassign.md", "plan", ""),
    ("docs/how-to/reassign.md", "approve", "patched"),
    ("docs/how-to/reassign.md", "cancel", "patched"),
    ("docs/how-to/reset-offsets.md", "apply", "created"),
    ("docs/how-to/upgrade.md", "before", "page-views"),
    ("docs/how-to/troubleshoot.md", "look", "billing"),
    ("docs/how-to/uninstall.md", "finalizers", "patched"),
    ("docs/how-to/uninstall.md", "resources", "deleted"),
    ("docs/how-to/uninstall.md", "clusters", ""),
]


def environment(folder: Path, **programs: Path) -> Mapping[str, str]:
    """Return a PATH with these programs, and our Python, in front."""
    for name, program in programs.items():
        (folder / name).symlink_to(program)
    return {"PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_resources_are_applied_read_and_changed(api_server: ApiServer, tmp_path: Path) -> None:
    api_server.install_crds()
    call = api_server.call
    call.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    # Other tests on this server apply the examples, too.
    (tmp_path / "examples/kubectl").mkdir(parents=True)
    for example in (ROOT / "examples/kubectl").glob("*.yaml"):
        text = example.read_text().replace("namespace: logs", f"namespace: {NAMESPACE}")
        (tmp_path / "examples/kubectl" / example.name).write_text(text)
    around = {
        **environment(tmp_path, kubectl=call.binary),
        "KUBECONFIG": str(call.kubeconfig),
    }
    for document, name, shown in BLOCKS:
        text = blocks.take(document, name).replace("-n logs", f"-n {NAMESPACE}")
        said = blocks.run(text, around, tmp_path)
        assert shown in said, f"{document} {name}: {said}"


def test_rules_are_written_to_a_file(tmp_path: Path) -> None:
    # The helm of the tests does not know which Kubernetes it is for.
    text = blocks.take("docs/monitoring.md", "rules").replace(
        "helm template", f"helm template --kube-version {helm.KUBE_VERSION}"
    )
    said = blocks.run(text, environment(tmp_path, helm=helm.binary()), ROOT)
    assert "alert: OdradekPartitionsOffline" in said
    assert "cluster.json" in said
