"""SBOMs in CycloneDX: of images (Debian packages, Python distributions, jars), and of jars."""

from __future__ import annotations

import importlib.metadata
import re
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from tests.release import archives
from tests.release.source import Source

_DISTRIBUTIONS: Final = (
    "opt/odradek/lib/python*/site-packages",
    "usr/lib/python3/dist-packages",
    "usr/local/lib/python*/site-packages",
)
# The published Python image has its Python from no package.
_HEADERS: Final = "usr/local/include/python*/patchlevel.h"
_PYTHON: Final = re.compile(r'^#define PY_VERSION\s+"(.+)"', re.MULTILINE)
# Maven's part of a jar that was made by it.
_POM: Final = re.compile(r"META-INF/maven/[^/]+/[^/]+/pom\.properties")
_JAR: Final = re.compile(r"(?P<name>.+?)-(?P<version>\d.*)")


def of_image(root: Path, name: str, digest: str, source: Source) -> str:
    """Return the SBOM of an image as JSON; `root` has its files, `digest` is its manifest's."""
    purl = PackageURL("oci", None, name, digest)
    subject = Component(
        name=f"odradek/{name}",
        version=source.version,
        type=ComponentType.CONTAINER,
        purl=purl,
        bom_ref=str(purl),
    )
    found = [*_packages(root), *_python(root), *_distributions(root), *_jars(root / "opt")]
    return _text(subject, found, source.epoch)


def of_jars(folder: Path, name: str, version: str) -> str:
    """Return the SBOM of a wheel that has the jars in a folder, as JSON.

    Its time is that of all files in wheels, so the same jars have the same SBOM.
    """
    subject = _component(PackageURL("pypi", None, name, version))
    return _text(subject, list(_jars(folder)), archives.FILES_EPOCH)


def _text(subject: Component, found: Sequence[Component], epoch: int) -> str:
    metadata = BomMetaData(
        component=subject, timestamp=datetime.fromtimestamp(epoch, UTC), tools=()
    )
    bom = Bom(
        components=found,
        metadata=metadata,
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, str(subject.purl)),
    )
    bom.register_dependency(subject, found)
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    return outputter.output_as_string(indent=1) + "\n"


def _component(purl: PackageURL, place: str = "", **more: object) -> Component:
    """Return what is named by a purl; what is there more than once needs a place for its name."""
    return Component(
        name=purl.name,
        version=purl.version,
        type=ComponentType.LIBRARY,
        group=purl.namespace if purl.type == "maven" else None,
        purl=purl,
        bom_ref=f"{purl}#{place}" if place else str(purl),
        **more,  # type: ignore[arg-type]
    )


def _packages(root: Path) -> Iterator[Component]:
    """Yield the Debian packages that dpkg has installed."""
    for paragraph in (root / "var/lib/dpkg/status").read_text().split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            architecture = {"arch": fields["Architecture"]}
            yield _component(
                PackageURL("deb", "debian", fields["Package"], fields["Version"], architecture)
            )


def _python(root: Path) -> Iterator[Component]:
    """Yield the Python that is no Debian package, if there is one."""
    for header in sorted(root.glob(_HEADERS)):
        for version in _PYTHON.findall(header.read_text()):
            yield _component(PackageURL("generic", None, "python", version))


def _distributions(root: Path) -> Iterator[Component]:
    folders = [str(folder) for pattern in _DISTRIBUTIONS for folder in root.glob(pattern)]
    for each in importlib.metadata.distributions(path=folders):
        name = re.sub(r"[-_.]+", "-", each.name).lower()
        yield _component(PackageURL("pypi", None, name, each.version))


def _jars(folder: Path) -> Iterator[Component]:
    """Yield the jars of Spark; one that does not say who it is counts by the name of its file."""
    for jar in sorted(folder.rglob("*.jar")):
        found = HashType(alg=HashAlgorithm.SHA_256, content=archives.sha256(jar))
        group, name, version = _coordinates(jar)
        path = {} if group else {"file_name": jar.name}
        purl = PackageURL("maven" if group else "generic", group, name, version, path)
        yield _component(purl, str(jar.relative_to(folder)), hashes=[found])


def _coordinates(jar: Path) -> tuple[str, str, str]:
    with zipfile.ZipFile(jar) as archive:
        poms = [name for name in archive.namelist() if _POM.fullmatch(name)]
        # A jar with several has others in itself: which is its own is unknown.
        if len(poms) == 1:
            lines = archive.read(poms[0]).decode(errors="replace").splitlines()
            said = dict(line.split("=", 1) for line in lines if "=" in line)
            if {"groupId", "artifactId", "version"} <= said.keys():
                return said["groupId"], said["artifactId"], said["version"]
    known = _JAR.fullmatch(jar.stem)
    return ("", known["name"], known["version"]) if known else ("", jar.stem, "")
