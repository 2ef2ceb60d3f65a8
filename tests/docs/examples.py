"""The page of the examples: every file of `examples` that one applies or gives to a tool."""

from __future__ import annotations

from pathlib import Path

from tests.docs.markdown import slug
from tests.layout.sources import ROOT

FOLDERS = ("kubectl", "autoscaling", "helm", "argocd", "flux")
VALUES = ROOT / "charts/odradek/values.yaml"


def heading_of(path: Path) -> str:
    """Return the heading under which the page has a file, or a folder, of `examples`."""
    return str(path.relative_to(ROOT))


def places() -> dict[Path, str]:
    """Return the fragment of the page for each file and each folder that it has."""
    folders = [ROOT / "examples" / name for name in FOLDERS]
    files = [file for folder in folders for file in sorted(folder.glob("*.yaml"))]
    return {path: slug(heading_of(path)) for path in [*folders, *files]}


def page() -> str:
    """Return the page."""
    parts = ["# Examples\n\nThe files of `examples` in the repository, as they are there.\n"]
    for path in places():
        if path.is_dir():
            parts.append(f"## {heading_of(path)}\n")
        else:
            parts.append(f"### {heading_of(path)}\n\n```yaml\n{path.read_text().rstrip()}\n```\n")
    return "\n".join(parts)


def values_page() -> str:
    """Return the page of the chart's values."""
    return (
        "# Values of the chart\n\nEvery value of the Helm chart with its default, as its "
        f"`values.yaml` has them.\n\n```yaml\n{VALUES.read_text().rstrip()}\n```\n"
    )
